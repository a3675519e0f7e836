//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// int8Tile is the argument of the assembly routines for one row of activations.
type int8Tile struct {
	w      unsafe.Pointer // [rows][blocks], as stored
	q      unsafe.Pointer // [blocks · block] int8, in the order of int8Turn
	scale  unsafe.Pointer // [blocks] f32
	sums   unsafe.Pointer // int8Rows.less32 or sums32, as the type needs
	dst    unsafe.Pointer // [rows] f32
	rows   int            // of each stream; counted down
	blocks int
	ldw    uintptr // bytes from one row to the next

	streams          int      // rows at a time, 1 or 4; 4 for types with blocks of 256
	apartW, apartDst uintptr  // bytes from one stream to the next
	ahead            uintptr  // bytes, from use, of what is prefetched into the first-level cache; four times as many into the second
	room             [64]byte // scales of four blocks
}

// multiply multiplies rows lo to hi-1 of w.
func (a *int8Tile) multiply(c CPU, dst []float32, w *Matrix, lo, hi int) {
	clear(dst[lo:hi])
	a.ldw = uintptr(w.Type.Bytes(w.Cols))
	a.streams, a.ahead = 4, 2304
	if c.Streaming == streamRuns { // memory answers more requests from several places
		a.ahead = 768
	} else if w.Type.Block() == 32 {
		a.streams = 1
	}
	for lo < hi {
		if w.Type.Block() == 32 && hi-lo < 2*a.streams {
			a.streams = 1
		}
		a.rows = (hi - lo) / a.streams
		a.w, a.dst = w.at(lo, 0), unsafe.Pointer(&dst[lo])
		a.apartW, a.apartDst = uintptr(a.rows)*a.ldw, uintptr(4*a.rows)
		lo += a.rows * a.streams
		if a.rows == 0 { // fewer than four rows: each is taken four times
			a.rows = hi - lo
			lo = hi
		}
		a.run(w.Type)
	}
}

//go:noescape
func int8TurnAVX512(dst, src unsafe.Pointer, n int, order *[16]int64)

//go:noescape
func int8LessAVX512(dst, src unsafe.Pointer, n int)

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

// int8Steps returns how many blocks of t a step of the routine for one row reads, 0 if there is
// no routine, and which sums it reads.
func (c CPU) int8Steps(t tensor.Type, x *int8Rows) (blocks, sums int) {
	if !c.AVX512VNNI {
		return 0, 0
	}
	switch t {
	case tensor.Q8_0, tensor.Q4_0:
		return 16, x.less32()
	case tensor.Q4_K, tensor.Q5_K, tensor.Q6_K:
		return 1, x.sums32()
	}
	return 0, 0
}

// int8Turn returns the activations q in the order in which the routine for one row of t reads
// them: those of the low halves of bytes before those of the high ones. It takes room from mem, whose rest it returns.
func int8Turn(t tensor.Type, q unsafe.Pointer, cols int, mem []byte) (turned unsafe.Pointer, rest []byte) {
	var order *[16]int64 // of 8 elements each
	switch t {
	case tensor.Q4_0: // 16 of each
		order = &[16]int64{0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15}
	case tensor.Q4_K, tensor.Q5_K: // 32 of each
		order = &[16]int64{0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15}
	case tensor.Q6_K:
		int8LessAVX512(unsafe.Pointer(&mem[0]), q, cols/256)
		return unsafe.Pointer(&mem[0]), mem[2*cols:]
	default:
		return q, mem
	}
	int8TurnAVX512(unsafe.Pointer(&mem[0]), q, cols/128, order)
	// The last step reads as much beyond the columns as it has blocks, 512 elements at most.
	return unsafe.Pointer(&mem[0]), mem[cols+512:]
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
	room := unsafe.Slice((*byte)(unsafe.Pointer(&s.w)), 4*len(s.w))
	if n := 2*x.cols + 512 + ldw + w.Type.Bytes(step*block); n > len(room) {
		room = make([]byte, n)
	}
	a.q, room = int8Turn(w.Type, a.q, x.cols, room)
	// The last step of a row may read beyond it, and so beyond the matrix.
	rows := hi - lo
	if rest := a.blocks % step; rest != 0 {
		rows = min(hi, max(lo, (len(w.Data)-w.Type.Bytes((step-rest)*block))/ldw)) - lo
	}
	if rows > 0 {
		a.multiply(c, dst, w, lo, lo+rows)
	}
	for lo += rows; lo < hi; lo++ {
		copy(room, w.Slice(lo, lo+1).Data)
		dst[lo] = 0
		a.w, a.dst, a.rows, a.streams = unsafe.Pointer(&room[0]), unsafe.Pointer(&dst[lo]), 1, 1
		a.run(w.Type)
	}
}
