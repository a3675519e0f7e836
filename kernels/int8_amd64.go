//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// int8Tile is the argument of the assembly routines for one row of activations, which take a row of
// each of four streams of weights at a time.
type int8Tile struct {
	w      unsafe.Pointer // [rows][blocks], as stored
	q      unsafe.Pointer // activations as turn arranges them
	scale  unsafe.Pointer // [blocks] f32
	sums   unsafe.Pointer // int8Rows.less32 or sums32, as the type needs
	dst    unsafe.Pointer // [rows] f32
	rows   int            // of each stream; counted down
	blocks int
	ldw    uintptr // bytes from one row to the next

	streams          int            // 4, or of Q8_0 1; other types take a row four times instead
	apartW, apartDst uintptr        // bytes from one stream to the next
	ahead            uintptr        // bytes, from use, of what is prefetched into the first-level cache; four times as many into the second
	room             unsafe.Pointer // 64 bytes of scratch
}

// multiply multiplies rows lo to hi-1 of w.
func (a *int8Tile) multiply(dst []float32, w *Matrix, lo, hi int) {
	clear(dst[lo:hi])
	for lo < hi {
		a.w, a.dst = w.at(lo, 0), unsafe.Pointer(&dst[lo])
		if a.rows = (hi - lo) / 4; a.rows > 0 && a.streams == 4 {
			a.apartW, a.apartDst = uintptr(a.rows)*a.ldw, uintptr(4*a.rows)
			lo += 4 * a.rows
			int8BeginAVX512(a)
		} else { // each row is taken alone, or four times
			a.rows, a.streams, a.apartW, a.apartDst = hi-lo, 1, 0, 0
			lo = hi
		}
		a.run(w.Type)
	}
}

//go:noescape
func int8BeginAVX512(a *int8Tile)

//go:noescape
func int8TurnAVX512(dst, q unsafe.Pointer, n int)

//go:noescape
func int8LessAVX512(dst, q unsafe.Pointer, n int)

//go:noescape
func int8LanesAVX512(dst, q, scale unsafe.Pointer, n int)

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

// int8RowStep returns how many blocks of t a step of the routine for one row reads, 0 if there is no
// routine.
func (c CPU) int8RowStep(t tensor.Type) int {
	if !c.AVX512VNNI {
		return 0
	}
	switch t {
	case tensor.Q8_0:
		return 16
	case tensor.Q4_0:
		return 32
	case tensor.Q4_K, tensor.Q5_K, tensor.Q6_K:
		return 1
	}
	return 0
}

// int8Ahead returns the look-ahead of the routine for one row of t and how many streams it reads, as
// measurements favour.
func (c CPU) int8Ahead(t tensor.Type) (ahead uintptr, streams int) {
	switch {
	case c.Streaming != streamRuns && t == tensor.Q8_0:
		return 2304, 1
	case c.Streaming != streamRuns:
		return 2304, 4
	case t == tensor.Q4_0: // three steps
		return 1664, 4
	}
	return 768, 4 // memory answers more requests from several places
}

// turn arranges row 0 of x in the order in which the routine for t reads it, in mem, of which it
// takes at most 2·x.cols+2112 bytes, room among them.
func (a *int8Tile) turn(t tensor.Type, x *int8Rows, mem []byte) (rest []byte) {
	q, size := x.at(0, 0), x.cols
	a.room, mem = unsafe.Pointer(&mem[0]), mem[64:]
	a.q, a.sums = unsafe.Pointer(&mem[0]), x.at(0, x.sums32())
	switch t {
	case tensor.Q8_0:
		a.q, a.sums = q, x.at(0, x.less32())
	case tensor.Q4_K, tensor.Q5_K:
		int8TurnAVX512(a.q, q, x.cols/128)
	case tensor.Q6_K:
		size = 2 * x.cols
		int8LessAVX512(a.q, q, x.cols/256)
	case tensor.Q4_0:
		size = int8Lanes(a.q, x, a.blocks)
	}
	return mem[size:]
}

// int8Lanes arranges a row of blocks of 32 with int8LanesAVX512 and returns how many bytes it takes.
func int8Lanes(dst unsafe.Pointer, x *int8Rows, blocks int) int {
	const step = 32
	whole := blocks / step
	if whole > 0 {
		int8LanesAVX512(dst, x.at(0, 0), x.at(0, x.scales()), whole)
	}
	if blocks%step == 0 {
		return 2048 * whole
	}
	var last struct {
		q     [32 * step]int8
		scale [step]float32
	}
	row := x.row(0)
	copy(last.q[:], row.q[32*step*whole:32*blocks])
	copy(last.scale[:], row.scale[step*whole:blocks])
	int8LanesAVX512(unsafe.Add(dst, 2048*whole), unsafe.Pointer(&last.q), unsafe.Pointer(&last.scale), 1)
	return 2048 * (whole + 1)
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
	step := c.int8RowStep(w.Type)
	switch {
	case !c.AVX2 || !unpacked(w.Type):
		return lo
	case !c.AVX512VNNI:
		c.int8Quads(dst, ldd, x, n, w, lo, hi)
	case step == 0 || n > 1:
		c.int8Panels(dst, ldd, x, n, w, lo, hi)
	default:
		c.int8ByRow(dst, x, w, lo, hi, step)
	}
	return hi
}

// int8ByRow multiplies one row of activations; step is that of int8RowStep.
func (c CPU) int8ByRow(dst []float32, x *int8Rows, w *Matrix, lo, hi, step int) {
	block, ldw := w.Type.Block(), w.Type.Bytes(w.Cols)
	a := int8Tile{scale: x.at(0, x.scales()), blocks: w.Cols / block, ldw: uintptr(ldw)}
	a.ahead, a.streams = c.int8Ahead(w.Type)
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&s.w)), 4*len(s.w))
	if n := 2*x.cols + 2112 + ldw + w.Type.Bytes(step*block); n > len(mem) {
		mem = make([]byte, n)
	}
	mem = a.turn(w.Type, x, mem)
	// The last step of a row may read beyond it, and so beyond the matrix.
	rows := hi - lo
	if rest := a.blocks % step; rest != 0 {
		rows = min(hi, max(lo, (len(w.Data)-w.Type.Bytes((step-rest)*block))/ldw)) - lo
	}
	a.multiply(dst, w, lo, lo+rows)
	for lo += rows; lo < hi; lo++ {
		copy(mem, w.Slice(lo, lo+1).Data)
		a.multiply(dst[lo:], &Matrix{Type: w.Type, Rows: 1, Cols: w.Cols, Data: mem}, 0, 1)
	}
}
