//go:build !purego

package kernels

import (
	"encoding/binary"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Products on AVX2, and on AVX-512 without VNNI: four rows of weights are unpacked to 16 bits,
// with their integer scales multiplied in (|c·w| ≤ 4096), and multiplied by all rows of
// activations.

// int8Quad is up to 256 columns of four rows of weights, unpacked.
type int8Quad struct {
	w     [4][256]int16
	least [4][16]int16
	d     [4]float32 // of blocks of 256, as min
	min   [4]float32
	chain [2][8][4]float32 // D and Min of blocks of 32
}

// int8QuadTile is the argument of the assembly routines. Pointers are to the first row of
// activations, at the quad's first column.
type int8QuadTile struct {
	quad           *int8Quad
	q, sums, scale unsafe.Pointer // parts of int8Rows: sums16, or less32 for chains
	stride         int            // bytes from one row to the next
	acc            unsafe.Pointer // [rows][4] f32
	rows           int
	groups         int // of int8QuadChainAVX2
	minima         int // 1: the type has minima
}

//go:noescape
func int8QuadAVX2(a *int8QuadTile)

// int8QuadChainAVX2 takes types with blocks of 32.
//
//go:noescape
func int8QuadChainAVX2(a *int8QuadTile)

// int8ScaleAVX2 multiplies groups of 16 integers by their scales.
//
//go:noescape
func int8ScaleAVX2(dst *[256]int16, src *[256]int8, scale *[16]int8)

// int8QuadRoom is where a quad is made.
type int8QuadRoom struct {
	quad     int8Quad
	integers [256]int8
	block    tensor.Quants
}

// int8Quads multiplies by four rows of w at a time.
func (c CPU) int8Quads(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) {
	s := scratches.Get().(*scratch)
	defer scratches.Put(s)
	room := (*int8QuadRoom)(unsafe.Pointer(&s.x))
	const most = len(s.w) / 4
	for from := 0; from < n; from += most {
		rows := min(most, n-from)
		acc := s.w[:4*rows]
		for o := lo; o < hi; o += 4 {
			outs := min(4, hi-o)
			clear(acc)
			for k := 0; k < w.Cols; k += 256 {
				for i := range outs {
					c.packInt8Quad(room, i, w, o+i, k)
				}
				room.quad.multiply(acc, x, from, k, w)
			}
			for r := range rows {
				copy(dst[(from+r)*ldd+o:][:outs], acc[4*r:])
			}
		}
	}
}

// packInt8Quad unpacks up to 256 columns of row o of w to row i of a quad.
func (c CPU) packInt8Quad(room *int8QuadRoom, i int, w *Matrix, o, k int) {
	p, u, block := &room.quad, &room.block, w.Type.Block()
	n := min(256, w.Cols-k) / block
	size := w.Type.Bytes(block)
	b := w.Data[w.Type.Bytes(o*w.Cols+k):][:n*size]
	c.unpackIntegers(&room.integers, b, n, w.Type)
	w.Type.UnpackScales(u, b)
	if block == 256 {
		p.d[i], p.min[i] = u.D, u.Min
		for g, v := range u.Least {
			p.least[i][g] = int16(v)
		}
		int8ScaleAVX2(&p.w[i], &room.integers, &u.Scale)
		return
	}
	ones := [16]int8{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	int8ScaleAVX2(&p.w[i], &room.integers, &ones)
	simple := w.Type != tensor.MXFP4 && !hasMinima(w.Type)
	for g := range n {
		if simple {
			u.D = tensor.F16ToF32(binary.LittleEndian.Uint16(b[g*size:]))
		} else {
			w.Type.UnpackScales(u, b[g*size:])
		}
		p.chain[0][g][i], p.chain[1][g][i] = u.D, u.Min
	}
}

// multiply multiplies p, at column k of w, by the rows of x that acc has room for, from row
// from on.
func (p *int8Quad) multiply(acc []float32, x *int8Rows, from, k int, w *Matrix) {
	a := int8QuadTile{
		quad: p, q: x.at(from, k), scale: x.at(from, x.scales()+4*k/x.block), stride: x.stride,
		acc: unsafe.Pointer(&acc[0]), rows: len(acc) / 4,
	}
	if hasMinima(w.Type) {
		a.minima = 1
	}
	if x.block == 256 {
		a.sums = x.at(from, x.sums16()+k/8)
		int8QuadAVX2(&a)
		return
	}
	a.sums, a.groups = x.at(from, x.less32()+k/8), min(256, w.Cols-k)/32
	int8QuadChainAVX2(&a)
}
