//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "attention_amd64.h"
#include "attention_avx512_amd64.h"
#include "attention_avx512bf16_amd64.h"

// Attention in bf16 with AVX512_BF16. Queries, weights and panels hold pairs: two
// numbers of bf16 in 32 bits, of neighbouring components or slots.

// Bodies of loops over pairs of components and of slots.
#define SCORE4 \
	VPERMW (DX), Z16, Z24; \
	PAIRS4; \
	DP00; DP10; DP20; DP30; \
	ADDQ $64, DX; \
	ADDQ $64, BX; \
	ADDQ $4, R9; \
	DECQ R10
#define SCORE16 \
	VPERMW (DX), Z16, Z24; \
	VPERMW (DX)(R11*1), Z16, Z25; \
	VPERMW (DX)(R11*2), Z16, Z26; \
	VPERMW (DX)(R12*1), Z16, Z27; \
	PAIRS4; \
	ALL16; \
	ADDQ $64, DX; \
	ADDQ next+40(FP), AX; \
	ADDQ $4, R9; \
	DECQ R10
#define VALUE4 \
	PAIR16((R12), (R12)(R11*1), Y24, Z24); \
	PAIRS4; \
	DP00; DP10; DP20; DP30; \
	NEXTSLOTS
#define VALUE64 \
	PAIR16((R12), (R12)(R11*1), Y24, Z24); \
	PAIR16(32(R12), 32(R12)(R11*1), Y25, Z25); \
	PAIR16(64(R12), 64(R12)(R11*1), Y26, Z26); \
	PAIR16(96(R12), 96(R12)(R11*1), Y27, Z27); \
	PAIRS4; \
	ALL16; \
	LEAQ (R12)(R11*2), R12; \
	ADDQ next+48(FP), AX; \
	ADDQ $4, R9; \
	DECQ R10
#define ALL16 \
	DP00; DP10; DP20; DP30; \
	DP01; DP11; DP21; DP31; \
	DP02; DP12; DP22; DP32; \
	DP03; DP13; DP23; DP33
#define NEXTSLOTS \
	LEAQ (R12)(R11*2), R12; \
	LEAQ (R13)(R11*2), R13; \
	ADDQ $4, R9; \
	DECQ R10

// Scores of 4 queries with the 16 keys of each of n neighbouring tiles.
//
//	for i < n, r < 4, j < 16:
//		t = chain over the pairs of c < d of q[r][c]·k[i][c][j] from +0
//		p[r][16i+j] = t·scale
//
// func scores4DotAVX512BF16(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4DotAVX512BF16(SB), NOSPLIT, $0-52
	MOVQ p+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ k+16(FP), DX
	MOVQ d+24(FP), CX
	MOVQ n+32(FP), R8
	MOVQ next+40(FP), BX
	VBROADCASTSS scale+48(FP), Z17
	INTERLEAVE
	SHRQ $1, CX
tile:
	VPXORD Z0, Z0, Z0
	VPXORD Z4, Z4, Z4
	VPXORD Z8, Z8, Z8
	VPXORD Z12, Z12, Z12
	MOVQ SI, R9
	MOVQ CX, R10
	LOOP(component, far, scored, PREFETCH_1, BX, SCORE4)
	VMULPS Z17, Z0, Z0
	VMULPS Z17, Z4, Z4
	VMULPS Z17, Z8, Z8
	VMULPS Z17, Z12, Z12
	VMOVUPS Z0, (DI)
	VMOVUPS Z4, ROW(DI)
	VMOVUPS Z8, (2*ROW)(DI)
	VMOVUPS Z12, (3*ROW)(DI)
	ADDQ $64, DI
	DECQ R8
	JNZ tile
	VZEROUPPER
	RET

// The same with n groups of four neighbouring tiles.
//
// func scores16DotAVX512BF16(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores16DotAVX512BF16(SB), NOSPLIT, $0-52
	MOVQ p+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ k+16(FP), DX
	MOVQ d+24(FP), CX
	MOVQ n+32(FP), R8
	MOVQ next+40(FP), AX
	PLACES(64, next+40(FP))
	INTERLEAVE
	MOVQ CX, R11
	SHLQ $5, R11            // bytes of a tile
	LEAQ (R11)(R11*2), R12
	SHRQ $1, CX
quad:
	CLEAR_ROW(Z0, Z1, Z2, Z3)
	CLEAR_ROW(Z4, Z5, Z6, Z7)
	CLEAR_ROW(Z8, Z9, Z10, Z11)
	CLEAR_ROW(Z12, Z13, Z14, Z15)
	MOVQ SI, R9
	MOVQ CX, R10
	LOOP(component, far, scored, PREFETCH_PLACES, AX, SCORE16)
	ADDQ R12, DX
	VBROADCASTSS scale+48(FP), Z31
	SCALE_ROW(Z0, Z1, Z2, Z3)
	SCALE_ROW(Z4, Z5, Z6, Z7)
	SCALE_ROW(Z8, Z9, Z10, Z11)
	SCALE_ROW(Z12, Z13, Z14, Z15)
	STORE_ROW(0, Z0, Z1, Z2, Z3)
	STORE_ROW(ROW, Z4, Z5, Z6, Z7)
	STORE_ROW(2*ROW, Z8, Z9, Z10, Z11)
	STORE_ROW(3*ROW, Z12, Z13, Z14, Z15)
	ADDQ $256, DI
	DECQ R8
	JNZ quad
	VZEROUPPER
	RET

