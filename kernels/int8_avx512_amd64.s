//go:build !purego

#include "textflag.h"
#include "go_asm.h"

// Of one lane: shifts and masks that unpack scales and minima of 6 bits.
DATA int8Shift6<>+0(SB)/8, $0x0000000000000000
DATA int8Shift6<>+8(SB)/8, $0x0000000400000000
GLOBL int8Shift6<>(SB), RODATA|NOPTR, $16

DATA int8Low6<>+0(SB)/8, $0x0f0f0f0f3f3f3f3f
DATA int8Low6<>+8(SB)/8, $0x0f0f0f0f3f3f3f3f
GLOBL int8Low6<>(SB), RODATA|NOPTR, $16

DATA int8High6<>+0(SB)/8, $0x3030303000000000
DATA int8High6<>+8(SB)/8, $0x3030303000000000
GLOBL int8High6<>(SB), RODATA|NOPTR, $16

// Of one lane: bytes 8 to 15 as words; d and dmin of four blocks, as eight words.
DATA int8Minima<>+0(SB)/8, $0x800b800a80098008
DATA int8Minima<>+8(SB)/8, $0x800f800e800d800c
GLOBL int8Minima<>(SB), RODATA|NOPTR, $16

DATA int8Halves<>+0(SB)/8, $0x0d0c090805040100
DATA int8Halves<>+8(SB)/8, $0x0f0e0b0a07060302
GLOBL int8Halves<>(SB), RODATA|NOPTR, $16

// Element 0 of every lane, in the first lane.
DATA int8Firsts<>+0(SB)/8, $0x0000000400000000
DATA int8Firsts<>+8(SB)/8, $0x0000000c00000008
DATA int8Firsts<>+16(SB)/8, $0x0000000400000000
DATA int8Firsts<>+24(SB)/8, $0x0000000c00000008
DATA int8Firsts<>+32(SB)/8, $0x0000000400000000
DATA int8Firsts<>+40(SB)/8, $0x0000000c00000008
DATA int8Firsts<>+48(SB)/8, $0x0000000400000000
DATA int8Firsts<>+56(SB)/8, $0x0000000c00000008
GLOBL int8Firsts<>(SB), RODATA|NOPTR, $64

// Scales of sub-blocks of 32 as words: 0 and 2, 1 and 3, 4 and 6, 5 and 7.
DATA int8Scale02<>+0(SB)/8, $0x8000800080008000
DATA int8Scale02<>+8(SB)/8, $0x8000800080008000
DATA int8Scale02<>+16(SB)/8, $0x8000800080008000
DATA int8Scale02<>+24(SB)/8, $0x8000800080008000
DATA int8Scale02<>+32(SB)/8, $0x8002800280028002
DATA int8Scale02<>+40(SB)/8, $0x8002800280028002
DATA int8Scale02<>+48(SB)/8, $0x8002800280028002
DATA int8Scale02<>+56(SB)/8, $0x8002800280028002
GLOBL int8Scale02<>(SB), RODATA|NOPTR, $64

DATA int8Scale13<>+0(SB)/8, $0x8001800180018001
DATA int8Scale13<>+8(SB)/8, $0x8001800180018001
DATA int8Scale13<>+16(SB)/8, $0x8001800180018001
DATA int8Scale13<>+24(SB)/8, $0x8001800180018001
DATA int8Scale13<>+32(SB)/8, $0x8003800380038003
DATA int8Scale13<>+40(SB)/8, $0x8003800380038003
DATA int8Scale13<>+48(SB)/8, $0x8003800380038003
DATA int8Scale13<>+56(SB)/8, $0x8003800380038003
GLOBL int8Scale13<>(SB), RODATA|NOPTR, $64

DATA int8Scale46<>+0(SB)/8, $0x8004800480048004
DATA int8Scale46<>+8(SB)/8, $0x8004800480048004
DATA int8Scale46<>+16(SB)/8, $0x8004800480048004
DATA int8Scale46<>+24(SB)/8, $0x8004800480048004
DATA int8Scale46<>+32(SB)/8, $0x8006800680068006
DATA int8Scale46<>+40(SB)/8, $0x8006800680068006
DATA int8Scale46<>+48(SB)/8, $0x8006800680068006
DATA int8Scale46<>+56(SB)/8, $0x8006800680068006
GLOBL int8Scale46<>(SB), RODATA|NOPTR, $64

