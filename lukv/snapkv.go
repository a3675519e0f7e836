package lukv

import (
	"context"
	"math"
)

// snapKV scores an entry by the attention that the last w queries pay to it,
// smoothed along positions (Li et al., "SnapKV", 2024; spec §3.1).
type snapKV struct {
	window, kernel int
	maxPool        bool
	groupMax       bool // reduce the group by maximum instead of mean
	reduceFirst    bool // reduce the group before pooling
	shrink         bool
}

func newSnapKV(p *params) Metric {
	w, k, pool, first := 32, 7, "max", "pool-then-reduce"
	switch p.preset("kvpress", "snapkv", "snapkv-longbench", "adakv") {
	case "kvpress":
		w, k, pool = 64, 5, "avg"
	case "snapkv":
		k, pool = 5, "avg"
	case "adakv":
		first = "reduce-then-pool"
	}
	m := snapKV{window: p.integer("window", p.cfg.Window, w, 1, maxSlots)}
	m.kernel = p.integer("kernel", p.cfg.Kernel, k, 1, maxSlots)
	if m.kernel%2 == 0 {
		p.fail("kernel", m.kernel, "an odd number")
	}
	m.maxPool = p.choice("pool", p.cfg.Pool, pool, "max", "avg") == "max"
	m.groupMax = p.choice("group", p.cfg.Group, "mean", "mean", "max") == "max"
	m.reduceFirst = p.choice("order", p.cfg.Order, first, "pool-then-reduce", "reduce-then-pool") == "reduce-then-pool"
	m.shrink = p.boolean(p.cfg.ShrinkWindow, false)
	return m
}

func (snapKV) Name() string { return "snapkv" }

func (m snapKV) Config() MetricConfig {
	c := MetricConfig{
		Name: m.Name(), Window: new(m.window), Kernel: new(m.kernel), Pool: "avg", Group: "mean",
		Order: "pool-then-reduce", ShrinkWindow: new(m.shrink),
	}
	if m.maxPool {
		c.Pool = "max"
	}
	if m.groupMax {
		c.Group = "max"
	}
	if m.reduceFirst {
		c.Order = "reduce-then-pool"
	}
	return c
}

// effective is the window for T entries of which n may stay (0: not known).
func (m snapKV) effective(T, n int) int {
	w := m.window
	if m.shrink && n > 0 && n <= w {
		w = max(1, n/2)
	}
	return max(min(w, T-1), 0)
}

func (m snapKV) Needs(T, n int) Needs {
	return Needs{Keys: true, Window: m.effective(T, n), WindowScores: true}
}

func (m snapKV) Protection(T, n int) Protection { return Protection{Window: m.effective(T, n)} }

func (m snapKV) Score(ctx context.Context, l *Layer) (Scores, error) {
	needs := m.Needs(l.longest(), l.Share)
	if w := needs.Window; l.Accelerator != nil && m.outlasts(l, w) {
		needs.Window = 0 // the device has the queries
		if err := l.check(m.Name(), needs); err != nil {
			return nil, err
		}
		return l.Accelerator.WindowScores(ctx, m.scoring(w))
	}
	if err := l.check(m.Name(), needs); err != nil {
		return nil, err
	}
	s := make(Scores, l.KVHeads)
	err := l.eachHead(ctx, func(h int) (err error) {
		s[h], err = m.head(ctx, l, h)
		return err
	})
	return s, err
}

func (m snapKV) head(ctx context.Context, l *Layer, h int) ([]float32, error) {
	T := l.Len(h)
	out := make([]float32, T)
	w := m.effective(T, l.Share)
	if w > 0 {
		w = min(w, l.Queries.Len())
	}
	n := max(T-w, 0) // columns outside the window
	for t := n; t < T; t++ {
		out[t] = float32(math.Inf(1))
	}
	if T <= 1 {
		for t := range out {
			out[t] = float32(math.Inf(1))
		}
		return out, nil
	}
	G := l.Group()
	p := make([]float32, w*T)
	mean, pooled, total := make([]float64, n), make([]float64, n), make([]float64, n)
	first := l.Queries.Len() - w
	var sc attendScratch
	for g := range G {
		row := func(i int) []float32 { return l.Queries.Row(first+i, h*G+g) }
		pos := func(i int) int { return l.Queries.Position(first + i) }
		if err := l.attend(ctx, h, w, T, row, pos, p, &sc); err != nil {
			return nil, err
		}
		clear(mean)
		for i := range w {
			for t, v := range p[i*T : i*T+n] {
				mean[t] += float64(v)
			}
		}
		for t := range mean {
			mean[t] /= float64(w)
		}
		x := mean
		if !m.reduceFirst {
			m.pool(pooled, mean)
			x = pooled
		}
		for t, v := range x {
			switch {
			case g == 0:
				total[t] = v
			case m.groupMax:
				total[t] = max(total[t], v)
			default:
				total[t] += v
			}
		}
	}
	if !m.groupMax {
		for t := range total {
			total[t] /= float64(G)
		}
	}
	x := total
	if m.reduceFirst {
		m.pool(pooled, total)
		x = pooled
	}
	for t, v := range x {
		out[t] = float32(v)
	}
	return out, nil
}

// pool smooths x along positions with stride 1. Averages count the zeros
// beyond both ends, maxima do not.
func (m snapKV) pool(dst, x []float64) {
	half := m.kernel / 2
	for t := range x {
		lo, hi := max(t-half, 0), min(t+half+1, len(x))
		if m.maxPool {
			v := x[lo]
			for _, y := range x[lo+1 : hi] {
				v = max(v, y)
			}
			dst[t] = v
			continue
		}
		var v float64
		for _, y := range x[lo:hi] {
			v += y
		}
		dst[t] = v / float64(m.kernel)
	}
}
