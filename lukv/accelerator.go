package lukv

import (
	"context"

	"github.com/lukv/lukv/kernels"
)

// Accelerator scores the entries of one layer in place, on a device, instead
// of reading them through Layer.Keys and Layer.Values. Every method returns
// newly allocated scores, one row of [Len(h)] per KV head h, exact up to the
// device's rounding. The metrics named snapkv, keydiff (without blocks),
// knorm and expected_attention use it; the others read the layer.
type Accelerator interface {
	// WindowScores returns SnapKV's smoothed attention of the last queries:
	// column means of the causal softmax of the o.Window newest rows, pooled and
	// reduced over the group; +Inf for the last o.Window entries.
	WindowScores(ctx context.Context, o kernels.WindowScoring) (Scores, error)

	// AnchorScores returns the negated cosine of every key with the mean of its
	// head's unit keys.
	AnchorScores(ctx context.Context) (Scores, error)

	// KeyNorms returns the length of every key.
	KeyNorms(ctx context.Context) (Scores, error)

	// ExpectedScores returns Expected Attention given moments of the rotated
	// queries.
	ExpectedScores(ctx context.Context, o kernels.ExpectedScoring) (Scores, error)
}

// scoring returns the parameters for a window of w queries.
func (m snapKV) scoring(w int) kernels.WindowScoring {
	return kernels.WindowScoring{Window: w, Kernel: m.Kernel, MaxPool: m.Pool == "max", GroupMax: m.Group == "max", ReduceFirst: m.Order == reduceFirst}
}

// outlasts reports whether every head has more entries than a window of w ≥ 1,
// as WindowScores requires.
func (m snapKV) outlasts(l *Layer, w int) bool {
	for h := range l.KVHeads {
		if w < 1 || l.Len(h) <= w {
			return false
		}
	}
	return true
}

// scoring returns the parameters of ExpectedScores for a layer.
func (m expectedAttention) scoring(l *Layer) (kernels.ExpectedScoring, error) {
	D := l.HeadDim
	o := kernels.ExpectedScoring{
		Mean: make([]float32, l.Heads*D), Sinks: make([]int, l.KVHeads),
		ValueNorm: m.ValueNorm, Epsilon: m.Epsilon,
	}
	for h := range o.Sinks {
		o.Sinks[h] = visible(l.positions(h), l.Len(h), m.Sinks-1)
	}
	rot := meanRotation(l.InvFreq, l.NextPosition, m.Future, l.RopeScale)
	mu, root := make([]float64, D), l.logitDivisor()
	var cov []float64
	if m.Covariance {
		cov, o.Form = make([]float64, D*D), make([]float32, l.Heads*D*D)
	}
	for q := range l.Heads {
		l.Stats.Mean(q, mu)
		rot.apply(mu)
		for a, v := range mu {
			o.Mean[q*D+a] = float32(v / root)
		}
		if !m.Covariance {
			continue
		}
		if err := l.Stats.Cov(q, cov); err != nil {
			return o, err
		}
		rot.conjugate(cov)
		form := o.Form[q*D*D : (q+1)*D*D]
		for a := range D {
			form[a*D+a] = float32(cov[a*D+a] / float64(2*D))
			for b := a + 1; b < D; b++ {
				form[a*D+b] = float32((cov[a*D+b] + cov[b*D+a]) / float64(2*D))
			}
		}
	}
	return o, nil
}

// SetMoments sets the statistics of query head q to those of n rows measured
// elsewhere: their mean, [D], and biased covariance, [D][D] (nil without second
// moments). No rows can be added afterwards.
func (s *QueryStats) SetMoments(q, n int, mean, cov []float64) {
	h, N := &s.heads[q], float64(n)
	h.n, h.filled = n, 0
	for a, v := range mean[:s.dim] {
		h.origin[a] = float32(v)
		h.sum[a] = float64((v - float64(h.origin[a])) * N)
	}
	if h.outer == nil {
		return
	}
	for a := range s.dim {
		for b := range s.dim {
			// The origin is the mean, up to rounding.
			da, db := h.sum[a]/N, h.sum[b]/N
			h.outer[a*s.dim+b] = float64((cov[a*s.dim+b] + float64(da*db)) * N)
		}
	}
}