DATA int8Scale57<>+0(SB)/8, $0x8005800580058005
DATA int8Scale57<>+8(SB)/8, $0x8005800580058005
DATA int8Scale57<>+16(SB)/8, $0x8005800580058005
DATA int8Scale57<>+24(SB)/8, $0x8005800580058005
DATA int8Scale57<>+32(SB)/8, $0x8007800780078007
DATA int8Scale57<>+40(SB)/8, $0x8007800780078007
DATA int8Scale57<>+48(SB)/8, $0x8007800780078007
DATA int8Scale57<>+56(SB)/8, $0x8007800780078007
GLOBL int8Scale57<>(SB), RODATA|NOPTR, $64

// Scales of groups of 16 as words: 0 to 3, 4 to 7, 8 to 11, 12 to 15.
DATA int8Group0<>+0(SB)/8, $0x0000000000000000
DATA int8Group0<>+8(SB)/8, $0x0000000000000000
DATA int8Group0<>+16(SB)/8, $0x0001000100010001
DATA int8Group0<>+24(SB)/8, $0x0001000100010001
DATA int8Group0<>+32(SB)/8, $0x0002000200020002
DATA int8Group0<>+40(SB)/8, $0x0002000200020002
DATA int8Group0<>+48(SB)/8, $0x0003000300030003
DATA int8Group0<>+56(SB)/8, $0x0003000300030003
GLOBL int8Group0<>(SB), RODATA|NOPTR, $64

DATA int8Group4<>+0(SB)/8, $0x0004000400040004
DATA int8Group4<>+8(SB)/8, $0x0004000400040004
DATA int8Group4<>+16(SB)/8, $0x0005000500050005
DATA int8Group4<>+24(SB)/8, $0x0005000500050005
DATA int8Group4<>+32(SB)/8, $0x0006000600060006
DATA int8Group4<>+40(SB)/8, $0x0006000600060006
DATA int8Group4<>+48(SB)/8, $0x0007000700070007
DATA int8Group4<>+56(SB)/8, $0x0007000700070007
GLOBL int8Group4<>(SB), RODATA|NOPTR, $64

DATA int8Group8<>+0(SB)/8, $0x0008000800080008
DATA int8Group8<>+8(SB)/8, $0x0008000800080008
DATA int8Group8<>+16(SB)/8, $0x0009000900090009
DATA int8Group8<>+24(SB)/8, $0x0009000900090009
DATA int8Group8<>+32(SB)/8, $0x000a000a000a000a
DATA int8Group8<>+40(SB)/8, $0x000a000a000a000a
DATA int8Group8<>+48(SB)/8, $0x000b000b000b000b
DATA int8Group8<>+56(SB)/8, $0x000b000b000b000b
GLOBL int8Group8<>(SB), RODATA|NOPTR, $64

DATA int8Group12<>+0(SB)/8, $0x000c000c000c000c
DATA int8Group12<>+8(SB)/8, $0x000c000c000c000c
DATA int8Group12<>+16(SB)/8, $0x000d000d000d000d
DATA int8Group12<>+24(SB)/8, $0x000d000d000d000d
DATA int8Group12<>+32(SB)/8, $0x000e000e000e000e
DATA int8Group12<>+40(SB)/8, $0x000e000e000e000e
DATA int8Group12<>+48(SB)/8, $0x000f000f000f000f
DATA int8Group12<>+56(SB)/8, $0x000f000f000f000f
GLOBL int8Group12<>(SB), RODATA|NOPTR, $64

// Shifts of the upper bits of Q6_K, and of the fifth bits of Q5_K.
DATA int8Left42<>+0(SB)/8, $0x0004000400040004
DATA int8Left42<>+8(SB)/8, $0x0004000400040004
DATA int8Left42<>+16(SB)/8, $0x0004000400040004
DATA int8Left42<>+24(SB)/8, $0x0004000400040004
DATA int8Left42<>+32(SB)/8, $0x0002000200020002
DATA int8Left42<>+40(SB)/8, $0x0002000200020002
DATA int8Left42<>+48(SB)/8, $0x0002000200020002
DATA int8Left42<>+56(SB)/8, $0x0002000200020002
GLOBL int8Left42<>(SB), RODATA|NOPTR, $64

