// Package detmath provides elementary functions whose results are identical, bit for
// bit, on every processor. Those of package math are assembly on some architectures
// and may be compiled to fused operations on others.
//
// All arithmetic here is IEEE 754 double precision with every rounding explicit:
// products that are added to something are either converted explicitly, which forbids
// fusing, or fused with math.FMA, which rounds once everywhere. The arithmetic takes
// only bit operations, math.FMA and exact functions (such as math.RoundToEven) from
// package math; special cases of Pow are left to math.Pow.
//
// Errors stay below one unit in the last place of the result: for Exp and Exp2 over
// the whole range of normal results, for Log and Log2 for all positive numbers, for
// Pow for positive bases, for SinCos for arguments up to 1.3e7 in magnitude, beyond
// which it returns NaN. Subnormal results are rounded twice.
//
// The functions are pure and may be called from any number of goroutines.
package detmath
