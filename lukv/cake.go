package lukv

import (
	"context"
	"math"
)

// cake scores an entry by the mean of the attention that the last w queries pay to it,
// plus its weighted variance: attention that shifts to an entry counts as well as
// attention that stays. The allocator of the same name divides the budget among layers.
//
// Qin et al., "CAKE", 2025, https://arxiv.org/abs/2503.12491; spec 3.5.
type cake struct {
	Window int     `json:"window"` // last queries observed, protected too
	Kernel int     `json:"kernel"` // odd width of the average pooling
	Gamma  float64 `json:"gamma"`  // weight of the variance
}

func (m cake) Validate() error {
	return firstOf(within("window", m.Window, 1, maxSlots), oddKernel(m.Kernel), within("gamma", m.Gamma, 0, math.MaxFloat32))
}

func (m cake) effective(T int) int { return max(min(m.Window, T-1), 0) }

func (m cake) Needs(T, n int) Needs { return Needs{Keys: true, Window: m.effective(T)} }

func (m cake) Protection(T, n int) Protection { return Protection{Window: m.effective(T)} }

func (m cake) Score(ctx context.Context, l *Layer) (Scores, error) {
	s := l.NewScores()
	return s, l.EachHead(ctx, func(h int, ws *Workspace) error { return m.head(ctx, l, h, ws, s[h]) })
}

func (m cake) head(ctx context.Context, l *Layer, h int, ws *Workspace, out []float32) error {
	T := len(out)
	for t := range out {
		out[t] = float32(math.Inf(1))
	}
	if T <= 1 {
		return nil
	}
	w := l.WindowRows(h, m.Window)
	n := T - w
	mean, spread, total := ws.Float64s(n), ws.Float64s(n), ws.zeros(n)
	err := l.WindowAttention(ctx, h, w, func(_ int, p []float32) {
		columnMeans(mean, p, w, T)
		columnVariances(spread, mean, p, w, T)
		for t := range mean {
			spread[t] = mean[t] + float64(m.Gamma*spread[t])
		}
		averagePool(mean, spread, m.Kernel)
		for t, v := range mean {
			total[t] += v
		}
	})
	for t, v := range total {
		out[t] = float32(v / float64(l.Group()))
	}
	return err
}

// columnVariances computes the unbiased variances of the first len(dst) columns
// of p, [w][T], with the given means; 0 for a single row.
func columnVariances(dst, mean []float64, p []float32, w, T int) {
	clear(dst)
	if w < 2 {
		return
	}
	for i := range w {
		for t, v := range p[i*T : i*T+len(dst)] {
			d := float64(v) - mean[t]
			dst[t] += float64(d * d)
		}
	}
	for t := range dst {
		dst[t] /= float64(w - 1)
	}
}
