//go:build !purego

package kernels

import (
	"math"
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Tiles with f32 activations and weights of the named type; Dot is bf16 with bf16. Each
// returns how many rows of w it has processed: tileDotNEON stops before a quad in
// which a sum underflowed.

//go:noescape
func tileF32NEON(a *tile) (done int)

//go:noescape
func tileBF16NEON(a *tile) (done int)

//go:noescape
func tileF16NEON(a *tile) (done int)

//go:noescape
func tileDotNEON(a *tile) (done int)

// tileRows returns how many rows of activations a tile may have; 0 without assembly.
func (c CPU) tileRows() int {
	if c.NEON {
		return 3
	}
	return 0
}

// tiling returns how a product of many rows is computed.
func (c CPU) tiling(size, n int, w *Matrix) tiling { return tilesPlain }

// prepare readies dst for routines that always add: negative zero is the neutral
// element of addition.
func (t *tile) prepare() {
	if t.add != 0 {
		return
	}
	for r := range t.rows {
		row := unsafe.Slice((*float32)(unsafe.Add(t.dst, r*int(t.ldd))), t.cols)
		for i := range row {
			row[i] = float32(math.Copysign(0, -1))
		}
	}
}

// tileF32 computes one block of a product with f32 activations.
func (c CPU) tileF32(a *tile, t tensor.Type) {
	a.prepare()
	switch t {
	case tensor.F32:
		tileF32NEON(a)
	case tensor.F16:
		tileF16NEON(a)
	default:
		tileBF16NEON(a)
	}
}

// tileFlushing is tileDot, but leaves the state of the thread after a fault. NEON
// flushes sums that are tiny before rounding, the contract those that are tiny
// after it: where that could matter, the portable function steps in.
func (c CPU) tileFlushing(a *tile) {
	a.prepare()
	for t := *a; ; {
		done := tileDotNEON(&t)
		if done == t.cols {
			return
		}
		t = t.skip(done)
		cols := t.cols
		t.cols = min(cols, 4)
		t.dotPortable()
		n := t.cols
		t.cols = cols
		if n == cols {
			return
		}
		t = t.skip(n)
	}
}

// skip returns the tile without its first cols rows of w.
func (t tile) skip(cols int) tile {
	t.w = unsafe.Add(t.w, cols*int(t.ldw))
	t.dst = unsafe.Add(t.dst, 4*cols)
	t.cols -= cols
	return t
}

// dotPortable computes a tile of bf16 with bf16.
func (t *tile) dotPortable() {
	k := 2 * lanes * t.step
	for r := range t.rows {
		x := unsafe.Slice((*uint16)(unsafe.Add(t.x, r*int(t.ldx))), k)
		for o := range t.cols {
			w := unsafe.Slice((*byte)(unsafe.Add(t.w, o*int(t.ldw))), 2*k)
			d := (*float32)(unsafe.Add(t.dst, r*int(t.ldd)+4*o))
			*d += dotBF16(x, w)
		}
	}
}
