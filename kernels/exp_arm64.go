//go:build !purego

package kernels

import "math"

// exp2Constants holds the constants of neon_arm64.h, in that file's order.
//
//lint:ignore U1000 read by assembly
var exp2Constants = [...]float32{
	exp2c6, exp2c5, exp2c4, exp2c3, exp2c2, exp2c1, 1, exp2Low, exp2High,
	exp2Inf, log2e, math.Float32frombits(127), log2eLo,
}

var exp2Inf = float32(math.Inf(1))

func (c CPU) expAsm(dst, x []float32) int {
	n := len(x) &^ 3
	if !c.NEON || n == 0 {
		return 0
	}
	expNEON(&dst[:n][0], &x[0], n)
	return n
}

// n is a positive multiple of 4.
//
//go:noescape
func expNEON(dst, x *float32, n int)
