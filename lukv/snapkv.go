package lukv

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// snapKV scores an entry by the mean attention that the last w queries pay to it.
// Pooling along positions keeps neighbours of an important entry, too.
//
// Li et al., "SnapKV", 2024, https://arxiv.org/abs/2404.14469; spec 3.1.
type snapKV struct {
	Window       int    `json:"window"`        // last queries observed, protected too
	Kernel       int    `json:"kernel"`        // odd width of the pooling
	Pool         string `json:"pool"`          // "max" or "avg"
	Group        string `json:"group"`         // query heads of a group: "mean" or "max"
	Order        string `json:"order"`         // poolFirst or reduceFirst
	ShrinkWindow bool   `json:"shrink_window"` // halve a window that would take up the whole budget
}

// Orders of pooling and reducing the group.
const (
	poolFirst   = "pool-then-reduce"
	reduceFirst = "reduce-then-pool"
)

// oddKernel checks the width of a pooling.
func oddKernel(n int) error {
	if n < 1 || n%2 == 0 {
		return fmt.Errorf("kernel: found %d, expected an odd number", n)
	}
	return nil
}

func (m snapKV) Validate() error {
	return firstOf(
		within("window", m.Window, 1, maxSlots), oddKernel(m.Kernel),
		oneOf("pool", m.Pool, "max", "avg"), oneOf("group", m.Group, "mean", "max"),
		oneOf("order", m.Order, poolFirst, reduceFirst))
}

// effective returns the window for T entries of which n may stay (0: not
// known).
func (m snapKV) effective(T, n int) int {
	w := m.Window
	if m.ShrinkWindow && n > 0 && n <= w {
		w = max(1, n/2)
	}
	return max(min(w, T-1), 0)
}

func (m snapKV) Needs(T, n int) Needs {
	return Needs{Keys: true, Window: m.effective(T, n), WindowMeans: true}
}

func (m snapKV) Protection(T, n int) Protection { return Protection{Window: m.effective(T, n)} }

func (m snapKV) Score(ctx context.Context, l *Layer) (Scores, error) {
	w := m.effective(l.longest(), l.Share)
	means := make([][]float64, l.Heads)
	if w > 0 { // some head has entries outside the window
		var err error
		if means, err = l.WindowMeans(ctx, w); err != nil {
			return nil, err
		}
	}
	s := l.NewScores()
	return s, l.EachHead(ctx, func(h int, ws *Workspace) error {
		m.head(l, h, means[h*l.Group():(h+1)*l.Group()], ws, s[h])
		return nil
	})
}

// head smooths the mean attention of the query heads of a group, [G][T], and reduces it
// to the scores of their KV head.
func (m snapKV) head(l *Layer, h int, means [][]float64, ws *Workspace, out []float32) {
	T := len(out)
	n := 0 // columns outside the window
	if T > 1 {
		n = T - l.WindowRows(h, m.effective(T, l.Share))
	}
	for t := n; t < T; t++ {
		out[t] = float32(math.Inf(1))
	}
	pooled, total := ws.Float64s(n), ws.zeros(n)
	for g, mean := range means {
		x := mean[:n]
		if m.Order == poolFirst {
			m.pool(pooled, x)
			x = pooled
		}
		for t, v := range x {
			switch {
			case g == 0:
				total[t] = v
			case m.Group == "max":
				total[t] = max(total[t], v)
			default:
				total[t] += v
			}
		}
	}
	if m.Group == "mean" {
		for t := range total {
			total[t] /= float64(l.Group())
		}
	}
	x := total
	if m.Order == reduceFirst {
		m.pool(pooled, total)
		x = pooled
	}
	for t, v := range x {
		out[t] = float32(v)
	}
}

// pool smooths x along positions with stride 1. Averages count the zeros
// beyond both ends, maxima do not.
func (m snapKV) pool(dst, x []float64) {
	if m.Pool == "avg" {
		averagePool(dst, x, m.Kernel)
		return
	}
	if min(m.Kernel, len(x)) >= wideKernel {
		poolWide(dst, x, m.Kernel, func(a, b float64) float64 { return max(a, b) })
		return
	}
	half := m.Kernel / 2
	for t := range x {
		lo, hi := max(t-half, 0), min(t+half+1, len(x))
		v := x[lo]
		for _, y := range x[lo+1 : hi] {
			v = max(v, y)
		}
		dst[t] = v
	}
}

// averagePool writes to dst the running mean of x over kernel positions,
// counting zeros beyond both ends.
func averagePool(dst, x []float64, kernel int) {
	if min(kernel, len(x)) >= wideKernel {
		poolWide(dst, x, kernel, func(a, b float64) float64 { return a + b })
		for t := range x {
			dst[t] /= float64(kernel)
		}
		return
	}
	half := kernel / 2
	for t := range x {
		var v float64
		for _, y := range x[max(t-half, 0):min(t+half+1, len(x))] {
			v += y
		}
		dst[t] = v / float64(kernel)
	}
}

// wideKernel is the width from which poolWide pools.
const wideKernel = 64

// poolWide combines the values of x within kernel/2 of every position. A window
// consists of the end of one block of kernel values and the start of the next, whose
// combinations are known: time O(len(x)), however wide the kernel.
func poolWide(dst, x []float64, kernel int, combine func(a, b float64) float64) {
	// starts[t] combines the block of t up to t, ends[t] from t on.
	starts, ends := slices.Clone(x), slices.Clone(x)
	for t := 1; t < len(x); t++ {
		if t%kernel != 0 {
			starts[t] = combine(starts[t-1], x[t])
		}
	}
	for t := len(x) - 2; t >= 0; t-- {
		if (t+1)%kernel != 0 {
			ends[t] = combine(x[t], ends[t+1])
		}
	}
	for t := range x {
		lo, hi := max(t-kernel/2, 0), min(t+kernel/2, len(x)-1)
		switch {
		case lo/kernel != hi/kernel:
			dst[t] = combine(ends[lo], starts[hi])
		case lo%kernel == 0:
			dst[t] = starts[hi]
		default: // the text ends before the block
			dst[t] = ends[lo]
		}
	}
}
