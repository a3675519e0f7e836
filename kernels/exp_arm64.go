//go:build !purego

package kernels

import "math"

// exp2Constants holds the constants of vector_arm64.h in its order.
//
//lint:ignore U1000 read by assembly
var exp2Constants = [...]float32{
	exp2c6, exp2c5, exp2c4, exp2c3, exp2c2, exp2c1, 1, exp2Low, exp2High,
	exp2Inf, log2e, math.Float32frombits(127),
}

var exp2Inf = float32(math.Inf(1))
