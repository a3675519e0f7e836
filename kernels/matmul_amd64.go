//go:build !purego

package kernels

import "github.com/lukv/lukv/tensor"

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

// tileF32 adds one block of a product with f32 activations to a's outputs.
func (c CPU) tileF32(a *tile, t tensor.Type) {
	switch {
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

// tileDot adds one block of a product of bf16 with bf16 to a's outputs.
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
