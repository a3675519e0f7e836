//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "attention_amd64.h"
#include "attention_avx2_amd64.h"

// Kernels of attention in bf16 without AVX512_BF16 have Dot in their names: queries,
// weights and panels hold numbers of bf16 as f32, of two components or slots the second
// comes first, and MXCSR makes zeros of subnormal numbers as products of bf16 do.

// Steps of two components, of two slots.
#define COMPONENTS LEAQ 32(DX), R14; TIMES4(LOAD_BF16, R14, 4); TIMES4(LOAD_BF16, DX, 0)
#define SLOTS LEAQ (R12)(R11*1), R14; TIMES4(LOAD_BF16, R14, 4); TIMES4(LOAD_BF16, R12, 0)
#define SLOTS1(LOAD) LEAQ (R12)(R11*1), R14; TIMES1(LOAD, R14, 4); TIMES1(LOAD, R12, 0)

// func scores4F32AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F32AVX2(SB), NOSPLIT, $0-52
	SCORES4_AVX2(TIMES4(LOAD_F32, DX, 0), 1, 4, NOTHING, NOTHING)

// func scores4F16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F16AVX2(SB), NOSPLIT, $0-52
	SCORES4_AVX2(TIMES4(LOAD_F16, DX, 0), 1, 2, NOTHING, NOTHING)

// func scores4BF16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4BF16AVX2(SB), NOSPLIT, $0-52
	SCORES4_AVX2(TIMES4(LOAD_BF16, DX, 0), 1, 2, NOTHING, NOTHING)

// func scores1F32AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F32AVX2(SB), NOSPLIT, $0-52
	SCORES1_AVX2(LOAD_F32, 4)

// func scores1F16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F16AVX2(SB), NOSPLIT, $0-52
	SCORES1_AVX2(LOAD_F16, 2)

// func scores1BF16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1BF16AVX2(SB), NOSPLIT, $0-52
	SCORES1_AVX2(LOAD_BF16, 2)

// func values4F32AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F32AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(TIMES4(LOAD_F32, R12, 0), 1, PREFETCH_1, 4, NOTHING)

// func values4F16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F16AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(TIMES4(LOAD_F16, R12, 0), 1, PREFETCH_1, 2, NOTHING)

// func values4BF16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4BF16AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(TIMES4(LOAD_BF16, R12, 0), 1, PREFETCH_1, 2, NOTHING)

// func values1F32AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1F32AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(TIMES1(LOAD_F32, R12, 0), 1, 4, NOTHING)

// func values1F16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1F16AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(TIMES1(LOAD_F16, R12, 0), 1, 2, NOTHING)

// func values1BF16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1BF16AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(TIMES1(LOAD_BF16, R12, 0), 1, 2, NOTHING)

// func softmaxRowsAVX2(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxRowsAVX2(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), R8
	MOVQ n+8(FP), R11
	MOVQ rows+16(FP), DX
	MOVQ st+24(FP), DI
	EXP2_CONSTANTS_AVX2
row:
	SOFTMAX_MAX_AVX2
weight:
	VMOVUPS (SI), Y4
	VSUBPS Y1, Y4, Y4
	EXP2_DOWN_AVX2(Y4, Y5, Y6, Y0)
	VMOVUPS Y4, (SI)
	VADDPS Y4, Y2, Y2
	VMOVUPS 32(SI), Y4
	VSUBPS Y1, Y4, Y4
	EXP2_DOWN_AVX2(Y4, Y5, Y6, Y0)
	VMOVUPS Y4, 32(SI)
	VADDPS Y4, Y3, Y3
	ADDQ $64, SI
	SUBQ $16, CX
	JNZ weight
	SUM_LANES(Y2, Y3, X2, X3)
	VMOVSS X2, 4(DI)
	ADDQ $8, DI
	ADDQ $ROW, R8
	DECQ DX
	JNZ row
	VZEROUPPER
	RET

// func mergeRowsAVX2(out, acc *float32, n, rows int, a, b *Softmax)
TEXT ·mergeRowsAVX2(SB), NOSPLIT, $0-48
	MOVQ out+0(FP), R10
	MOVQ acc+8(FP), R11
	MOVQ rows+24(FP), DX
	MOVQ a+32(FP), R8
	MOVQ b+40(FP), R9
	EXP2_CONSTANTS_AVX2
	VXORPS Y6, Y6, Y6
row:
	VBROADCASTSS (R8), X0
	VBROADCASTSS (R9), X1
	VMAXPS X1, X0, X2
	VMOVSS X2, (R8)
	VINSERTF128 $1, X1, Y0, Y0
	VINSERTF128 $1, X2, Y2, Y2
	VSUBPS Y2, Y0, Y0
	EXP2_DOWN_AVX2(Y0, Y3, Y4, Y5)
	VEXTRACTF128 $1, Y0, X1
	VMULSS 4(R8), X0, X2
	VMULSS 4(R9), X1, X3
	VADDSS X3, X2, X2
	VMOVSS X2, 4(R8)
	VBROADCASTSS X0, Y0     // factor of out
	VBROADCASTSS X1, Y1     // factor of acc
	MOVQ R10, DI
	MOVQ R11, SI
	MOVQ n+16(FP), CX
