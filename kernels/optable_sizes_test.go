package kernels

import "github.com/lukv/lukv/tensor"

// Sizes at which an implementation may switch methods, besides the shapes of
// models: more rows of weights than stay in a cache, 6 and 7 heads per group, enough rows
// of activations for packed tiles of AVX2 and AVX-512, which have parts, single
// rows beyond the last six and the last four, and six rows at a time of a length that is
// read as runs.
func init() {
	for _, t := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		register(
			matMulOp(t, false, 1, 2048, 130),
			matMulOp(t, false, 12, 1040, 64),
			matMulOp(t, false, 13, 48, 71),
			matMulOp(t, false, 16, 2048, 11),
			matMulOp(t, false, 25, 1040, 6),
			matMulOp(t, false, 49, 2096, 5),
			attentionOp(t, attentionShape{dim: 112, page: 64, group: 6, n: 2, end: 255}, false, 0),
			attentionOp(t, attentionShape{dim: 192, page: 32, group: 7, n: 1, end: 300}, false, 0),
		)
	}
	register(
		matMulOp(tensor.BF16, true, 1, 2048, 130),
		matMulOp(tensor.BF16, true, 24, 64, 2),
		matMulOp(tensor.BF16, true, 13, 96, 71),
		matMulOp(tensor.BF16, true, 49, 2144, 5),
		matMulOp(tensor.BF16, true, 29, 1088, 6),
		matMulOp(tensor.BF16, true, 26, 2240, 13),
		matMulOp(tensor.BF16, true, 25, 96, 136),
		matMulOp(tensor.BF16, true, 24, 192, 134),
		attentionOp(tensor.BF16, attentionShape{dim: 112, page: 64, group: 6, n: 2, end: 255}, true, 0),
		attentionOp(tensor.BF16, attentionShape{dim: 192, page: 32, group: 7, n: 1, end: 300}, true, 0),
		attentionOp(tensor.BF16, attentionShape{dim: 64, page: 32, group: 3, n: 40, end: 217, window: 90, base: 96}, true, 0),
	)
}
