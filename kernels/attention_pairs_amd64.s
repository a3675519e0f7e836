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

// 16 numbers at R14 times the number at off(R9) of each of four rows.
#define MULADD4(off) \
	LOAD_BF16(R14, Y8, Y9); \
	VBROADCASTSS off(R9), Y10; \
	VBROADCASTSS (ROW+off)(R9), Y11; \
	VBROADCASTSS (2*ROW+off)(R9), Y12; \
	VBROADCASTSS (3*ROW+off)(R9), Y13; \
	VFMADD231PS Y8, Y10, Y0; \
	VFMADD231PS Y9, Y10, Y1; \
	VFMADD231PS Y8, Y11, Y2; \
	VFMADD231PS Y9, Y11, Y3; \
	VFMADD231PS Y8, Y12, Y4; \
	VFMADD231PS Y9, Y12, Y5; \
	VFMADD231PS Y8, Y13, Y6; \
	VFMADD231PS Y9, Y13, Y7

// func scores4PairsAVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4PairsAVX2(SB), NOSPLIT, $8-52
	MOVQ p+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ k+16(FP), DX
	MOVQ d+24(FP), CX
	MOVQ n+32(FP), R8
	MOVQ next+40(FP), BX
	VBROADCASTSS scale+48(FP), Y15
	MODES
tile:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	MOVQ SI, R9
	MOVQ CX, R10
	FLUSH
pair:
	PREFETCHT0 (BX)
	LEAQ 32(DX), R14
	MULADD4(4)
	MOVQ DX, R14
	MULADD4(0)
	ADDQ $64, DX
	ADDQ $64, BX
	ADDQ $8, R9
	SUBQ $2, R10
	JNZ pair
	KEEP
	VMULPS Y15, Y0, Y0
	VMULPS Y15, Y1, Y1
	VMULPS Y15, Y2, Y2
	VMULPS Y15, Y3, Y3
	VMULPS Y15, Y4, Y4
	VMULPS Y15, Y5, Y5
	VMULPS Y15, Y6, Y6
	VMULPS Y15, Y7, Y7
	STORE_PAIR(0, Y0, Y1)
	STORE_PAIR(ROW, Y2, Y3)
	STORE_PAIR(2*ROW, Y4, Y5)
	STORE_PAIR(3*ROW, Y6, Y7)
	ADDQ $64, DI
	DECQ R8
	JNZ tile
	VZEROUPPER
	RET

// func values4PairsAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4PairsAVX2(SB), NOSPLIT, $8-56
	MOVQ acc+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ v+16(FP), DX
	MOVQ stride+24(FP), R11
	MOVQ n+32(FP), R8
	MOVQ cols+40(FP), CX
	MOVQ next+48(FP), BX
	MODES
	FLUSH
column:
	LOAD_PAIR(0, Y0, Y1)
	LOAD_PAIR(ROW, Y2, Y3)
	LOAD_PAIR(2*ROW, Y4, Y5)
	LOAD_PAIR(3*ROW, Y6, Y7)
	MOVQ SI, R9
	MOVQ DX, R12
	MOVQ BX, R13
	MOVQ R8, R10
pair:
	PREFETCHT0 (R13)
	PREFETCHT0 (R13)(R11*1)
	LEAQ (R12)(R11*1), R14
	MULADD4(4)
	MOVQ R12, R14
	MULADD4(0)
	LEAQ (R12)(R11*2), R12
	LEAQ (R13)(R11*2), R13
	ADDQ $8, R9
	SUBQ $2, R10
	JNZ pair
	STORE_PAIR(0, Y0, Y1)
	STORE_PAIR(ROW, Y2, Y3)
	STORE_PAIR(2*ROW, Y4, Y5)
	STORE_PAIR(3*ROW, Y6, Y7)
	ADDQ $64, DI
	ADDQ $32, DX
	ADDQ $32, BX
	SUBQ $16, CX
	JNZ column
	KEEP
	VZEROUPPER
	RET

// The same for one row.
#define VALUES1_PAIRS(LOAD, SIZE) \
	MOVQ acc+0(FP), DI; \
	MOVQ p+8(FP), SI; \
	MOVQ v+16(FP), DX; \
	MOVQ stride+24(FP), R11; \
	MOVQ n+32(FP), R8; \
	MOVQ cols+40(FP), CX; \
	MODES; \
	FLUSH; \
column: \
	LOAD_PAIR(0, Y0, Y1); \
	MOVQ SI, R9; \
	MOVQ DX, R12; \
	MOVQ R8, R10; \
pair: \
	LEAQ (R12)(R11*1), R14; \
	LOAD(R14, Y8, Y9); \
	VBROADCASTSS 4(R9), Y10; \
	VFMADD231PS Y8, Y10, Y0; \
	VFMADD231PS Y9, Y10, Y1; \
	LOAD(R12, Y8, Y9); \
	VBROADCASTSS (R9), Y10; \
	VFMADD231PS Y8, Y10, Y0; \
	VFMADD231PS Y9, Y10, Y1; \
	LEAQ (R12)(R11*2), R12; \
	ADDQ $8, R9; \
	SUBQ $2, R10; \
	JNZ pair; \
	STORE_PAIR(0, Y0, Y1); \
	ADDQ $64, DI; \
	ADDQ $(16*SIZE), DX; \
	SUBQ $16, CX; \
	JNZ column; \
	KEEP; \
	VZEROUPPER; \
	RET

// func values1PairsAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1PairsAVX2(SB), NOSPLIT, $8-56
	VALUES1_PAIRS(LOAD_BF16, 2)

