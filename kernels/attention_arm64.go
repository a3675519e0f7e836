//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

// The kernels ask for nothing ahead of need.

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

func (c CPU) softmaxRows(p *float32, n, rows int, st *Softmax) {
	for r := range rows {
		softmaxBlockNEON(rowOf(p, r), n, statOf(st, r))
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

func (c CPU) panel(t tensor.Type) panelFunc {
	switch t {
	case tensor.F32:
		return panelF32NEON
	case tensor.F16:
		return panelF16NEON
	}
	return panelBF16NEON
}

func (c CPU) scores6(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32) {
	scores6NEON(p, q, k, d, groups, nextK, nextV, pace, scale)
}

func (c CPU) values6(acc, p, v *float32, n, groups, cols int) {
	values6NEON(acc, p, v, n, groups, cols)
}

func values1(acc, p *float32, v unsafe.Pointer, stride, n, cols int) {
	values1F32NEON(acc, p, v, stride, n, cols, nil)
}

func divideAsm(dst, x *float32, n int, total float32) { divideNEON(dst, x, n, total) }

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

//go:noescape
func scores6NEON(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6NEON(acc, p, v *float32, n, groups, cols int)

//go:noescape
func panelF32NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelF16NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelBF16NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
