//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// The kernels prefetch nothing.

func (c CPU) vector() bool { return c.NEON }

var (
	attentionF32 = attentionKernels{
		scores4: scores4F32NEON, values1: values1F32NEON, values4: values4F32NEON,
		panelK: panelF32NEON, panelV: panelF32NEON,
		scores6: scores6NEON, values6: values6NEON, panelValues1: values1F32NEON, softmax: softmaxRowsNEON,
	}
	attentionF16 = attentionKernels{
		scores4: scores4F16NEON, values1: values1F16NEON, values4: values4F16NEON,
		panelK: panelF16NEON, panelV: panelF16NEON,
		scores6: scores6NEON, values6: values6NEON, panelValues1: values1F32NEON, softmax: softmaxRowsNEON,
	}
	attentionBF16 = attentionKernels{
		scores4: scores4BF16NEON, values1: values1BF16NEON, values4: values4BF16NEON,
		panelK: panelBF16NEON, panelV: panelBF16NEON,
		scores6: scores6NEON, values6: values6NEON, panelValues1: values1F32NEON, softmax: softmaxRowsNEON,
	}
	attentionDot = attentionKernels{
		dot: true, reports: true,
		scores4: scores4DotNEON, values1: values1DotNEON, values4: values4DotNEON,
		panelK: panelBF16NEON, panelV: panelBF16NEON,
		scores6: scores6DotNEON, values6: values6DotNEON, panelValues1: panelValues1DotNEON, softmax: softmaxDotNEON,
	}
)

func (c CPU) attentionKernels(t tensor.Type, inBF16 bool) *attentionKernels {
	switch {
	case inBF16:
		return &attentionDot
	case t == tensor.F32:
		return &attentionF32
	case t == tensor.F16:
		return &attentionF16
	}
	return &attentionBF16
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

func (c CPU) mergeRows(out, acc *float32, n, rows int, a, b *Softmax) {
	for r := range rows {
		mergeNEON(rowOf(out, r), rowOf(acc, r), n, statOf(a, r), statOf(b, r))
	}
}

func rowOf(p *float32, r int) *float32 {
	return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*attentionStride*r))
}

func statOf(st *Softmax, r int) *Softmax {
	return (*Softmax)(unsafe.Add(unsafe.Pointer(st), r*int(unsafe.Sizeof(*st))))
}

func divideAsm(dst, x *float32, n int, total float32) { divideNEON(dst, x, n, total) }

// softmaxWeightsAsm processes the first of the n elements at p and returns how many.
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
func softmaxRowsNEON(p *float32, n, rows int, st *Softmax)

//go:noescape
func mergeNEON(out, acc *float32, n int, a, b *Softmax)

//go:noescape
func softmaxWeightsNEON(p *float32, n int, st Softmax)

//go:noescape
func divideNEON(dst, x *float32, n int, total float32)

//go:noescape
func scores6NEON(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6NEON(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)

//go:noescape
func panelF32NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelF16NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelBF16NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func scores4DotNEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func values4DotNEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values1DotNEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func panelValues1DotNEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func scores6DotNEON(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6DotNEON(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)

//go:noescape
func softmaxDotNEON(p *float32, n, rows int, st *Softmax)
