//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// The routines unpack n blocks of 32 elements, or one of 256.

//go:noescape
func unpackQ8_0AVX2(dst *int8, src unsafe.Pointer, n int)

// unpackLevelsAVX2 looks up nibbles in a table; src is those of the first block, step bytes
// from those of the next.
//
//go:noescape
func unpackLevelsAVX2(dst *int8, src unsafe.Pointer, n, step int, table *[16]int8)

//go:noescape
func unpackQ4_KAVX2(dst *int8, src unsafe.Pointer)

//go:noescape
func unpackQ5_KAVX2(dst *int8, src unsafe.Pointer)

//go:noescape
func unpackQ6_KAVX2(dst *int8, src unsafe.Pointer)

// unpackIntegers sets dst to the integers of n blocks of type t, 256 at most.
func (c CPU) unpackIntegers(dst *[256]int8, src []byte, n int, t tensor.Type) {
	p := unsafe.Pointer(unsafe.SliceData(src[:t.Bytes(n*t.Block())]))
	if !c.AVX2 {
		unpackPortable(dst, src, n, t)
		return
	}
	switch t {
	case tensor.Q8_0:
		unpackQ8_0AVX2(&dst[0], p, n)
	case tensor.Q4_K:
		unpackQ4_KAVX2(&dst[0], p)
	case tensor.Q5_K:
		unpackQ5_KAVX2(&dst[0], p)
	case tensor.Q6_K:
		unpackQ6_KAVX2(&dst[0], p)
	case tensor.IQ4_XS:
		levels, first := t.Levels()
		unpackLevelsAVX2(&dst[0], unsafe.Add(p, first), 8, 16, levels)
	case tensor.Q4_0, tensor.Q4_1, tensor.IQ4_NL, tensor.MXFP4:
		levels, first := t.Levels()
		unpackLevelsAVX2(&dst[0], unsafe.Add(p, first), n, t.Bytes(32), levels)
	default:
		unpackPortable(dst, src, n, t)
	}
}

func unpackPortable(dst *[256]int8, src []byte, n int, t tensor.Type) {
	block := t.Block()
	if n == 256/block && block == 256 {
		t.UnpackIntegers(dst, src)
		return
	}
	var one [256]int8
	for i := range n {
		t.UnpackIntegers(&one, src[i*t.Bytes(block):])
		copy(dst[i*block:], one[:block])
	}
}