// func panelValues1PairsAVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·panelValues1PairsAVX2(SB), NOSPLIT, $8-56
	VALUES1_PAIRS(LOAD_F32, 4)

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
	SCORES6_AVX512(STEP64_AT(1); STEP64_AT(0), 2, FLUSH, KEEP)

// func values6PairsAVX512(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6PairsAVX512(SB), NOSPLIT, $8-56
	MODES
	FLUSH
	VALUES6_AVX512(STEP64_AT(1); STEP64_AT(0), STEP16_AT(1); STEP16_AT(0), 2)
	KEEP
	VZEROUPPER
	RET

// The 64 numbers in Z16 to Z19 times the number at off(R9) of each of four rows.
#define MULADD16(off) \
	VBROADCASTSS off(R9), Z20; \
	VBROADCASTSS (ROW+off)(R9), Z21; \
	VBROADCASTSS (2*ROW+off)(R9), Z22; \
	VBROADCASTSS (3*ROW+off)(R9), Z23; \
	VFMADD231PS Z16, Z20, Z0; \
	VFMADD231PS Z16, Z21, Z4; \
	VFMADD231PS Z16, Z22, Z8; \
	VFMADD231PS Z16, Z23, Z12; \
	VFMADD231PS Z17, Z20, Z1; \
	VFMADD231PS Z17, Z21, Z5; \
	VFMADD231PS Z17, Z22, Z9; \
	VFMADD231PS Z17, Z23, Z13; \
	VFMADD231PS Z18, Z20, Z2; \
	VFMADD231PS Z18, Z21, Z6; \
	VFMADD231PS Z18, Z22, Z10; \
	VFMADD231PS Z18, Z23, Z14; \
	VFMADD231PS Z19, Z20, Z3; \
	VFMADD231PS Z19, Z21, Z7; \
	VFMADD231PS Z19, Z22, Z11; \
	VFMADD231PS Z19, Z23, Z15

// func scores16PairsAVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores16PairsAVX512(SB), NOSPLIT, $8-52
	MOVQ p+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ k+16(FP), DX
	MOVQ d+24(FP), CX
	MOVQ n+32(FP), R8
	MOVQ next+40(FP), BX
	MODES
	MOVQ CX, R11
	SHLQ $5, R11            // bytes of a tile
	LEAQ (R11)(R11*2), R12
quad:
	CLEAR_ROW(Z0, Z1, Z2, Z3)
	CLEAR_ROW(Z4, Z5, Z6, Z7)
	CLEAR_ROW(Z8, Z9, Z10, Z11)
	CLEAR_ROW(Z12, Z13, Z14, Z15)
	MOVQ SI, R9
	MOVQ CX, R10
	FLUSH
component:
	PREFETCH_4(BX)
	LOADZ_BF16(32(DX), Z16)
	LOADZ_BF16(32(DX)(R11*1), Z17)
	LOADZ_BF16(32(DX)(R11*2), Z18)
	LOADZ_BF16(32(DX)(R12*1), Z19)
	MULADD16(4)
	LOADZ_BF16((DX), Z16)
	LOADZ_BF16((DX)(R11*1), Z17)
	LOADZ_BF16((DX)(R11*2), Z18)
	LOADZ_BF16((DX)(R12*1), Z19)
	MULADD16(0)
	ADDQ $64, DX
	ADDQ $256, BX
	ADDQ $8, R9
	SUBQ $2, R10
	JNZ component
	KEEP
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

// func values64PairsAVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values64PairsAVX512(SB), NOSPLIT, $8-56
	MOVQ acc+0(FP), DI
	MOVQ p+8(FP), SI
	MOVQ v+16(FP), DX
	MOVQ stride+24(FP), R11
	MOVQ n+32(FP), R8
	MOVQ cols+40(FP), CX
	MOVQ next+48(FP), BX
	MODES
	FLUSH
column:
	LOAD_ROW(0, Z0, Z1, Z2, Z3)
	LOAD_ROW(ROW, Z4, Z5, Z6, Z7)
	LOAD_ROW(2*ROW, Z8, Z9, Z10, Z11)
	LOAD_ROW(3*ROW, Z12, Z13, Z14, Z15)
	MOVQ SI, R9
	MOVQ DX, R12
	MOVQ BX, R13
	MOVQ R8, R10
slot:
	PREFETCH_2(R13)
	PREFETCHT0 (R13)(R11*1)
	PREFETCHT0 64(R13)(R11*1)
	LOADZ_BF16((R12)(R11*1), Z16)
	LOADZ_BF16(32(R12)(R11*1), Z17)
	LOADZ_BF16(64(R12)(R11*1), Z18)
	LOADZ_BF16(96(R12)(R11*1), Z19)
	MULADD16(4)
	LOADZ_BF16((R12), Z16)
	LOADZ_BF16(32(R12), Z17)
	LOADZ_BF16(64(R12), Z18)
	LOADZ_BF16(96(R12), Z19)
	MULADD16(0)
	LEAQ (R12)(R11*2), R12
	LEAQ (R13)(R11*2), R13
	ADDQ $8, R9
	SUBQ $2, R10
	JNZ slot
	STORE_ROW(0, Z0, Z1, Z2, Z3)
	STORE_ROW(ROW, Z4, Z5, Z6, Z7)
	STORE_ROW(2*ROW, Z8, Z9, Z10, Z11)
	STORE_ROW(3*ROW, Z12, Z13, Z14, Z15)
	ADDQ $256, DI
	ADDQ $128, DX
	ADDQ $128, BX
	SUBQ $64, CX
	JNZ column
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
