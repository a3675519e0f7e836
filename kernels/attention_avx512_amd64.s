//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "attention_amd64.h"
#include "attention_avx512_amd64.h"

// Kernels of attention in bf16 without AVX512_BF16 have Dot in their names: queries,
// weights and panels hold numbers of bf16 as f32, of two components or slots the second
// comes first, and MXCSR makes zeros of subnormal numbers as products of bf16 do.

// Steps of two components, of two slots.
#define COMPONENTS16 TILES(LOADZ_BF16, 32); TIMES16(4); TILES(LOADZ_BF16, 0); TIMES16(0)
#define SLOTS16 NEXT_COLUMNS(LOADZ_BF16, 2); TIMES16(4); COLUMNS(LOADZ_BF16, 2); TIMES16(0)

// func scores4F32AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F32AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(TILES(LOADZ_F32, 0); TIMES16(0), 1, 4, NOTHING, NOTHING)

// func scores4F16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F16AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(TILES(LOADZ_F16, 0); TIMES16(0), 1, 2, NOTHING, NOTHING)

// func scores4BF16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4BF16AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(TILES(LOADZ_BF16, 0); TIMES16(0), 1, 2, NOTHING, NOTHING)

// func scores1F32AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F32AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_F32, 4)

// func scores1F16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F16AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_F16, 2)

// func scores1BF16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1BF16AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_BF16, 2)

// func values4F32AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F32AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(COLUMNS(LOADZ_F32, 4); TIMES16(0), 1, 4, NOTHING)

// func values4F16AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F16AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(COLUMNS(LOADZ_F16, 2); TIMES16(0), 1, 2, NOTHING)

// func values4BF16AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4BF16AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(COLUMNS(LOADZ_BF16, 2); TIMES16(0), 1, 2, NOTHING)

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

// func scores16DotAVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores16DotAVX512(SB), NOSPLIT, $8-52
	MODES
	SCORES4_AVX512(COMPONENTS16, 2, 2, FLUSH, KEEP)

// func values64DotAVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values64DotAVX512(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES4_AVX512(SLOTS16, 2, 2, KEEP)

// func scores6DotAVX512(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6DotAVX512(SB), NOSPLIT, $8-68
	MODES
	SCORES6_AVX512(STEP64_AT(1); STEP64_AT(0), 2, 2, FLUSH, KEEP)

// func values6DotAVX512(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6DotAVX512(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES6_AVX512(STEP64_AT(1); STEP64_AT(0), STEP16_AT(1); STEP16_AT(0), 2)
	KEEP
	VZEROUPPER
	RET

#define ROUND_BOTH_WEIGHTS \
	ROUND_WEIGHTS(Z4, Z5, Z24); \
	ROUND_WEIGHTS(Z8, Z9, Z24); \
	VMOVUPS Z4, (R9); \
	VMOVUPS Z8, ROW(R9); \
	VADDPS Z4, Z12, Z12; \
	VADDPS Z8, Z13, Z13

// func softmaxDotAVX512(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxDotAVX512(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), R8
	MOVQ n+8(FP), R11
	MOVQ rows+16(FP), DX
	MOVQ st+24(FP), DI
	EXP2_CONSTANTS_AVX512
	VBROADCASTSS ·minWeights(SB), Z23
	MOVL $0x7fff, AX
	VPBROADCASTD AX, Z24
	SOFTMAX_AVX512(ROUND_BOTH_WEIGHTS, 64)

// Scores of groups of 6 queries with the 64 keys of a panel.
//
//	for r < 6·groups, j < 64:
//		t = fma chain over c < d of q[r][c]·k[c][j] from +0
//		p[r][j] = t·scale
//
// It asks for what lies at nextK and nextV, pace bytes per component and group.
//
// func scores6AVX512(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6AVX512(SB), NOSPLIT, $0-68
	SCORES6_AVX512(STEP64, 1, 1, NOTHING, NOTHING)

// Weighted values of n slots for groups of 6 rows, columns c < cols of a panel,
// cols a multiple of 16.
//
//	for j < n, r < 6·groups, c < cols: acc[r][c] = fma(p[r][j], v[j][c], acc[r][c])
//
// func values6AVX512(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6AVX512(SB), NOSPLIT, $0-56
	VALUES6_AVX512(STEP64, STEP16, 1)
	VZEROUPPER
	RET

// func panelF32AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF32AVX512(SB), NOSPLIT, $0-48
	WIDEN(MOVE_F32_AVX512)

// func panelF16AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF16AVX512(SB), NOSPLIT, $0-48
	WIDEN(MOVE_F16_AVX512)

// func panelBF16AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelBF16AVX512(SB), NOSPLIT, $0-48
	WIDEN(MOVE_BF16_AVX512)
