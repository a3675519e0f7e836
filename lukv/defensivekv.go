package lukv

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// defensiveKV scores an entry by the most attention that any of the last w queries of
// any query head of its group pays to it, weighted by what its value adds to the
// output: it guards against the worst case, not the mean. It goes with the allocator
// global, pooled over a layer or, in the layer-adaptive form, over the model.
//
// "Taming the Fragility of KV Cache Eviction in LLM Inference", 2025,
// https://arxiv.org/abs/2510.13334; spec 3.11.
type defensiveKV struct {
	Window int `json:"window"` // last queries observed, protected too
	Kernel int `json:"kernel"` // odd width of the average pooling

	// Mass is the share of attention covered by the entries, best first, that
	// are kept before the scores compete, as far as the budget goes.
	Mass float64 `json:"mass"`

	// Compat takes the attention that the window pays to itself, which is
	// subtracted from Mass, from the columns that the published code uses.
	Compat bool `json:"compat"`
}

func (m defensiveKV) Validate() error {
	return firstOf(within("window", m.Window, 1, maxSlots), oddKernel(m.Kernel), within("mass", m.Mass, 0, 1))
}

func (m defensiveKV) effective(T int) int { return max(min(m.Window, T-1), 0) }

func (m defensiveKV) Needs(T, n int) Needs {
	return Needs{Keys: true, Values: true, Output: true, Window: m.effective(T), Budgets: true}
}

func (m defensiveKV) Protection(T, n int) Protection { return Protection{Window: m.effective(T)} }

func (m defensiveKV) Score(ctx context.Context, l *Layer) (Scores, error) {
	norms, err := l.OutputNorms(ctx)
	if err != nil {
		return nil, err
	}
	ws := l.takeWorkspace()
	defer l.giveWorkspace(ws)
	heads := make([]defensiveHead, l.KVHeads)
	for h := range heads {
		T := l.Len(h)
		heads[h].score, heads[h].plain, heads[h].norms = ws.zeros(T), ws.zeros(T), norms[h]
	}
	err = l.EachHead(ctx, func(h int, ws *Workspace) error { return m.observe(ctx, l, h, ws, &heads[h]) })
	if err != nil {
		return nil, err
	}
	shareNorms(l, ws, heads)
	s, top, own := l.NewScores(), 0.0, 0.0
	for h := range heads {
		if m.Compat {
			heads[h].own = heads[h].compat
		}
		own += heads[h].own / float64(len(heads))
		for t, v := range heads[h].score {
			heads[h].score[t] = v * heads[h].norms[t]
			if heads[h].score[t] > top { // unlike max it passes over NaN
				top = heads[h].score[t]
			}
		}
	}
	// own is the attention that the window pays to itself, over all heads.
	for h := range s {
		x := &heads[h]
		for _, t := range x.first(m.keepShare(l, h), m.Mass-own, m.Compat) {
			x.score[t] = top
		}
		for t := range s[h] {
			if s[h][t] = float32(math.Inf(1)); t < len(x.score) {
				s[h][t] = float32(x.score[t])
			}
		}
	}
	return s, nil
}

// keepShare is the fraction of its entries that head h may keep, 0 where
// budgets are not known.
func (m defensiveKV) keepShare(l *Layer, h int) float64 {
	switch {
	case l.Budgets != nil:
		return float64(l.Budgets[h]) / float64(max(1, l.Len(h)))
	case l.Share > 0:
		return l.keep()
	}
	return 0
}

// defensiveHead is what one KV head's window says about the entries outside it.
type defensiveHead struct {
	window int
	score  []float64 // worst case, not below the head's mean
	plain  []float64 // mean attention
	own    float64   // attention that the window pays to itself
	compat float64   // the same as the published code computes it
	norms  []float64 // share of the output norm among the heads
}

func (m defensiveKV) observe(ctx context.Context, l *Layer, h int, ws *Workspace, x *defensiveHead) error {
	T := l.Len(h)
	if T == 0 {
		return nil
	}
	w := 0
	if l.Queries != nil {
		w = min(m.effective(T), l.Queries.Len())
	}
	n := T - w
	x.window = w
	x.score, x.plain = x.score[:n], x.plain[:n]
	row, pooled := ws.Float64s(n), ws.Float64s(n)
	err := l.WindowAttention(ctx, h, w, func(_ int, p []float32) {
		for i := range w {
			var sum, smooth float64
			for t, v := range p[i*T : i*T+n] {
				row[t] = float64(v)
				sum += row[t]
				x.plain[t] += row[t]
			}
			x.own += 1 - sum
			for _, v := range row[max(0, n-w):] {
				x.compat += v
			}
			averagePool(pooled, row, m.Kernel)
			for _, v := range pooled {
				smooth += v
			}
			if smooth > 0 {
				scale := sum / smooth
				for t, v := range pooled {
					x.score[t] = max(x.score[t], v*scale)
				}
			}
		}
	})
	if err != nil {
		return err
	}
	var worst, total float64
	for t := range n {
		worst += x.score[t]
		total += x.plain[t]
	}
	rows := float64(max(1, w*l.Group()))
	x.own, x.compat = x.own/rows, x.compat/rows
	for t := range n {
		x.score[t] = max(x.score[t], worst/float64(n))
		if total > 0 {
			x.plain[t] /= total
		}
	}
	x.norms = x.norms[:n]
	return nil
}

// first returns the entries that are kept before the scores compete: the best
// ones that together stay below mass of the plain attention, at most the
// fraction keep of the entries outside the window, less the window.
func (x *defensiveHead) first(keep, mass float64, compat bool) []int32 {
	n := len(x.plain)
	room := int(math.Floor(float64(float64(n)*keep) - float64(x.window)))
	if n == 0 || room <= 0 {
		return nil
	}
	order := make([]int32, n)
	for t := range order {
		order[t] = int32(t)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(x.plain[b], x.plain[a]) })
	c, sum := 0, 0.0
	for c < n {
		if sum += x.plain[order[c]]; sum >= mass {
			break
		}
		c++
	}
	if compat && c == n {
		c = 0
	}
	return order[:min(c, room)]
}

// shareNorms divides every norm by the sum of the norms that the heads have at
// the same position.
func shareNorms(l *Layer, ws *Workspace, heads []defensiveHead) {
	positions, end := make([][]int32, len(heads)), 0
	for h := range heads {
		positions[h] = l.positions(h)
		if n := len(heads[h].norms); n > 0 {
			end = max(end, positionOf(positions[h], n-1)+1)
		}
	}
	sums := ws.zeros(end)
	for h := range heads {
		for t, v := range heads[h].norms {
			if v == v { // a NaN stays that head's own
				sums[positionOf(positions[h], t)] += v
			}
		}
	}
	for h := range heads {
		for t, v := range heads[h].norms {
			if sum := sums[positionOf(positions[h], t)]; sum > 0 {
				heads[h].norms[t] = v / sum
			}
		}
	}
}
