//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Tiles with f32 activations and weights of the named type; Dot is bf16 with bf16.

//go:noescape
func tileF32AVX2(a *tile)

//go:noescape
func tileBF16AVX2(a *tile)

//go:noescape
func tileF16AVX2(a *tile)

//go:noescape
func tileDotAVX2(a *tile)

// tilePackedAVX2 updates sums with a part of the block: six rows, and even numbers of
// cols and groups. joinPackedAVX2 joins the lanes of complete sums and stores them in
// dst or adds them to it.
//
//go:noescape
func tilePackedAVX2(a *tile)

//go:noescape
func joinPackedAVX2(a *tile)

//go:noescape
func tileF32AVX512(a *tile)

//go:noescape
func tileBF16AVX512(a *tile)

//go:noescape
func tileF16AVX512(a *tile)

//go:noescape
func tileDotAVX512(a *tile)

//go:noescape
func tileDotAVX512BF16(a *tile)

// tileRows returns how many rows of activations a tile may have; 0 without assembly.
func (c CPU) tileRows() int {
	switch {
	case c.AVX512:
		return 6
	case c.AVX2:
		return 3
	}
	return 0
}

// tiling returns how a product of n rows, 6 or more on AVX-512 and 3 or more on AVX2, is
// computed.
func (c CPU) tiling(size, n int, w *Matrix) tiling {
	switch {
	case c.packsWide(size, n, w):
		return tilesWide
	case c.tilesInParts(size, w):
		return tilesInParts
	case !c.AVX512 && size == 2 && n >= packedFrom:
		return tilesPacked
	}
	return tilesPlain
}

const (
	// partSteps is the length of the first part of a tile in parts: that much of six
	// rows of f32 is half the first-level cache.
	partSteps = 1024 / lanes

	// partCols is the most rows of w whose sums are kept between two parts.
	partCols = 64

	// packedFrom is the fewest rows of x for which packed tiles pay off.
	packedFrom = 24
)

// tilesInParts reports whether tiles of many rows should have sums. This pays off with
// f32 weights: the others leave the second-level cache time to deliver x as well.
func (c CPU) tilesInParts(size int, w *Matrix) bool {
	return c.AVX512 && size == 4 && w.Type == tensor.F32 && w.Cols > partSteps*lanes
}

// tileParts is tileF32AVX512 in two parts.
func tileParts(a *tile) {
	t := *a
	t.part, t.step = 1, partSteps
	tileF32AVX512(&t)
	t.part, t.step = 2, a.step-partSteps
	t.x, t.w = unsafe.Add(t.x, 64*partSteps), unsafe.Add(t.w, 64*partSteps)
	tileF32AVX512(&t)
}

// tilePacked is tilePackedAVX2 in parts.
func tilePacked(a *tile) {
	t := *a
	for t.part < a.step {
		t.step = min(packedSteps, a.step-t.part)
		tilePackedAVX2(&t)
		t.x, t.w = unsafe.Add(t.x, 64*t.step), unsafe.Add(t.w, 64*t.step)
		t.part += t.step
	}
	joinPackedAVX2(a)
}

// tileF32 computes one block of a product with f32 activations.
func (c CPU) tileF32(a *tile, t tensor.Type) {
	switch {
	case a.wide != nil:
		c.tileWide(a, 4, t)
	case c.AVX512 && t == tensor.F32 && a.sums != nil && a.rows == 6 && a.step > partSteps && a.cols <= partCols && a.cols%4 == 0:
		tileParts(a)
	case c.AVX512 && t == tensor.F32:
		tileF32AVX512(a)
	case c.AVX512 && t == tensor.F16:
		tileF16AVX512(a)
	case c.AVX512:
		tileBF16AVX512(a)
	case t == tensor.F32:
		tileF32AVX2(a)
	case t == tensor.F16:
		tileF16AVX2(a)
	default:
		tileBF16AVX2(a)
	}
}

// slowDot reports whether slow dot products cost the tile time: the processor spends longer
// computing than waiting for memory.
func (a *tile) slowDot() bool { return a.rows >= 5 || a.rows == 4 && a.ahead != nil }

// tileFlushing is tileDot, but leaves the state after a fault.
func (c CPU) tileFlushing(a *tile) {
	switch {
	case a.wide != nil:
		c.tileWide(a, 2, tensor.BF16)
	case c.AVX512BF16 && c.AVX512 && !(c.SlowDot && a.slowDot()):
		tileDotAVX512BF16(a)
	case c.AVX512:
		tileDotAVX512(a)
	case a.rows == packedRows:
		tilePacked(a)
	default:
		tileDotAVX2(a)
	}
}