columns:
	VMULPS (DI), Y0, Y2
	VMULPS 32(DI), Y0, Y3
	VMULPS (SI), Y1, Y4
	VMULPS 32(SI), Y1, Y5
	VMOVUPS Y6, (SI)
	VMOVUPS Y6, 32(SI)
	VADDPS Y4, Y2, Y2
	VADDPS Y5, Y3, Y3
	VMOVUPS Y2, (DI)
	VMOVUPS Y3, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ columns
	ADDQ $ROW, R10
	ADDQ $ROW, R11
	ADDQ $8, R8
	ADDQ $8, R9
	DECQ DX
	JNZ row
	VZEROUPPER
	RET

// func softmaxWeightsAVX2(p *float32, n int, st Softmax)
TEXT ·softmaxWeightsAVX2(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS st_Max+16(FP), Y0
	VBROADCASTSS st_Sum+20(FP), Y1
	EXP2_CONSTANTS_AVX2
weight:
	VMOVUPS (SI), Y4
	VSUBPS Y0, Y4, Y4
	EXP2_AVX2(Y4, Y5, Y6, Y2)
	VDIVPS Y1, Y4, Y4
	VMOVUPS Y4, (SI)
	ADDQ $32, SI
	SUBQ $8, CX
	JNZ weight
	VZEROUPPER
	RET

// func divideAVX2(dst, x *float32, n int, total float32)
TEXT ·divideAVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS total+24(FP), Y0
	VXORPS Y3, Y3, Y3
next:
	VMOVUPS (SI), Y1
	VMOVUPS 32(SI), Y2
	VDIVPS Y0, Y1, Y1
	VDIVPS Y0, Y2, Y2
	VADDPS Y3, Y1, Y1       // -0 becomes +0
	VADDPS Y3, Y2, Y2
	VMOVUPS Y1, (DI)
	VMOVUPS Y2, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func scores4DotAVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4DotAVX2(SB), NOSPLIT, $8-52
	MODES
	SCORES4_AVX2(COMPONENTS, 2, 2, FLUSH, KEEP)

// func values4DotAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4DotAVX2(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES4_AVX2(SLOTS, 2, PREFETCH_BOTH, 2, KEEP)

// func values1DotAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1DotAVX2(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES1_AVX2(SLOTS1(LOAD_BF16), 2, 2, KEEP)

// func panelValues1DotAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·panelValues1DotAVX2(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES1_AVX2(SLOTS1(LOAD_F32), 2, 4, KEEP)

// func scores6DotAVX2(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6DotAVX2(SB), NOSPLIT, $8-68
	MODES
	SCORES6_AVX2(1, 0, FLUSH, KEEP)

// func values6DotAVX2(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6DotAVX2(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES6_AVX2(1, 0)
	KEEP
	VZEROUPPER
	RET

// func softmaxDotAVX2(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxDotAVX2(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), R8
	MOVQ n+8(FP), R11
	MOVQ rows+16(FP), DX
	MOVQ st+24(FP), DI
	EXP2_CONSTANTS_AVX2
	VBROADCASTSS ·minWeights(SB), Y14
	VPCMPEQD Y15, Y15, Y15
	VPSRLD $17, Y15, Y15
row:
	SOFTMAX_MAX_AVX2
weight:
	VMOVUPS (SI), Y4
	VSUBPS Y1, Y4, Y4
	EXP2_DOWN_AVX2(Y4, Y5, Y6, Y0)
	ROUND_WEIGHTS(Y4, Y5, Y15)
	VMOVUPS Y4, (SI)
	VADDPS Y4, Y2, Y2
	VMOVUPS 32(SI), Y4
	VSUBPS Y1, Y4, Y4
	EXP2_DOWN_AVX2(Y4, Y5, Y6, Y0)
	ROUND_WEIGHTS(Y4, Y5, Y15)
	VMOVUPS Y4, 32(SI)
	VADDPS Y4, Y3, Y3
	ADDQ $64, SI
	SUBQ $16, CX
	JNZ weight
	SUM_LANES(Y2, Y3, X2, X3)
	VMOVSS X2, 4(DI)
	ADDQ $8, DI
	ADDQ $ROW, R8
	DECQ DX
	JNZ row
	VZEROUPPER
	RET

// func scores6AVX2(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6AVX2(SB), NOSPLIT, $0-68
	SCORES6_AVX2(0, 1, NOTHING, NOTHING)

// func values6AVX2(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6AVX2(SB), NOSPLIT, $0-56
	VALUES6_AVX2(0, 1)
	VZEROUPPER
	RET

// func panelF32AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF32AVX2(SB), NOSPLIT, $0-48
	WIDEN(MOVE_F32_AVX2)

// func panelF16AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF16AVX2(SB), NOSPLIT, $0-48
	WIDEN(MOVE_F16_AVX2)

// func panelBF16AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelBF16AVX2(SB), NOSPLIT, $0-48
	WIDEN(MOVE_BF16_AVX2)
