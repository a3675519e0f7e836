package kernels

import "math"

// RMSNorm sets dst[i] = (x[i]·s)·w[i] with s = 1/√(Σx²/n + eps); the squares are
// summed in 16 lanes, s is computed in binary64 and rounded once. dst may be x.
func (c CPU) RMSNorm(dst, x, w []float32, eps float64) {
	ss := c.sumSquares(x)
	s := float32(1 / math.Sqrt(float64(ss)/float64(len(x))+eps))
	c.scaleMul(dst[:len(x)], x, w[:len(x)], s)
}

func sumSquaresPortable(x []float32) float32 {
	var s [Lanes]float32
	for i, v := range x {
		s[i%Lanes] = fma32(v, v, s[i%Lanes])
	}
	return sumLanes(&s)
}

func scaleMulPortable(dst, x, w []float32, s float32) {
	for i, v := range x {
		dst[i] = float32(v*s) * w[i]
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
	n := c.ropeAsm(x, cos, sin)
	ropePortable(x[:h], x[h:2*h], cos, sin, n)
}

func ropePortable(a, b, cos, sin []float32, from int) {
	for i := from; i < len(cos); i++ {
		u, v := a[i], b[i]
		a[i] = float32(u*cos[i]) - float32(v*sin[i])
		b[i] = float32(v*cos[i]) + float32(u*sin[i])
	}
}

// SwiGLU sets dst[i] = gate[i]/(1 + e^(-gate[i])) · up[i]. dst may be gate or up.
func (c CPU) SwiGLU(dst, gate, up []float32) {
	n := c.swigluAsm(dst, gate, up)
	swigluPortable(dst, gate, up, n)
}

func swigluPortable(dst, gate, up []float32, from int) {
	for i := from; i < len(dst); i++ {
		g := gate[i]
		dst[i] = g / (1 + Exp(-g)) * up[i]
	}
}

// Add sets dst[i] += x[i].
func (c CPU) Add(dst, x []float32) {
	n := c.addAsm(dst, x)
	dst = dst[:len(x)]
	for i := n; i < len(x); i++ {
		dst[i] += x[i]
	}
}

// Argmax returns the index of the largest element, the first of equals. NaN
// loses against everything; an empty or all-NaN x gives 0.
func (c CPU) Argmax(x []float32) int {
	best, at := float32(math.Inf(-1)), 0
	for i, v := range x {
		if v > best {
			best, at = v, i
		}
	}
	return at
}
