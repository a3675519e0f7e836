//go:build !purego

#include "textflag.h"
#include "go_asm.h"
#include "int8_row_avx512_amd64.h"

// One row of activations as 8-bit integers by four rows of quantised weights at a time, types
// with blocks of 32; see int8.go for the arithmetic. A step is 32 blocks of each row: four chains of
// eight, which are the lanes of vectors. The elements of a lane are the rows.
//
// Registers, beside those of int8_row_avx512_amd64.h: R8 activations as int8LanesAVX512 arranges
// them, R11 blocks left, Z22 the chains, K1 the blocks of the step that exist. Those that do not have
// scales and activations of zero, which change no sum; what they read may lie beyond the row.

// Where the scales of eight blocks are, as words of what is read, in each lane.
DATA int8Scales4_0<>+0(SB)/8, $0x001b001200090000
DATA int8Scales4_0<>+8(SB)/8, $0x003f0036002d0024
GLOBL int8Scales4_0<>(SB), RODATA|NOPTR, $16

DATA int8Scales8_0<>+0(SB)/8, $0x0033002200110000
DATA int8Scales8_0<>+8(SB)/8, $0x0037002600150004
GLOBL int8Scales8_0<>(SB), RODATA|NOPTR, $16

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

#define CONSTANTS \
	START; \
	VMOVDQU64 int8EvenOdd<>(SB), Z27; \
	MOVL $0xaa, R14; \
	KMOVW R14, K4; \
	MOVL $0x00f0, R14; \
	KMOVW R14, K5; \
	MOVL $0x0f00, R14; \
	KMOVW R14, K6; \
	MOVL $0xf000, R14; \
	KMOVW R14, K7

#define ROW \
	FOUR; \
	MOVQ int8Tile_q(DI), R8; \
	MOVQ int8Tile_blocks(DI), R11

#define STEP \
	MOVL $32, R10; \
	CMPQ R11, R10; \
	CMOVQLT R11, R10; \
	MOVL $-1, R9; \
	BZHIL R10, R9, R9; \
	KMOVD R9, K1; \
	VPXORD Z22, Z22, Z22

// NEXT adds the chains to the results and goes on to the next step, of w bytes of a row, or to
// the next rows.
#define NEXT(step, row, w) \
	VEXTRACTF32X4 $1, Z22, X8; \
	VEXTRACTF32X4 $2, Z22, X9; \
	VEXTRACTF32X4 $3, Z22, X10; \
	VADDPS X22, X24, X24; \
	VADDPS X8, X24, X24; \
	VADDPS X9, X24, X24; \
	VADDPS X10, X24, X24; \
	ADVANCE(w); \
	ADDQ $2048, R8; \
	SUBQ $32, R11; \
	JG step; \
	STORE(row)

#define AHEADS(at) \
	AHEAD(at, AX); \
	AHEAD(at, BX); \
	AHEAD(at, CX); \
	AHEAD(at, DX)

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

// LANES sets the lanes of S to the scales of a row's chains. SCALES reads those of one chain, whose
// blocks have w bytes in all, into every lane.
#define LANES(SCALES, w, base, S) \
	SCALES(0, base, S); \
	SCALES(w, base, Z8); \
	SCALES((2*w), base, Z9); \
	SCALES((3*w), base, Z10); \
	VMOVDQA32 Z8, K5, S; \
	VMOVDQA32 Z9, K6, S; \
	VMOVDQA32 Z10, K7, S; \
	VMOVDQU16.Z S, K1, S

// SCALES4 sets Z16 to Z19 to the scales of four rows: in every lane, those of two blocks.
#define SCALES4(SCALES, w) \
	LANES(SCALES, w, AX, Z16); \
	LANES(SCALES, w, BX, Z17); \
	LANES(SCALES, w, CX, Z18); \
	LANES(SCALES, w, DX, Z19); \
	VPUNPCKLWD Z17, Z16, Z8; \
	VPUNPCKHWD Z17, Z16, Z9; \
	VPUNPCKLWD Z19, Z18, Z10; \
	VPUNPCKHWD Z19, Z18, Z11; \
	VPUNPCKLDQ Z10, Z8, Z16; \
	VPUNPCKHDQ Z10, Z8, Z17; \
	VPUNPCKLDQ Z11, Z9, Z18; \
	VPUNPCKHDQ Z11, Z9, Z19

// COLUMN continues the chains by their block k, with the scales in Y20. PRODUCTS sums the
// products of a row.
#define COLUMN(PRODUCTS, k) \
	PRODUCTS(k, AX, Z0); \
	PRODUCTS(k, BX, Z1); \
	PRODUCTS(k, CX, Z2); \
	PRODUCTS(k, DX, Z3); \
	AHEADS((64*k)); \
	JOIN4(Z0, Z1, Z2, Z3, Z8); \
	VCVTDQ2PS Z0, Z0; \
	VCVTPH2PS Y20, Z21; \
	VMULPS (256*k+192)(R8), Z21, Z21; \
	VFMADD231PS Z0, Z21, Z22

