//go:build (amd64 || arm64) && !purego

package kernels

import "unsafe"

// intScores is the argument of kernels for the scores of four rows with tiles of integer keys.
type intScores struct {
	p       *float32       // rows of scores, attentionStride elements apart
	q       *int16         // rows of queries, attentionStride elements apart
	k       unsafe.Pointer // [tiles][groups·pairs][TileEntries][2] int8
	scales  *float32       // [groups][tiles·TileEntries], groups step bytes apart
	step    uintptr
	factors *float32 // [4]
	pairs   int      // of elements in a group, an even number
	groups  int
	tiles   int
	next    unsafe.Pointer // prefetched, as many bytes as k has
}

// intValues is the argument of kernels that add the weighted integer values of pairs of slots
// to the sums of four rows.
type intValues struct {
	acc    *float32       // rows of int32 sums, attentionStride elements apart
	w      *int16         // rows of weights, attentionStride elements apart
	v      unsafe.Pointer // [pairs][cols][2] int8, pairs stride bytes apart
	stride int
	pairs  int
	cols   int            // a multiple of 16
	next   unsafe.Pointer // prefetched, about as many bytes as v has
}

// roundInt16s is roundInt16Portable for a positive multiple of 16 numbers, on AVX2 and NEON.
//
//go:noescape
func roundInt16s(n *int16, x, s *float32, count int, magnitude float32) (factor float32)

// scaleInts replaces n sums, a positive multiple of 16, by their products with a factor.
//
//go:noescape
func scaleInts(x *float32, n int, factor float32)

// unpackInt4 makes pairs of int8 of n pairs of 4 bits, a positive multiple of 32.
//
//go:noescape
func unpackInt4(dst, src unsafe.Pointer, n int)

// rotatePart rotates one part of n elements, a power of two from 8 on.
//
//go:noescape
func rotatePart(x *float32, n int, factor float32)

// packNibbles sets dst to the pairs of a group of 32 elements, whose scale is finite and not 0.
//
//go:noescape
func packNibbles(dst *byte, x *float32, s float32)

// rotateAsm rotates one part, if c can.
func (c CPU) rotateAsm(x []float32, factor float32) bool {
	if !c.vector() || len(x) < 8 {
		return false
	}
	rotatePart(&x[0], len(x), factor)
	return true
}

// nibblesAsm sets q to the pairs of a group with scale s, if c can.
func (c CPU) nibblesAsm(q []byte, x []float32, s float32) bool {
	if !c.vector() || s == 0 || s != s {
		return false
	}
	packNibbles(&q[0], &x[0], s)
	return true
}
