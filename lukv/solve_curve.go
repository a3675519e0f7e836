package lukv

import (
	"fmt"
	"math"
	"slices"
)

// Curve is the loss curve of one head under one metric (spec 5.2): what is
// lost when the head keeps its protected entries and the first i of the others
// in the metric's order. It holds the importance of the unprotected entries in
// that order and the block ends of its non-increasing projection: 4 bytes per
// entry and at most 4 more, usually far fewer. Immutable once built and safe
// for concurrent use.
type Curve struct {
	protected int
	gains     []float32 // [m] importance in the metric's order
	ends      []int32   // ascending block ends of the projection, last = m
}

// NewCurve orders the unprotected entries of a head by score (descending, ties
// by position, NaN as -Inf) and projects their importances. importance and
// scores have one value per position, [T]; neither is kept. Passing the
// importance as scores gives the curve of a metric that ranks perfectly, which
// is the ablation without the optimality gap (spec 5.9).
//
// Errors: lengths that differ, an importance that is negative or not finite.
func NewCurve(importance, scores []float32, prot Protection) (*Curve, error) {
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
	return curveOf(gains, T-len(order)), nil
}

// CurveFromGains is NewCurve for importances that are already in the metric's
// order; the head holds protected entries besides. gains is kept and must not
// change afterwards.
func CurveFromGains(gains []float32, protected int) (*Curve, error) {
	if protected < 0 {
		return nil, fmt.Errorf("loss curve: %d protected entries, expected at least 0", protected)
	}
	if err := checkImportance(gains); err != nil {
		return nil, fmt.Errorf("loss curve: %w", err)
	}
	return curveOf(gains, protected), nil
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

func curveOf(gains []float32, protected int) *Curve {
	c := &Curve{protected: protected, gains: gains}
	blocks := pava(gains, nil)
	c.ends = make([]int32, len(blocks))
	end := int32(0)
	for i, b := range blocks {
		end += int32(b.n)
		c.ends[i] = end
	}
	return c
}

// rankOrder returns the slots of scores[lo:hi] from best to worst, appended to
// dst[:0].
func rankOrder(dst []int32, scores []float32, lo, hi int) []int32 {
	// The inverted rank key above the slot: one ascending integer sort gives
	// score descending, then slot ascending.
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

// Len returns T, the number of entries of the head.
func (c *Curve) Len() int { return c.protected + len(c.gains) }

// Protected returns how many entries are kept before any choice.
func (c *Curve) Protected() int { return c.protected }

// Losses returns the raw loss for every number of unprotected entries kept,
// [m+1], appended to dst[:0]. The last one is 0.
func (c *Curve) Losses(dst []float64) []float64 {
	m := len(c.gains)
	dst = slices.Grow(dst[:0], m+1)[:m+1]
	dst[m] = 0
	for i := m - 1; i >= 0; i-- {
		dst[i] = dst[i+1] + float64(c.gains[i])
	}
	return dst
}

// Projected returns the gains of the convex surrogate, [m], appended to
// dst[:0].
func (c *Curve) Projected(dst []float64) []float64 {
	dst = dst[:0]
	start := int32(0)
	for _, end := range c.ends {
		mean := c.mean(int(start), int(end))
		for ; start < end; start++ {
			dst = append(dst, mean)
		}
	}
	return dst
}

// sum adds gains[i:j] in order.
func (c *Curve) sum(i, j int) float64 {
	s := 0.0
	for _, g := range c.gains[i:j] {
		s += float64(g)
	}
	return s
}

// mean is the projected gain of the block [start,end). Blocks with equal gains
// in equal order have equal means to the bit, which the tie rule of the sweep
// relies on.
func (c *Curve) mean(start, end int) float64 {
	return c.sum(start, end) / float64(end-start)
}

// block returns the block [start,end) with start <= i < end, for i < m.
func (c *Curve) block(i int) (start, end int) {
	k, _ := slices.BinarySearch(c.ends, int32(i)+1)
	if k > 0 {
		start = int(c.ends[k-1])
	}
	return start, int(c.ends[k])
}

// sag is how far the raw loss lies above the surrogate when i unprotected
// entries are kept: zero at block ends, positive inside.
func (c *Curve) sag(i int) float64 {
	if i <= 0 || i >= len(c.gains) {
		return 0
	}
	start, end := c.block(i)
	if start == i {
		return 0
	}
	return max(0, c.sum(i, end)-float64(float64(end-i)*c.mean(start, end)))
}
