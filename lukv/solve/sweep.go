package solve

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// Levels is the number of compression levels of a profile: 1 % … 99 %.
const Levels = 99

// Scope of a sweep: where budget may move.
const (
	ScopeGlobal   = "global" // between all heads of the model (default)
	ScopePerLayer = "layer"  // between the heads of one layer only
)

// SweepOptions are the parameters of [Sweep]. The zero value is the default.
type SweepOptions struct {
	// Scope is ScopeGlobal (or "") or ScopePerLayer.
	Scope string

	// MinRetention is the share of a head's entries that it always keeps,
	// rounded half to even; protected entries count towards it. 0 means 0.01,
	// negative means none.
	MinRetention float64

	// Repair lets [Repair] improve every level. Budgets may then not be quite
	// monotone from level to level.
	Repair bool

	// Progress, if set, is told how many of the total steps are done.
	Progress func(done, total int)
}

// LevelSet holds the solutions of all compression levels.
type LevelSet struct {
	Layers, KVHeads int

	// Keep[i][l][h] is the number of entries kept at compression (i+1)/100, 0
	// in layers that take no part.
	Keep [Levels][][]int

	Loss, Bound [Levels]float64 // raw loss and its certified lower bound
	Moves       [Levels]int     // repair moves
}

// Sweep solves all 99 levels (spec 5.4): level i removes
// round((i+1) · entries / 100) of all entries, half to even, as far as
// protection and minimum retention allow. curves is [L][K]; a nil layer takes
// no part (sliding windows).
func Sweep(ctx context.Context, curves [][]*Curve, opt SweepOptions) (*LevelSet, error) {
	kvHeads := 0
	for l, layer := range curves {
		if layer == nil {
			continue
		}
		if kvHeads == 0 {
			kvHeads = len(layer)
		}
		if len(layer) != kvHeads || kvHeads == 0 {
			return nil, fmt.Errorf("profile sweep: layer %d has %d heads, expected %d", l, len(layer), kvHeads)
		}
		if slices.Contains(layer, nil) {
			return nil, fmt.Errorf("profile sweep: layer %d lacks the curve of a head", l)
		}
	}
	if kvHeads == 0 {
		return nil, fmt.Errorf("profile sweep: no layer takes part")
	}
	set := &LevelSet{Layers: len(curves), KVHeads: kvHeads}
	for i := range set.Keep {
		set.Keep[i] = newCounts(len(curves), kvHeads)
	}
	var groups [][]int // layers that share a budget
	switch opt.Scope {
	case "", ScopeGlobal:
		all := make([]int, len(curves))
		for l := range all {
			all[l] = l
		}
		groups = [][]int{all}
	case ScopePerLayer:
		for l, layer := range curves {
			if layer != nil {
				groups = append(groups, []int{l})
			}
		}
	default:
		return nil, fmt.Errorf("profile sweep: unknown scope %q, expected %q or %q", opt.Scope, ScopeGlobal, ScopePerLayer)
	}
	for g, layers := range groups {
		progress := func(level int) {
			if opt.Progress != nil {
				opt.Progress(g*Levels+level, len(groups)*Levels)
			}
		}
		if err := set.solve(ctx, curves, layers, kvHeads, opt, progress); err != nil {
			return nil, err
		}
	}
	return set, nil
}

// solve fills in all levels of the given layers.
func (set *LevelSet) solve(ctx context.Context, curves [][]*Curve, layers []int, kvHeads int, opt SweepOptions, progress func(int)) error {
	units := make([]*Curve, 0, len(layers)*kvHeads)
	for _, l := range layers {
		if curves[l] == nil {
			units = append(units, make([]*Curve, kvHeads)...)
			continue
		}
		units = append(units, curves[l]...)
	}
	floors := make([]int, len(units))
	entries := 0
	for u, c := range units {
		if c != nil {
			floors[u] = retention(opt.MinRetention, c.Len())
			entries += c.Len()
		}
	}
	totals := make([]int, Levels)
	for i := range totals {
		// Multiplied first: 0.07 · 150 in floating point lies above 10.5.
		totals[i] = entries - int(math.RoundToEven(float64((i+1)*entries)/100))
	}
	solutions, err := Greedy(ctx, units, floors, totals)
	if err != nil {
		return err
	}
	for i := range solutions {
		a := &solutions[i]
		if opt.Repair {
			if *a, err = Repair(ctx, units, floors, *a); err != nil {
				return err
			}
		}
		for j, l := range layers {
			copy(set.Keep[i][l], a.Keep[j*kvHeads:(j+1)*kvHeads])
		}
		set.Loss[i] += a.Loss
		set.Bound[i] += a.Bound
		set.Moves[i] += a.Moves
		progress(i + 1)
	}
	return nil
}

// retention returns the fewest entries that a head of T entries keeps.
func retention(share float64, T int) int {
	switch {
	case share < 0:
		return 0
	case share == 0:
		share = 0.01
	}
	return min(T, int(math.RoundToEven(share*float64(T))))
}

// newCounts returns zeroed [L][K] counts, contiguous in memory.
func newCounts(layers, kvHeads int) [][]int {
	flat := make([]int, layers*kvHeads)
	out := make([][]int, layers)
	for l := range out {
		out[l] = flat[l*kvHeads : (l+1)*kvHeads : (l+1)*kvHeads]
	}
	return out
}