DATA int8Right02<>+0(SB)/8, $0x0000000000000000
DATA int8Right02<>+8(SB)/8, $0x0000000000000000
DATA int8Right02<>+16(SB)/8, $0x0000000000000000
DATA int8Right02<>+24(SB)/8, $0x0000000000000000
DATA int8Right02<>+32(SB)/8, $0x0002000200020002
DATA int8Right02<>+40(SB)/8, $0x0002000200020002
DATA int8Right02<>+48(SB)/8, $0x0002000200020002
DATA int8Right02<>+56(SB)/8, $0x0002000200020002
GLOBL int8Right02<>(SB), RODATA|NOPTR, $64

DATA int8Left31<>+0(SB)/8, $0x0003000300030003
DATA int8Left31<>+8(SB)/8, $0x0003000300030003
DATA int8Left31<>+16(SB)/8, $0x0003000300030003
DATA int8Left31<>+24(SB)/8, $0x0003000300030003
DATA int8Left31<>+32(SB)/8, $0x0001000100010001
DATA int8Left31<>+40(SB)/8, $0x0001000100010001
DATA int8Left31<>+48(SB)/8, $0x0001000100010001
DATA int8Left31<>+56(SB)/8, $0x0001000100010001
GLOBL int8Left31<>(SB), RODATA|NOPTR, $64

DATA int8Right13<>+0(SB)/8, $0x0001000100010001
DATA int8Right13<>+8(SB)/8, $0x0001000100010001
DATA int8Right13<>+16(SB)/8, $0x0001000100010001
DATA int8Right13<>+24(SB)/8, $0x0001000100010001
DATA int8Right13<>+32(SB)/8, $0x0003000300030003
DATA int8Right13<>+40(SB)/8, $0x0003000300030003
DATA int8Right13<>+48(SB)/8, $0x0003000300030003
DATA int8Right13<>+56(SB)/8, $0x0003000300030003
GLOBL int8Right13<>(SB), RODATA|NOPTR, $64

// The order of sixteen groups in chains: position 4·i + j is that of group 4·j + i. The
// second says where DOTS8 leaves them.
DATA int8Order<>+0(SB)/8, $0x0000000400000000
DATA int8Order<>+8(SB)/8, $0x0000000c00000008
DATA int8Order<>+16(SB)/8, $0x0000000500000001
DATA int8Order<>+24(SB)/8, $0x0000000d00000009
DATA int8Order<>+32(SB)/8, $0x0000000600000002
DATA int8Order<>+40(SB)/8, $0x0000000e0000000a
DATA int8Order<>+48(SB)/8, $0x0000000700000003
DATA int8Order<>+56(SB)/8, $0x0000000f0000000b
GLOBL int8Order<>(SB), RODATA|NOPTR, $64

DATA int8OrderDots8<>+0(SB)/8, $0x0000000200000000
DATA int8OrderDots8<>+8(SB)/8, $0x0000000a00000008
DATA int8OrderDots8<>+16(SB)/8, $0x0000000600000004
DATA int8OrderDots8<>+24(SB)/8, $0x0000000e0000000c
DATA int8OrderDots8<>+32(SB)/8, $0x0000000300000001
DATA int8OrderDots8<>+40(SB)/8, $0x0000000b00000009
DATA int8OrderDots8<>+48(SB)/8, $0x0000000700000005
DATA int8OrderDots8<>+56(SB)/8, $0x0000000f0000000d
GLOBL int8OrderDots8<>(SB), RODATA|NOPTR, $64

// Where the scales of sixteen blocks of Q4_0 are, in the order of int8Order: the word within the
// 64 bytes that hold it.
DATA int8Halves0<>+0(SB)/8, $0x000c000800040000
DATA int8Halves0<>+8(SB)/8, $0x00150011000d0009
DATA int8Halves0<>+16(SB)/8, $0x001e001a00160012
DATA int8Halves0<>+24(SB)/8, $0x00070003001f001b
GLOBL int8Halves0<>(SB), RODATA|NOPTR, $32

