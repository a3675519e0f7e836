//go:build (amd64 || arm64) && !purego

package kernels

import (
	"unsafe"
)

// Products on AVX2, on AVX-512 without VNNI, and on NEON: up to 256 columns of four rows of
// weights, an int8Quad, are unpacked and multiplied by all rows of activations.

// int8QuadTile is the argument of the assembly routines. Pointers are to the first row of
// activations, at the quad's first column.
type int8QuadTile struct {
	quad           *int8Quad
	q, sums, scale unsafe.Pointer // parts of int8Rows; sums are less32 for chains
	stride         int            // bytes from one row to the next
	acc            unsafe.Pointer // [rows][4] f32
	rows           int
	groups         int // of a chain
	minima         int // 1: the type has minima
}

// int8Quads multiplies by four rows of w at a time.
func (c CPU) int8Quads(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	room := (*int8QuadRoom)(unsafe.Pointer(&s.x))
	const most = len(s.w) / 4 / int8TileRows * int8TileRows
	for from := 0; from < n; from += most {
		rows := min(most, n-from)
		acc := s.w[:4*((rows+int8TileRows-1)/int8TileRows*int8TileRows)]
		for o := lo; o < hi; o += 4 {
			outs := min(4, hi-o)
			clear(acc)
			for k := 0; k < w.Cols; k += 256 {
				c.packInt8Quad(room, w, o, outs, k)
				c.multiplyQuad(&room.quad, acc, x, from, rows, k, w)
			}
			for r := range rows {
				copy(dst[(from+r)*ldd+o:][:outs], acc[4*r:])
			}
		}
	}
}

// multiplyQuad multiplies p, at column k of w, by n rows of x from row from on. acc has room
// for whole tiles of rows.
func (c CPU) multiplyQuad(p *int8Quad, acc []float32, x *int8Rows, from, n, k int, w *Matrix) {
	a := int8QuadTile{
		quad: p, q: x.at(from, k), scale: x.at(from, x.scales()+4*k/x.block), stride: x.stride,
		acc: unsafe.Pointer(&acc[0]), rows: n,
	}
	if w.Type.Minima() {
		a.minima = 1
	}
	if x.block == 32 {
		a.sums, a.groups = x.at(from, x.less32()+k/8), min(256, w.Cols-k)/32
		c.runChain(&a)
		return
	}
	a.sums = x.at(from, x.quadSums(k, w.Type))
	c.runQuad(&a, w.Type)
}

// Quads are made in scratch.x.
var _ [unsafe.Sizeof(scratch{}.x) - unsafe.Sizeof(int8QuadRoom{})]byte
