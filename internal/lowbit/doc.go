// Package lowbit reads the matrices of safetensors checkpoints whose weights other
// programs have stored in 8 or 4 bits: compressed-tensors (int-quantized,
// pack-quantized, float-quantized, nvfp4 and mxfp4), GPTQ versions 1 and 2, AWQ (gemm),
// MLX (affine), bitsandbytes (int8, nf4, fp4), and 8-bit floats (Hugging Face's fp8,
// fbgemm, modelopt, Mistral's own).
//
// [Parse] reads from config.json how the weights are stored, [Scheme.Matrix] finds and
// checks the tensors of one module, and [Matrix.Rows] gives its rows as float32: the
// exact value of the format's formula, rounded once, or twice where the format itself
// has two products. Whatever is not understood exactly is refused by name, for a format
// read wrongly gives a model that speaks, but not as it should.
//
// The layouts are those that the formats' own libraries write; every kind is held against
// golden values by an independent program.
package lowbit
