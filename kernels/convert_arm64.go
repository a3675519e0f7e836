//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

func (c CPU) roundBF16Asm(dst []uint16, src []float32) int {
	n := len(src) &^ 15
	if !c.NEON || n == 0 {
		return 0
	}
	roundBF16NEON(unsafe.Pointer(&dst[:n][0]), &src[0], n)
	return n
}

func (c CPU) widenAsm(dst []float32, src []byte, t tensor.Type) int {
	n := len(dst) &^ 15
	if !c.NEON || n == 0 {
		return 0
	}
	switch t {
	case tensor.F32:
		return copy(dst, unsafe.Slice((*float32)(unsafe.Pointer(&src[:4*len(dst)][0])), len(dst)))
	case tensor.F16:
		widenF16NEON(&dst[0], unsafe.Pointer(&src[:2*n][0]), n)
	case tensor.BF16:
		widenBF16NEON(&dst[0], unsafe.Pointer(&src[:2*n][0]), n)
	default:
		return 0
	}
	return n
}

func (c CPU) narrowAsm(dst []byte, src []float32, t tensor.Type) int {
	n := len(src) &^ 15
	if !c.NEON || n == 0 {
		return 0
	}
	switch t {
	case tensor.F32:
		return copy(dst[:4*len(src)], unsafe.Slice((*byte)(unsafe.Pointer(&src[0])), 4*len(src))) / 4
	case tensor.F16:
		narrowF16NEON(unsafe.Pointer(&dst[:2*n][0]), &src[0], n)
	case tensor.BF16:
		narrowBF16NEON(unsafe.Pointer(&dst[:2*n][0]), &src[0], n)
	default:
		return 0
	}
	return n
}

// Below, n is a positive multiple of 16.

//go:noescape
func roundBF16NEON(dst unsafe.Pointer, src *float32, n int)

//go:noescape
func widenF16NEON(dst *float32, src unsafe.Pointer, n int)

//go:noescape
func widenBF16NEON(dst *float32, src unsafe.Pointer, n int)

//go:noescape
func narrowF16NEON(dst unsafe.Pointer, src *float32, n int)

//go:noescape
func narrowBF16NEON(dst unsafe.Pointer, src *float32, n int)
