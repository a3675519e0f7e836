//go:build !purego

#include "textflag.h"
#include "go_asm.h"
#include "int8_row_avx512_amd64.h"

// One row of activations as 8-bit integers by four rows of quantised weights at a time, types
// with blocks of 256; see int8.go for the arithmetic. The chain of each row of weights is one
// element of a vector.
//
// Registers, beside those of int8_row_avx512_amd64.h: R8 q, R9 scales, R10 sums, R11 blocks left,
// R13 room.

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

// Elements 0 of every lane, then elements 1.
DATA int8Columns<>+0(SB)/8, $0x0000000400000000
DATA int8Columns<>+8(SB)/8, $0x0000000c00000008
DATA int8Columns<>+16(SB)/8, $0x0000000500000001
DATA int8Columns<>+24(SB)/8, $0x0000000d00000009
GLOBL int8Columns<>(SB), RODATA|NOPTR, $32

// Scales as words, in the order of PRODUCTS: of groups of 32, each twice, from bytes 0 to 7 of a lane.
DATA int8Scales0123<>+0(SB)/8, $0x8000800080008000
DATA int8Scales0123<>+8(SB)/8, $0x8001800180018001
DATA int8Scales0123<>+16(SB)/8, $0x8000800080008000
DATA int8Scales0123<>+24(SB)/8, $0x8001800180018001
DATA int8Scales0123<>+32(SB)/8, $0x8002800280028002
DATA int8Scales0123<>+40(SB)/8, $0x8003800380038003
DATA int8Scales0123<>+48(SB)/8, $0x8002800280028002
DATA int8Scales0123<>+56(SB)/8, $0x8003800380038003
GLOBL int8Scales0123<>(SB), RODATA|NOPTR, $64

DATA int8Scales4567<>+0(SB)/8, $0x8004800480048004
DATA int8Scales4567<>+8(SB)/8, $0x8005800580058005
DATA int8Scales4567<>+16(SB)/8, $0x8004800480048004
DATA int8Scales4567<>+24(SB)/8, $0x8005800580058005
DATA int8Scales4567<>+32(SB)/8, $0x8006800680068006
DATA int8Scales4567<>+40(SB)/8, $0x8007800780078007
DATA int8Scales4567<>+48(SB)/8, $0x8006800680068006
DATA int8Scales4567<>+56(SB)/8, $0x8007800780078007
GLOBL int8Scales4567<>(SB), RODATA|NOPTR, $64

// The same of groups of 16, from the 16 bytes of a lane into the upper halves of words.
DATA int8Scales0to7<>+0(SB)/8, $0x0080008000800080
DATA int8Scales0to7<>+8(SB)/8, $0x0480048004800480
DATA int8Scales0to7<>+16(SB)/8, $0x0180018001800180
DATA int8Scales0to7<>+24(SB)/8, $0x0580058005800580
DATA int8Scales0to7<>+32(SB)/8, $0x0280028002800280
DATA int8Scales0to7<>+40(SB)/8, $0x0680068006800680
DATA int8Scales0to7<>+48(SB)/8, $0x0380038003800380
DATA int8Scales0to7<>+56(SB)/8, $0x0780078007800780
GLOBL int8Scales0to7<>(SB), RODATA|NOPTR, $64

DATA int8Scales8to15<>+0(SB)/8, $0x0880088008800880
DATA int8Scales8to15<>+8(SB)/8, $0x0c800c800c800c80
DATA int8Scales8to15<>+16(SB)/8, $0x0980098009800980
DATA int8Scales8to15<>+24(SB)/8, $0x0d800d800d800d80
DATA int8Scales8to15<>+32(SB)/8, $0x0a800a800a800a80
DATA int8Scales8to15<>+40(SB)/8, $0x0e800e800e800e80
DATA int8Scales8to15<>+48(SB)/8, $0x0b800b800b800b80
DATA int8Scales8to15<>+56(SB)/8, $0x0f800f800f800f80
GLOBL int8Scales8to15<>(SB), RODATA|NOPTR, $64

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

#define CONSTANTS \
	START; \
	MOVL $0x0f, R14; \
	VPBROADCASTB R14, Z25; \
	VMOVDQU32 int8Columns<>(SB), Y27; \
	VBROADCASTI32X4 int8Halves<>(SB), Z26

#define ROW \
	FOUR; \
	MOVQ int8Tile_room(DI), R13; \
	MOVQ int8Tile_q(DI), R8; \
	MOVQ int8Tile_scale(DI), R9; \
	MOVQ int8Tile_sums(DI), R10; \
	MOVQ int8Tile_blocks(DI), R11

// NEXT goes on to the next block, of w bytes and q of activations, or to the next rows.
#define NEXT(block, row, w, q, sums) \
	ADVANCE(w); \
	ADDQ $q, R8; \
	ADDQ $4, R9; \
	ADDQ $sums, R10; \
	DECQ R11; \
	JNZ block; \
	STORE(row)

