//go:build !purego

package kernels

import "math"

// exp2Table holds the constants of exp_amd64.h, each eight times.
//
//lint:ignore U1000 read by assembly
var exp2Table = [...][8]float32{
	{exp2c6, exp2c6, exp2c6, exp2c6, exp2c6, exp2c6, exp2c6, exp2c6},
	{exp2c5, exp2c5, exp2c5, exp2c5, exp2c5, exp2c5, exp2c5, exp2c5},
	{exp2c4, exp2c4, exp2c4, exp2c4, exp2c4, exp2c4, exp2c4, exp2c4},
	{exp2c3, exp2c3, exp2c3, exp2c3, exp2c3, exp2c3, exp2c3, exp2c3},
	{exp2c2, exp2c2, exp2c2, exp2c2, exp2c2, exp2c2, exp2c2, exp2c2},
	{exp2c1, exp2c1, exp2c1, exp2c1, exp2c1, exp2c1, exp2c1, exp2c1},
	{1, 1, 1, 1, 1, 1, 1, 1},
	{exp2Low, exp2Low, exp2Low, exp2Low, exp2Low, exp2Low, exp2Low, exp2Low},
	{exp2High, exp2High, exp2High, exp2High, exp2High, exp2High, exp2High, exp2High},
	{exp2Inf, exp2Inf, exp2Inf, exp2Inf, exp2Inf, exp2Inf, exp2Inf, exp2Inf},
	{log2e, log2e, log2e, log2e, log2e, log2e, log2e, log2e},
	{-log2e, -log2e, -log2e, -log2e, -log2e, -log2e, -log2e, -log2e},
	{log2eLo, log2eLo, log2eLo, log2eLo, log2eLo, log2eLo, log2eLo, log2eLo},
}

var exp2Inf = float32(math.Inf(1))

//lint:ignore U1000 read by assembly
var exp2Bias = [8]int32{127, 127, 127, 127, 127, 127, 127, 127}

func (c CPU) expAsm(dst, x []float32) int {
	n := len(x)
	switch {
	case c.AVX512 && n >= 16:
		n &^= 15
		expAVX512(&dst[:n][0], &x[0], n)
	case c.AVX2 && n >= 8:
		n &^= 7
		expAVX2(&dst[:n][0], &x[0], n)
	default:
		n = 0
	}
	return n
}

// n is a positive multiple of 8 (AVX2) or 16.
//
//go:noescape
func expAVX2(dst, x *float32, n int)

//go:noescape
func expAVX512(dst, x *float32, n int)
