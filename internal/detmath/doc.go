// Package detmath has elementary functions whose results are the same bits on
// every processor. The ones of package math are assembly on some architectures
// and may be compiled to fused operations on others.
//
// All arithmetic here is IEEE 754 double precision in which every rounding is
// written down: products that are added to something are either converted
// explicitly, which forbids fusing, or fused with math.FMA, which is exact
// everywhere. Nothing but bit operations, math.FMA and exact functions
// (math.RoundToEven) is taken from package math.
//
// Errors stay below one unit in the last place of the result: Exp and Exp2 over
// the whole range with normal results, Log and Log2 for all positive numbers,
// Pow for positive bases, SinCos for arguments up to 1.3e7 in magnitude; larger
// ones it refuses with NaN. Subnormal results are rounded twice.
//
// The functions are pure and may be called from any number of goroutines.
package detmath
