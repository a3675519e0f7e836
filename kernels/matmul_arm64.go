//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Tiles with f32 activations and weights as named; Dot is bf16 with bf16. Each
// returns how many rows of w it has done: tileDotNEON stops before a quad in
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

// tileF32 adds one block of a product with f32 activations to a's outputs.
func (c CPU) tileF32(a *tile, t tensor.Type) {
	switch t {
	case tensor.F32:
		tileF32NEON(a)
	case tensor.F16:
		tileF16NEON(a)
	default:
		tileBF16NEON(a)
	}
}

// tileDot adds one block of a product of bf16 with bf16 to a's outputs. NEON
// flushes sums that are tiny before rounding, the contract those that are tiny
// after it: where that could matter, the portable function steps in.
func (c CPU) tileDot(a *tile) {
	for t := *a; ; {
		done := tileDotNEON(&t)
		if done == t.cols {
			return
		}
		t.skip(done)
		cols := t.cols
		t.cols = min(cols, 4)
		t.dotPortable()
		n := t.cols
		t.cols = cols
		if n == cols {
			return
		}
		t.skip(n)
	}
}

// skip moves the tile on by cols rows of w.
func (t *tile) skip(cols int) {
	t.w = unsafe.Add(t.w, cols*int(t.ldw))
	t.dst = unsafe.Add(t.dst, 4*cols)
	t.cols -= cols
}

// dotPortable does the work of a tile of bf16 with bf16.
func (t *tile) dotPortable() {
	k := 2 * Lanes * t.step
	for r := range t.rows {
		x := unsafe.Slice((*uint16)(unsafe.Add(t.x, r*int(t.ldx))), k)
		for o := range t.cols {
			w := unsafe.Slice((*byte)(unsafe.Add(t.w, o*int(t.ldw))), 2*k)
			d := (*float32)(unsafe.Add(t.dst, r*int(t.ldd)+4*o))
			*d += dotBF16(x, w)
		}
	}
}
