//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

func (c CPU) vector() bool { return c.AVX2 }

func (c CPU) scores4(t tensor.Type) (tiles, fours scoresFunc) {
	switch t {
	case tensor.F32:
		tiles, fours = scores4F32AVX2, scores4F32AVX512
	case tensor.F16:
		tiles, fours = scores4F16AVX2, scores4F16AVX512
	default:
		tiles, fours = scores4BF16AVX2, scores4BF16AVX512
	}
	if !c.AVX512 {
		fours = nil
	}
	return tiles, fours
}

func (c CPU) values4(t tensor.Type) (one, four, wide valuesFunc) {
	switch t {
	case tensor.F32:
		one, four, wide = values1F32AVX2, values4F32AVX2, values4F32AVX512
	case tensor.F16:
		one, four, wide = values1F16AVX2, values4F16AVX2, values4F16AVX512
	default:
		one, four, wide = values1BF16AVX2, values4BF16AVX2, values4BF16AVX512
	}
	if !c.AVX512 {
		wide = nil
	}
	return one, four, wide
}

func (c CPU) scores1(t tensor.Type, p, q *float32, k unsafe.Pointer, d, n int, scale float32) {
	if m := n / 8; c.AVX512 && m > 0 {
		switch t {
		case tensor.F32:
			scores1F32AVX512(p, q, k, d, m, nil, scale)
		case tensor.F16:
			scores1F16AVX512(p, q, k, d, m, nil, scale)
		default:
			scores1BF16AVX512(p, q, k, d, m, nil, scale)
		}
		if n -= 8 * m; n == 0 {
			return
		}
		p = (*float32)(unsafe.Add(unsafe.Pointer(p), 8*m*TileEntries*4))
		k = unsafe.Add(k, 8*m*TileEntries*d*t.Size())
	}
	switch t {
	case tensor.F32:
		scores1F32AVX2(p, q, k, d, n, nil, scale)
	case tensor.F16:
		scores1F16AVX2(p, q, k, d, n, nil, scale)
	default:
		scores1BF16AVX2(p, q, k, d, n, nil, scale)
	}
}

func (c CPU) softmaxRows(p *float32, n, rows int, st *Softmax) {
	if c.AVX512 {
		softmaxRowsAVX512(p, n, rows, st)
	} else {
		softmaxRowsAVX2(p, n, rows, st)
	}
}

func (c CPU) mergeRows(out, acc *float32, n, rows int, a, b *Softmax) {
	if c.AVX512 {
		mergeRowsAVX512(out, acc, n, rows, a, b)
	} else {
		mergeRowsAVX2(out, acc, n, rows, a, b)
	}
}

func (c CPU) panel(t tensor.Type) panelFunc {
	switch {
	case c.AVX512 && t == tensor.F32:
		return panelF32AVX512
	case c.AVX512 && t == tensor.F16:
		return panelF16AVX512
	case c.AVX512:
		return panelBF16AVX512
	case t == tensor.F32:
		return panelF32AVX2
	case t == tensor.F16:
		return panelF16AVX2
	}
	return panelBF16AVX2
}

func (c CPU) scores6(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32) {
	if c.AVX512 {
		scores6AVX512(p, q, k, d, groups, nextK, nextV, pace, scale)
	} else {
		scores6AVX2(p, q, k, d, groups, nextK, nextV, pace, scale)
	}
}

func (c CPU) values6(acc, p, v *float32, n, groups, cols int) {
	if c.AVX512 {
		values6AVX512(acc, p, v, n, groups, cols)
	} else {
		values6AVX2(acc, p, v, n, groups, cols)
	}
}

func values1(acc, p *float32, v unsafe.Pointer, stride, n, cols int) {
	values1F32AVX2(acc, p, v, stride, n, cols, nil)
}

func divideAsm(dst, x *float32, n int, total float32) { divideAVX2(dst, x, n, total) }

// softmaxWeightsAsm does the first so many of the n elements at p.
func (c CPU) softmaxWeightsAsm(p *float32, n int, st Softmax) int {
	if n &^= 15; n == 0 {
		return 0
	}
	if c.AVX512 {
		softmaxWeightsAVX512(p, n, st)
	} else {
		softmaxWeightsAVX2(p, n, st)
	}
	return n
}

//go:noescape
func scores4F32AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores4F16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores4BF16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1F32AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1F16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1BF16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores4F32AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores4F16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores4BF16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1F32AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1F16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores1BF16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func values4F32AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4F16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4BF16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values1F32AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values1F16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values1BF16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4F32AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4F16AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4BF16AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func softmaxRowsAVX2(p *float32, n, rows int, st *Softmax)

//go:noescape
func softmaxRowsAVX512(p *float32, n, rows int, st *Softmax)

//go:noescape
func mergeRowsAVX2(out, acc *float32, n, rows int, a, b *Softmax)

//go:noescape
func mergeRowsAVX512(out, acc *float32, n, rows int, a, b *Softmax)

//go:noescape
func panelF32AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelF16AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelBF16AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelF32AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelF16AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelBF16AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func scores6AVX2(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6AVX2(acc, p, v *float32, n, groups, cols int)

//go:noescape
func scores6AVX512(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6AVX512(acc, p, v *float32, n, groups, cols int)

//go:noescape
func softmaxWeightsAVX2(p *float32, n int, st Softmax)

//go:noescape
func divideAVX2(dst, x *float32, n int, total float32)

//go:noescape
func softmaxWeightsAVX512(p *float32, n int, st Softmax)
