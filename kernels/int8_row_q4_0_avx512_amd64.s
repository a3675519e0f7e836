//go:build !purego

#include "textflag.h"
#include "go_asm.h"
#include "int8_row_avx512_amd64.h"

// One row of activations as 8-bit integers by four rows of Q4_0 at a time; see int8.go for the
// arithmetic. A step is 32 blocks of each row: four chains of eight, which are the lanes of vectors.
// The elements of a lane are the rows.
//
// Registers, beside those of int8_row_avx512_amd64.h: R8 activations as int8LanesAVX512 arranges
// them, R11 blocks left, Z22 the chains, K1 the blocks of the step that exist. Those that do not have
// scales and activations of zero, which change no sum; what they read may lie beyond the row.

// Where the scales of eight blocks are, as words of their 144 bytes.
DATA int8Scales4_0<>+0(SB)/8, $0x001b001200090000
DATA int8Scales4_0<>+8(SB)/8, $0x003f0036002d0024
GLOBL int8Scales4_0<>(SB), RODATA|NOPTR, $16

// Even quadwords, then odd ones.
DATA int8EvenOdd<>+0(SB)/8, $0x0000000000000000
DATA int8EvenOdd<>+8(SB)/8, $0x0000000000000002
DATA int8EvenOdd<>+16(SB)/8, $0x0000000000000004
DATA int8EvenOdd<>+24(SB)/8, $0x0000000000000006
DATA int8EvenOdd<>+32(SB)/8, $0x0000000000000001
DATA int8EvenOdd<>+40(SB)/8, $0x0000000000000003
DATA int8EvenOdd<>+48(SB)/8, $0x0000000000000005
DATA int8EvenOdd<>+56(SB)/8, $0x0000000000000007
GLOBL int8EvenOdd<>(SB), RODATA|NOPTR, $64

// SCALES sets S to the scales of eight blocks, in every lane.
#define SCALES(at, base, S) \
	VMOVDQU64 at(base), S; \
	VPERMT2W (at+64)(base), Z26, S

// LANES sets the lanes of S to the scales of a row's chains.
#define LANES(base, S) \
	SCALES(0, base, S); \
	SCALES(144, base, Z8); \
	SCALES(288, base, Z9); \
	SCALES(432, base, Z10); \
	VMOVDQA32 Z8, K5, S; \
	VMOVDQA32 Z9, K6, S; \
	VMOVDQA32 Z10, K7, S; \
	VMOVDQU16.Z S, K1, S

// PRODUCTS sets acc to the sums of block k of each chain of a row.
#define PRODUCTS(k, base, acc) \
	BYTES((18*k+2), 18, base, X8, Y8, Z8); \
	VPANDD Z25, Z8, Z9; \
	VPSRLW $4, Z8, Z8; \
	VPANDD Z25, Z8, Z8; \
	VMOVDQU64 (256*k+128)(R8), acc; \
	VPDPBUSD (256*k)(R8), Z9, acc; \
	VPDPBUSD (256*k+64)(R8), Z8, acc

// COLUMN continues the chains by their block k, with the scales in Y20.
#define COLUMN(k) \
	PRODUCTS(k, AX, Z0); \
	PRODUCTS(k, BX, Z1); \
	PRODUCTS(k, CX, Z2); \
	PRODUCTS(k, DX, Z3); \
	JOIN4(Z0, Z1, Z2, Z3, Z8); \
	VCVTDQ2PS Z0, Z0; \
	VCVTPH2PS Y20, Z21; \
	VMULPS (256*k+192)(R8), Z21, Z21; \
	VFMADD231PS Z0, Z21, Z22

// COLUMNS takes two columns and prefetches the nine lines of one row: memory answers sooner when
// asked for neighbours.
#define COLUMNS(k, S, base) \
	VPERMQ S, Z27, Z20; \
	AHEAD(0, base); \
	AHEAD(64, base); \
	AHEAD(128, base); \
	AHEAD(192, base); \
	COLUMN(k); \
	VEXTRACTI64X4 $1, Z20, Y20; \
	AHEAD(256, base); \
	AHEAD(320, base); \
	AHEAD(384, base); \
	AHEAD(448, base); \
	AHEAD(512, base); \
	COLUMN((k+1))

// func int8Q4_0AVX512(a *int8Tile)
TEXT ·int8Q4_0AVX512(SB), NOSPLIT, $0-8
	START
	VMOVDQU64 int8EvenOdd<>(SB), Z27
	VBROADCASTI32X4 int8Scales4_0<>(SB), Z26
	MOVL $0x0f, R14
	VPBROADCASTB R14, Z25
	MOVL $0x00f0, R14
	KMOVW R14, K5
	MOVL $0x0f00, R14
	KMOVW R14, K6
	MOVL $0xf000, R14
	KMOVW R14, K7
row:
	FOUR
	MOVQ int8Tile_q(DI), R8
	MOVQ int8Tile_blocks(DI), R11
step:
	MOVL $32, R10
	CMPQ R11, R10
	CMOVQLT R11, R10
	MOVL $-1, R9
	BZHIL R10, R9, R9
	KMOVD R9, K1
	LANES(AX, Z16)
	LANES(BX, Z17)
	LANES(CX, Z18)
	LANES(DX, Z19)
	// From one row in each register to two blocks of all rows.
	VPUNPCKLWD Z17, Z16, Z8
	VPUNPCKHWD Z17, Z16, Z9
	VPUNPCKLWD Z19, Z18, Z10
	VPUNPCKHWD Z19, Z18, Z11
	VPUNPCKLDQ Z10, Z8, Z16
	VPUNPCKHDQ Z10, Z8, Z17
	VPUNPCKLDQ Z11, Z9, Z18
	VPUNPCKHDQ Z11, Z9, Z19
	VPXORD Z22, Z22, Z22
	COLUMNS(0, Z16, AX)
	COLUMNS(2, Z17, BX)
	COLUMNS(4, Z18, CX)
	COLUMNS(6, Z19, DX)
	VEXTRACTF32X4 $1, Z22, X8
	VEXTRACTF32X4 $2, Z22, X9
	VEXTRACTF32X4 $3, Z22, X10
	VADDPS X22, X24, X24
	VADDPS X8, X24, X24
	VADDPS X9, X24, X24
	VADDPS X10, X24, X24
	ADVANCE(576)
	ADDQ $2048, R8
	SUBQ $32, R11
	JG step
	STORE(row)
	VZEROUPPER
	RET
