package kernels

import "math"

// RMSNorm sets dst[i] = (x[i]·s)·w[i] with s = 1/√(Σx²/n + eps), n = len(x); the
// squares are summed as by Dot, and s is computed in binary64 and rounded once. dst
// may be x; dst and w are at least as long as x.
func (c CPU) RMSNorm(dst, x, w []float32, eps float64) {
	ss := c.Dot(x, x)
	s := float32(1 / math.Sqrt(float64(ss)/float64(len(x))+eps))
	n := c.scaleMulAsm(dst, x, w, s)
	dst, w = dst[:len(x)], w[:len(x)]
	raceRead(w)
	raceWrite(dst)
	for i := n; i < len(x); i++ {
		dst[i] = float32(x[i]*s) * w[i]
	}
}

// Dot returns Σ x[i]·y[i]: for each group g of 16 elements, lane i, starting from +0,
// becomes fma(x[16g+i], y[16g+i], lane i); the tree joins the lanes. There are
// no blocks. y is at least as long as x.
func (c CPU) Dot(x, y []float32) float32 {
	var s [lanes]float32
	y = y[:len(x)]
	raceRead(x)
	raceRead(y)
	for i := c.dotAsm(&s, x, y); i < len(x); i++ {
		s[i%lanes] = fma32(x[i], y[i], s[i%lanes])
	}
	return sumLanes(&s)
}

// Add sets dst[i] += x[i] for i < len(x).
func (c CPU) Add(dst, x []float32) {
	dst = dst[:len(x)]
	raceRead(x)
	raceWrite(dst)
	for i := c.addAsm(dst, x); i < len(x); i++ {
		dst[i] += x[i]
	}
}

// Rope rotates x, one head of 2·len(cos) components, in place in the half-split
// layout: with h = len(cos), for i < h
//
//	x[i], x[i+h] = x[i]·cos[i] - x[i+h]·sin[i], x[i+h]·cos[i] + x[i]·sin[i]
//
// Each product and the sum are rounded separately.
func (c CPU) Rope(x, cos, sin []float32) {
	h := len(cos)
	a, b, sin := x[:h], x[h:2*h], sin[:h]
	raceWrite(x[:2*h])
	raceRead(cos)
	raceRead(sin)
	for i := c.ropeAsm(a, b, cos, sin); i < h; i++ {
		u, v := a[i], b[i]
		a[i] = float32(u*cos[i]) - float32(v*sin[i])
		b[i] = float32(v*cos[i]) + float32(u*sin[i])
	}
}

// Argmax returns the index of the largest element, the first if several are equal.
// NaN counts as -Inf; an empty x gives 0.
func (c CPU) Argmax(x []float32) int {
	raceRead(x)
	best, n := c.maxAsm(x)
	at := 0
	if best > minusInf {
		at = c.indexAsm(x, best)
	}
	for i := n; i < len(x); i++ {
		if x[i] > best {
			best, at = x[i], i
		}
	}
	return at
}
