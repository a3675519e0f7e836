package study

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/model"
)

// CostOptions say what [Cost] measures.
type CostOptions struct {
	Lengths []int // tokens of the context
	Methods []eval.Method
	Repeats int // of each point; the median counts
	Session model.SessionOptions

	State *State // may be nil

	// Progress, if not nil, is told how many of the total context tokens are done,
	// and how many of those (from) by an earlier run.
	Progress func(from, done, total int)
}

// measures is the number of values of a point, one for each figure.
const measures = 4

// decoded is the number of tokens decoded after the first.
const decoded = 16

// Cost measures the cache at its peak and after compression, and the time to the
// first token (prefill, compression, one token of a question), of contexts of
// arbitrary tokens: their meaning does not matter.
func Cost(ctx context.Context, m *model.Model, o CostOptions) ([]report.Figure, error) {
	if err := o.check(m); err != nil {
		return nil, err
	}
	methods, err := methodInputs(o.Methods)
	if err != nil {
		return nil, err
	}
	if err := o.State.begin(o.Lengths, o.Repeats, methods); err != nil {
		return nil, err
	}
	figures := o.figures()
	from, work, total := 0, 0, 0
	for _, method := range o.Methods {
		for _, n := range o.Lengths {
			if total += n * o.Repeats; o.State.has(costPart(method.Name, n)) {
				from += n * o.Repeats
			}
		}
	}
	work = from
	for _, method := range o.Methods {
		for _, n := range o.Lengths {
			var medians [measures]float64
			done, err := o.State.take(costPart(method.Name, n), &medians)
			if err != nil {
				return nil, err
			}
			if done {
				addPoint(figures, method.Name, n, medians)
				continue
			}
			var all [measures][]float64
			for range o.Repeats {
				if o.Progress != nil {
					o.Progress(from, work, total)
				}
				x, err := once(ctx, m, method, n, o.Session)
				if err != nil {
					return nil, fmt.Errorf("method %s, %d tokens: %w", method.Name, n, err)
				}
				for i := range x {
					all[i] = append(all[i], x[i])
				}
				work += n
			}
			for i := range all {
				medians[i] = median(all[i])
			}
			addPoint(figures, method.Name, n, medians)
			if err := errors.Join(o.State.put(costPart(method.Name, n), medians), o.State.save()); err != nil {
				return nil, err
			}
		}
	}
	return figures, nil
}

// median sorts x, which is not empty, and returns its median.
func median(x []float64) float64 {
	slices.Sort(x)
	return (x[(len(x)-1)/2] + x[len(x)/2]) / 2
}

// costPart names a point.
func costPart(method string, n int) string { return fmt.Sprintf("%s, %d tokens", method, n) }

// check refuses lengths that cannot be measured.
func (o *CostOptions) check(m *model.Model) error {
	s, err := m.NewSession(o.Session)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, n := range o.Lengths {
		if n < 1 {
			return fmt.Errorf("a context of %d tokens: expected at least 1", n)
		}
		if most := s.MaxTokens() - 1 - decoded; n > most {
			return fmt.Errorf("a context of %d tokens: %w: with the %d tokens after it, it exceeds %d; the largest length is %d",
				n, model.ErrContextFull, 1+decoded, s.MaxTokens(), max(0, most))
		}
	}
	return nil
}

// figures returns the figures without points: peak, memory, first token, decoding.
func (o *CostOptions) figures() []report.Figure {
	all := []report.Figure{
		{ID: "memory-peak", Title: "Cache at its peak", X: "context (tokens)", Y: "MiB",
			Note: "The cache's bytes when they were most, while the context was read. Methods whose budgets are known beforehand cut each layer as soon as it is done."},
		{ID: "memory", Title: "Cache after compression", X: "context (tokens)", Y: "MiB", Note: "What answers are decoded from."},
		{ID: "first-token", Title: "Time to the first token", X: "context (tokens)", Y: "seconds",
			Note: "Prefill, scoring, eviction and one token after the context. Loading and tokenizing do not count."},
		{ID: "decoding", Title: "Time per token after that", X: "context (tokens)", Y: "milliseconds", Note: fmt.Sprintf("Mean of %d tokens; a shorter cache is read faster.", decoded)},
	}
	for i := range all {
		all[i].Subtitle = fmt.Sprintf("median of %d", o.Repeats)
	}
	return all
}

// addPoint adds a point of a method to each figure.
func addPoint(figures []report.Figure, method string, n int, y [measures]float64) {
	for i := range figures {
		f := &figures[i]
		at := slices.IndexFunc(f.Lines, func(l report.Line) bool { return l.Name == method })
		if at < 0 {
			at = len(f.Lines)
			f.Lines = append(f.Lines, report.Line{Name: method})
		}
		f.Lines[at].X, f.Lines[at].Y = append(f.Lines[at].X, float64(n)), append(f.Lines[at].Y, y[i])
	}
}

// once measures one context under one method.
func once(ctx context.Context, m *model.Model, method eval.Method, n int, o model.SessionOptions) (x [measures]float64, err error) {
	o.Compression = method.Policy
	s, err := m.NewSession(o)
	if err != nil {
		return x, err
	}
	defer s.Close()
	vocabulary := m.Config().Vocab
	tokens := make([]int32, n)
	for i := range tokens { // a fixed walk through ordinary tokens
		tokens[i] = int32(vocabulary/4 + (i*7919)%(vocabulary/2))
	}
	start := time.Now()
	if err := s.Prefill(ctx, tokens); err != nil {
		return x, err
	}
	const mib = 1 << 20
	st := s.Stats()
	x[0], x[1] = float64(st.PeakBytes)/mib, float64(st.CacheBytes)/mib
	if err := s.Prefill(ctx, tokens[:1]); err != nil {
		return x, err
	}
	x[2] = time.Since(start).Seconds()
	start = time.Now()
	for range decoded {
		if err := s.Prefill(ctx, tokens[:1]); err != nil {
			return x, err
		}
	}
	x[3] = time.Since(start).Seconds() * 1000 / decoded
	return x, nil
}
