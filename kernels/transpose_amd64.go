//go:build !purego

package kernels

import "unsafe"

// transposeAsm transposes 2-byte elements, rows and cols being positive multiples of 8. It
// reports whether it has.
func (c CPU) transposeAsm(dst []byte, dstStep int, src []byte, srcStep, rows, cols int) bool {
	if !c.AVX2 {
		return false
	}
	raceTranspose(dst, dstStep, src, srcStep, rows, cols)
	for i := 0; i < rows; i += 8 {
		transpose8AVX2(unsafe.Pointer(&dst[2*i]), dstStep, unsafe.Pointer(&src[i*srcStep]), srcStep, cols)
	}
	return true
}

// transpose8AVX2 transposes 8 rows of n elements, a positive multiple of 8.
//
//go:noescape
func transpose8AVX2(dst unsafe.Pointer, dstStep int, src unsafe.Pointer, srcStep, n int)
