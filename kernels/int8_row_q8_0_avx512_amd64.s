//go:build !purego

#include "textflag.h"
#include "go_asm.h"
#include "int8_row_avx512_amd64.h"

// The order of sixteen groups in chains: position 4·i + j is that of group 4·j + i. The
// second says where SUMS16 finds them.
DATA int8Order<>+0(SB)/8, $0x0000000400000000
DATA int8Order<>+8(SB)/8, $0x0000000c00000008
DATA int8Order<>+16(SB)/8, $0x0000000500000001
DATA int8Order<>+24(SB)/8, $0x0000000d00000009
DATA int8Order<>+32(SB)/8, $0x0000000600000002
DATA int8Order<>+40(SB)/8, $0x0000000e0000000a
DATA int8Order<>+48(SB)/8, $0x0000000700000003
DATA int8Order<>+56(SB)/8, $0x0000000f0000000b
GLOBL int8Order<>(SB), RODATA|NOPTR, $64

DATA int8OrderSums<>+0(SB)/8, $0x0000000200000000
DATA int8OrderSums<>+8(SB)/8, $0x0000000a00000008
DATA int8OrderSums<>+16(SB)/8, $0x0000000600000004
DATA int8OrderSums<>+24(SB)/8, $0x0000000e0000000c
DATA int8OrderSums<>+32(SB)/8, $0x0000000300000001
DATA int8OrderSums<>+40(SB)/8, $0x0000000b00000009
DATA int8OrderSums<>+48(SB)/8, $0x0000000700000005
DATA int8OrderSums<>+56(SB)/8, $0x0000000f0000000d
GLOBL int8OrderSums<>(SB), RODATA|NOPTR, $64

// One row of activations as 8-bit integers by rows of Q8_0, in the order of the file; see int8.go
// for the arithmetic. Four rows are read side by side, a step of each in turn: with twice the bytes of other
// types, memory is the limit, and answers these runs sooner than lines of four rows in turn.
//
// Registers: AX the row of the first stream, BX bytes of it before the step, SI the step, R8 q,
// R9 scales, R10 sums, R11 blocks left, DX the row's place in dst, R14 that of the stream's row,
// CX streams left, R15 the look-ahead, X24 the result so far, K2 the blocks of a step that exist. A
// step reads beyond the row where fewer do, and gives them a term of -0, which changes no sum: a
// factor is +0, the other -0.

// CHAIN16 continues X24 by the sums Z0 of sixteen groups of 32, whose scales of w are Z1, both
// in the order of int8Order. Z22 is that order; X21 is [+0, …] or, for the chain of the second
// eight groups if they do not exist, -0.
#define CHAIN16 \
	VPERMPS (R9), Z22, Z2; \
	VCVTDQ2PS.Z Z0, K2, Z0; \
	VMOVAPS Z23, Z3; \
	VMULPS Z2, Z1, K2, Z3; \
	VEXTRACTF32X4 $1, Z0, X4; \
	VEXTRACTF32X4 $1, Z3, X5; \
	VEXTRACTF32X4 $2, Z0, X6; \
	VEXTRACTF32X4 $2, Z3, X7; \
	VEXTRACTF32X4 $3, Z0, X8; \
	VEXTRACTF32X4 $3, Z3, X9; \
	VMOVAPS X21, X10; \
	VFMADD231PS X0, X3, X10; \
	VFMADD231PS X4, X5, X10; \
	VFMADD231PS X6, X7, X10; \
	VFMADD231PS X8, X9, X10; \
	VMOVSHDUP X0, X0; \
	VMOVSHDUP X3, X3; \
	VMOVSHDUP X4, X4; \
	VMOVSHDUP X5, X5; \
	VMOVSHDUP X6, X6; \
	VMOVSHDUP X7, X7; \
	VMOVSHDUP X8, X8; \
	VMOVSHDUP X9, X9; \
	VFMADD231PS X0, X3, X10; \
	VFMADD231PS X4, X5, X10; \
	VFMADD231PS X6, X7, X10; \
	VFMADD231PS X8, X9, X10; \
	VADDSS X10, X24, X24; \
	VPERMILPS $2, X10, X10; \
	VADDSS X10, X24, X24

