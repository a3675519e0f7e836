package lukv

import (
	"context"
	"errors"
	"fmt"
	"math"
)

// chunkKV keeps entries in chunks of neighbours, ranked by the mean score that an inner
// metric gives their entries, so that phrases stay whole. Budgets stay exact: if the
// last chunk fits only in part, its first entries are kept.
//
// Liu et al., "ChunkKV", 2025, https://arxiv.org/abs/2502.00299; spec 3.16.
type chunkKV struct {
	Metric InnerMetric `json:"metric"`
	Size   int         `json:"size"` // positions per chunk

	// Heads says who ranks: "layer", all KV heads together, which then keep the
	// same chunks as far as their budgets reach, or "each", every head on
	// its own.
	Heads string `json:"heads"`
}

func (m chunkKV) Validate() error {
	if m.Metric.Metric == nil {
		return errors.New("metric: found none")
	}
	if _, ok := m.Metric.Metric.(Refiner); ok {
		return fmt.Errorf("metric: found %s, which ranks in two steps, expected one that ranks in one", MetricConfigOf(m.Metric.Metric).Name)
	}
	return firstOf(within("size", m.Size, 1, maxSlots), oneOf("heads", m.Heads, "layer", "each"))
}

func (m chunkKV) Needs(T, n int) Needs { return m.Metric.Needs(T, n) }

func (m chunkKV) Protection(T, n int) Protection { return m.Metric.Protection(T, n) }

// ProfileProtection returns that of the inner metric.
func (m chunkKV) ProfileProtection() Protection {
	if p, ok := m.Metric.Metric.(ProfileProtecter); ok {
		return p.ProfileProtection()
	}
	return Protection{}
}

// Signed reports whether the inner metric's scores may be negative.
func (m chunkKV) Signed() bool {
	s, ok := m.Metric.Metric.(signed)
	return ok && s.Signed()
}

func (m chunkKV) Score(ctx context.Context, l *Layer) (Scores, error) {
	inner, err := m.Metric.Score(ctx, l)
	if err != nil {
		return nil, err
	}
	if err := l.checkScores(MetricConfigOf(m.Metric.Metric).Name, inner); err != nil {
		return nil, err
	}
	s := l.NewScores()
	together := m.collect(l, 0, len(inner), inner)
	for h, row := range inner {
		pos, means := l.positions(h), together
		if m.Heads == "each" {
			means = m.collect(l, h, h+1, inner)
		}
		for t, v := range row {
			// Entries without a finite score of their own keep the one they have.
			if s[h][t] = v; finite(v) {
				s[h][t] = means[int32(positionOf(pos, t)/m.Size)].mean()
			}
		}
	}
	return s, nil
}

func finite(v float32) bool { return !math.IsInf(float64(v), 0) && v == v }

// chunkSum adds up the finite scores of a chunk.
type chunkSum struct {
	sum float64
	n   int
}

func (c chunkSum) mean() float32 { return float32(c.sum / float64(max(1, c.n))) }

// collect sums the scores of each chunk over heads [from,to), by chunk
// number.
func (m chunkKV) collect(l *Layer, from, to int, inner Scores) map[int32]chunkSum {
	sums := map[int32]chunkSum{}
	for h := from; h < to; h++ {
		pos := l.positions(h)
		for t, v := range inner[h] {
			if finite(v) {
				chunk := int32(positionOf(pos, t) / m.Size)
				c := sums[chunk]
				sums[chunk] = chunkSum{c.sum + float64(v), c.n + 1}
			}
		}
	}
	return sums
}
