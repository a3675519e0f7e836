package kernels

import "math"

// Exp2 is the polynomial 1 + r·(c1 + r·(c2 + … )) of degree 6 on [-1/2, 1/2]
// (interpolated at Chebyshev nodes; relative error below 1e-8 before rounding)
// times a power of two. The coefficients are part of the contract.
const (
	exp2c1 = 0x1.62e430p-1
	exp2c2 = 0x1.ebfbe0p-3
	exp2c3 = 0x1.c6af6cp-5
	exp2c4 = 0x1.3b2a54p-7
	exp2c5 = 0x1.5f0888p-10
	exp2c6 = 0x1.44138ap-13

	log2e   = 1.4426950408889634 // rounded to float32 wherever it is used
	log2eLo = 0x1.4ae0c0p-26     // what that rounding lost

	exp2Low  = -125.5 // below: 0, so that no result is subnormal
	exp2High = 127.5  // from here on: +Inf
)

// Exp2 returns 2^x:
//
//	x < -125.5: 0;  x ≥ 127.5: +Inf;  else with n = round-to-even(x), r = x - n:
//	p = c6; p = fma(p, r, c5); … p = fma(p, r, c1); p = fma(p, r, 1); p·2^n
//
// NaN gives NaN.
func Exp2(x float32) float32 { return exp2Sum(x, 0) }

// exp2Sum returns 2^(h+e), where e is a small correction of h.
func exp2Sum(h, e float32) float32 {
	switch {
	case h < exp2Low:
		return 0
	case h >= exp2High:
		return float32(math.Inf(1))
	case h != h:
		return h
	}
	n := float32(math.RoundToEven(float64(h)))
	r := float32(h-n) + e
	p := fma32(exp2c6, r, exp2c5)
	p = fma32(p, r, exp2c4)
	p = fma32(p, r, exp2c3)
	p = fma32(p, r, exp2c2)
	p = fma32(p, r, exp2c1)
	p = fma32(p, r, 1)
	return p * math.Float32frombits(uint32(int32(n)+127)<<23)
}

// Exp sets dst[i] = Exp(x[i]) for i < len(x). dst may be x.
func (c CPU) Exp(dst, x []float32) {
	dst = dst[:len(x)]
	raceRead(x)
	raceWrite(dst)
	for i := c.expAsm(dst, x); i < len(x); i++ {
		dst[i] = Exp(x[i])
	}
}

// Exp returns e^x: with h = x·log2e (rounded) and
// e = fma(x, log2eLo, fma(x, log2e, -h)), it is Exp2's polynomial at
// r = (h - n) + e, with Exp2's limits applied to h. The relative error is below 2e-7.
func Exp(x float32) float32 {
	h := x * float32(log2e)
	return exp2Sum(h, fma32(x, log2eLo, fma32(x, log2e, -h)))
}
