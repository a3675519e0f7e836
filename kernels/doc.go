// Package kernels defines the operations of the transformer runtime and their
// arithmetic, and implements them in portable Go and, where the processor
// allows, in assembly.
//
// # The arithmetic contract
//
// Every element of every result is computed in one fixed order of operations. The
// order does not depend on the number of threads, on how many rows are computed in
// one call, on tile sizes, or on the instruction set: portable Go, AVX2, AVX-512,
// AVX512_VNNI, AVX512_BF16 and NEON give the same bits. The portable functions are the
// definition; everything else is an optimisation of them. All arithmetic is
// IEEE 754 binary32 with round to nearest even. "fma" is one fused operation
// with one rounding. Subnormal numbers are kept, except in products of bf16
// with bf16 (below). The sign of a NaN and its payload are not part of the contract.
//
// Lanes. Sums over a long axis run in 16 lanes. The lanes are joined by the fixed
// tree s[i] += s[i+8] for i < 8, then s[i] += s[i+4], s[i+2], s[i+1]; the
// result is s[0]. An axis whose length is not a multiple of the group size below
// behaves as if it were padded with zeros.
//
// Matrix products (MatMul, MatMulBF16) compute y[r][o] = sum over k of
// x[r][k]·w[o][k]. The axis k is cut into blocks of 2048. Within a block,
// starting from lanes of +0:
//
//   - f32 activations with weights of any type, widened: for each group g of
//     16 elements, lane i becomes fma(x[16g+i], w[16g+i], lane i).
//   - bf16 activations with bf16 weights: for each group g of 32 elements,
//     lane i becomes fma(x[32g+2i+1], w[32g+2i+1], lane i) and then
//     fma(x[32g+2i], w[32g+2i], lane i), odd element first. In both steps
//     subnormal operands count as zeros of the same sign, and a result whose
//     magnitude is below 2^-126 after rounding to 24 bits with unbounded exponent
//     becomes a zero of the same sign. This is what the VDPBF16PS instruction does.
//
// The lanes of a block are joined by the tree, and the blocks are added in
// ascending order: y = ((b0 + b1) + b2) + …
//
// Quantised weights are multiplied as f32, each value of a block widened as its type says and
// rounded once, or, with activations rounded to 8-bit integers, by exact sums of integers within
// a block and one chain over blocks, which int8.go defines.
//
// Attention is computed per query over the logical slots of one KV head. A score is
// the fma chain over d = 0 … D-1 of q[d]·k[d] starting from +0, multiplied by
// the scale (which includes log2 e). Slots are visited in blocks that end at
// absolute multiples of 256. Each block is computed independently, so that blocks
// can be spread over threads: m is the block's largest score, a slot's weight is
// p = exp2(score - m), the weights are summed in 16 lanes (lane = slot mod 16,
// starting from +0, joined by the tree), and each output component is the chain
// acc = fma(p, v, acc) over ascending slots, starting from +0. The blocks are
// merged in ascending order into a running (M, S, O), initially (-Inf, 0, 0):
// with M' = max(M, m), a = exp2(M - M'), b = exp2(m - M'), S becomes S·a + s·b
// and O becomes O·a + acc·b, with both products rounded. The result is O/S + 0.
//
// Attention in bf16 (AttentionArgs.BF16, over a bf16 cache) differs as follows:
// queries are rounded to bf16, and so are the weights, before they are summed and
// used; a weight is 0 where score - m < -60. Scores and output components are chains
// over pairs (2i, 2i+1), of components and of slots respectively, as in matrix
// products: odd element first, tiny operands and results being zeros. A slot of a
// pair that a query does not see is left out.
//
// Keys and values may be integers of 8 or 4 bits with scales; int_rows.go defines their rounding and
// attention_int.go the attention over them, whose sums are exact.
//
// Exp2 and Exp are polynomials defined in exp.go. RMSNorm sums squares in 16
// lanes without blocks; the scale 1/√(mean + ε) is computed in binary64 and
// rounded once. Dot sums in 16 lanes without blocks. Exp carries the part of
// log2 e that is lost by rounding it. RoPE, gated activations, sums of vectors and conversions
// are element-wise, with one rounding per operation as written.
//
// # Words
//
//   - row: of activations, those of one token; of a weight matrix, the weights of one
//     output; of attention, one query head of one token.
//   - tile: what is computed in registers at once, rows of x by rows of w; of keys, the
//     16 entries that are stored side by side.
//   - panel: what many rows read repeatedly and should stay in a processor cache: rows of
//     w, or keys or values in the form that kernels require.
//   - dot: a product of bf16 with bf16, summed in pairs of neighbours, the odd one first,
//     with or without an instruction for it (Dot in the names of kernels).
//   - slot: the place of an entry in its head; column: the same, counted from the start
//     of a block.
//   - span: the rows of one sequence in a pass.
//   - ahead: what a kernel prefetches into the processor's caches; no result depends on it.
//
// # Choosing an instruction set
//
// All operations are methods of [CPU], a plain set of feature flags. Detect
// returns what the processor offers; a test, or the LUKV_CPU variable, can
// force less. The zero CPU is portable Go. The build tag purego leaves all
// assembly out. How memory-bound kernels prefetch, [Streaming], depends on the
// processor's vendor and caches, or is set by LUKV_STREAMING; BenchmarkStreaming
// compares the choices.
//
// # Devices
//
// device.go defines what the runtime requires of an accelerator: [Device], its cache
// pages ([PagePool]) and its forward passes ([Pass], [MetricPass]). Drivers
// register themselves when they are imported, as kernels/vulkan does, and
// [OpenDevice] finds them by name. A device computes the same operations in
// its own order of arithmetic: the results of a row have the same bits in every pass on
// one device and driver, and are close to those defined here.
//
// # Rules for callers
//
// Kernels check nothing that costs time: wrong lengths are a programming error and
// panic (index out of range). Slices are neither retained nor written beyond what a
// function's comment says. All methods are safe for concurrent use on distinct
// destinations. Nothing here allocates, except that attention grows its scratch and
// products of many rows keep buffers for reuse (600 KiB per thread).
package kernels
