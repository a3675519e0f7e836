//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// Tiles with f32 activations and weights as named; Dot is bf16 with bf16.

//go:noescape
func tileF32AVX2(a *tile)

//go:noescape
func tileBF16AVX2(a *tile)

//go:noescape
func tileF16AVX2(a *tile)

//go:noescape
func tileDotAVX2(a *tile)

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

const (
	// partSteps is the length of the first part of a tile in parts: so much of six
	// rows of f32 is half of the first-level cache.
	partSteps = 1024 / Lanes

	// tileSums is the number of sums that wait between two parts.
	tileSums = partCols * 6 * Lanes
	partCols = 64
)

// tilesInParts reports whether tiles of many rows should have sums. It pays with
// f32 weights: the others leave the second-level cache time to deliver x as well.
func (c CPU) tilesInParts(size int, w *Matrix) bool {
	return c.AVX512 && size == 4 && w.Type == tensor.F32 && w.Cols > partSteps*Lanes
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

// tileF32 computes one block of a product with f32 activations.
func (c CPU) tileF32(a *tile, t tensor.Type) {
	switch {
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

// tileDot computes one block of a product of bf16 with bf16.
func (c CPU) tileDot(a *tile) {
	switch {
	case c.AVX512BF16 && c.AVX512:
		tileDotAVX512BF16(a)
	case c.AVX512:
		tileDotAVX512(a)
	default:
		tileDotAVX2(a)
	}
}