// One row of activations as 8-bit integers by rows of quantised weights, in the order of the
// file; see int8.go for the arithmetic.
//
// Rows are taken from several streams at a time, a step of each in turn.
//
// Registers: AX the row of the first stream, BX bytes of it before the step, SI the step, R8 q,
// R9 scales, R10 sums, R11 blocks left, DX the row's place in dst, R14 that of the stream's row,
// CX streams left, R15 the look-ahead, X24 the result so far, K1 the blocks of a step that exist. A
// step reads beyond the row where fewer do, and gives them a term of -0, which changes no sum: a
// factor is +0, the other -0.

#define ROWS \
	MOVQ int8Tile_dst(DI), DX; \
	MOVQ int8Tile_w(DI), AX; \
	MOVQ int8Tile_ahead(DI), R15; \
	VPTERNLOGD $0xff, Z25, Z25, Z25; \
	VPSLLD $31, Z25, Z23 // -0

#define ROW \
	XORL BX, BX; \
	MOVQ int8Tile_q(DI), R8; \
	MOVQ int8Tile_scale(DI), R9; \
	MOVQ int8Tile_sums(DI), R10; \
	MOVQ int8Tile_blocks(DI), R11

#define STEP \
	MOVQ int8Tile_streams(DI), CX; \
	LEAQ (AX)(BX*1), SI; \
	MOVQ DX, R14

// NEXT goes on to the next stream, step or row. A step has blocks blocks, and as many bytes of w,
// q, scales and sums.
#define NEXT(stream, step, row, blocks, w, q, scales, sums) \
	VMOVSS X24, (R14); \
	ADDQ int8Tile_apartW(DI), SI; \
	ADDQ int8Tile_apartDst(DI), R14; \
	DECQ CX; \
	JNZ stream; \
	ADDQ $w, BX; \
	ADDQ $q, R8; \
	ADDQ $scales, R9; \
	ADDQ $sums, R10; \
	SUBQ $blocks, R11; \
	JG step; \
	ADDQ int8Tile_ldw(DI), AX; \
	ADDQ $4, DX; \
	DECQ int8Tile_rows(DI); \
	JNZ row

// AHEAD prefetches a line of w twice: into the second-level cache long before it is used, and
// into the first shortly before. One without the other takes a fifth off the bytes a second.
#define AHEAD(at) \
	PREFETCHT1 at(SI)(R15*4); \
	PREFETCHT0 at(SI)(R15*1)

// MASK sets K1 to the lowest min(R11, n) bits, where all is n ones.
#define MASK(n, all) \
	MOVQ $n, R12; \
	CMPQ R11, R12; \
	CMOVQLT R11, R12; \
	MOVL $all, R13; \
	BZHIL R12, R13, R13; \
	KMOVW R13, K1

// JOIN4 adds the elements of every lane of a, b, c and d; lane l of a becomes those of their
// lanes l. t is overwritten.
#define JOIN4(a, b, c, d, t) \
	VPUNPCKHDQ b, a, t; \
	VPUNPCKLDQ b, a, a; \
	VPADDD t, a, a; \
	VPUNPCKHDQ d, c, t; \
	VPUNPCKLDQ d, c, c; \
	VPADDD t, c, c; \
	VPUNPCKHQDQ c, a, t; \
	VPUNPCKLQDQ c, a, a; \
	VPADDD t, a, a

// LANES adds the lanes of Z0.
#define LANES \
	VEXTRACTI64X4 $1, Z0, Y2; \
	VPADDD Y2, Y0, Y0; \
	VEXTRACTI128 $1, Y0, X2; \
	VPADDD X2, X0, X0

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

// MASK16 sets K1 to the groups that exist, in file order, K2 to the same in the order of
// int8Order, and X21.
#define MASK16(whole) \
	VPXORD X21, X21, X21; \
	CMPQ R11, $16; \
	KXNORW K2, K2, K2; \
	JGE whole; \
	VPBROADCASTD R11, Z21; \
	VPCMPUD $1, Z21, Z22, K2; \
	VPXORD X21, X21, X21; \
	CMPQ R11, $8; \
	JGT whole; \
	VPSLLDQ $8, X23, X21

// func int8TurnAVX512(dst, src unsafe.Pointer, n int, order *[16]int64)
//
// n runs of 128 bytes: Z0 and Z1 as they are, Z4 and Z5 in the order of Z2 and Z3.
TEXT ·int8TurnAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ order+24(FP), AX
	VMOVDQU64 (AX), Z2
	VMOVDQU64 64(AX), Z3
