package methods

import (
	"context"

	"github.com/lukv/lukv/lukv"
)

// valueNorm keeps the entries with the largest values.
type valueNorm struct {
	Sinks int `json:"sinks"` // first entries, always kept
}

func (valueNorm) Needs(T, n int) lukv.Needs { return lukv.Needs{Values: true} }

func (m valueNorm) Protection(T, n int) lukv.Protection { return lukv.Protection{Sinks: m.Sinks} }

func (valueNorm) Score(ctx context.Context, l *lukv.Layer) (lukv.Scores, error) {
	s := make(lukv.Scores, l.KVHeads)
	return s, l.EachHead(ctx, func(h int) error {
		s[h] = make([]float32, l.Len(h))
		return l.EachValues(ctx, h, func(lo, hi int, values []float32) {
			for i, v := range values[:(hi-lo)*l.HeadDim] {
				s[h][lo+i/l.HeadDim] += v * v
			}
		})
	})
}
