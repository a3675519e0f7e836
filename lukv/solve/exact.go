package solve

import (
	"context"
	"fmt"
	"math"
)

// maxExactCells bounds the table of choices of [Exact], 4 bytes each.
const maxExactCells = 1 << 29

// ExactOptions are the parameters of [Exact]. The zero value is exact.
type ExactOptions struct {
	// Quantum Q > 1 considers only budgets that are multiples of Q above the
	// floor, plus the full head: time falls by Q², memory by Q. The result is
	// then optimal among those and may keep slightly less than the total.
	Quantum int

	// Progress, if set, is told how many of the units are done.
	Progress func(done, total int)
}

// Exact solves the allocation problem on the raw losses by dynamic programming
// (multiple-choice knapsack, spec 5.5): the lexicographically smallest optimum
// among all allocations of total entries. Arguments are as in [Greedy]. Loss
// and Bound of the result are equal unless a quantum was set; then Bound is
// minus infinity.
//
// Time O(U·B·T) and 4·U·B bytes for B entries to distribute, less with a
// quantum. Instances whose table would exceed 2 GiB are rejected.
func Exact(ctx context.Context, curves []*Curve, floors []int, total int, opt ExactOptions) (Allocation, error) {
	base, err := startCounts(curves, floors)
	if err != nil {
		return Allocation{}, fmt.Errorf("exact allocation: %w", err)
	}
	q := max(opt.Quantum, 1)
	room, fixed := 0, 0 // in quanta; in entries
	for u, c := range curves {
		if c != nil {
			fixed += c.protected + base[u]
			room += quanta(len(c.gains)-base[u], q)
		}
	}
	budget := min(max(total-fixed, 0)/q, room)
	if cells := float64(len(curves)) * float64(budget+1); cells > maxExactCells {
		return Allocation{}, fmt.Errorf("exact allocation: %d units and %d steps need a table of %.3g cells, expected at most %d: use a quantum of at least %d",
			len(curves), budget, cells, maxExactCells, q*int(math.Ceil(cells/maxExactCells)))
	}
	// rest[B] is the least loss of the units u … U-1 when they get exactly B
	// quanta. Working from the last unit to the first, the forward pass below
	// can take the smallest optimal choice of the first unit first.
	rest := make([]float64, budget+1)
	next := make([]float64, budget+1)
	for b := 1; b <= budget; b++ {
		rest[b] = math.Inf(1)
	}
	choice := make([][]int32, len(curves))
	reach := 0 // quanta that the later units can take
	var losses []float64
	for u := len(curves) - 1; u >= 0; u-- {
		c := curves[u]
		if c == nil {
			continue
		}
		losses = c.Losses(losses)
		items := quanta(len(c.gains)-base[u], q)
		choice[u] = make([]int32, budget+1)
		for b := range next {
			if b&0xff == 0 {
				if err := ctx.Err(); err != nil {
					return Allocation{}, err
				}
			}
			best, at := math.Inf(1), int32(0)
			for k := max(0, b-reach); k <= min(b, items); k++ {
				v := rest[b-k] + losses[min(base[u]+k*q, len(c.gains))]
				if v < best {
					best, at = v, int32(k)
				}
			}
			next[b], choice[u][b] = best, at
		}
		rest, next = next, rest
		reach += items
		if opt.Progress != nil {
			opt.Progress(len(curves)-u, len(curves))
		}
	}
	a := Allocation{Keep: make([]int, len(curves)), Partial: -1, Quantum: q}
	kept := make([]int, len(curves))
	b := budget
	for u, c := range curves {
		if c == nil {
			continue
		}
		k := int(choice[u][b])
		b -= k
		kept[u] = min(base[u]+k*q, len(c.gains))
		a.Keep[u] = c.protected + kept[u]
		a.Total += a.Keep[u]
	}
	a.Loss = lossOf(curves, kept)
	a.Bound = a.Loss
	if q > 1 {
		a.Bound = math.Inf(-1)
	}
	return a, nil
}

// quanta returns the number of steps of q that cover n entries.
func quanta(n, q int) int { return (n + q - 1) / q }