run:
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQA64 Z2, Z4
	VMOVDQA64 Z3, Z5
	VPERMI2Q Z1, Z0, Z4
	VPERMI2Q Z1, Z0, Z5
	VMOVDQU64 Z4, (DI)
	VMOVDQU64 Z5, 64(DI)
	ADDQ $128, SI
	ADDQ $128, DI
	DECQ CX
	JNZ run
	VZEROUPPER
	RET

// func int8Q8_0AVX512(a *int8Tile)
TEXT ·int8Q8_0AVX512(SB), NOSPLIT, $0-8
	MOVQ a+0(FP), DI
	ROWS
	MOVL $0x80, R12
	VPBROADCASTB R12, Z25
	VMOVDQU64 int8Order<>(SB), Z22
	VMOVDQU64 int8OrderDots8<>(SB), Z20
row:
	ROW
step:
	MASK16(whole)
whole:
	STEP
stream:
	VMOVSS (R14), X24
#define DOTS(at, from, acc) \
	VMOVDQU (2+at)(SI), Y8; \
	VINSERTI64X4 $1, (36+at)(SI), Z8, Z8; \
	VPXORD Z25, Z8, Z8; \
	VPXORD acc, acc, acc; \
	VPDPBUSD from(R8), Z8, acc
	DOTS(0, 0, Z0)
	AHEAD(0)
	DOTS(68, 64, Z1)
	AHEAD(64)
	DOTS(136, 128, Z2)
	AHEAD(128)
	DOTS(204, 192, Z3)
	AHEAD(192)
	DOTS(272, 256, Z4)
	AHEAD(256)
	DOTS(340, 320, Z5)
	AHEAD(320)
	DOTS(408, 384, Z6)
	AHEAD(384)
	DOTS(476, 448, Z7)
	AHEAD(448)
	AHEAD(512)
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
	NEXT(stream, step, row, 16, 544, 512, 64, 64)
	VZEROUPPER
	RET

// func int8Q4_0AVX512(a *int8Tile)
TEXT ·int8Q4_0AVX512(SB), NOSPLIT, $0-8
	MOVQ a+0(FP), DI
	ROWS
	MOVL $0x0f, R12
	VPBROADCASTB R12, Z25
	VMOVDQU64 int8Order<>(SB), Z22
	VMOVDQU32 int8Halves0<>(SB), Y19
	MOVL $0x1111, R12
	KMOVD R12, K3
	MOVL $0x2222, R12
	KMOVD R12, K4
	MOVL $0x0444, R12
	KMOVD R12, K5
	MOVL $0x4888, R12
	KMOVD R12, K6
	MOVL $0x8000, R12
	KMOVD R12, K7
row:
	ROW
step:
	MASK16(whole)
whole:
	STEP
stream:
	VMOVSS (R14), X24
#define NIBBLES(at, from, acc) \
	VMOVDQU (2+at)(SI), X8; \
	VINSERTI128 $1, (20+at)(SI), Y8, Y8; \
	VINSERTI32X4 $2, (38+at)(SI), Z8, Z8; \
	VINSERTI32X4 $3, (56+at)(SI), Z8, Z8; \
	VPANDD Z25, Z8, Z9; \
	VPSRLW $4, Z8, Z8; \
	VPANDD Z25, Z8, Z8; \
	VPXORD acc, acc, acc; \
	VPDPBUSD from(R8), Z9, acc; \
	VPDPBUSD (64+from)(R8), Z8, acc
	NIBBLES(0, 0, Z0)
	AHEAD(0)
	NIBBLES(72, 128, Z1)
	AHEAD(64)
	NIBBLES(144, 256, Z2)
	AHEAD(128)
	NIBBLES(216, 384, Z3)
	AHEAD(192)
	AHEAD(256)
	JOIN4(Z0, Z1, Z2, Z3, Z8)
	VPERMD (R10), Z22, Z2
	VPSRAD $4, Z2, Z2 // -8 times the sum
	VPADDD Z2, Z0, Z0
	VPERMW.Z (SI), Z19, K3, Z1
	VPERMW 64(SI), Z19, K4, Z1
	VPERMW 128(SI), Z19, K5, Z1
	VPERMW 192(SI), Z19, K6, Z1
	VMOVDQU 256(SI), Y2
	VPERMW Z2, Z19, K7, Z1
	VCVTPH2PS Y1, Z1
	CHAIN16
	NEXT(stream, step, row, 16, 288, 512, 64, 64)
	VZEROUPPER
	RET

