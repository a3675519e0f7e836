package lukv

import (
	"cmp"
	"math"
	"slices"
)

// RoundLocal turns one layer's local ratios (fraction removed per head, spec
// 5.7) into entries kept, T entries per head. mode is one of the Heads
// constants, "" for HeadsRemainder32. Every head keeps 1 … T, so heads
// raised from 0 may push the sum above the total; with allowEmpty a head may
// keep 0.
func RoundLocal(local []float64, T int, mode string, allowEmpty bool) []int {
	least := 1
	if allowEmpty {
		least = 0
	}
	out := roundGroup(local, T, mode)
	for h := range out {
		out[h] = min(max(out[h], least), T)
	}
	return out
}

// roundGroup rounds the ideal counts of a group of heads that share a total.
func roundGroup(local []float64, T int, mode string) []int {
	if mode == "" || mode == HeadsRemainder32 {
		ideal := make([]float32, len(local))
		for h, r := range local {
			ideal[h] = min(max(1-float32(r), 0), 1) * float32(T)
		}
		return largestRemainder(ideal, T)
	}
	ideal := make([]float64, len(local))
	for h, r := range local {
		ideal[h] = min(max(1-r, 0), 1) * float64(T)
	}
	if mode == HeadsFloor {
		out := make([]int, len(ideal))
		for h, v := range ideal {
			out[h] = int(v)
		}
		return out
	}
	return largestRemainder(ideal, T)
}

// largestRemainder rounds ideals down and gives what is missing from their
// rounded sum (at least one per head) to the largest fractional parts, at most
// one each; ties go to the lower head.
func largestRemainder[F float32 | float64](ideal []F, T int) []int {
	var sum F
	for _, v := range ideal {
		sum += v
	}
	n := len(ideal)
	total := min(max(int(math.RoundToEven(float64(sum))), n), n*T)
	return giveRemainders(ideal, total)
}

func giveRemainders[F float32 | float64](ideal []F, total int) []int {
	out := make([]int, len(ideal))
	order := make([]int, len(ideal))
	part := make([]F, len(ideal))
	for h, v := range ideal {
		down := F(math.Floor(float64(v)))
		out[h], part[h], order[h] = int(down), v-down, h
		total -= out[h]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(part[b], part[a]) })
	for _, h := range order[:min(max(total, 0), len(order))] {
		out[h]++
	}
	return out
}

// apportion divides exactly total among heads in proportion to weight (not
// negative), every head between least and cap: water-filling on one common
// factor, then largest remainders. Totals out of reach saturate.
func apportion(weight []float64, total, least, cap int) []int {
	n := len(weight)
	out := make([]int, n)
	total = min(max(total, mulClip(n, least)), mulClip(n, cap))
	at := func(h int, factor float64) float64 {
		return min(max(float64(weight[h]*factor), float64(least)), float64(cap))
	}
	sum := func(factor float64) float64 {
		s := 0.0
		for h := range weight {
			s += at(h, factor)
		}
		return s
	}
	// The sum grows with the factor. Positive floats are ordered like their bits, so
	// bisecting the bits finds the largest factor whose sum is below the total,
	// whatever the scale of the weights.
	lo, hi := uint64(0), math.Float64bits(math.MaxFloat64)
	for lo+1 < hi {
		mid := lo + (hi-lo)/2
		if sum(math.Float64frombits(mid)) < float64(total) {
			lo = mid
		} else {
			hi = mid
		}
	}
	factor := math.Float64frombits(lo)
	part := make([]float64, n)
	order := make([]int, n)
	given := 0
	for h := range weight {
		v := at(h, factor)
		out[h] = int(v)
		part[h] = v - float64(out[h])
		order[h] = h
		given += out[h]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(part[b], part[a]) })
	for given < total { // more than one round only if heads of weight 0 must fill up
		for _, h := range order {
			if given < total && out[h] < cap {
				out[h]++
				given++
			}
		}
	}
	return out
}

// takeFromLargest lowers the largest budgets, evenly, until excess is gone or
// all of them stand at floor, and returns what is left of excess. Among equals
// the lower head pays first.
func takeFromLargest(b []*int, excess, floor int) int {
	order := slices.Clone(b)
	slices.SortStableFunc(order, func(x, y *int) int { return *y - *x })
	for top := 0; excess > 0; {
		// order[:top] share the highest budget.
		for top < len(order) && *order[top] >= *order[0] {
			top++
		}
		level := floor
		if top < len(order) {
			level = max(level, *order[top])
		}
		drop := *order[0] - level
		if drop <= 0 {
			break
		}
		if all := mulClip(drop, top); all > excess {
			each, extra := excess/top, excess%top
			for i, p := range order[:top] {
				*p -= each
				if i < extra {
					*p--
				}
			}
			return 0
		}
		for _, p := range order[:top] {
			*p -= drop
		}
		excess -= drop * top
	}
	return excess
}

// trim lowers the largest counts until their sum is at most total, none below
// floor, so that rounding up does not break an absolute budget.
func trim(counts []int, total, floor int) {
	ptrs := make([]*int, len(counts))
	for i := range counts {
		ptrs[i] = &counts[i]
		total -= counts[i]
	}
	takeFromLargest(ptrs, -total, floor)
}

// raiseToFloor applies [Rounding].Floor to the layers of d that take part.
func (d *Demand) raiseToFloor(b [][]int) {
	total := 0
	for l, row := range b {
		if d.Includes(l) {
			for _, v := range row {
				total += v
			}
		}
	}
	floor := max((d.T+99)/100, d.Protection.Count(d.T))
	floor = min(floor, d.T, total/max(1, d.Units()))
	debt := 0
	var all []*int
	for l, row := range b {
		if !d.Includes(l) {
			continue
		}
		heads := make([]*int, len(row))
		raised := 0
		for h := range row {
			heads[h] = &row[h]
			if row[h] < floor {
				raised += floor - row[h]
				row[h] = floor
			}
		}
		debt += takeFromLargest(heads, raised, floor)
		all = append(all, heads...)
	}
	takeFromLargest(all, debt, floor)
}
