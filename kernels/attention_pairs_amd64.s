//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "attention_amd64.h"
#include "attention_panel_amd64.h"

// Attention in bf16 without AVX512_BF16. Queries, weights and panels hold numbers
// of bf16 as f32; of two components or slots the second comes first, and MXCSR
// makes zeros of subnormal numbers as products of bf16 do.

// MODES puts MXCSR with flushing at 0(SP) and as found at 4(SP).
#define MODES \
	STMXCSR 4(SP); \
	MOVL 4(SP), AX; \
	ORL $0x8040, AX; \
	MOVL AX, 0(SP)
#define FLUSH LDMXCSR 0(SP)
#define KEEP LDMXCSR 4(SP)

// Steps of two components, of two slots; of slots they ask for the second of the next.
#define COMPONENTS LEAQ 32(DX), R14; TIMES4(LOAD_BF16, R14, 4); TIMES4(LOAD_BF16, DX, 0)
#define SLOTS PREFETCHT0 (R13)(R11*1); LEAQ (R12)(R11*1), R14; TIMES4(LOAD_BF16, R14, 4); TIMES4(LOAD_BF16, R12, 0)
#define SLOTS1(LOAD) LEAQ (R12)(R11*1), R14; TIMES1(LOAD, R14, 4); TIMES1(LOAD, R12, 0)
#define COMPONENTS16 TILES(LOADZ_BF16, 32); TIMES16(4); TILES(LOADZ_BF16, 0); TIMES16(0)
#define SLOTS16 NEXT_COLUMNS(LOADZ_BF16, 2); TIMES16(4); COLUMNS(LOADZ_BF16, 2); TIMES16(0)
#define PREFETCH_SLOTS(at) PREFETCH_2(at); PREFETCHT0 (at)(R11*1); PREFETCHT0 64(at)(R11*1)

// func scores4PairsAVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4PairsAVX2(SB), NOSPLIT, $8-52
	MODES
	SCORES4_AVX2(COMPONENTS, 2, 2, FLUSH, KEEP)

// func values4PairsAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4PairsAVX2(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES4_AVX2(SLOTS, 2, 2, KEEP)

// func values1PairsAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1PairsAVX2(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES1_AVX2(SLOTS1(LOAD_BF16), 2, 2, KEEP)

// func panelValues1PairsAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·panelValues1PairsAVX2(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES1_AVX2(SLOTS1(LOAD_F32), 2, 4, KEEP)

// func scores16PairsAVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores16PairsAVX512(SB), NOSPLIT, $8-52
	MODES
	SCORES4_AVX512(COMPONENTS16, 2, PREFETCH_4, 2, FLUSH, KEEP)

// func values64PairsAVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values64PairsAVX512(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES4_AVX512(SLOTS16, 2, PREFETCH_SLOTS, 2, KEEP)

// func scores6PairsAVX2(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6PairsAVX2(SB), NOSPLIT, $8-68
	MODES
	SCORES6_AVX2(1, 0, FLUSH, KEEP)

// func values6PairsAVX2(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6PairsAVX2(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES6_AVX2(1, 0)
	KEEP
	VZEROUPPER
	RET

// func scores6PairsAVX512(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6PairsAVX512(SB), NOSPLIT, $8-68
	MODES
	SCORES6_AVX512(STEP64_AT(1); STEP64_AT(0), 2, 2, FLUSH, KEEP)

// func values6PairsAVX512(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6PairsAVX512(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES6_AVX512(STEP64_AT(1); STEP64_AT(0), STEP16_AT(1); STEP16_AT(0), 2)
	KEEP
	VZEROUPPER
	RET

// Rounds the weights x, which are not negative, to bf16; t is overwritten, c is 0x7fff.
#define ROUND_WEIGHTS(x, t, c) \
	VPSLLD $15, x, t; \
	VPSRLD $31, t, t; \
	VPADDD c, t, t; \
	VPADDD t, x, x; \
	VPSRLD $16, x, x; \
	VPSLLD $16, x, x

// func softmaxPairsAVX2(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxPairsAVX2(SB), NOSPLIT, $0-32
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

#define ROUND_BOTH_WEIGHTS \
	ROUND_WEIGHTS(Z4, Z5, Z24); \
	ROUND_WEIGHTS(Z8, Z9, Z24); \
	VMOVUPS Z4, (R9); \
	VMOVUPS Z8, ROW(R9); \
	VADDPS Z4, Z12, Z12; \
	VADDPS Z8, Z13, Z13

// func softmaxPairsAVX512(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxPairsAVX512(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), R8
	MOVQ n+8(FP), R11
	MOVQ rows+16(FP), DX
	MOVQ st+24(FP), DI
	EXP2_CONSTANTS_AVX512
	VBROADCASTSS ·minWeights(SB), Z23
	MOVL $0x7fff, AX
	VPBROADCASTD AX, Z24
	SOFTMAX_AVX512(ROUND_BOTH_WEIGHTS, 64)
