package solve

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Fractions divides a cache among units whose losses are known at some kept
// fractions: loss[u][i] is what unit u loses when it keeps grid[i] of its
// entries, linear in between. It returns, for every level i, the fraction that
// each unit keeps when (i+1)/100 of all entries are removed, [99][len(loss)]:
// the division that loses least when every loss is replaced by its lower
// convex hull, flat from the minimum on.
//
// The problem is separable and convex, so taking the hulls' segments steepest
// first is exact; among equally steep ones the lower unit goes first. What is
// left when nothing more can be gained is spread over the flat segments in
// proportion to their lengths. If the smallest fractions, grid[0], exceed a
// level's total, the level saturates there. No unit keeps more at a higher level.
// Time O(n log n) in the number n of grid points of all units.
//
// Errors: a grid that does not ascend from above 0 to 1, losses of the
// wrong length, losses that are negative or not finite.
func Fractions(grid []float64, loss [][]float64) ([][]float64, error) {
	if err := checkGrid(grid); err != nil {
		return nil, fmt.Errorf("solve for fractions: %w", err)
	}
	var segments []segment
	for u, y := range loss {
		if len(y) != len(grid) {
			return nil, fmt.Errorf("solve for fractions: %d losses of unit %d, expected %d", len(y), u, len(grid))
		}
		for i, v := range y {
			if !(v >= 0) || math.IsInf(v, 1) {
				return nil, fmt.Errorf("solve for fractions: loss %v of unit %d at %v, expected finite and not negative", v, u, grid[i])
			}
		}
		segments = appendSegments(segments, u, grid, y)
	}
	slices.SortStableFunc(segments, func(a, b segment) int {
		return cmp.Or(cmp.Compare(b.slope, a.slope), cmp.Compare(a.unit, b.unit))
	})
	out := make([][]float64, Levels)
	for i := range out {
		kept := make([]float64, len(loss))
		for u := range kept {
			kept[u] = grid[0]
		}
		// One division, so that all 99 totals are correctly rounded hundredths.
		total := float64(Levels-i) * float64(len(loss)) / (Levels + 1)
		take(kept, segments, total-grid[0]*float64(len(loss)))
		out[i] = kept
	}
	return out, nil
}

// checkGrid reports a grid that does not ascend from above 0 to 1.
func checkGrid(grid []float64) error {
	for i, x := range grid {
		if !(x > 0 && x <= 1) || i > 0 && x <= grid[i-1] {
			return fmt.Errorf("grid point %d is %v, expected ascending points above 0, the last one 1", i, x)
		}
	}
	if len(grid) == 0 || grid[len(grid)-1] != 1 {
		return fmt.Errorf("a grid of %d points that does not end at 1", len(grid))
	}
	return nil
}

// segment is a straight part of a hull: from lo to hi unit gains slope per
// fraction.
type segment struct {
	unit          int
	lo, hi, slope float64
}

// take spends rest on segments, in order, and writes what the units then keep.
func take(kept []float64, segments []segment, rest float64) {
	flat := 0.0
	for _, s := range segments {
		if s.slope == 0 {
			flat += s.hi - s.lo
		}
	}
	for _, s := range segments {
		switch {
		case rest <= 0:
			return
		case s.slope == 0:
			kept[s.unit] = s.lo + float64(min(1, rest/flat)*(s.hi-s.lo))
		case rest >= s.hi-s.lo:
			kept[s.unit] = s.hi
			rest -= s.hi - s.lo
		default:
			kept[s.unit] = min(s.lo+rest, s.hi)
			return
		}
	}
}

// appendSegments appends the segments of the lower convex hull of (grid, y) up to
// its lowest point, and a flat one after it.
func appendSegments(dst []segment, unit int, grid, y []float64) []segment {
	var hull []int
	lowest := 0
	for i := range grid {
		if y[i] < y[lowest] {
			lowest = i
		}
	}
	for i := range grid[:lowest+1] {
		for len(hull) > 1 {
			a, b := hull[len(hull)-2], hull[len(hull)-1]
			// b stays if it lies below the line from a to i.
			if float64((y[b]-y[a])*(grid[i]-grid[a])) < float64((y[i]-y[a])*(grid[b]-grid[a])) {
				break
			}
			hull = hull[:len(hull)-1]
		}
		hull = append(hull, i)
	}
	slope := math.Inf(1)
	for k := 1; k < len(hull); k++ {
		a, b := hull[k-1], hull[k]
		// Points on a line within rounding are all on the hull, with quotients in any
		// order; segments of a unit must be taken from left to right.
		slope = min(slope, (y[a]-y[b])/(grid[b]-grid[a]))
		dst = append(dst, segment{unit, grid[a], grid[b], slope})
	}
	if lowest < len(grid)-1 {
		dst = append(dst, segment{unit, grid[lowest], 1, 0})
	}
	return dst
}