// Weighted values of n slots, an even number, for one row, columns c < cols, a
// multiple of 16; the rows of v are stride bytes apart.
//
//	for the pairs of j < n, c < cols: acc[c] = acc[c] + p[j+1]·v[j+1][c] + p[j]·v[j][c]
//
// func values1DotAVX512BF16(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1DotAVX512BF16(SB), NOSPLIT, $0-56
	MOVQ acc+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ v+16(FP), DX
	MOVQ stride+24(FP), R11
	MOVQ n+32(FP), R8
	MOVQ cols+40(FP), CX
	INTERLEAVE
	SHRQ $1, R8
column:
	VMOVUPS (DI), Z0
	MOVQ SI, R9
	MOVQ DX, R12
	MOVQ R8, R10
slot:
	PAIR16((R12), (R12)(R11*1), Y24, Z24)
	VBROADCASTSS (R9), Z28
	DP00
	LEAQ (R12)(R11*2), R12
	ADDQ $4, R9
	DECQ R10
	JNZ slot
	VMOVUPS Z0, (DI)
	ADDQ $64, DI
	ADDQ $32, DX
	SUBQ $16, CX
	JNZ column
	VZEROUPPER
	RET

// The same for a panel: pairs of rows are stride bytes apart.
//
// func panelValues1DotAVX512BF16(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·panelValues1DotAVX512BF16(SB), NOSPLIT, $0-56
	MOVQ acc+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ v+16(FP), DX
	MOVQ stride+24(FP), R11
	MOVQ n+32(FP), R8
	MOVQ cols+40(FP), CX
	SHRQ $1, R8
column:
	VMOVUPS (DI), Z0
	MOVQ SI, R9
	MOVQ DX, R12
	MOVQ R8, R10
slot:
	VMOVUPS (R12), Z24
	VBROADCASTSS (R9), Z28
	DP00
	ADDQ R11, R12
	ADDQ $4, R9
	DECQ R10
	JNZ slot
	VMOVUPS Z0, (DI)
	ADDQ $64, DI
	ADDQ $64, DX
	SUBQ $16, CX
	JNZ column
	VZEROUPPER
	RET

// The same as values1DotAVX512BF16 for four rows.
//
// func values4DotAVX512BF16(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4DotAVX512BF16(SB), NOSPLIT, $0-56
	MOVQ acc+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ v+16(FP), DX
	MOVQ stride+24(FP), R11
	MOVQ n+32(FP), R8
	MOVQ cols+40(FP), CX
	MOVQ next+48(FP), BX
	INTERLEAVE
	SHRQ $1, R8
column:
	VMOVUPS (DI), Z0
	VMOVUPS ROW(DI), Z4
	VMOVUPS (2*ROW)(DI), Z8
	VMOVUPS (3*ROW)(DI), Z12
	MOVQ SI, R9
	MOVQ DX, R12
	MOVQ BX, R13
	MOVQ R8, R10
	LOOP(slot, far, valued, PREFETCH_BOTH, R13, VALUE4)
	VMOVUPS Z0, (DI)
	VMOVUPS Z4, ROW(DI)
	VMOVUPS Z8, (2*ROW)(DI)
	VMOVUPS Z12, (3*ROW)(DI)
	ADDQ $64, DI
	ADDQ $32, DX
	ADDQ $32, BX
	SUBQ $16, CX
	JNZ column
	VZEROUPPER
	RET

// The same for a multiple of 64 columns.
//
// func values64DotAVX512BF16(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values64DotAVX512BF16(SB), NOSPLIT, $0-56
	MOVQ acc+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ v+16(FP), DX
	MOVQ stride+24(FP), R11
	MOVQ n+32(FP), R8
	MOVQ cols+40(FP), CX
	MOVQ next+48(FP), AX
	PLACES(64, next+48(FP))
	INTERLEAVE
	SHRQ $1, R8
column:
	LOAD_ROW(0, Z0, Z1, Z2, Z3)
	LOAD_ROW(ROW, Z4, Z5, Z6, Z7)
	LOAD_ROW(2*ROW, Z8, Z9, Z10, Z11)
	LOAD_ROW(3*ROW, Z12, Z13, Z14, Z15)
	MOVQ SI, R9
	MOVQ DX, R12
	MOVQ R8, R10
	LOOP(slot, far, valued, PREFETCH_PLACES, AX, VALUE64)
	STORE_ROW(0, Z0, Z1, Z2, Z3)
	STORE_ROW(ROW, Z4, Z5, Z6, Z7)
	STORE_ROW(2*ROW, Z8, Z9, Z10, Z11)
	STORE_ROW(3*ROW, Z12, Z13, Z14, Z15)
	ADDQ $256, DI
	ADDQ $128, DX
	SUBQ $64, CX
	JNZ column
	VZEROUPPER
	RET

