package lukv

import (
	"context"
	"fmt"
	"math"

	"github.com/lukv/lukv/internal/detmath"
)

// expectedAttention scores an entry by the attention that future queries are expected
// to pay to it. Future queries are taken to be distributed like the past ones, rotated
// to the positions to come.
//
// Devoto et al., "Expected Attention", 2025, https://arxiv.org/abs/2510.00636; spec
// 3.3.
type expectedAttention struct {
	Future     int     `json:"future"`     // upcoming positions averaged over
	Sinks      int     `json:"sinks"`      // first entries, always kept
	Covariance bool    `json:"covariance"` // use second moments
	ValueNorm  bool    `json:"value_norm"` // weight by the value's norm
	Epsilon    float64 `json:"epsilon"`    // added before the value norm
}

func (m expectedAttention) Validate() error {
	return firstOf(within("future", m.Future, 1, 1<<16), within("sinks", m.Sinks, 0, maxSlots), within("epsilon", m.Epsilon, 0, math.MaxFloat64))
}

func (m expectedAttention) Needs(T, n int) Needs {
	return Needs{Keys: true, Values: m.ValueNorm, Stats: true, Covariance: m.Covariance, StatsSkip: m.Sinks}
}

func (m expectedAttention) Protection(T, n int) Protection {
	return Protection{Sinks: min(m.Sinks, T)}
}

func (m expectedAttention) Score(ctx context.Context, l *Layer) (Scores, error) {
	if l.HeadDim%2 != 0 {
		return nil, fmt.Errorf("score layer %d with expected_attention: found odd head dimension %d, rope needs an even one", l.Index, l.HeadDim)
	}
	logits, err := m.logits(ctx, l)
	if err != nil {
		return nil, err
	}
	var squares [][]float64 // of the values' norms
	if m.ValueNorm {
		if squares, err = l.SquaredValueNorms(ctx); err != nil {
			return nil, err
		}
	}
	s := l.NewScores()
	return s, l.EachHead(ctx, func(h int, ws *Workspace) error {
		// Sinks are positions of the text; those that remain are first in the cache.
		first := visible(l.positions(h), len(s[h]), m.Sinks-1)
		for t := range first {
			s[h][t] = float32(math.Inf(1))
		}
		total := ws.zeros(len(s[h]) - first)
		for _, z := range logits[h*l.Group() : (h+1)*l.Group()] {
			addSoftmax(total, z[first:])
		}
		for i, v := range total {
			v /= float64(l.Group())
			if t := first + i; m.ValueNorm {
				s[h][t] = float32((v + m.Epsilon) * math.Sqrt(squares[h][t]))
			} else {
				s[h][t] = float32(v)
			}
		}
		return nil
	})
}

// logits returns the expected logits of future queries with every key, [H][Len(h)]:
// k·μ/√D + kᵀΣk/(2D) for the rotated mean μ and covariance Σ of a query head.
func (m expectedAttention) logits(ctx context.Context, l *Layer) ([][]float64, error) {
	D, root := l.HeadDim, l.logitDivisor()
	rot := meanRotation(l.InvFreq, l.NextPosition, m.Future, l.RopeScale)
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	mu, linear := ws.Float64s(D), ws.Float32s(l.Heads*D)
	var cov []float64
	var form []float32
	if m.Covariance {
		cov, form = ws.Float64s(D*D), ws.Float32s(l.Heads*D*D)
	}
	for q := range l.Heads {
		l.Stats.Mean(q, mu)
		rot.apply(mu)
		for a, v := range mu {
			linear[q*D+a] = float32(v / root)
		}
		if !m.Covariance {
			continue
		}
		if err := l.Stats.Cov(q, cov); err != nil {
			return nil, err
		}
		rot.conjugate(cov)
		for i, v := range cov {
			form[q*D*D+i] = float32(v / float64(2*D))
		}
	}
	return l.QuadraticForms(ctx, linear, form)
}

// addSoftmax adds the softmax of z to dst; z is overwritten.
func addSoftmax(dst, z []float64) {
	if len(z) == 0 {
		return
	}
	top := z[0]
	for _, v := range z {
		top = max(top, v)
	}
	var sum float64
	for t, v := range z {
		z[t] = detmath.Exp(v - top)
		sum += z[t]
	}
	for t, v := range z {
		dst[t] += v / sum
	}
}

// rotation is an average of RoPE rotations in the half-split layout: the
// matrix [[C, -S], [S, C]] with diagonal C and S.
type rotation struct{ cos, sin []float64 } // [D/2]

// meanRotation averages the rotations of positions first … first+count-1.
func meanRotation(invFreq []float64, first, count int, scale float64) rotation {
	if scale == 0 {
		scale = 1
	}
	r := rotation{make([]float64, len(invFreq)), make([]float64, len(invFreq))}
	for i, f := range invFreq {
		var c, s float64
		for p := first; p < first+count; p++ {
			sin, cos := detmath.SinCos(float64(p) * f)
			c += cos
			s += sin
		}
		r.cos[i] = float64(c/float64(count)) * scale
		r.sin[i] = float64(s/float64(count)) * scale
	}
	return r
}

// apply rotates x, [D], in place.
func (r rotation) apply(x []float64) {
	half := len(r.cos)
	for i, c := range r.cos {
		a, b, s := x[i], x[half+i], r.sin[i]
		x[i] = float64(a*c) - float64(b*s)
		x[half+i] = float64(a*s) + float64(b*c)
	}
}

// conjugate replaces the symmetric x, [D][D], by R x Rᵀ.
func (r rotation) conjugate(x []float64) {
	half := len(r.cos)
	D := 2 * half
	for row := range D {
		r.apply(x[row*D : (row+1)*D]) // x Rᵀ
	}
	for i, c := range r.cos {
		s := r.sin[i]
		top, bottom := x[i*D:(i+1)*D], x[(half+i)*D:(half+i+1)*D]
		for b := range top {
			u, v := top[b], bottom[b]
			top[b] = float64(u*c) - float64(v*s)
			bottom[b] = float64(u*s) + float64(v*c)
		}
	}
}