// PRODUCTS sets P to the sums of four products of w (Z10 and Z11) and q at from, 64 of each, which
// fit 16 bits: by lanes, four of Z10 before four of Z11. Z14 and Z15 are what the sums start at.
#define PRODUCTS(from, P) \
	VPDPBUSD from(R8), Z10, Z14; \
	VPDPBUSD (64+from)(R8), Z11, Z15; \
	VPACKSSDW Z15, Z14, P

// LANES adds the lanes of Z4 to Z7; lane i of Z4 becomes those of Z(4+i).
#define LANES \
	VSHUFI32X4 $0x44, Z5, Z4, Z8; \
	VSHUFI32X4 $0xee, Z5, Z4, Z9; \
	VSHUFI32X4 $0x44, Z7, Z6, Z10; \
	VSHUFI32X4 $0xee, Z7, Z6, Z11; \
	VPADDD Z9, Z8, Z8; \
	VPADDD Z11, Z10, Z10; \
	VSHUFI32X4 $0x88, Z10, Z8, Z4; \
	VSHUFI32X4 $0xdd, Z10, Z8, Z5; \
	VPADDD Z5, Z4, Z4

// HEADERS unpacks d, dmin, scales and minima of a block of each row, as Q4_K and Q5_K have them. It
// sets the upper and lower halves of Y0 to dmin and d times the scale of the activations, and the
// lanes of Z3 to sums for the minima, and stores the scales, 8 bytes for every 16.
#define HEADERS \
	VMOVDQU (AX), X0; \
	VINSERTI128 $1, (BX), Y0, Y0; \
	VINSERTI32X4 $2, (CX), Z0, Z0; \
	VINSERTI32X4 $3, (DX), Z0, Z0; \
	VPSHUFD $0xed, Z0, Z1; \
	VPSRLVD Z31, Z1, Z1; \
	VPANDD Z30, Z1, Z1; \
	VPSHUFD $0x84, Z0, Z2; \
	VPSRLD $2, Z2, Z2; \
	VPTERNLOGD $0xf8, Z29, Z2, Z1; \
	VMOVDQU64 Z1, (R13); \
	VPSHUFB Z28, Z1, Z3; \
	VBROADCASTI32X4 (R10), Z2; \
	VPMADDWD Z2, Z3, Z3; \
	VPERMD Z0, Z27, Z0; \
	VPSHUFB X26, X0, X0; \
	VCVTPH2PS X0, Y0; \
	VMULPS.BCST (R9), Y0, Y0

// SCALED sets acc to the sums of P and Z2 by the scales of row i.
#define SCALED(i, P, acc) \
	VBROADCASTI32X4 (16*i)(R13), Z8; \
	VPSHUFB Z18, Z8, Z9; \
	VPSHUFB Z19, Z8, Z8; \
	VPMADDWD Z9, P, acc; \
	VPDPWSSD Z8, Z2, acc

// CHAIN continues X24 by a block of each row: the accumulators Z4 to Z7 and the minima.
#define CHAIN \
	LANES; \
	VPUNPCKHDQ Z3, Z4, Z5; \
	VPUNPCKLDQ Z3, Z4, Z4; \
	VPADDD Z5, Z4, Z4; \
	VPSHUFD $0x4e, Z4, Z5; \
	VPADDD Z5, Z4, Z4; \
	VPERMD Z4, Z27, Z4; \
	VCVTDQ2PS Y4, Y4; \
	VFMADD231PS X4, X0, X24; \
	VEXTRACTF128 $1, Y4, X4; \
	VEXTRACTF128 $1, Y0, X0; \
	VFNMADD231PS X4, X0, X24

#define CONSTANTS32 \
	VBROADCASTI32X4 int8Shift6<>(SB), Z31; \
	VBROADCASTI32X4 int8Low6<>(SB), Z30; \
	VBROADCASTI32X4 int8High6<>(SB), Z29; \
	VBROADCASTI32X4 int8Minima<>(SB), Z28; \
	VMOVDQU64 int8Scales0123<>(SB), Z18; \
	VMOVDQU64 int8Scales4567<>(SB), Z19

// NIBBLES sets Z10 and Z11 to the low and high halves of 64 bytes.
#define NIBBLES(at, base) \
	VMOVDQU64 at(base), Z11; \
	VPANDD Z25, Z11, Z10; \
	VPSRLW $4, Z11, Z11; \
	VPANDD Z25, Z11, Z11

#define NOTHING \
	VPXOR X14, X14, X14; \
	VPXOR X15, X15, X15

// func int8Q4_KAVX512(a *int8Tile)
TEXT ·int8Q4_KAVX512(SB), NOSPLIT, $0-8
	CONSTANTS
	CONSTANTS32
row:
	ROW
block:
	HEADERS
