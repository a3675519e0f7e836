//go:build !purego

package kernels

import "math"

// exp2Table holds the constants of exp_amd64.h, each eight times.
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
}

var (
	exp2Inf  = float32(math.Inf(1))
	exp2Bias = [8]int32{127, 127, 127, 127, 127, 127, 127, 127}
)
