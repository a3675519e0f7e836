package methods

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/lukv"
)

// chunks gives every entry the mean score of its chunk, so that a metric keeps
// or drops whole chunks.
type chunks struct {
	Metric lukv.InnerMetric `json:"metric"`
	Size   int              `json:"size"`
}

func (m chunks) Validate() error {
	if m.Size < 1 {
		return fmt.Errorf("size: found %d, expected at least 1", m.Size)
	}
	return nil
}

func (m chunks) Needs(T, n int) lukv.Needs { return m.Metric.Needs(T, n) }

func (m chunks) Protection(T, n int) lukv.Protection { return m.Metric.Protection(T, n) }

func (m chunks) Score(ctx context.Context, l *lukv.Layer) (lukv.Scores, error) {
	s, err := m.Metric.Score(ctx, l)
	for _, row := range s {
		for ; len(row) > 0; row = row[min(m.Size, len(row)):] {
			chunk, sum := row[:min(m.Size, len(row))], float32(0)
			for _, v := range chunk {
				sum += v
			}
			for t := range chunk {
				chunk[t] = sum / float32(len(chunk))
			}
		}
	}
	return s, err
}

// atLeast raises every budget of another allocator to a number of entries.
type atLeast struct {
	Allocator lukv.InnerAllocator `json:"allocator"`
	Entries   int                 `json:"entries"`
}

func (a atLeast) BudgetsKnown() lukv.Knowledge { return a.Allocator.BudgetsKnown() }

// WithProfile passes a profile on to the inner allocator, if it reads one.
func (a atLeast) WithProfile(p *lukv.Profile) (lukv.Allocator, error) {
	inner, err := lukv.BindProfile(a.Allocator.Allocator, p)
	a.Allocator.Allocator = inner
	return a, err
}

func (a atLeast) Budgets(d lukv.Demand, s []lukv.Scores) ([][]int, error) {
	out, err := a.Allocator.Budgets(d, s)
	for _, row := range out {
		for h := range row {
			row[h] = max(row[h], a.Entries)
		}
	}
	return out, err
}