#define Q4K(i, base, acc) \
	NIBBLES(16, base); \
	NOTHING; \
	PRODUCTS(0, Z1); \
	AHEAD(0, base); \
	NIBBLES(80, base); \
	NOTHING; \
	PRODUCTS(128, Z2); \
	AHEAD(64, base); \
	AHEAD(128, base); \
	SCALED(i, Z1, acc)
	Q4K(0, AX, Z4)
	Q4K(1, BX, Z5)
	Q4K(2, CX, Z6)
	Q4K(3, DX, Z7)
	CHAIN
	NEXT(block, row, 144, 256, 16)
	VZEROUPPER
	RET

// func int8Q5_KAVX512(a *int8Tile)
TEXT ·int8Q5_KAVX512(SB), NOSPLIT, $0-8
	CONSTANTS
	CONSTANTS32
	MOVL $0x10, R14
	VPBROADCASTB R14, Z22
	VMOVDQU64 int8Left42<>(SB), Z16
	VMOVDQU64 int8Left31<>(SB), Z17
	VMOVDQU64 int8Right02<>(SB), Z20
	VMOVDQU64 int8Right13<>(SB), Z21
row:
	ROW
block:
	HEADERS
	// FIFTH adds the fifth bits of two groups of 32.
#define FIFTH(shift, counts, nibbles) \
	shift counts, Z12, Z13; \
	VPTERNLOGD $0xf8, Z22, Z13, nibbles
#define Q5K(i, base, acc) \
	VBROADCASTI64X4 16(base), Z12; \
	NIBBLES(48, base); \
	FIFTH(VPSLLVW, Z16, Z10); \
	FIFTH(VPSLLVW, Z17, Z11); \
	NOTHING; \
	PRODUCTS(0, Z1); \
	AHEAD(0, base); \
	NIBBLES(112, base); \
	FIFTH(VPSRLVW, Z20, Z10); \
	FIFTH(VPSRLVW, Z21, Z11); \
	NOTHING; \
	PRODUCTS(128, Z2); \
	AHEAD(64, base); \
	AHEAD(128, base); \
	SCALED(i, Z1, acc)
	Q5K(0, AX, Z4)
	Q5K(1, BX, Z5)
	Q5K(2, CX, Z6)
	Q5K(3, DX, Z7)
	CHAIN
	NEXT(block, row, 176, 256, 16)
	VZEROUPPER
	RET

// func int8Q6_KAVX512(a *int8Tile)
//
// 256 bytes of q alternate with -32 times the sums of four q, which are what 32 less in each weight
// adds.
TEXT ·int8Q6_KAVX512(SB), NOSPLIT, $0-8
	CONSTANTS
	MOVL $0x30, R14
	VPBROADCASTB R14, Z31
	VMOVDQU64 int8Left42<>(SB), Z30
	VMOVDQU64 int8Right02<>(SB), Z29
	VMOVDQU64 int8Scales0to7<>(SB), Z18
	VMOVDQU64 int8Scales8to15<>(SB), Z19
row:
	ROW
block:
#define Q6HALF(at, high, base, from, P) \
	NIBBLES(at, base); \
	VBROADCASTI64X4 high(base), Z13; \
	VPSLLVW Z30, Z13, Z12; \
	VPSRLVW Z29, Z13, Z13; \
	VPTERNLOGD $0xf8, Z31, Z12, Z10; \
	VPTERNLOGD $0xf8, Z31, Z13, Z11; \
	VMOVDQU64 (256+from)(R8), Z14; \
	VMOVDQU64 (320+from)(R8), Z15; \
	PRODUCTS(from, P)
#define Q6K(base, acc) \
	Q6HALF(0, 128, base, 0, Z1); \
	AHEAD(0, base); \
	AHEAD(64, base); \
	Q6HALF(64, 160, base, 128, Z2); \
	AHEAD(128, base); \
	AHEAD(192, base); \
	VBROADCASTI32X4 192(base), Z8; \
	VPSHUFB Z18, Z8, Z9; \
	VPSHUFB Z19, Z8, Z8; \
	VPSRAW $8, Z9, Z9; \
	VPSRAW $8, Z8, Z8; \
	VPMADDWD Z9, Z1, acc; \
	VPDPWSSD Z8, Z2, acc
	Q6K(AX, Z4)
	Q6K(BX, Z5)
	Q6K(CX, Z6)
	Q6K(DX, Z7)
	LANES
	VPSHUFD $0x4e, Z4, Z5
	VPADDD Z5, Z4, Z4
	VPSHUFD $0xb1, Z4, Z5
	VPADDD Z5, Z4, Z4
	VPERMD Z4, Z27, Z4
	VCVTDQ2PS X4, X4
	MOVWLZX 208(AX), R14
	VMOVD R14, X5
	VPINSRW $1, 208(BX), X5, X5
	VPINSRW $2, 208(CX), X5, X5
	VPINSRW $3, 208(DX), X5, X5
	VCVTPH2PS X5, X5
	VMULPS.BCST (R9), X5, X5
	VFMADD231PS X4, X5, X24
	NEXT(block, row, 210, 512, 0)
	VZEROUPPER
	RET
