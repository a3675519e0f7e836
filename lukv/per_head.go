package lukv

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
)

// perHead ranks every head with one of several metrics: the one that a profile of
// output errors names for the ratio (spec 5.9). Only entries that all of them protect
// are protected; the others that a head's metric protects rank first in it.
type perHead struct {
	Metrics []InnerMetric `json:"metrics"`

	// choice is the metric of each head, [L][K]; nil: fixed for all.
	choice [][]int
	fixed  int
}

func (m perHead) Validate() error {
	if n := len(m.Metrics); n < 2 || n > 16 {
		return fmt.Errorf("metrics: found %d, expected 2 to 16", n)
	}
	var names []string
	fitted := 0
	for _, x := range m.Metrics {
		if x.Metric == nil {
			return errors.New("metrics: found none where a metric was expected")
		}
		name := MetricConfigOf(x.Metric).String()
		if slices.Contains(names, name) {
			return fmt.Errorf("metrics: found %s twice", name)
		}
		names = append(names, name)
		if NeedsRankings(x.Metric) {
			if fitted++; fitted > 1 {
				return errors.New("metrics: found learned twice, expected it once: a profile holds the rankings of one")
			}
		}
		_, nested := x.Metric.(perHead)
		_, refines := x.Metric.(Refiner)
		r, rerotates := x.Metric.(interface{ Rerotates() bool })
		if nested || refines || rerotates && r.Rerotates() {
			return fmt.Errorf("metrics: found %s, expected metrics that rank once and leave positions alone", name)
		}
	}
	_, err := m.union(maxSlots, 0)
	return err
}

// used returns the indices of the metrics that rank some head.
func (m perHead) used() []int {
	used := []int{m.fixed}
	if m.choice != nil {
		used = nil
		for _, row := range m.choice {
			used = append(used, row...)
		}
		slices.Sort(used)
	}
	return slices.Compact(used)
}

// union returns the needs of the metrics in use together.
func (m perHead) union(T, n int) (Needs, error) {
	var needs Needs
	which := m.used()
	if m.choice == nil {
		which = make([]int, len(m.Metrics))
		for i := range which {
			which[i] = i
		}
	}
	for _, i := range which {
		union, e := needs.Union(m.Metrics[i].Needs(T, n))
		if e != nil {
			return needs, fmt.Errorf("metrics: %w", e)
		}
		needs = union
	}
	return needs, nil
}

func (m perHead) Needs(T, n int) Needs {
	needs, _ := m.union(T, n) // Validate has seen the error
	return needs
}

// Protection returns the protected set that all of the metrics share.
func (m perHead) Protection(T, n int) Protection {
	p := m.Metrics[0].Protection(T, n)
	for _, x := range m.Metrics[1:] {
		q := x.Protection(T, n)
		p.Sinks, p.Window = min(p.Sinks, q.Sinks), min(p.Window, q.Window)
	}
	return p
}

// bind returns the metric with each head's choice set to what the profile names at
// the level nearest to ratio.
func (m perHead) bind(p *Profile, ratio float64) (perHead, error) {
	if p == nil || p.OutputErrors == nil || len(p.OutputErrors.MetricOf) == 0 {
		return m, errors.New("metric per_head: found no profile that names the metric of each head, expected one of output errors")
	}
	row := p.OutputErrors.MetricOf[ProfileIndex(ratio)]
	if worst := slices.Max(row); worst >= len(m.Metrics) {
		return m, fmt.Errorf("metric per_head: the profile gives a head metric %d of %d", worst, len(m.Metrics))
	}
	for l := range p.layers {
		m.choice = append(m.choice, row[l*p.kvHeads:(l+1)*p.kvHeads])
	}
	return m, nil
}

// parts returns, for every inner metric, a copy of m that ranks all heads with it.
func (m perHead) parts() []Metric {
	out := make([]Metric, len(m.Metrics))
	for i := range out {
		part := m
		part.fixed = i
		out[i] = part
	}
	return out
}

func (m perHead) Score(ctx context.Context, l *Layer) (Scores, error) {
	out := make(Scores, l.KVHeads)
	of := func(h int) int {
		if m.choice == nil {
			return m.fixed
		}
		return m.choice[l.Index][h]
	}
	for i, inner := range m.Metrics {
		part := *l
		part.Accelerator = nil // a device scores whole layers
		part.wanted = make([]bool, l.KVHeads)
		for h := range part.wanted {
			part.wanted[h] = of(h) == i
		}
		if !slices.Contains(part.wanted, true) {
			continue
		}
		if !headByHead(inner.Metric) {
			part.wanted = nil
		}
		s, err := inner.Score(ctx, &part)
		if err != nil {
			return nil, err
		}
		all, first := m.Protection(l.longest(), l.Share), ProfiledProtection(inner.Metric)
		for h := range out {
			if of(h) != i {
				continue
			}
			out[h] = slices.Clone(s[h])
			for t := range out[h] {
				if T := len(out[h]); !all.Has(t, T) && (first.Has(t, T) || math.IsInf(float64(out[h][t]), 1)) {
					out[h][t] = math.MaxFloat32
				}
			}
		}
	}
	return out, nil
}

// headByHead reports whether a metric ranks each head independently of the
// others, so that it can be asked for only some of them.
func headByHead(m Metric) bool {
	switch m.(type) {
	case snapKV, keyDiff, expectedAttention, kNorm, observed, h2o, streamingLLM, cake, keyDistance, learned:
		return true
	}
	return false
}
