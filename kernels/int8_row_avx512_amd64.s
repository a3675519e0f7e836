//go:build !purego

#include "textflag.h"
#include "go_asm.h"
#include "int8_row_avx512_amd64.h"

// What is done once per strip of rows of weights before the routines for one row of activations:
// their beginnings are prefetched, and the activations put into the order in which they are read.

// The first scale of each chain, four times.
DATA int8Firsts<>+0(SB)/8, $0x0000000000000000
DATA int8Firsts<>+8(SB)/8, $0x0000000000000000
DATA int8Firsts<>+16(SB)/8, $0x0000000800000008
DATA int8Firsts<>+24(SB)/8, $0x0000000800000008
DATA int8Firsts<>+32(SB)/8, $0x0000001000000010
DATA int8Firsts<>+40(SB)/8, $0x0000001000000010
DATA int8Firsts<>+48(SB)/8, $0x0000001800000018
DATA int8Firsts<>+56(SB)/8, $0x0000001800000018
GLOBL int8Firsts<>(SB), RODATA|NOPTR, $64

// func int8BeginAVX512(a *int8Tile)
//
// Prefetches what AHEAD would have before the beginnings of four streams.
TEXT ·int8BeginAVX512(SB), NOSPLIT, $0-8
	START
	FOUR
	SHLQ $2, R15
line:
	PREFETCHT1 (AX)
	PREFETCHT1 (BX)
	PREFETCHT1 (CX)
	PREFETCHT1 (DX)
	ADVANCE(64)
	SUBQ $64, R15
	JG line
	VZEROUPPER
	RET

// func int8TurnAVX512(dst, q unsafe.Pointer, n int)
//
// n runs of 128 bytes: of every 64 the first 32, then of every 64 the last 32.
TEXT ·int8TurnAVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ n+16(FP), CX
run:
	VMOVDQU (SI), Y0
	VMOVDQU 32(SI), Y1
	VINSERTI64X4 $1, 64(SI), Z0, Z0
	VINSERTI64X4 $1, 96(SI), Z1, Z1
	VMOVDQU64 Z0, (DI)
	VMOVDQU64 Z1, 64(DI)
	ADDQ $128, SI
	ADDQ $128, DI
	DECQ CX
	JNZ run
	VZEROUPPER
	RET

// func int8LessAVX512(dst, q unsafe.Pointer, n int)
//
// n runs of 256 bytes, each followed by -32 times the sums of four of them.
TEXT ·int8LessAVX512(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL $32, R12
	VPBROADCASTB R12, Z25
run:
#define LESS(at) \
	VMOVDQU64 at(SI), Z0; \
	VPXOR X1, X1, X1; \
	VPXOR X2, X2, X2; \
	VPDPBUSD Z0, Z25, Z1; \
	VPSUBD Z1, Z2, Z1; \
	VMOVDQU64 Z0, at(DI); \
	VMOVDQU64 Z1, (256+at)(DI)
	LESS(0)
	LESS(64)
	LESS(128)
	LESS(192)
	ADDQ $256, SI
	ADDQ $512, DI
	DECQ CX
	JNZ run
	VZEROUPPER
	RET

// func int8LanesAVX512(dst, q, scale unsafe.Pointer, n int)
//
// n steps of 32 blocks. For block k of all four chains, 256 bytes: the first 16 q of each, the last 16,
// -8 times the sums of four and four of these, and the scales, each four times.
TEXT ·int8LanesAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ scale+16(FP), BX
	MOVQ n+24(FP), CX
	MOVL $8, AX
	VPBROADCASTB AX, Z25
	MOVL $1, AX
	VPBROADCASTD AX, Z26
	VPXOR X9, X9, X9
step:
	VMOVDQU32 int8Firsts<>(SB), Z7
	VMOVDQU32 (BX), Z10
	VMOVDQU32 64(BX), Z11
	MOVQ $8, DX
column:
	BYTES(0, 32, SI, X0, Y0, Z0)
	BYTES(16, 32, SI, X1, Y1, Z1)
	VPXOR X2, X2, X2
	VPDPBUSD Z0, Z25, Z2
	VPDPBUSD Z1, Z25, Z2
	VPSUBD Z2, Z9, Z2
	VMOVDQA32 Z7, Z3
	VPERMI2PS Z11, Z10, Z3
	VPADDD Z26, Z7, Z7
	VMOVDQU32 Z0, (DI)
	VMOVDQU32 Z1, 64(DI)
	VMOVDQU32 Z2, 128(DI)
	VMOVUPS Z3, 192(DI)
	ADDQ $32, SI
	ADDQ $256, DI
	DECQ DX
	JNZ column
	ADDQ $768, SI
	ADDQ $128, BX
	DECQ CX
	JNZ step
	VZEROUPPER
	RET
