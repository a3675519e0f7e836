//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// int8Tile is the argument of the assembly routines for one row of activations.
type int8Tile struct {
	w      unsafe.Pointer // [rows][blocks], as stored
	ldw    uintptr        // bytes from one row to the next
	q      unsafe.Pointer // [blocks · block] int8
	scale  unsafe.Pointer // [blocks] f32
	sums   unsafe.Pointer // int8Rows.less32, sums32 or sums16, as the type needs
	dst    unsafe.Pointer // [rows] f32
	rows   int
	blocks int
}

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

// panelsFrom is the fewest rows of x for which panels pay off.
const panelsFrom = 6

// matMulInt8Asm computes as many rows of w as it can and returns the first that is left.
func (c CPU) matMulInt8Asm(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) int {
	step, sums := c.int8Steps(w.Type, x)
	switch {
	case !c.AVX2:
		return lo
	case !c.AVX512VNNI:
		c.int8Quads(dst, ldd, x, n, w, lo, hi)
		return hi
	case step == 0 && n < panelsFrom:
		c.int8ByStrip(dst, ldd, x, n, w, lo, hi)
		return hi
	case n >= panelsFrom:
		c.int8Panels(dst, ldd, x, n, w, lo, hi)
		return hi
	}
	block := w.Type.Block()
	ldw := w.Type.Bytes(w.Cols)
	// The last step of a row may read beyond it, and so beyond the matrix.
	end := hi
	if rest := w.Cols / block % step; rest != 0 {
		end = min(hi, max(lo, (len(w.Data)-w.Type.Bytes((step-rest)*block))/ldw))
	}
	for r := range n {
		a := int8Tile{
			w: w.at(lo, 0), ldw: uintptr(ldw), q: x.at(r, 0), scale: x.at(r, x.scales()), sums: x.at(r, sums),
			dst: unsafe.Pointer(&dst[r*ldd+lo]), rows: end - lo, blocks: w.Cols / block,
		}
		if a.rows > 0 {
			a.run(w.Type)
		}
	}
	if end < hi {
		s := scratches.Get().(*scratch)
		defer scratches.Put(s)
		room := unsafe.Slice((*byte)(unsafe.Pointer(&s.w)), 4*len(s.w))
		if n := w.Type.Bytes(step * block); ldw+n > len(room) {
			room = make([]byte, ldw+n)
		}
		for ; end < hi; end++ {
			copy(room, w.Slice(end, end+1).Data)
			for r := range n {
				a := int8Tile{
					w: unsafe.Pointer(&room[0]), ldw: uintptr(ldw), q: x.at(r, 0), scale: x.at(r, x.scales()), sums: x.at(r, sums),
					dst: unsafe.Pointer(&dst[r*ldd+end]), rows: 1, blocks: w.Cols / block,
				}
				a.run(w.Type)
			}
		}
	}
	return hi
}
