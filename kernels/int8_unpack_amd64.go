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

// unpackFifthAVX2 unpacks nibbles that follow 32 fifth bits, and subtracts less; src is those
// bits of the first block, step bytes from those of the next.
//
//go:noescape
func unpackFifthAVX2(dst *int8, src unsafe.Pointer, n, step int, less int8)

//go:noescape
func unpackQ2_KAVX2(dst *int8, src unsafe.Pointer)

//go:noescape
func unpackQ3_KAVX2(dst *int8, src unsafe.Pointer)

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
	case tensor.Q5_0:
		unpackFifthAVX2(&dst[0], unsafe.Add(p, 2), n, t.Bytes(32), 16)
	case tensor.Q5_1:
		unpackFifthAVX2(&dst[0], unsafe.Add(p, 4), n, t.Bytes(32), 0)
	case tensor.Q2_K:
		unpackQ2_KAVX2(&dst[0], p)
	case tensor.Q3_K:
		unpackQ3_KAVX2(&dst[0], p)
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

// widenInt8AVX2 sets dst to groups of 16 integers, times a scale for each group, minus a
// minimum.
//
//go:noescape
func widenInt8AVX2(dst *float32, src *int8, scale, least *float32, groups int)

// widenBlocks is t.Widen for a quantised type.
func (c CPU) widenBlocks(dst []float32, src []byte, t tensor.Type) {
	if !c.AVX2 {
		t.Widen(dst, src)
		return
	}
	var u tensor.Quants
	var scale, least [16]float32
	block := t.Block()
	size := t.Bytes(block)
	for ; len(dst) > 0; dst, src = dst[block:], src[size:] {
		c.unpackIntegers(&u.Q, src, 1, t)
		t.UnpackScales(&u, src)
		groups := block / 16
		for g := range groups {
			scale[g], least[g] = u.D*float32(u.Scale[g]), u.Min*float32(u.Least[g])
		}
		widenInt8AVX2(&dst[0], &u.Q[0], &scale[0], &least[0], groups)
	}
}