// TERM4 continues X24 by term i of four: F the sum, S the product of scales.
#define TERM4(i, F, S, t, u) \
	VPERMILPS $i, F, t; \
	VPERMILPS $i, S, u; \
	VFMADD231SS t, u, X24

// MINUS4 is TERM4 for minima, which are subtracted.
#define MINUS4(i, F, S, t, u) \
	VPERMILPS $i, F, t; \
	VPERMILPS $i, S, u; \
	VFNMADD231SS t, u, X24

// HEADERS4 unpacks d, dmin, scales and minima of four blocks of size bytes, as Q4_K and Q5_K
// have them. It sets X5 to d·s, X6 to dmin·s, X3 to the sums for the minima as f32, and the lanes
// of Z1 to the scales, 8 bytes each.
#define HEADERS4(size) \
	VMOVDQU (SI), X0; \
	VINSERTI128 $1, (1*size)(SI), Y0, Y0; \
	VINSERTI32X4 $2, (2*size)(SI), Z0, Z0; \
	VINSERTI32X4 $3, (3*size)(SI), Z0, Z0; \
	VPSHUFD $0xed, Z0, Z1; \
	VPSRLVD Z31, Z1, Z1; \
	VPANDD Z30, Z1, Z1; \
	VPSHUFD $0x84, Z0, Z2; \
	VPSRLD $2, Z2, Z2; \
	VPTERNLOGD $0xf8, Z29, Z2, Z1; \
	VPSHUFB Z28, Z1, Z3; \
	VPMADDWD (R10), Z3, Z3; \
	VPSHUFD $0x4e, Z3, Z4; \
	VPADDD Z4, Z3, Z3; \
	VPSHUFD $0xb1, Z3, Z4; \
	VPADDD Z4, Z3, Z3; \
	VPERMD Z3, Z27, Z3; \
	VCVTDQ2PS.Z X3, K1, X3; \
	VPERMD Z0, Z27, Z5; \
	VPSHUFB X26, X5, X5; \
	VCVTPH2PS X5, Y5; \
	VEXTRACTF128 $1, Y5, X6; \
	VMOVUPS (R9), X7; \
	VMULPS.Z X7, X6, K1, X6; \
	VMOVAPS X23, X8; \
	VMULPS X7, X5, K1, X8; \
	VMOVAPS X8, X5

// BLOCK32 sets acc to the dot products of a block in Z10 (sub-blocks 0 and 2), Z8 (1 and 3),
// Z11 (4 and 6) and Z9 (5 and 7), times the scales of lane i of Z1; from is the block's q.
#define BLOCK32(lane, from, acc) \
	VPMADDUBSW from(R8), Z10, Z10; \
	VPMADDUBSW (64+from)(R8), Z8, Z8; \
	VPMADDUBSW (128+from)(R8), Z11, Z11; \
	VPMADDUBSW (192+from)(R8), Z9, Z9; \
	VSHUFI32X4 $lane, Z1, Z1, Z16; \
	VPSHUFB Z18, Z16, Z12; \
	VPSHUFB Z19, Z16, Z13; \
	VPSHUFB Z20, Z16, Z14; \
	VPSHUFB Z21, Z16, Z15; \
	VPMADDWD Z12, Z10, acc; \
	VPDPWSSD Z13, Z8, acc; \
	VPDPWSSD Z14, Z11, acc; \
	VPDPWSSD Z15, Z9, acc

#define CONSTANTS32 \
	MOVL $0x0f, R12; \
	VPBROADCASTB R12, Z25; \
	VBROADCASTI32X4 int8Shift6<>(SB), Z31; \
	VBROADCASTI32X4 int8Low6<>(SB), Z30; \
	VBROADCASTI32X4 int8High6<>(SB), Z29; \
	VBROADCASTI32X4 int8Minima<>(SB), Z28; \
	VMOVDQU64 int8Firsts<>(SB), Z27; \
	VBROADCASTI32X4 int8Halves<>(SB), Z26; \
	VMOVDQU64 int8Scale02<>(SB), Z18; \
	VMOVDQU64 int8Scale13<>(SB), Z19; \
	VMOVDQU64 int8Scale46<>(SB), Z20; \
	VMOVDQU64 int8Scale57<>(SB), Z21