// func panelKDotAVX512BF16(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelKDotAVX512BF16(SB), NOSPLIT, $0-48
	INTERLEAVE
	WIDEN(MOVE_KEYS)

// func panelVDotAVX512BF16(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelVDotAVX512BF16(SB), NOSPLIT, $0-48
	INTERLEAVE
	MOVQ stride+16(FP), R13
	SHRQ $1, R13
	WIDEN(MOVE_VALUES)

// Scores of groups of 6 queries with the 64 keys of a panel; see scores6AVX512.
//
// func scores6DotAVX512BF16(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6DotAVX512BF16(SB), NOSPLIT, $0-68
	SCORES6_AVX512(DOTSTEP64, 2, 1, NOTHING, NOTHING)

// Weighted values of n slots, an even number, for groups of 6 rows; see values6AVX512.
//
// func values6DotAVX512BF16(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6DotAVX512BF16(SB), NOSPLIT, $0-56
	MOVQ acc+0(FP), R13
	MOVQ p+8(FP), SI
	MOVQ v+16(FP), BX
	MOVQ n+24(FP), CX
	MOVQ groups+32(FP), R8
	SHRQ $1, CX
group:
	MOVQ R13, DI
	MOVQ BX, R12
	MOVQ cols+40(FP), R11
	CMPQ R11, $64
	JLT columns16
	LOAD_ROW(0, Z0, Z1, Z2, Z3)
	LOAD_ROW(ROW, Z4, Z5, Z6, Z7)
	LOAD_ROW(2*ROW, Z8, Z9, Z10, Z11)
	LOAD_ROW(3*ROW, Z12, Z13, Z14, Z15)
	LOAD_ROW(4*ROW, Z16, Z17, Z18, Z19)
	LOAD_ROW(5*ROW, Z20, Z21, Z22, Z23)
	MOVQ R12, DX
	MOVQ SI, R9
	MOVQ CX, R10
slot64:
	DOTSTEP64
	ADDQ $PANEL, DX
	ADDQ $4, R9
	DECQ R10
	JNZ slot64
	STORE_ROW(0, Z0, Z1, Z2, Z3)
	STORE_ROW(ROW, Z4, Z5, Z6, Z7)
	STORE_ROW(2*ROW, Z8, Z9, Z10, Z11)
	STORE_ROW(3*ROW, Z12, Z13, Z14, Z15)
	STORE_ROW(4*ROW, Z16, Z17, Z18, Z19)
	STORE_ROW(5*ROW, Z20, Z21, Z22, Z23)
	JMP next
columns16:
	VMOVUPS (DI), Z0
	VMOVUPS ROW(DI), Z4
	VMOVUPS (2*ROW)(DI), Z8
	VMOVUPS (3*ROW)(DI), Z12
	VMOVUPS (4*ROW)(DI), Z16
	VMOVUPS (5*ROW)(DI), Z20
	MOVQ R12, DX
	MOVQ SI, R9
	MOVQ CX, R10
slot16:
	DOTSTEP16
	DECQ R10
	JNZ slot16
	VMOVUPS Z0, (DI)
	VMOVUPS Z4, ROW(DI)
	VMOVUPS Z8, (2*ROW)(DI)
	VMOVUPS Z12, (3*ROW)(DI)
	VMOVUPS Z16, (4*ROW)(DI)
	VMOVUPS Z20, (5*ROW)(DI)
	ADDQ $64, DI
	ADDQ $64, R12
	SUBQ $16, R11
	JNZ columns16
next:
	ADDQ $(6*ROW), R13
	ADDQ $(6*ROW), SI
	DECQ R8
	JNZ group
	VZEROUPPER
	RET

// Weights go to the start of their rows, behind the scores that are read.
#define NARROW_WEIGHTS \
	NARROW4; \
	NARROW8; \
	VMOVUPS Y4, (R9); \
	VMOVUPS Y8, ROW(R9); \
	VPMOVZXWD Y4, Z4; \
	VPMOVZXWD Y8, Z8; \
	VPSLLD $16, Z4, Z4; \
	VPSLLD $16, Z8, Z8; \
	VADDPS Z4, Z12, Z12; \
	VADDPS Z8, Z13, Z13

// func softmaxDotAVX512BF16(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxDotAVX512BF16(SB), NOSPLIT, $0-32
	MOVQ p+0(FP), R8
	MOVQ n+8(FP), R11
	MOVQ rows+16(FP), DX
	MOVQ st+24(FP), DI
	EXP2_CONSTANTS_AVX512
	VBROADCASTSS ·minWeights(SB), Z23
	SOFTMAX_AVX512(NARROW_WEIGHTS, 32)
