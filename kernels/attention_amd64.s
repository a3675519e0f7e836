//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "attention_amd64.h"

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

// func scores4F32AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F32AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(TILES(LOADZ_F32, 0); TIMES16(0), 1, PREFETCH_4, 4, NOTHING, NOTHING)

// func scores4F16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F16AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(TILES(LOADZ_F16, 0); TIMES16(0), 1, PREFETCH_2, 2, NOTHING, NOTHING)

// func scores4BF16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4BF16AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(TILES(LOADZ_BF16, 0); TIMES16(0), 1, PREFETCH_2, 2, NOTHING, NOTHING)

// func scores1F32AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F32AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_F32, 4)

// func scores1F16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F16AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_F16, 2)

// func scores1BF16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1BF16AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_BF16, 2)

// func values4F32AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F32AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(TIMES4(LOAD_F32, R12, 0), 1, 4, NOTHING)

// func values4F16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F16AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(TIMES4(LOAD_F16, R12, 0), 1, 2, NOTHING)

// func values4BF16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4BF16AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(TIMES4(LOAD_BF16, R12, 0), 1, 2, NOTHING)

// func values1F32AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1F32AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(TIMES1(LOAD_F32, R12, 0), 1, 4, NOTHING)

// func values1F16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1F16AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(TIMES1(LOAD_F16, R12, 0), 1, 2, NOTHING)

// func values1BF16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1BF16AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(TIMES1(LOAD_BF16, R12, 0), 1, 2, NOTHING)

// func values4F32AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F32AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(COLUMNS(LOADZ_F32, 4); TIMES16(0), 1, PREFETCH_4, 4, NOTHING)

// func values4F16AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F16AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(COLUMNS(LOADZ_F16, 2); TIMES16(0), 1, PREFETCH_2, 2, NOTHING)

// func values4BF16AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4BF16AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(COLUMNS(LOADZ_BF16, 2); TIMES16(0), 1, PREFETCH_2, 2, NOTHING)

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

#define STORE_WEIGHTS \
	VMOVUPS Z4, (R9); \
	VMOVUPS Z8, ROW(R9); \
	VADDPS Z4, Z12, Z12; \
	VADDPS Z8, Z13, Z13

// func softmaxRowsAVX512(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxRowsAVX512(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), R8
	MOVQ n+8(FP), R11
	MOVQ rows+16(FP), DX
	MOVQ st+24(FP), DI
	EXP2_CONSTANTS_AVX512
	SOFTMAX_AVX512(STORE_WEIGHTS, 64)

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

// func mergeRowsAVX512(out, acc *float32, n, rows int, a, b *Softmax)
TEXT ·mergeRowsAVX512(SB), NOSPLIT, $0-48
	MOVQ out+0(FP), R10
	MOVQ acc+8(FP), R11
	MOVQ rows+24(FP), DX
	MOVQ a+32(FP), R8
	MOVQ b+40(FP), R9
	EXP2_CONSTANTS_AVX512
	VPXORD Z6, Z6, Z6
row:
	VBROADCASTSS (R8), X0
	VBROADCASTSS (R9), X1
	VMAXPS X1, X0, X2
	VMOVSS X2, (R8)
	VINSERTF128 $1, X1, Y0, Y0
	VINSERTF128 $1, X2, Y2, Y2
	VSUBPS Y2, Y0, Y0
	EXP2_DOWN_AVX512(Z0, Z3, Z4, Z5)
	VEXTRACTF128 $1, Y0, X1
	VMULSS 4(R8), X0, X2
	VMULSS 4(R9), X1, X3
	VADDSS X3, X2, X2
	VMOVSS X2, 4(R8)
	VBROADCASTSS X0, Z0     // factor of out
	VBROADCASTSS X1, Z1     // factor of acc
	MOVQ R10, DI
	MOVQ R11, SI
	MOVQ n+16(FP), CX
columns:
	VMULPS (DI), Z0, Z2
	VMULPS (SI), Z1, Z4
	VMOVUPS Z6, (SI)
	VADDPS Z4, Z2, Z2
	VMOVUPS Z2, (DI)
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

// func softmaxWeightsAVX512(p *float32, n int, st Softmax)
TEXT ·softmaxWeightsAVX512(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	EXP2_CONSTANTS_AVX512
	VBROADCASTSS st_Max+16(FP), Z0
	VBROADCASTSS st_Sum+20(FP), Z1
weight:
	VMOVUPS (SI), Z4
	VSUBPS Z0, Z4, Z4
	EXP2_AVX512(Z4, Z5, Z6, Z2)
	VDIVPS Z1, Z4, Z4
	VMOVUPS Z4, (SI)
	ADDQ $64, SI
	SUBQ $16, CX
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
