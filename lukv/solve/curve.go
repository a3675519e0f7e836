package solve

import (
	"fmt"
	"math"
	"slices"
)

// Curve is the loss curve of one head under one metric (spec 5.2): the loss
// when the head keeps its protected entries and the first i of the others in
// the metric's order. It holds the importance of the unprotected entries in
// that order and the block ends of its non-increasing projection: 4 bytes per
// entry and at most 4 more, usually far fewer. Immutable once built and safe
// for concurrent use.
type Curve struct {
	protected int
	gains     []float32 // [m] importance in the metric's order
	ends      []int32   // ascending block ends of the projection, last = m
}

// NewCurve makes the curve of a head from the importances of its unprotected
// entries in the metric's order; protected is the number of its other entries.
// gains is kept and must not change afterwards.
//
// Errors: a gain that is negative or not finite.
func NewCurve(gains []float32, protected int) (*Curve, error) {
	if protected < 0 {
		return nil, fmt.Errorf("loss curve: %d protected entries, expected at least 0", protected)
	}
	if len(gains) > math.MaxInt32 {
		return nil, fmt.Errorf("loss curve: %d entries, expected at most %d", len(gains), math.MaxInt32)
	}
	for i, v := range gains {
		if !(v >= 0) || math.IsInf(float64(v), 1) {
			return nil, fmt.Errorf("loss curve: gain %v at rank %d, expected finite and not negative", v, i)
		}
	}
	c := &Curve{protected: protected, gains: gains}
	blocks := pava(gains)
	c.ends = make([]int32, len(blocks))
	end := int32(0)
	for i, b := range blocks {
		end += int32(b.n)
		c.ends[i] = end
	}
	return c, nil
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

// mean returns the projected gain of the block [start,end). Blocks with equal
// gains in equal order have equal means to the bit, which the tie rule of the
// sweep relies on.
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

// sag returns how far the raw loss lies above the surrogate when i
// unprotected entries are kept: zero at block ends, positive inside.
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