// CHAIN32 continues X24 by four blocks: the accumulators Z0, Z2, Z4 and Z7, and the minima.
#define CHAIN32 \
	JOIN4(Z0, Z2, Z4, Z7, Z8); \
	LANES; \
	VCVTDQ2PS.Z X0, K1, X0; \
	VFMADD231SS X0, X5, X24; \
	VFNMADD231SS X3, X6, X24; \
	TERM4(1, X0, X5, X8, X9); \
	MINUS4(1, X3, X6, X10, X11); \
	TERM4(2, X0, X5, X8, X9); \
	MINUS4(2, X3, X6, X10, X11); \
	TERM4(3, X0, X5, X8, X9); \
	MINUS4(3, X3, X6, X10, X11)

// func int8Q4_KAVX512(a *int8Tile)
TEXT ·int8Q4_KAVX512(SB), NOSPLIT, $0-8
	MOVQ a+0(FP), DI
	ROWS
	CONSTANTS32
row:
	ROW
step:
	MASK(4, 15)
	STEP
stream:
	VMOVSS (R14), X24
	HEADERS4(144)
#define Q4K(lane, at, from, acc) \
	VMOVDQU64 (16+at)(SI), Z8; \
	VMOVDQU64 (80+at)(SI), Z9; \
	VPANDD Z25, Z8, Z10; \
	VPSRLW $4, Z8, Z8; \
	VPANDD Z25, Z8, Z8; \
	VPANDD Z25, Z9, Z11; \
	VPSRLW $4, Z9, Z9; \
	VPANDD Z25, Z9, Z9; \
	BLOCK32(lane, from, acc)
	Q4K(0x00, 0, 0, Z0)
	AHEAD(0)
	AHEAD(64)
	Q4K(0x55, 144, 256, Z2)
	AHEAD(128)
	AHEAD(192)
	Q4K(0xaa, 288, 512, Z4)
	AHEAD(256)
	AHEAD(320)
	Q4K(0xff, 432, 768, Z7)
	AHEAD(384)
	AHEAD(448)
	AHEAD(512)
	CHAIN32
	NEXT(stream, step, row, 4, 576, 1024, 16, 64)
	VZEROUPPER
	RET

// func int8Q5_KAVX512(a *int8Tile)
TEXT ·int8Q5_KAVX512(SB), NOSPLIT, $0-8
	MOVQ a+0(FP), DI
	ROWS
	CONSTANTS32
	MOVL $0x10, R12
	VPBROADCASTB R12, Z22
row:
	ROW
step:
	MASK(4, 15)
	STEP
stream:
	VMOVSS (R14), X24
	HEADERS4(176)
	// The fifth bits of sub-blocks 0 and 2, 1 and 3, 4 and 6, 5 and 7.
#define FIFTH(shift, counts, nibbles) \
	shift counts<>(SB), Z12, Z13; \
	VPTERNLOGD $0xf8, Z22, Z13, nibbles
#define Q5K(lane, at, from, acc) \
	VMOVDQU64 (48+at)(SI), Z8; \
	VMOVDQU64 (112+at)(SI), Z9; \
	VBROADCASTI64X4 (16+at)(SI), Z12; \
	VPANDD Z25, Z8, Z10; \
	VPSRLW $4, Z8, Z8; \
	VPANDD Z25, Z8, Z8; \
	VPANDD Z25, Z9, Z11; \
	VPSRLW $4, Z9, Z9; \
	VPANDD Z25, Z9, Z9; \
	FIFTH(VPSLLVW, int8Left42, Z10); \
	FIFTH(VPSLLVW, int8Left31, Z8); \
	FIFTH(VPSRLVW, int8Right02, Z11); \
	FIFTH(VPSRLVW, int8Right13, Z9); \
	BLOCK32(lane, from, acc)
	Q5K(0x00, 0, 0, Z0)
	AHEAD(0)
	AHEAD(64)
	AHEAD(128)
	Q5K(0x55, 176, 256, Z2)
	AHEAD(192)
	AHEAD(256)
	AHEAD(320)
	Q5K(0xaa, 352, 512, Z4)
	AHEAD(384)
	AHEAD(448)
	AHEAD(512)
	Q5K(0xff, 528, 768, Z7)
	AHEAD(576)
	AHEAD(640)
	CHAIN32
	NEXT(stream, step, row, 4, 704, 1024, 16, 64)
	VZEROUPPER
	RET