// SUMS16 sets Z0 to the sums of sixteen groups of 32, two in each of Z0 to Z7, in the order
// of int8Order.
#define SUMS16 \
	JOIN4(Z0, Z1, Z2, Z3, Z8); \
	JOIN4(Z4, Z5, Z6, Z7, Z8); \
	VSHUFI32X4 $0x88, Z4, Z0, Z1; \
	VSHUFI32X4 $0xdd, Z4, Z0, Z0; \
	VPADDD Z1, Z0, Z0; \
	VPERMD Z0, Z20, Z0; \
	VPERMD (R10), Z22, Z2; \
	VPADDD Z2, Z0, Z0

// func int8Q8_0AVX512(a *int8Tile)
TEXT ·int8Q8_0AVX512(SB), NOSPLIT, $0-8
	MOVQ a+0(FP), DI
	MOVQ int8Tile_dst(DI), DX
	MOVQ int8Tile_w(DI), AX
	MOVQ int8Tile_ahead(DI), R15
	VPTERNLOGD $0xff, Z25, Z25, Z25
	VPSLLD $31, Z25, Z23 // -0
	MOVL $0x80, R12
	VPBROADCASTB R12, Z25
	VMOVDQU64 int8Order<>(SB), Z22
	VMOVDQU64 int8OrderSums<>(SB), Z20
row:
	XORL BX, BX
	MOVQ int8Tile_q(DI), R8
	MOVQ int8Tile_scale(DI), R9
	MOVQ int8Tile_sums(DI), R10
	MOVQ int8Tile_blocks(DI), R11
step:
	VPXORD X21, X21, X21
	KXNORW K2, K2, K2
	CMPQ R11, $16
	JGE whole
	VPBROADCASTD R11, Z21
	VPCMPUD $1, Z21, Z22, K2
	VPXORD X21, X21, X21
	CMPQ R11, $8
	JGT whole
	VPSLLDQ $8, X23, X21
whole:
	MOVQ int8Tile_streams(DI), CX
	LEAQ (AX)(BX*1), SI
	MOVQ DX, R14
stream:
	VMOVSS (R14), X24
#define DOTS(at, from, acc) \
	VMOVDQU (2+at)(SI), Y8; \
	VINSERTI64X4 $1, (36+at)(SI), Z8, Z8; \
	VPXORD Z25, Z8, Z8; \
	VPXORD acc, acc, acc; \
	VPDPBUSD from(R8), Z8, acc
	DOTS(0, 0, Z0)
	AHEAD(0, SI)
	DOTS(68, 64, Z1)
	AHEAD(64, SI)
	DOTS(136, 128, Z2)
	AHEAD(128, SI)
	DOTS(204, 192, Z3)
	AHEAD(192, SI)
	DOTS(272, 256, Z4)
	AHEAD(256, SI)
	DOTS(340, 320, Z5)
	AHEAD(320, SI)
	DOTS(408, 384, Z6)
	AHEAD(384, SI)
	DOTS(476, 448, Z7)
	AHEAD(448, SI)
	AHEAD(512, SI)
	SUMS16
	MOVWLZX (0*34)(SI), R12
	VMOVD R12, X1
	VPINSRW $1, (4*34)(SI), X1, X1
	VPINSRW $2, (8*34)(SI), X1, X1
	VPINSRW $3, (12*34)(SI), X1, X1
	VPINSRW $4, (1*34)(SI), X1, X1
	VPINSRW $5, (5*34)(SI), X1, X1
	VPINSRW $6, (9*34)(SI), X1, X1
	VPINSRW $7, (13*34)(SI), X1, X1
	MOVWLZX (2*34)(SI), R12
	VMOVD R12, X2
	VPINSRW $1, (6*34)(SI), X2, X2
	VPINSRW $2, (10*34)(SI), X2, X2
	VPINSRW $3, (14*34)(SI), X2, X2
	VPINSRW $4, (3*34)(SI), X2, X2
	VPINSRW $5, (7*34)(SI), X2, X2
	VPINSRW $6, (11*34)(SI), X2, X2
	VPINSRW $7, (15*34)(SI), X2, X2
	VINSERTI128 $1, X2, Y1, Y1
	VCVTPH2PS Y1, Z1
	CHAIN16
	VMOVSS X24, (R14)
	ADDQ int8Tile_apartW(DI), SI
	ADDQ int8Tile_apartDst(DI), R14
	DECQ CX
	JNZ stream
	ADDQ $544, BX
	ADDQ $512, R8
	ADDQ $64, R9
	ADDQ $64, R10
	SUBQ $16, R11
	JG step
	ADDQ int8Tile_ldw(DI), AX
	ADDQ $4, DX
	DECQ int8Tile_rows(DI)
	JNZ row
	VZEROUPPER
	RET
