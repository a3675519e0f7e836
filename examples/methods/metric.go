package methods

import (
	"context"

	"github.com/lukv/lukv/lukv"
)

// valueNorm keeps the entries with the largest values. It is made of a reduction, so
// that it runs on devices and allocates nothing while decoding.
type valueNorm struct {
	Sinks int `json:"sinks"` // first entries, always kept
}

func (valueNorm) Summary() string { return "Keeps the entries with the longest values" }

func (valueNorm) Needs(T, n int) lukv.Needs { return lukv.Needs{Values: true} }

func (m valueNorm) Protection(T, n int) lukv.Protection { return lukv.Protection{Sinks: m.Sinks} }

func (valueNorm) Score(ctx context.Context, l *lukv.Layer) (lukv.Scores, error) {
	squares, err := l.SquaredValueNorms(ctx)
	if err != nil {
		return nil, err
	}
	s := l.NewScores()
	for h, row := range s {
		for t := range row {
			row[t] = float32(squares[h][t])
		}
	}
	return s, nil
}

// keyChange keeps the entries whose keys, with the rotation undone, differ most from
// the key before them. It reads the entries itself, head by head.
type keyChange struct{}

func (keyChange) Needs(T, n int) lukv.Needs { return lukv.Needs{Keys: true} }

func (keyChange) Protection(T, n int) lukv.Protection { return lukv.Protection{Sinks: 1} }

func (keyChange) Score(ctx context.Context, l *lukv.Layer) (lukv.Scores, error) {
	s := l.NewScores()
	return s, l.EachHead(ctx, func(h int, ws *lukv.Workspace) error {
		last, key := ws.Float64s(l.HeadDim), ws.Float64s(l.HeadDim)
		var positions []int32
		if l.Positions != nil {
			positions = l.Positions(h)
		}
		return l.EachKeys(ctx, h, func(lo, hi int, keys []float32) {
			for t := lo; t < hi; t++ {
				p := t
				if positions != nil {
					p = int(positions[t])
				}
				l.Unrotate(key, keys[(t-lo)*l.HeadDim:(t-lo+1)*l.HeadDim], p)
				for i, v := range key {
					if t > 0 {
						s[h][t] += float32((v - last[i]) * (v - last[i]))
					}
				}
				copy(last, key)
			}
		})
	})
}