// func int8Q6_KAVX512(a *int8Tile)
TEXT ·int8Q6_KAVX512(SB), NOSPLIT, $0-8
	MOVQ a+0(FP), DI
	ROWS
	MOVL $0x0f, R12
	VPBROADCASTB R12, Z25
	MOVL $0x30, R12
	VPBROADCASTB R12, Z31
	VMOVDQU64 int8Left42<>(SB), Z30
	VMOVDQU64 int8Right02<>(SB), Z29
	VMOVDQU64 int8Group0<>(SB), Z18
	VMOVDQU64 int8Group4<>(SB), Z19
	VMOVDQU64 int8Group8<>(SB), Z20
	VMOVDQU64 int8Group12<>(SB), Z21
row:
	ROW
step:
	MASK(4, 15)
	STEP
stream:
	VMOVSS (R14), X24
#define Q6HALF(at, high) \
	VMOVDQU64 at(SI), Z12; \
	VBROADCASTI64X4 high(SI), Z13; \
	VPANDD Z25, Z12, Z14; \
	VPSRLW $4, Z12, Z12; \
	VPANDD Z25, Z12, Z12; \
	VPSLLVW Z30, Z13, Z15; \
	VPSRLVW Z29, Z13, Z13; \
	VPTERNLOGD $0xf8, Z31, Z15, Z14; \
	VPTERNLOGD $0xf8, Z31, Z13, Z12
#define Q6K(at, from, sums, acc) \
	VPMOVSXBW (192+at)(SI), Y10; \
	VPMADDWD sums(R10), Y10, Y11; \
	VPSLLD $5, Y11, Y11; \
	Q6HALF(at, (128+at)); \
	VPMADDUBSW from(R8), Z14, Z14; \
	VPMADDUBSW (64+from)(R8), Z12, Z12; \
	VPERMW Z10, Z18, Z16; \
	VPERMW Z10, Z19, Z17; \
	VPMADDWD Z16, Z14, acc; \
	VPDPWSSD Z17, Z12, acc; \
	Q6HALF((64+at), (160+at)); \
	VPMADDUBSW (128+from)(R8), Z14, Z14; \
	VPMADDUBSW (192+from)(R8), Z12, Z12; \
	VPERMW Z10, Z20, Z16; \
	VPERMW Z10, Z21, Z17; \
	VPDPWSSD Z16, Z14, acc; \
	VPDPWSSD Z17, Z12, acc; \
	VPSUBD Z11, acc, acc
	Q6K(0, 0, 0, Z0)
	AHEAD(0)
	AHEAD(64)
	AHEAD(128)
	Q6K(210, 256, 32, Z2)
	AHEAD(192)
	AHEAD(256)
	AHEAD(320)
	Q6K(420, 512, 64, Z4)
	AHEAD(384)
	AHEAD(448)
	AHEAD(512)
	Q6K(630, 768, 96, Z7)
	AHEAD(576)
	AHEAD(640)
	AHEAD(704)
	AHEAD(768)
	JOIN4(Z0, Z2, Z4, Z7, Z8)
	LANES
	MOVWLZX 208(SI), R12
	VMOVD R12, X1
	VPINSRW $1, 418(SI), X1, X1
	VPINSRW $2, 628(SI), X1, X1
	VPINSRW $3, 838(SI), X1, X1
	VCVTPH2PS X1, X1
	VMOVUPS (R9), X7
	VMOVAPS X23, X5
	VMULPS X7, X1, K1, X5
	VCVTDQ2PS.Z X0, K1, X0
	VFMADD231SS X0, X5, X24
	TERM4(1, X0, X5, X8, X9)
	TERM4(2, X0, X5, X8, X9)
	TERM4(3, X0, X5, X8, X9)
	NEXT(stream, step, row, 4, 840, 1024, 16, 128)
	VZEROUPPER
	RET
