//go:build (amd64 || arm64) && !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// The routines, of AVX2 and NEON, unpack n blocks of 32 elements, or one of 256.

//go:noescape
func unpackQ8_0(dst *int8, src unsafe.Pointer, n int)

// unpackLevels looks up nibbles in a table; src is those of the first block, step bytes
// from those of the next.
//
//go:noescape
func unpackLevels(dst *int8, src unsafe.Pointer, n, step int, table *[16]int8)

// unpackFifth unpacks nibbles that follow 32 fifth bits, and subtracts less; src is those
// bits of the first block, step bytes from those of the next.
//
//go:noescape
func unpackFifth(dst *int8, src unsafe.Pointer, n, step int, less int8)

//go:noescape
func unpackQ2_K(dst *int8, src unsafe.Pointer)

//go:noescape
func unpackQ3_K(dst *int8, src unsafe.Pointer)

//go:noescape
func unpackQ4_K(dst *int8, src unsafe.Pointer)

//go:noescape
func unpackQ5_K(dst *int8, src unsafe.Pointer)

//go:noescape
func unpackQ6_K(dst *int8, src unsafe.Pointer)

// unpacked reports whether the routines know the blocks of t, as they do up to MXFP4. Those of types
// that came later are multiplied and widened by the portable functions.
func unpacked(t tensor.Type) bool { return t <= tensor.MXFP4 }

// unpackIntegers sets dst to the integers of n blocks of type t, 256 at most.
func unpackIntegers(dst *[256]int8, src []byte, n int, t tensor.Type) {
	unpackBlocks(dst, unsafe.Pointer(unsafe.SliceData(src[:t.Bytes(n*t.Block())])), n, t)
}

// unpackBlocks is unpackIntegers for the blocks at p.
func unpackBlocks(dst *[256]int8, p unsafe.Pointer, n int, t tensor.Type) {
	switch t {
	case tensor.Q8_0:
		unpackQ8_0(&dst[0], p, n)
	case tensor.Q5_0:
		unpackFifth(&dst[0], unsafe.Add(p, 2), n, t.Bytes(32), 16)
	case tensor.Q5_1:
		unpackFifth(&dst[0], unsafe.Add(p, 4), n, t.Bytes(32), 0)
	case tensor.Q2_K:
		unpackQ2_K(&dst[0], p)
	case tensor.Q3_K:
		unpackQ3_K(&dst[0], p)
	case tensor.Q4_K:
		unpackQ4_K(&dst[0], p)
	case tensor.Q5_K:
		unpackQ5_K(&dst[0], p)
	case tensor.Q6_K:
		unpackQ6_K(&dst[0], p)
	case tensor.IQ4_XS:
		levels, first := t.Levels()
		unpackLevels(&dst[0], unsafe.Add(p, first), 8, 16, levels)
	case tensor.Q4_0, tensor.Q4_1, tensor.IQ4_NL, tensor.MXFP4:
		levels, first := t.Levels()
		unpackLevels(&dst[0], unsafe.Add(p, first), n, t.Bytes(32), levels)
	default:
		panic("kernels: " + t.String() + " is not quantised")
	}
}

// widenInt8 sets dst to groups of 16 integers, times a scale for each group, minus a
// minimum.
//
//go:noescape
func widenInt8(dst *float32, src *int8, scale, least *float32, groups int)

// widenBlocks is t.Widen for a quantised type.
func (c CPU) widenBlocks(dst []float32, src []byte, t tensor.Type) {
	if !c.vector() || !unpacked(t) {
		t.Widen(dst, src)
		return
	}
	var u tensor.Quants
	var scale, least [16]float32
	block := t.Block()
	size := t.Bytes(block)
	for ; len(dst) > 0; dst, src = dst[block:], src[size:] {
		unpackIntegers(&u.Q, src, 1, t)
		t.UnpackScales(&u, src)
		groups := block / 16
		for g := range groups {
			scale[g], least[g] = u.D*float32(u.Scale[g]), u.Min*float32(u.Least[g])
		}
		widenInt8(&dst[0], &u.Q[0], &scale[0], &least[0], groups)
	}
}
