//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Products of many rows on AVX-512. Both x and w are widened to f32 once, in the order
// in which they are multiplied: w for all rows of x, and six rows of x at a time for a
// panel of w.

// packedTile is the argument of the assembly routines: a part of the block, six rows of x
// by cols of w. Distances are in bytes.
type packedTile struct {
	x      unsafe.Pointer // [6][groups·16] f32 or [6][groups·32] bf16
	ldx    uintptr
	w      unsafe.Pointer // [cols][as x]
	ldw    uintptr
	dst    unsafe.Pointer // [6][cols] f32
	ldd    uintptr
	cols   int // a multiple of 4
	groups int
	add    int      // as in tile
	ahead  *uintptr // as in tile
	before int      // groups of the block before the part
	last   int      // 1: the part is the last one of the block, and dst receives the sums
	fresh  int      // 1: w is read and packed, 0: it is already packed

	packedX unsafe.Pointer // room for [vectors][6][16] f32
	packedW unsafe.Pointer // [cols/4][vectors of the block][4][16] f32, from the part's first vector on
	stepW   uintptr        // from four rows of packed w to the next
	sums    unsafe.Pointer // [cols/4][6][4][16] f32, between parts
}

// Packed tiles with f32 activations and weights of the named type; Dot is bf16 with bf16.

//go:noescape
func packedF32AVX512(a *packedTile)

//go:noescape
func packedBF16AVX512(a *packedTile)

//go:noescape
func packedF16AVX512(a *packedTile)

//go:noescape
func packedDotAVX512(a *packedTile)

// packsWide reports whether a product of n rows of x, whose elements have size bytes,
// should use packed tiles of AVX-512. The longer the rows, the more of them it takes: sums
// are kept between parts of a block, and w is read in shorter runs.
func (c CPU) packsWide(size, n int, w *Matrix) bool {
	if !c.AVX512 || size == 2 && c.AVX512BF16 && !c.SlowDot {
		return false
	}
	switch {
	case w.Cols <= wideVectors*lanes:
		return n >= 24
	case w.Type == tensor.F32:
		return false // nothing to widen: tiles in parts
	case w.Cols <= blockK:
		return n >= 24
	}
	return n >= 48
}

// tileWide computes a tile of up to six rows of x. A tile of fewer is filled up with the
// rows before it, of which there are always enough.
func (c CPU) tileWide(t *tile, size int, wt tensor.Type) {
	room := t.wide
	elems := 64 / size // of a group
	p := packedTile{
		x: t.x, ldx: t.ldx, w: t.w, ldw: t.ldw, dst: t.dst, ldd: t.ldd, cols: t.cols &^ 3, add: t.add, ahead: t.ahead,
		packedX: unsafe.Pointer(&room.x), packedW: unsafe.Pointer(&room.w), sums: unsafe.Pointer(&room.sums),
		stepW: uintptr(4 * 4 * elems * t.step),
	}
	missing := packedRows - t.rows
	if missing > 0 {
		p.x = unsafe.Add(p.x, -missing*int(t.ldx))
		p.dst, p.ldd, p.add = unsafe.Pointer(&room.dst), 4*wideCols, 0
	}
	if t.first {
		p.fresh = 1
	}
	for p.cols > 0 && p.last == 0 {
		p.groups = min(wideVectors*lanes/elems, t.step-p.before)
		if p.before+p.groups == t.step {
			p.last = 1
		}
		p.run(size, wt)
		p.x, p.w = unsafe.Add(p.x, 64*p.groups), unsafe.Add(p.w, wt.Bytes(elems)*p.groups)
		p.packedW = unsafe.Add(p.packedW, 4*4*elems*p.groups)
		p.before += p.groups
	}
	if missing > 0 {
		for r := range t.rows {
			to := unsafe.Slice((*float32)(unsafe.Add(t.dst, r*int(t.ldd))), p.cols)
			for i, v := range room.dst[(missing+r)*wideCols:][:p.cols] {
				if t.add != 0 {
					v = to[i] + v
				}
				to[i] = v
			}
		}
	}
	if rest := t.cols - p.cols; rest > 0 {
		last := *t
		last.wide = nil
		last.w, last.dst, last.cols = unsafe.Add(t.w, p.cols*int(t.ldw)), unsafe.Add(t.dst, 4*p.cols), rest
		c.tile(&last, size, wt)
	}
}

func (p *packedTile) run(size int, wt tensor.Type) {
	switch {
	case size == 2:
		packedDotAVX512(p)
	case wt == tensor.F32:
		packedF32AVX512(p)
	case wt == tensor.F16:
		packedF16AVX512(p)
	default:
		packedBF16AVX512(p)
	}
}
