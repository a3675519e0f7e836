//go:build !purego

package kernels

import "unsafe"

// transposeAsm transposes 2-byte elements, rows and cols being positive multiples of 8. It
// reports whether it has.
func (c CPU) transposeAsm(dst []byte, dstStep int, src []byte, srcStep, rows, cols int) bool {
	if !c.NEON {
		return false
	}
	raceTranspose(dst, dstStep, src, srcStep, rows, cols)
	for i := 0; i < rows; i += 8 {
		transpose8NEON(unsafe.Pointer(&dst[2*i]), dstStep, unsafe.Pointer(&src[i*srcStep]), srcStep, cols)
	}
	return true
}

// transpose8NEON transposes 8 rows of n elements, a positive multiple of 8.
//
//go:noescape
func transpose8NEON(dst unsafe.Pointer, dstStep int, src unsafe.Pointer, srcStep, n int)
