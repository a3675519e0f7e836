package lukv

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// criticalKV refines an inner metric by what a value adds to the layer's output: part
// of a head's budget goes to the best entries of the inner metric, the rest to the best
// by inner score times output norm. Allocators see the inner scores alone.
//
// Feng et al., "Identify Critical KV Cache in LLM Inference from an Output Perturbation
// Perspective", 2025, https://arxiv.org/abs/2502.03805; spec 3.10.
type criticalKV struct {
	Metric     InnerMetric `json:"metric"`
	FirstStage float64     `json:"first_stage"` // share of the budget that the inner scores decide
	Epsilon    float64     `json:"epsilon"`     // added to the inner score before it is weighted

	// Shift shifts the inner scores of a head so that none is below 0, for
	// metrics whose scores may be negative; without it those are rejected.
	Shift bool `json:"shift"`
}

// signed is implemented by metrics whose scores may be negative.
type signed interface{ Signed() bool }

func (m criticalKV) Validate() error {
	if m.Metric.Metric == nil {
		return errors.New("metric: found none")
	}
	if err := firstOf(within("first_stage", m.FirstStage, 0, 1), within("epsilon", m.Epsilon, 0, math.MaxFloat32)); err != nil {
		return err
	}
	inner := MetricConfigOf(m.Metric.Metric).Name
	switch x := m.Metric.Metric.(type) {
	case expectedAttention:
		if x.ValueNorm {
			return fmt.Errorf("metric: found %s with value_norm, expected it off: the output norm takes its place", inner)
		}
	case Refiner:
		return fmt.Errorf("metric: found %s, which refines by itself", inner)
	case signed:
		if x.Signed() && !m.Shift {
			return fmt.Errorf("metric: found %s, whose scores may be negative, expected shift to be set", inner)
		}
	}
	return nil
}

func (m criticalKV) Needs(T, n int) Needs {
	needs := m.Metric.Needs(T, n)
	needs.Values, needs.Output = true, true
	return needs
}

func (m criticalKV) Protection(T, n int) Protection { return m.Metric.Protection(T, n) }

// ProfileProtection returns that of the inner metric.
func (m criticalKV) ProfileProtection() Protection {
	if p, ok := m.Metric.Metric.(ProfileProtecter); ok {
		return p.ProfileProtection()
	}
	return Protection{}
}

func (m criticalKV) Score(ctx context.Context, l *Layer) (Scores, error) {
	return m.Metric.Score(ctx, l)
}

// Refine leaves protected entries alone: they have a score of +Inf or are
// left to the selection.
func (m criticalKV) Refine(ctx context.Context, l *Layer, s Scores, budgets []int) (Scores, error) {
	norms, err := l.OutputNorms(ctx)
	if err != nil {
		return nil, err
	}
	out := l.NewScores()
	return out, l.EachHead(ctx, func(h int, _ *Workspace) error {
		row, err := m.inner(l, h, s[h])
		if err != nil {
			return err
		}
		first := 0
		if budgets != nil {
			first = max(int(m.FirstStage*float64(budgets[h])), min(l.GuaranteedBudget, budgets[h]), min(1, budgets[h]))
		}
		weighByNorms(out[h], row, norms[h], first, m.Epsilon)
		return nil
	})
}

// inner returns the inner scores of head h, shifted if asked for.
func (m criticalKV) inner(l *Layer, h int, row []float32) ([]float32, error) {
	low := float32(0)
	for _, v := range row {
		if v < low && !math.IsInf(float64(v), -1) {
			low = v
		}
	}
	if low == 0 {
		return row, nil
	}
	if !m.Shift {
		return nil, fmt.Errorf("refine scores of layer %d, kv head %d: found an inner score of %v, expected none below 0 without shift", l.Index, h, low)
	}
	shifted := make([]float32, len(row))
	for t, v := range row {
		shifted[t] = v - low
	}
	return shifted, nil
}

// weighByNorms writes to out +Inf for the n best entries and those already at +Inf,
// and (score + eps) · norm for all others.
func weighByNorms(out, row []float32, norms []float64, n int, eps float64) {
	for t, v := range row {
		if out[t] = v; !math.IsInf(float64(v), 1) {
			out[t] = float32((float64(v) + eps) * norms[t])
		}
	}
	for _, t := range Keep(make([]int32, 0, min(max(n, 0), len(row))), row, n, Protection{}) {
		out[t] = float32(math.Inf(1))
	}
}
