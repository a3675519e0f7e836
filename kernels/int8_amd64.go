//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// int8Tile is the argument of the assembly routines for one row of activations.
type int8Tile struct {
	w      unsafe.Pointer // [rows][blocks], as stored
	q      unsafe.Pointer // [blocks · block] int8, in the order of int8Turned
	scale  unsafe.Pointer // [blocks] f32
	sums   unsafe.Pointer // int8Rows.less32, sums32 or sums16, as the type needs
	dst    unsafe.Pointer // [rows] f32
	rows   int            // of each stream; counted down
	blocks int
	ldw    uintptr // bytes from one row to the next

	streams          int     // rows at a time
	apartW, apartDst uintptr // bytes from one stream to the next
	ahead            uintptr // bytes, from use, of what is prefetched into the first-level cache; four times as many into the second
}

// multiply multiplies rows lo to hi-1 of w.
func (a *int8Tile) multiply(c CPU, dst []float32, w *Matrix, lo, hi int) {
	clear(dst[lo:hi])
	a.ldw = uintptr(w.Type.Bytes(w.Cols))
	a.streams, a.ahead = 1, 2304
	if c.Streaming == streamRuns { // memory answers more requests from several places
		a.streams, a.ahead = 4, 768
	}
	for lo < hi {
		if hi-lo < 2*a.streams {
			a.streams = 1
		}
		a.rows = (hi - lo) / a.streams
		a.w, a.dst = w.at(lo, 0), unsafe.Pointer(&dst[lo])
		a.apartW, a.apartDst = uintptr(a.rows)*a.ldw, uintptr(4*a.rows)
		lo += a.rows * a.streams
		a.run(w.Type)
	}
}

//go:noescape
func int8TurnAVX512(dst, src unsafe.Pointer, n int, order *[16]int64)

//go:noescape
func int8Q8_0AVX512(a *int8Tile)

//go:noescape
func int8Q4_0AVX512(a *int8Tile)

//go:noescape
func int8Q4_KAVX512(a *int8Tile)

//go:noescape
func int8Q5_KAVX512(a *int8Tile)

//go:noescape
func int8Q6_KAVX512(a *int8Tile)

// int8Steps returns how many blocks of t a step of the routine for one row has, 0 if there is
// no routine, and which sums it reads.
func (c CPU) int8Steps(t tensor.Type, x *int8Rows) (blocks, sums int) {
	if !c.AVX512VNNI {
		return 0, 0
	}
	switch t {
	case tensor.Q8_0, tensor.Q4_0:
		return 16, x.less32()
	case tensor.Q4_K, tensor.Q5_K:
		return 4, x.sums32()
	case tensor.Q6_K:
		return 4, x.sums16()
	}
	return 0, 0
}

// int8Turned returns the order of 8 elements each, in 128 of them, in which the routine for one
// row reads q: those of the low halves of bytes before those of the high ones. It is nil for the
// order that they have.
func int8Turned(t tensor.Type) *[16]int64 {
	switch t {
	case tensor.Q4_0: // 16 of each
		return &[16]int64{0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15}
	case tensor.Q4_K, tensor.Q5_K: // 32 of each
		return &[16]int64{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15}
	}
	return nil
}

func (a *int8Tile) run(t tensor.Type) {
	switch t {
	case tensor.Q8_0:
		int8Q8_0AVX512(a)
	case tensor.Q4_0:
		int8Q4_0AVX512(a)
	case tensor.Q4_K:
		int8Q4_KAVX512(a)
	case tensor.Q5_K:
		int8Q5_KAVX512(a)
	case tensor.Q6_K:
		int8Q6_KAVX512(a)
	}
}

// matMulInt8Asm computes as many rows of w as it can and returns the first that is left.
func (c CPU) matMulInt8Asm(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) int {
	step, sums := c.int8Steps(w.Type, x)
	switch {
	case !c.AVX2 || !unpacked(w.Type):
		return lo
	case !c.AVX512VNNI:
		c.int8Quads(dst, ldd, x, n, w, lo, hi)
	case step == 0 || n > 1:
		c.int8Panels(dst, ldd, x, n, w, lo, hi)
	default:
		c.int8ByRow(dst, x, w, lo, hi, step, sums)
	}
	return hi
}

// int8ByRow multiplies one row of activations; step and sums are those of int8Steps.
func (c CPU) int8ByRow(dst []float32, x *int8Rows, w *Matrix, lo, hi, step, sums int) {
	block, ldw := w.Type.Block(), w.Type.Bytes(w.Cols)
	a := int8Tile{q: x.at(0, 0), scale: x.at(0, x.scales()), sums: x.at(0, sums), blocks: w.Cols / block}
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	if order := int8Turned(w.Type); order != nil {
		// The last step reads as much beyond the columns as it has blocks, 1,024 elements at most.
		turned := unsafe.Slice((*byte)(unsafe.Pointer(&s.x)), 4*len(s.x))
		if x.cols+1024 > len(turned) {
			turned = make([]byte, x.cols+1024)
		}
		a.q = unsafe.Pointer(&turned[0])
		int8TurnAVX512(a.q, x.at(0, 0), x.cols/128, order)
	}
	// The last step of a row may read beyond it, and so beyond the matrix.
	rows := hi - lo
	if rest := a.blocks % step; rest != 0 {
		rows = min(hi, max(lo, (len(w.Data)-w.Type.Bytes((step-rest)*block))/ldw)) - lo
	}
	if rows > 0 {
		a.multiply(c, dst, w, lo, lo+rows)
	}
	lo += rows
	if lo == hi {
		return
	}
	room := unsafe.Slice((*byte)(unsafe.Pointer(&s.w)), 4*len(s.w))
	if n := w.Type.Bytes(step * block); ldw+n > len(room) {
		room = make([]byte, ldw+n)
	}
	for ; lo < hi; lo++ {
		copy(room, w.Slice(lo, lo+1).Data)
		dst[lo] = 0
		a.w, a.dst, a.rows, a.streams = unsafe.Pointer(&room[0]), unsafe.Pointer(&dst[lo]), 1, 1
		a.run(w.Type)
	}
}
