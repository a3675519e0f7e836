//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// The kernels ignore next.

func (c CPU) vector() bool { return c.NEON }

func (c CPU) scores4(t tensor.Type) (tiles, fours scoresFunc) {
	switch t {
	case tensor.F32:
		return scores4F32NEON, nil
	case tensor.F16:
		return scores4F16NEON, nil
	}
	return scores4BF16NEON, nil
}

func (c CPU) values4(t tensor.Type) (one, four, wide valuesFunc) {
	switch t {
	case tensor.F32:
		return values1F32NEON, values4F32NEON, nil
	case tensor.F16:
		return values1F16NEON, values4F16NEON, nil
	}
	return values1BF16NEON, values4BF16NEON, nil
}

func (c CPU) scores1(t tensor.Type, p, q *float32, k unsafe.Pointer, d, n int, scale float32) {
	switch t {
	case tensor.F32:
		scores1F32NEON(p, q, k, d, n, nil, scale)
	case tensor.F16:
		scores1F16NEON(p, q, k, d, n, nil, scale)
	default:
		scores1BF16NEON(p, q, k, d, n, nil, scale)
	}
}

func (c CPU) softmaxBlock(p *float32, n int, st *Softmax) { softmaxBlockNEON(p, n, st) }
func mergeAsm(out, acc *float32, n int, a, b *Softmax)    { mergeNEON(out, acc, n, a, b) }
func divideAsm(dst, x *float32, n int, total float32)     { divideNEON(dst, x, n, total) }

// softmaxWeightsAsm does the first so many of the n elements at p.
func (c CPU) softmaxWeightsAsm(p *float32, n int, st Softmax) int {
	if n &^= 3; n > 0 {
		softmaxWeightsNEON(p, n, st)
	}
	return n
}

//go:noescape
func scores4F32NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores4F16NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores4BF16NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1F32NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1F16NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1BF16NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func values4F32NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4F16NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4BF16NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values1F32NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values1F16NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values1BF16NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func softmaxBlockNEON(p *float32, n int, st *Softmax)

//go:noescape
func mergeNEON(out, acc *float32, n int, a, b *Softmax)

//go:noescape
func softmaxWeightsNEON(p *float32, n int, st Softmax)

//go:noescape
func divideNEON(dst, x *float32, n int, total float32)
