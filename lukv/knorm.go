package lukv

import (
	"context"
	"math"
)

// kNorm keeps the keys of smallest norm, which tend to receive more attention. It reads
// nothing but the keys.
//
// Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache
// Compression", 2024, https://arxiv.org/abs/2406.11430; spec 3.9.
type kNorm struct{}

// Signed says that scores may be negative.
func (kNorm) Signed() bool { return true }

func (kNorm) Needs(T, n int) Needs { return Needs{Keys: true} }

func (kNorm) Protection(T, n int) Protection { return Protection{} }

func (kNorm) Score(ctx context.Context, l *Layer) (Scores, error) {
	squares, err := l.SquaredKeyNorms(ctx)
	if err != nil {
		return nil, err
	}
	s := l.NewScores()
	for h, row := range s {
		for t := range row {
			row[t] = float32(-math.Sqrt(squares[h][t]))
		}
	}
	return s, nil
}
