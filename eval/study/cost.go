package study

import (
	"context"
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
	Repeats int // of which the median counts
	Session model.SessionOptions

	Progress func(done, total int) // may be nil
}

// decoded is the number of tokens decoded behind the first.
const decoded = 16

// Cost measures the cache at its peak and after compression, and the time to the
// first token (prefill, compression, one token of a question), of contexts of
// tokens in an order of their own: what they say does not matter.
func Cost(ctx context.Context, m *model.Model, o CostOptions) ([]report.Figure, error) {
	peak := report.Figure{ID: "memory-peak", Title: "Cache at its peak", X: "context (tokens)", Y: "MiB",
		Note: "The cache's bytes when they were most, while the context was read. Methods whose budgets are known beforehand cut each layer as soon as it is done."}
	kept := report.Figure{ID: "memory", Title: "Cache after compression", X: "context (tokens)", Y: "MiB", Note: "What answers are decoded from."}
	first := report.Figure{ID: "first-token", Title: "Time to the first token", X: "context (tokens)", Y: "seconds",
		Note: "Prefill, scoring, eviction and one token behind the context. Loading and tokenizing do not count."}
	decode := report.Figure{ID: "decoding", Title: "Time per token after that", X: "context (tokens)", Y: "milliseconds", Note: fmt.Sprintf("Mean of %d tokens; a shorter cache is read faster.", decoded)}
	figures := []*report.Figure{&peak, &kept, &first, &decode}
	for _, f := range figures {
		f.Subtitle = fmt.Sprintf("median of %d", o.Repeats)
	}
	done := 0
	for _, method := range o.Methods {
		lines := make([]report.Line, len(figures))
		for _, n := range o.Lengths {
			var all [4][]float64
			for range o.Repeats {
				if o.Progress != nil {
					o.Progress(done, len(o.Methods)*len(o.Lengths)*o.Repeats)
				}
				x, err := once(ctx, m, method, n, o.Session)
				if err != nil {
					return nil, fmt.Errorf("method %s, %d tokens: %w", method.Name, n, err)
				}
				for i := range x {
					all[i] = append(all[i], x[i])
				}
				done++
			}
			for i := range lines {
				slices.Sort(all[i])
				lines[i].Name = method.Name
				lines[i].X, lines[i].Y = append(lines[i].X, float64(n)), append(lines[i].Y, all[i][len(all[i])/2])
			}
		}
		for i, f := range figures {
			f.Lines = append(f.Lines, lines[i])
		}
	}
	return []report.Figure{peak, kept, first, decode}, nil
}

// once measures one context under one method.
func once(ctx context.Context, m *model.Model, method eval.Method, n int, o model.SessionOptions) (x [4]float64, err error) {
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
