package lukv

import (
	"context"
	"math"
)

// kNorm keeps the keys of smallest norm (Devoto et al., 2024; spec §3.9).
type kNorm struct{}

// Signed says that scores may be negative.
func (kNorm) Signed() bool { return true }

func (kNorm) Needs(T, n int) Needs { return Needs{Keys: true} }

func (kNorm) Protection(T, n int) Protection { return Protection{} }

func (kNorm) Score(ctx context.Context, l *Layer) (Scores, error) {
	if l.Accelerator != nil {
		s, err := l.Accelerator.KeyNorms(ctx)
		for h := range s {
			for t, v := range s[h] {
				s[h][t] = -v
			}
		}
		return s, err
	}
	s, D := make(Scores, l.KVHeads), l.HeadDim
	err := l.EachHead(ctx, func(h int) error {
		s[h] = l.newScores(l.Len(h))
		return l.eachTile(ctx, l.Keys, h, l.Len(h), nil, func(lo, hi int, keys []float32) {
			for t := lo; t < hi; t++ {
				s[h][t] = float32(-math.Sqrt(sumSquares(keys[(t-lo)*D : (t-lo+1)*D])))
			}
		})
	})
	return s, err
}