#define COLUMNS(PRODUCTS, k, S) \
	VPERMQ S, Z27, Z20; \
	COLUMN(PRODUCTS, k); \
	VEXTRACTI64X4 $1, Z20, Y20; \
	COLUMN(PRODUCTS, (k+1))

// BYTES sets Z to 16 bytes of a block of each chain of a row; blocks have w bytes. X and Y are the low
// parts of Z.
#define BYTES(at, w, base, X, Y, Z) \
	VMOVDQU at(base), X; \
	VINSERTI128 $1, (8*w+at)(base), Y, Y; \
	VINSERTI32X4 $2, (16*w+at)(base), Z, Z; \
	VINSERTI32X4 $3, (24*w+at)(base), Z, Z

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

// func int8LanesAVX512(dst, q, scale unsafe.Pointer, n, less int)
//
// n steps of 32 blocks. For block k of all four chains, 256 bytes: the first 16 q of each, the last 16,
// -less times the sums of four and four of these, and the scales, each four times.
TEXT ·int8LanesAVX512(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ scale+16(FP), BX
	MOVQ n+24(FP), CX
	MOVQ less+32(FP), AX
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

// func int8Q8_0AVX512(a *int8Tile)
TEXT ·int8Q8_0AVX512(SB), NOSPLIT, $0-8
	CONSTANTS
	MOVL $0x80, R14
	VPBROADCASTB R14, Z25
	VBROADCASTI32X4 int8Scales8_0<>(SB), Z26
row:
	ROW
step:
	STEP
#define SCALES8_0(at, base, S) \
	VMOVDQU64 at(base), S; \
	VPERMT2W (at+64)(base), Z26, S; \
	VMOVDQU64 (at+128)(base), Z11; \
	VPERMT2W (at+192)(base), Z26, Z11; \
	VMOVDQA64 Z11, K4, S
#define PRODUCTS8_0(k, base, acc) \
	BYTES((34*k+2), 34, base, X8, Y8, Z8); \
	BYTES((34*k+18), 34, base, X9, Y9, Z9); \
	VPXORD Z25, Z8, Z8; \
	VPXORD Z25, Z9, Z9; \
	VMOVDQU64 (256*k+128)(R8), acc; \
	VPDPBUSD (256*k)(R8), Z8, acc; \
	VPDPBUSD (256*k+64)(R8), Z9, acc
	SCALES4(SCALES8_0, 272)
	COLUMNS(PRODUCTS8_0, 0, Z16)
	AHEADS(512)
	AHEADS(576)
	COLUMNS(PRODUCTS8_0, 2, Z17)
	AHEADS(640)
	AHEADS(704)
	AHEADS(768)
	COLUMNS(PRODUCTS8_0, 4, Z18)
	AHEADS(832)
	AHEADS(896)
	COLUMNS(PRODUCTS8_0, 6, Z19)
	AHEADS(960)
	AHEADS(1024)
	NEXT(step, row, 1088)
	VZEROUPPER
	RET

// func int8Q4_0AVX512(a *int8Tile)
TEXT ·int8Q4_0AVX512(SB), NOSPLIT, $0-8
	CONSTANTS
	MOVL $0x0f, R14
	VPBROADCASTB R14, Z25
	VBROADCASTI32X4 int8Scales4_0<>(SB), Z26
row:
	ROW
step:
	STEP
#define SCALES4_0(at, base, S) \
	VMOVDQU64 at(base), S; \
	VPERMT2W (at+64)(base), Z26, S
#define PRODUCTS4_0(k, base, acc) \
	BYTES((18*k+2), 18, base, X8, Y8, Z8); \
	VPANDD Z25, Z8, Z9; \
	VPSRLW $4, Z8, Z8; \
	VPANDD Z25, Z8, Z8; \
	VMOVDQU64 (256*k+128)(R8), acc; \
	VPDPBUSD (256*k)(R8), Z9, acc; \
	VPDPBUSD (256*k+64)(R8), Z8, acc
	SCALES4(SCALES4_0, 144)
	COLUMNS(PRODUCTS4_0, 0, Z16)
	COLUMNS(PRODUCTS4_0, 2, Z17)
	COLUMNS(PRODUCTS4_0, 4, Z18)
	COLUMNS(PRODUCTS4_0, 6, Z19)
	AHEADS(512)
	NEXT(step, row, 576)
	VZEROUPPER
	RET
