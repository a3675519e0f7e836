package solve

import (
	"context"
	"fmt"
	"slices"
)

// Allocation is one solution: the number of entries each unit keeps. Units
// are (layer, KV head) pairs, layer-major.
type Allocation struct {
	Keep  []int // [U] entries kept, protected ones included; 0 for a nil curve
	Total int   // sum of Keep

	Loss  float64 // raw loss of Keep
	Bound float64 // lower bound on the loss of any allocation of Total entries

	// Partial is the unit that stopped inside a block of its projection, -1 if
	// none did: the only place where greedy can be suboptimal.
	Partial int

	Moves   int // moves that [Repair] made
	Quantum int // step of the budgets that [Exact] considered; 0: not from Exact
}

// Greedy minimises the convex surrogate of the summed losses (spec 5.4) for
// each of the given totals in a single sweep over the blocks of all curves.
// totals count protected entries and may come in any order; a total below the
// floors saturates at the floors, one above the number of entries at that
// number. floors [U] are the fewest entries that each unit keeps; nil means
// the protected ones alone. A nil curve marks a unit that takes no part.
//
// Equal gains go to the higher unit first, and a block is exhausted before an
// equal one of another unit starts, so at most one unit stops inside a block.
// With a floor inside a block the surrogate of the entries above the floor is
// that of the whole curve, as in the authors' sweep.
//
// Time O(N + B log U) for N entries in B blocks. Cancelling ctx returns its
// error.
func Greedy(ctx context.Context, curves []*Curve, floors, totals []int) ([]Allocation, error) {
	base, err := startCounts(curves, floors)
	if err != nil {
		return nil, fmt.Errorf("greedy allocation: %w", err)
	}
	order := make([]int, len(totals)) // indices of totals, ascending total
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return totals[a] - totals[b] })

	kept := slices.Clone(base) // unprotected entries per unit
	given := 0
	var heap blockHeap
	for u, c := range curves {
		if c == nil {
			continue
		}
		given += c.protected + kept[u]
		if kept[u] < len(c.gains) {
			heap.push(nextBlock(c, u, kept[u]))
		}
	}
	out := make([]Allocation, len(totals))
	counts := make([][]int, len(totals)) // in the order of order
	steps := 0
	var cur blockCursor // the block being handed out
	for k, i := range order {
		for given < totals[i] {
			if cur.left == 0 {
				if len(heap) == 0 {
					break
				}
				if steps++; steps&0x3fff == 0 {
					if err := ctx.Err(); err != nil {
						return nil, err
					}
				}
				cur = heap[0]
				c := curves[cur.unit]
				if next := kept[cur.unit] + cur.left; next < len(c.gains) {
					heap.replaceTop(nextBlock(c, cur.unit, next))
				} else {
					heap.pop()
				}
			}
			take := min(cur.left, totals[i]-given)
			kept[cur.unit] += take
			cur.left -= take
			given += take
		}
		counts[k] = slices.Clone(kept)
		out[i].Total = given
		out[i].Partial = -1
		if cur.left > 0 {
			out[i].Partial = cur.unit
		}
	}
	if err := fillLosses(ctx, curves, counts, order, out); err != nil {
		return nil, err
	}
	return out, nil
}

// startCounts turns floors into unprotected entries kept from the start, [U].
func startCounts(curves []*Curve, floors []int) ([]int, error) {
	if floors != nil && len(floors) != len(curves) {
		return nil, fmt.Errorf("%d floors for %d units", len(floors), len(curves))
	}
	base := make([]int, len(curves))
	if floors == nil {
		return base, nil
	}
	for u, c := range curves {
		if c != nil {
			base[u] = min(max(floors[u]-c.protected, 0), len(c.gains))
		}
	}
	return base, nil
}

// fillLosses completes out[order[k]] from counts[k], which ascend in k for
// every unit. One backward pass per curve serves all of them.
func fillLosses(ctx context.Context, curves []*Curve, counts [][]int, order []int, out []Allocation) error {
	for k, i := range order {
		keep := make([]int, len(curves))
		for u, c := range curves {
			if c != nil {
				keep[u] = c.protected + counts[k][u]
			}
		}
		out[i].Keep = keep
	}
	sags := make([]float64, len(order))
	for u, c := range curves {
		if c == nil {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		loss, pos, sag, sagAt := 0.0, len(c.gains), 0.0, -1
		for k := len(order) - 1; k >= 0; k-- {
			b := counts[k][u]
			for pos > b {
				pos--
				loss += float64(c.gains[pos])
			}
			if sagAt != b { // neighbouring levels often share a count
				sag, sagAt = c.sag(b), b
			}
			out[order[k]].Loss += loss
			sags[k] += sag
		}
	}
	for k, i := range order {
		out[i].Bound = out[i].Loss - sags[k]
	}
	return nil
}

// lossOf evaluates an allocation given as unprotected entries per unit.
func lossOf(curves []*Curve, kept []int) float64 {
	total := 0.0
	for u, c := range curves {
		if c == nil {
			continue
		}
		loss := 0.0
		for i := len(c.gains) - 1; i >= kept[u]; i-- {
			loss += float64(c.gains[i])
		}
		total += loss
	}
	return total
}

// blockCursor is a unit's next block: the projected gain and how many entries
// of the block remain to be handed out.
type blockCursor struct {
	gain float64
	unit int
	left int
}

func nextBlock(c *Curve, unit, from int) blockCursor {
	start, end := c.block(from)
	return blockCursor{c.mean(start, end), unit, end - from}
}

// blockHeap is a max-heap by gain, then by unit.
type blockHeap []blockCursor

func (h blockHeap) before(i, j int) bool {
	if h[i].gain != h[j].gain {
		return h[i].gain > h[j].gain
	}
	return h[i].unit > h[j].unit
}

func (h *blockHeap) push(b blockCursor) {
	*h = append(*h, b)
	s := *h
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s.before(i, parent) {
			break
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
}

func (h blockHeap) replaceTop(b blockCursor) {
	h[0] = b
	for i := 0; ; {
		best := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h.before(child, best) {
				best = child
			}
		}
		if best == i {
			return
		}
		h[i], h[best] = h[best], h[i]
		i = best
	}
}

func (h *blockHeap) pop() {
	s := *h
	last := s[len(s)-1]
	*h = s[:len(s)-1]
	if len(*h) > 0 {
		h.replaceTop(last)
	}
}
