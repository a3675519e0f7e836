package solve

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// maxMoves bounds the work of one Repair; each move lowers the loss, and in
// practice two or three suffice.
const maxMoves = 64

// Repair improves an allocation of [Greedy] by raw losses (spec 5.5): a unit
// that stopped inside a block gives entries back to the others, or takes some
// from them: any amount inside the block with one partner, or the amount that
// reaches a block end with two. The best move is made, repeatedly, until no
// unit is inside a block or no move helps. The total stays the same, floors
// are respected, and the result never loses more than a; Bound stays valid.
//
// Time O(U · block length) per move.
func Repair(ctx context.Context, curves []*Curve, floors []int, a Allocation) (Allocation, error) {
	base, err := startCounts(curves, floors)
	if err != nil {
		return a, fmt.Errorf("repair: %w", err)
	}
	if len(a.Keep) != len(curves) {
		return a, fmt.Errorf("repair: allocation of %d units for %d curves", len(a.Keep), len(curves))
	}
	r := repairer{curves: curves, base: base, kept: make([]int, len(curves))}
	for u, c := range curves {
		if c == nil {
			continue
		}
		r.kept[u] = a.Keep[u] - c.protected
		if r.kept[u] < base[u] || r.kept[u] > len(c.gains) {
			return a, fmt.Errorf("repair: unit %d keeps %d entries, expected %d to %d", u, a.Keep[u], base[u]+c.protected, c.Len())
		}
	}
	moves := 0
	for ; moves < maxMoves; moves++ {
		move, err := r.best(ctx)
		if err != nil {
			return a, err
		}
		if move == nil {
			break
		}
		for _, p := range move {
			r.kept[p.unit] += p.by
		}
	}
	loss := lossOf(curves, r.kept)
	if moves == 0 || loss >= a.Loss {
		return a, nil
	}
	out := a
	out.Keep = slices.Clone(a.Keep)
	out.Partial = -1
	for u, c := range curves {
		if c == nil {
			continue
		}
		out.Keep[u] = c.protected + r.kept[u]
		if r.inside(u) {
			out.Partial = u
		}
	}
	out.Loss = loss
	out.Moves += moves
	return out, nil
}

// shift changes what one unit keeps.
type shift struct {
	unit, by int
}

type repairer struct {
	curves []*Curve
	base   []int // [U] fewest unprotected entries
	kept   []int // [U] unprotected entries now
	first  []partner
	second []partner
}

// partner is the best unit to trade a number of entries with.
type partner struct {
	unit  int
	value float64 // change of the summed raw loss on the partner's side
}

// inside reports whether unit u is strictly inside a block.
func (r *repairer) inside(u int) bool {
	c, k := r.curves[u], r.kept[u]
	if c == nil || k <= 0 || k >= len(c.gains) {
		return false
	}
	start, _ := c.block(k)
	return start != k
}

// best returns the move that lowers the loss most, nil if none does.
func (r *repairer) best(ctx context.Context) ([]shift, error) {
	var move []shift
	delta := 0.0
	for h := range r.curves {
		if !r.inside(h) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		start, end := r.curves[h].block(r.kept[h])
		for _, span := range []struct{ dir, n int }{
			{-1, r.kept[h] - max(start, r.base[h])},
			{+1, end - r.kept[h]},
		} {
			if span.n > 0 {
				r.trade(h, span.dir, span.n, &delta, &move)
			}
		}
	}
	return move, nil
}

// trade considers changing unit h by dir·x entries, 1 <= x <= n, against
// the other units, and records the best move that beats *delta.
func (r *repairer) trade(h, dir, n int, delta *float64, move *[]shift) {
	r.partners(h, -dir, n)
	own := 0.0 // change of h's loss
	mass := 0.0
	for x := 1; x <= n; x++ {
		g := r.gain(h, dir, x)
		mass += g
		own -= float64(float64(dir) * g)
		d := own + r.first[x].value
		if d < *delta && -d > 1e-12*mass {
			*delta = d
			*move = []shift{{h, dir * x}, {r.first[x].unit, -dir * x}}
		}
	}
	for x := 1; x <= n/2; x++ {
		p, q := r.first[x], r.first[n-x]
		if p.unit == q.unit {
			alt, altq := r.second[x], r.second[n-x]
			if alt.value+q.value < p.value+altq.value {
				p = alt
			} else {
				q = altq
			}
		}
		d := own + p.value + q.value
		if d < *delta && -d > 1e-12*mass {
			*delta = d
			*move = []shift{{h, dir * n}, {p.unit, -dir * x}, {q.unit, -dir * (n - x)}}
		}
	}
}

// gain returns the importance of the x-th entry that unit u would take (dir
// +1) or give up (dir -1).
func (r *repairer) gain(u, dir, x int) float64 {
	if dir > 0 {
		return float64(r.curves[u].gains[r.kept[u]+x-1])
	}
	return float64(r.curves[u].gains[r.kept[u]-x])
}

// partners fills first[x] and second[x], 1 <= x <= n: the two units other than
// h whose losses fare best when they change by dir·x entries. Units that
// cannot change by that much count as +Inf.
func (r *repairer) partners(h, dir, n int) {
	none := partner{-1, math.Inf(1)}
	r.first = slices.Grow(r.first[:0], n+1)[:n+1]
	r.second = slices.Grow(r.second[:0], n+1)[:n+1]
	for x := range r.first {
		r.first[x], r.second[x] = none, none
	}
	for u, c := range r.curves {
		if u == h || c == nil {
			continue
		}
		room := len(c.gains) - r.kept[u]
		if dir < 0 {
			room = r.kept[u] - r.base[u]
		}
		v := 0.0
		for x := 1; x <= min(n, room); x++ {
			v -= float64(float64(dir) * r.gain(u, dir, x))
			switch {
			case v < r.first[x].value:
				r.second[x] = r.first[x]
				r.first[x] = partner{u, v}
			case v < r.second[x].value:
				r.second[x] = partner{u, v}
			}
		}
	}
}
