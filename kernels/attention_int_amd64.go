//go:build !purego

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

//go:noescape
func scoresIntVNNI(a *intScores)

//go:noescape
func scoresIntAVX2(a *intScores)

//go:noescape
func valuesIntVNNI(a *intValues)

//go:noescape
func valuesIntAVX2(a *intValues)

//go:noescape
func roundInt16AVX512(n *int16, x, s *float32, count int, magnitude float32) (factor float32)

//go:noescape
func roundInt16AVX2(n *int16, x, s *float32, count int, magnitude float32) (factor float32)

//go:noescape
func scaleIntsAVX2(x *float32, n int, factor float32)

//go:noescape
func unpackInt4AVX2(dst, src unsafe.Pointer, n int)

// hasInts reports whether c has kernels for integer keys and values.
func (c CPU) hasInts() bool { return c.AVX2 }

func (c CPU) runScores(a *intScores) {
	if c.AVX512VNNI {
		scoresIntVNNI(a)
	} else {
		scoresIntAVX2(a)
	}
}

func (c CPU) runValues(a *intValues) {
	if c.AVX512VNNI {
		valuesIntVNNI(a)
	} else {
		valuesIntAVX2(a)
	}
}

// roundInt16 is roundInt16Portable.
func (c CPU) roundInt16(n []int16, x, s []float32, magnitude float32) float32 {
	switch {
	case !c.AVX2 || len(x)%16 != 0 || len(x) == 0:
		return roundInt16Portable(n, x, s, magnitude)
	case c.AVX512:
		return roundInt16AVX512(&n[0], &x[0], &s[0], len(x), magnitude)
	}
	return roundInt16AVX2(&n[0], &x[0], &s[0], len(x), magnitude)
}

// scaleInts replaces n sums by their products with a factor; unpackInt4 makes pairs of int8 of
// n pairs of 4 bits.
func scaleInts(x *float32, n int, factor float32) { scaleIntsAVX2(x, n, factor) }
func unpackInt4(dst, src unsafe.Pointer, n int)   { unpackInt4AVX2(dst, src, n) }

//go:noescape
func rotateAVX2(x *float32, n int, factor float32)

//go:noescape
func nibblesAVX2(dst *byte, x *float32, s float32)

// rotateAsm rotates one part, if c can.
func (c CPU) rotateAsm(x []float32, factor float32) bool {
	if !c.AVX2 || len(x) < 8 {
		return false
	}
	rotateAVX2(&x[0], len(x), factor)
	return true
}

// nibblesAsm sets q to the pairs of a group with scale s, if c can.
func (c CPU) nibblesAsm(q []byte, x []float32, s float32) bool {
	if !c.AVX2 || s == 0 || s != s {
		return false
	}
	nibblesAVX2(&q[0], &x[0], s)
	return true
}
