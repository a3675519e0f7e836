package lukv

import (
	"context"
	"fmt"
	"math"

	"github.com/lukv/lukv/internal/detmath"
	"github.com/lukv/lukv/kernels"
)

// expectedAttention scores an entry by the attention that future queries are
// expected to pay to it, if they are distributed like the past ones (Devoto et
// al., "Expected Attention", 2025; spec §3.3).
type expectedAttention struct {
	Future     int     `json:"future"`     // upcoming positions averaged over
	Sinks      int     `json:"sinks"`      // first entries, always kept
	Covariance bool    `json:"covariance"` // use second moments
	ValueNorm  bool    `json:"value_norm"` // weight by the value's norm
	Epsilon    float64 `json:"epsilon"`    // added before the value norm
}

func (m expectedAttention) Validate() error {
	return firstOf(within("future", m.Future, 1, 1<<20), within("sinks", m.Sinks, 0, maxSlots), within("epsilon", m.Epsilon, 0, math.MaxFloat64))
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
	if l.Accelerator != nil {
		o, err := m.scoring(l)
		if err != nil {
			return nil, err
		}
		return l.Accelerator.ExpectedScores(ctx, o)
	}
	rot := meanRotation(l.InvFreq, l.NextPosition, m.Future, l.RopeScale)
	s := make(Scores, l.KVHeads)
	err := l.EachHead(ctx, func(h int) (err error) {
		s[h], err = m.head(ctx, l, h, rot)
		return err
	})
	return s, err
}

func (m expectedAttention) head(ctx context.Context, l *Layer, h int, rot rotation) ([]float32, error) {
	T, D, G := l.Len(h), l.HeadDim, l.Group()
	out := l.newScores(T)
	// Sinks are positions of the text; what is left of them leads the cache.
	first := visible(l.positions(h), T, m.Sinks-1)
	for t := range first {
		out[t] = float32(math.Inf(1))
	}
	n := T - first
	if n == 0 {
		return out, nil
	}
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	z, total := ws.float64s(n), ws.zeros(n)
	mu, mean32 := ws.float64s(D), ws.float32s(D)
	var cov []float64
	var form, image []float32 // image: keys times the form, [tile][D]
	if m.Covariance {
		cov, form, image = ws.float64s(D*D), ws.float32s(D*D), ws.float32s(min(slotTile, T)*D)
	}
	root := l.logitDivisor()
	for g := range G {
		q := h*G + g
		l.Stats.Mean(q, mu)
		rot.apply(mu)
		for a, v := range mu {
			mean32[a] = float32(v / root)
		}
		if m.Covariance {
			if err := l.Stats.Cov(q, cov); err != nil {
				return nil, err
			}
			rot.conjugate(cov)
			quadraticForm(form, cov, D)
		}
		w := kernels.F32Matrix(form, len(form)/D, D)
		err := l.eachTile(ctx, l.Keys, h, T, &ws.attend.tile, func(lo, hi int, keys []float32) {
			if m.Covariance {
				l.CPU.MatMul(image, D, keys, D, hi-lo, &w, 0, D)
			}
			for t := max(lo, first); t < hi; t++ {
				k := keys[(t-lo)*D : (t-lo+1)*D]
				v := float64(l.CPU.Dot(k, mean32))
				if m.Covariance {
					v += float64(l.CPU.Dot(k, image[(t-lo)*D:(t-lo+1)*D]))
				}
				z[t-first] = v
			}
		})
		if err != nil {
			return nil, err
		}
		addSoftmax(total, z)
	}
	for t, v := range total {
		total[t] = v / float64(G)
	}
	if !m.ValueNorm {
		for t, v := range total {
			out[first+t] = float32(v)
		}
		return out, nil
	}
	err := l.eachTile(ctx, l.Values, h, T, &ws.attend.tile, func(lo, hi int, values []float32) {
		for t := max(lo, first); t < hi; t++ {
			norm := math.Sqrt(sumSquares(values[(t-lo)*D : (t-lo+1)*D]))
			out[t] = float32((total[t-first] + m.Epsilon) * norm)
		}
	})
	return out, err
}

// addSoftmax adds the softmax of z to dst; z is overwritten.
func addSoftmax(dst, z []float64) {
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

// quadraticForm writes Σ/(2D), the matrix of the second term.
func quadraticForm(dst []float32, cov []float64, D int) {
	for i, v := range cov {
		dst[i] = float32(v / float64(2*D))
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
