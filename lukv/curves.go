package lukv

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/lukv/solve"
)

// lossCurve orders the unprotected entries of a head by score (descending, ties
// by position, NaN as -Inf) and projects their importances. importance and
// scores have one value per position, [T]; neither is kept. Passing the
// importance as scores gives the curve of a metric that ranks perfectly, which
// is the ablation without the optimality gap (spec 5.8).
//
// Errors: lengths that differ, an importance that is negative or not finite.
func lossCurve(importance, scores []float32, prot Protection) (*solve.Curve, error) {
	T := len(importance)
	if len(scores) != T {
		return nil, fmt.Errorf("loss curve: %d scores for %d importances", len(scores), T)
	}
	if err := checkImportance(importance); err != nil {
		return nil, fmt.Errorf("loss curve: %w", err)
	}
	lo, hi := prot.Split(T)
	order := rankOrder(nil, scores, lo, hi)
	gains := make([]float32, len(order))
	for i, t := range order {
		gains[i] = importance[t]
	}
	return solve.NewCurve(gains, T-len(order))
}

func checkImportance(importance []float32) error {
	if len(importance) > math.MaxInt32 {
		return fmt.Errorf("%d entries, expected at most %d", len(importance), math.MaxInt32)
	}
	for t, v := range importance {
		if !(v >= 0) || math.IsInf(float64(v), 1) {
			return fmt.Errorf("importance %v at entry %d, expected finite and not negative", v, t)
		}
	}
	return nil
}

// rankOrder returns the slots of scores[lo:hi] from best to worst, appended to
// dst[:0].
func rankOrder(dst []int32, scores []float32, lo, hi int) []int32 {
	// With the inverted rank key above the slot, one ascending integer sort
	// gives score descending, then slot ascending.
	keys := make([]uint64, hi-lo)
	for i := range keys {
		keys[i] = uint64(^rankKey(scores[lo+i]))<<32 | uint64(lo+i)
	}
	slices.Sort(keys)
	dst = dst[:0]
	for _, k := range keys {
		dst = append(dst, int32(uint32(k)))
	}
	return dst
}

// lossCurves builds the loss curves of all heads from importance and scores,
// [L][K][T]; a nil layer of importance takes no part. parallel runs the heads
// (see [Layer].Parallel), nil one after another; the result does not depend on
// it. To solve for capacity alone (spec 5.8), pass the importance as scores.
func lossCurves(ctx context.Context, importance, scores [][][]float32, prot Protection, parallel func(n int, fn func(i int))) ([][]*solve.Curve, error) {
	if len(scores) != len(importance) {
		return nil, fmt.Errorf("loss curves: scores of %d layers for importance of %d", len(scores), len(importance))
	}
	out := make([][]*solve.Curve, len(importance))
	type unit struct{ l, h int }
	var units []unit
	for l, layer := range importance {
		if layer == nil {
			continue
		}
		if len(scores[l]) != len(layer) {
			return nil, fmt.Errorf("loss curves: layer %d: scores of %d heads for importance of %d", l, len(scores[l]), len(layer))
		}
		out[l] = make([]*solve.Curve, len(layer))
		for h := range layer {
			units = append(units, unit{l, h})
		}
	}
	errs := make([]error, len(units))
	one := func(i int) {
		u := units[i]
		if errs[i] = ctx.Err(); errs[i] == nil {
			out[u.l][u.h], errs[i] = lossCurve(importance[u.l][u.h], scores[u.l][u.h], prot)
		}
	}
	if parallel == nil {
		for i := range units {
			one(i)
		}
	} else {
		parallel(len(units), one)
	}
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("layer %d head %d: %w", units[i].l, units[i].h, err)
		}
	}
	return out, nil
}

// solveLevels is lossCurves followed by [solve.Sweep].
func solveLevels(ctx context.Context, importance, scores [][][]float32, prot Protection, opt solve.SweepOptions, parallel func(n int, fn func(i int))) (*solve.LevelSet, error) {
	curves, err := lossCurves(ctx, importance, scores, prot, parallel)
	if err != nil {
		return nil, err
	}
	return solve.Sweep(ctx, curves, opt)
}

// newBudgets returns zeroed [L][K] counts, contiguous in memory.
func newBudgets(layers, kvHeads int) [][]int {
	flat := make([]int, layers*kvHeads)
	out := make([][]int, layers)
	for l := range out {
		out[l] = flat[l*kvHeads : (l+1)*kvHeads : (l+1)*kvHeads]
	}
	return out
}
