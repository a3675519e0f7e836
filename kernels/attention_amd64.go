//go:build !purego

package kernels

import (
	"unsafe"

	"github.com/lukv/lukv/tensor"
)

func (c CPU) vector() bool { return c.AVX2 }

// attentionTable holds the kernels by instruction set and then for caches of f32, f16
// and bf16, and for attention in bf16.
var attentionTable = [...][4]attentionKernels{
	{ // AVX2
		{
			scores4: scores4F32AVX2, values1: values1F32AVX2, values4: values4F32AVX2,
			panelK: panelF32AVX2, panelV: panelF32AVX2,
			scores6: scores6AVX2, values6: values6AVX2, panelValues1: values1F32AVX2, softmax: softmaxRowsAVX2,
		},
		{
			scores4: scores4F16AVX2, values1: values1F16AVX2, values4: values4F16AVX2,
			panelK: panelF16AVX2, panelV: panelF16AVX2,
			scores6: scores6AVX2, values6: values6AVX2, panelValues1: values1F32AVX2, softmax: softmaxRowsAVX2,
		},
		{
			scores4: scores4BF16AVX2, values1: values1BF16AVX2, values4: values4BF16AVX2,
			panelK: panelBF16AVX2, panelV: panelBF16AVX2,
			scores6: scores6AVX2, values6: values6AVX2, panelValues1: values1F32AVX2, softmax: softmaxRowsAVX2,
		},
		{
			dot:     true,
			scores4: scores4DotAVX2, values1: values1DotAVX2, values4: values4DotAVX2,
			panelK: panelBF16AVX2, panelV: panelBF16AVX2,
			scores6: scores6DotAVX2, values6: values6DotAVX2, panelValues1: panelValues1DotAVX2, softmax: softmaxDotAVX2,
		},
	},
	{ // AVX-512
		{
			scores4: scores4F32AVX2, scores16: scores4F32AVX512,
			values1: values1F32AVX2, values4: values4F32AVX2, values64: values4F32AVX512,
			panelK: panelF32AVX512, panelV: panelF32AVX512,
			scores6: scores6AVX512, values6: values6AVX512, panelValues1: values1F32AVX2, softmax: softmaxRowsAVX512,
		},
		{
			scores4: scores4F16AVX2, scores16: scores4F16AVX512,
			values1: values1F16AVX2, values4: values4F16AVX2, values64: values4F16AVX512,
			panelK: panelF16AVX512, panelV: panelF16AVX512,
			scores6: scores6AVX512, values6: values6AVX512, panelValues1: values1F32AVX2, softmax: softmaxRowsAVX512,
		},
		{
			scores4: scores4BF16AVX2, scores16: scores4BF16AVX512,
			values1: values1BF16AVX2, values4: values4BF16AVX2, values64: values4BF16AVX512,
			panelK: panelBF16AVX512, panelV: panelBF16AVX512,
			scores6: scores6AVX512, values6: values6AVX512, panelValues1: values1F32AVX2, softmax: softmaxRowsAVX512,
		},
		{
			dot:     true,
			scores4: scores4DotAVX2, scores16: scores16DotAVX512,
			values1: values1DotAVX2, values4: values4DotAVX2, values64: values64DotAVX512,
			panelK: panelBF16AVX512, panelV: panelBF16AVX512,
			scores6: scores6DotAVX512, values6: values6DotAVX512, panelValues1: panelValues1DotAVX2, softmax: softmaxDotAVX512,
		},
	},
}

// attentionDot holds the kernels of attention in bf16 with AVX512_BF16.
var attentionDot = attentionKernels{
	dot: true, packed: true, steady: &attentionSteady,
	scores4: scores4DotAVX512BF16, scores16: scores16DotAVX512BF16, values1: values1DotAVX512BF16, values4: values4DotAVX512BF16, values64: values64DotAVX512BF16,
	panelK: panelKDotAVX512BF16, panelV: panelVDotAVX512BF16,
	scores6: scores6DotAVX512BF16, values6: values6DotAVX512BF16, panelValues1: panelValues1DotAVX512BF16, softmax: softmaxDotAVX512BF16,
}

// attentionSteady holds those that take 16 columns at a time. On Zen 4 the kernels of 64
// columns request more lines at once than the processor has room for: they are a third
// faster with keys and values from the second-level cache, and a fifth slower with those
// from memory.
var attentionSteady = attentionKernels{
	dot: true, packed: true,
	scores4: scores4DotAVX512BF16, values1: values1DotAVX512BF16, values4: values4DotAVX512BF16, softmax: softmaxDotAVX512BF16,
}

func (c CPU) attentionKernels(t tensor.Type, inBF16 bool) *attentionKernels {
	set, kind := 0, 2
	switch {
	case inBF16:
		kind = 3
	case t == tensor.F32:
		kind = 0
	case t == tensor.F16:
		kind = 1
	}
	if c.AVX512 {
		if inBF16 && c.AVX512BF16 {
			return &attentionDot
		}
		set = 1
	}
	return &attentionTable[set][kind]
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
		k = unsafe.Add(k, t.Bytes(8*m*TileEntries*d))
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

func (c CPU) mergeRows(out, acc *float32, n, rows int, a, b *Softmax) {
	if c.AVX512 {
		mergeRowsAVX512(out, acc, n, rows, a, b)
	} else {
		mergeRowsAVX2(out, acc, n, rows, a, b)
	}
}

func divideAsm(dst, x *float32, n int, total float32) { divideAVX2(dst, x, n, total) }

// softmaxWeightsAsm processes the first of the n elements at p and returns how many.
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
func values6AVX2(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)

//go:noescape
func scores6AVX512(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6AVX512(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)

//go:noescape
func softmaxWeightsAVX2(p *float32, n int, st Softmax)

//go:noescape
func divideAVX2(dst, x *float32, n int, total float32)

//go:noescape
func softmaxWeightsAVX512(p *float32, n int, st Softmax)

//go:noescape
func scores4DotAVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func values1DotAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4DotAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func panelValues1DotAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func scores6DotAVX2(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6DotAVX2(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)

//go:noescape
func softmaxDotAVX2(p *float32, n, rows int, st *Softmax)

//go:noescape
func scores6DotAVX512(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6DotAVX512(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)

//go:noescape
func scores16DotAVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func values64DotAVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func softmaxDotAVX512(p *float32, n, rows int, st *Softmax)

//go:noescape
func scores4DotAVX512BF16(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func scores16DotAVX512BF16(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)

//go:noescape
func values1DotAVX512BF16(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values4DotAVX512BF16(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func values64DotAVX512BF16(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func panelKDotAVX512BF16(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func panelVDotAVX512BF16(dst *float32, src unsafe.Pointer, stride, step, n, cols int)

//go:noescape
func scores6DotAVX512BF16(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)

//go:noescape
func values6DotAVX512BF16(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)

//go:noescape
func panelValues1DotAVX512BF16(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)

//go:noescape
func softmaxDotAVX512BF16(p *float32, n, rows int, st *Softmax)

// interleave is an index for VPERMW: element 2i is i, element 2i+1 is 16+i.
//
//lint:ignore U1000 read by assembly
var interleave = func() (idx [32]uint16) {
	for i := range idx {
		idx[i] = uint16(i/2 + i%2*16)
	}
	return idx
}()
