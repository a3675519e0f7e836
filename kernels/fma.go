package kernels

import "math"

// lanes is the number of partial sums of every long reduction.
const lanes = 16

// fma32 returns x*y + z rounded once to binary32.
//
// The product of two float32 is exact in float64. The sum is rounded to float64
// first; a second rounding to float32 can only go wrong where the first landed
// on a midpoint between two float32, or in the subnormal range, where the
// midpoints lie elsewhere. Those cases are left to fma32Slow.
func fma32(x, y, z float32) float32 {
	s := float64(x)*float64(y) + float64(z)
	// The second condition is 0 < |s| < 2^-126.
	if b := math.Float64bits(s); b&0x1fffffff == 0x10000000 || b<<1-1 < 0x381<<53-1 {
		return fma32Slow(x, y, z)
	}
	return float32(s)
}

// fma32Slow is fma32 for the cases in which two roundings may differ from one:
// it rounds the float64 sum to odd before the final rounding.
//
//go:noinline
func fma32Slow(x, y, z float32) float32 {
	a, b := float64(x)*float64(y), float64(z)
	s := a + b
	// TwoSum: e is the exact error of s.
	t := s - a
	e := (a - (s - t)) + (b - t)
	if e != 0 && !math.IsNaN(e) && !math.IsInf(s, 0) {
		u := math.Float64bits(s)
		if u&1 == 0 {
			if (e > 0) == (s > 0) {
				u++
			} else {
				u--
			}
			s = math.Float64frombits(u)
		}
	}
	return float32(s)
}

// minNormal is the smallest positive normal float32.
const minNormal = 0x1p-126

// fmaFlush is one step of the bf16 dot product: x*y + z rounded once, where
// subnormal operands count as zeros and a tiny result becomes a zero of the same sign.
// x and y hold bf16 values.
func fmaFlush(x, y, z float32) float32 {
	// With 8-bit significands the product is exact unless it is tiny, or overflows
	// where the sum might not.
	p := x * y
	r := p + z
	if (excess(p)|excess(r)|excess(x)|excess(y)|excess(z)|beyond(r))>>63 != 0 {
		return fmaFlushSlow(x, y, z)
	}
	return r
}

// excess has its top bit set if x is zero or subnormal. Zeros take the careful
// path too, because a product of normal numbers can underflow to zero.
func excess(x float32) uint64 { return uint64(math.Float32bits(x)&0x7fffffff) - 0x00800000 }

// beyond has its top bit set if x is infinite or NaN.
func beyond(x float32) uint64 { return 0x7f7fffff - uint64(math.Float32bits(x)&0x7fffffff) }

//go:noinline
func fmaFlushSlow(x, y, z float32) float32 {
	x, y, z = flush(x), flush(y), flush(z)
	p := float64(x) * float64(y)
	s := p + float64(z)
	// Tininess is judged after rounding to 24 bits with unbounded exponent:
	// everything from the midpoint 2^-126·(1-2^-25) up rounds to a normal number.
	if a := math.Abs(s); a < minNormal {
		if a >= minNormal*(1-0x1p-25) {
			return float32(math.Copysign(minNormal, s))
		}
		return float32(math.Copysign(0, s))
	}
	return fma32(x, y, z)
}

// flush replaces a subnormal number with a zero of the same sign.
func flush(x float32) float32 {
	if b := math.Float32bits(x); b&0x7f800000 == 0 {
		return math.Float32frombits(b & 0x80000000)
	}
	return x
}

// sumLanes joins 16 lanes by the fixed tree.
func sumLanes(s *[lanes]float32) float32 {
	a0, a1, a2, a3 := s[0]+s[8], s[1]+s[9], s[2]+s[10], s[3]+s[11]
	a4, a5, a6, a7 := s[4]+s[12], s[5]+s[13], s[6]+s[14], s[7]+s[15]
	a0, a1, a2, a3 = a0+a4, a1+a5, a2+a6, a3+a7
	a0, a1 = a0+a2, a1+a3
	return a0 + a1
}
