//go:build !purego

#include "textflag.h"
#include "go_asm.h"

// Six rows of activations as 8-bit integers by a panel: 256 columns (at most) of 32 rows of
// weights, unpacked; see int8Panel. The lanes of a register are 16 rows of weights.
//
// Registers: AX groups left, BX q, SI less, R11 sums, R12 scales, all of the tile's first row
// and, with R8, R9 and R10 one, three and five rows further on, of all six; DI w, DX what w is
// scaled with; R13 acc, CX rows left, R14 the panel.

#define ROWS \
	MOVQ a+0(FP), R14; \
	MOVQ int8PanelTile_stride(R14), R8; \
	LEAQ (R8)(R8*2), R9; \
	LEAQ (R8)(R8*4), R10; \
	MOVQ int8PanelTile_acc(R14), R13; \
	MOVQ int8PanelTile_rows(R14), CX; \
	XORQ R15, R15

// TILE points to the six rows from R15 bytes on.
#define TILE \
	MOVQ int8PanelTile_q(R14), BX; \
	ADDQ R15, BX; \
	MOVQ int8PanelTile_less(R14), SI; \
	ADDQ R15, SI; \
	MOVQ int8PanelTile_scale(R14), R12; \
	ADDQ R15, R12; \
	MOVQ int8PanelTile_panel(R14), DI; \
	LEAQ int8Panel_scale(DI), DX

// NEXT goes to the next six rows.
#define NEXT \
	LEAQ (R15)(R10*1), R15; \
	ADDQ R8, R15; \
	ADDQ $768, R13; \
	SUBQ $6, CX

#define BOTH(from, lo, hi) \
	VPBROADCASTD from, lo; \
	VMOVDQA64 lo, hi

// START sets Z0 to Z11, two registers a row, to the sums of a group that w + 128 adds, negated.
#define START \
	BOTH((SI), Z0, Z1); \
	BOTH((SI)(R8*1), Z2, Z3); \
	BOTH((SI)(R8*2), Z4, Z5); \
	BOTH((SI)(R9*1), Z6, Z7); \
	BOTH((SI)(R8*4), Z8, Z9); \
	BOTH((SI)(R10*1), Z10, Z11); \
	ADDQ $4, SI

#define DOT(from, tmp, lo, hi) \
	VPBROADCASTD from, tmp; \
	VPDPBUSD tmp, Z24, lo; \
	VPDPBUSD tmp, Z25, hi

// QUAD adds the products of four columns.
#define QUAD(k) \
	VMOVDQU64 (128*k)(DI), Z24; \
	VMOVDQU64 (128*k+64)(DI), Z25; \
	DOT((4*k)(BX), Z26, Z0, Z1); \
	DOT((4*k)(BX)(R8*1), Z27, Z2, Z3); \
	DOT((4*k)(BX)(R8*2), Z28, Z4, Z5); \
	DOT((4*k)(BX)(R9*1), Z29, Z6, Z7); \
	DOT((4*k)(BX)(R8*4), Z30, Z8, Z9); \
	DOT((4*k)(BX)(R10*1), Z31, Z10, Z11)

#define QUADS16 \
	QUAD(0); \
	QUAD(1); \
	QUAD(2); \
	QUAD(3)

#define QUADS32 \
	QUADS16; \
	QUAD(4); \
	QUAD(5); \
	QUAD(6); \
	QUAD(7)

#define SCALED(x, scale, sum) \
	VPMULLD scale, x, x; \
	VPADDD x, sum, sum

// SCALES adds the sums of a group, times its scales, to Z12 to Z23.
#define SCALES \
	VMOVDQU64 (DX), Z24; \
	VMOVDQU64 64(DX), Z25; \
	ADDQ $128, DX; \
	SCALED(Z0, Z24, Z12); \
	SCALED(Z1, Z25, Z13); \
	SCALED(Z2, Z24, Z14); \
	SCALED(Z3, Z25, Z15); \
	SCALED(Z4, Z24, Z16); \
	SCALED(Z5, Z25, Z17); \
	SCALED(Z6, Z24, Z18); \
	SCALED(Z7, Z25, Z19); \
	SCALED(Z8, Z24, Z20); \
	SCALED(Z9, Z25, Z21); \
	SCALED(Z10, Z24, Z22); \
	SCALED(Z11, Z25, Z23)

#define ZERO(a, b, c, d, e, f) \
	VPXORD a, a, a; \
	VPXORD b, b, b; \
	VPXORD c, c, c; \
	VPXORD d, d, d; \
	VPXORD e, e, e; \
	VPXORD f, f, f

#define ZEROSUMS \
	ZERO(Z12, Z13, Z14, Z15, Z16, Z17); \
	ZERO(Z18, Z19, Z20, Z21, Z22, Z23)

#define PAIR(from, lo, hi) \
	VPBROADCASTD from, Z26; \
	VPDPWSSD Z26, Z24, lo; \
	VPDPWSSD Z26, Z25, hi

// PAIRS adds the minima of two groups, times their sums.
#define PAIRS \
	VMOVDQU64 (DX), Z24; \
	VMOVDQU64 64(DX), Z25; \
	ADDQ $128, DX; \
	PAIR((R11), Z0, Z1); \
	PAIR((R11)(R8*1), Z2, Z3); \
	PAIR((R11)(R8*2), Z4, Z5); \
	PAIR((R11)(R9*1), Z6, Z7); \
	PAIR((R11)(R8*4), Z8, Z9); \
	PAIR((R11)(R10*1), Z10, Z11); \
	ADDQ $4, R11

// RESULT continues acc of a row by the sums lo and hi; Z24 and Z25 are d.
#define RESULT(row, from, lo, hi) \
	VBROADCASTSS from, Z26; \
	VMULPS Z26, Z24, Z27; \
	VMULPS Z26, Z25, Z28; \
	VCVTDQ2PS lo, lo; \
	VCVTDQ2PS hi, hi; \
	VMOVUPS (128*row)(R13), Z29; \
	VMOVUPS (128*row+64)(R13), Z30; \
	VFMADD231PS lo, Z27, Z29; \
	VFMADD231PS hi, Z28, Z30; \
	VMOVUPS Z29, (128*row)(R13); \
	VMOVUPS Z30, (128*row+64)(R13)

#define RESULTS \
	MOVQ int8PanelTile_panel(R14), DI; \
	VMOVUPS int8Panel_d(DI), Z24; \
	VMOVUPS (int8Panel_d+64)(DI), Z25; \
	RESULT(0, (R12), Z12, Z13); \
	RESULT(1, (R12)(R8*1), Z14, Z15); \
	RESULT(2, (R12)(R8*2), Z16, Z17); \
	RESULT(3, (R12)(R9*1), Z18, Z19); \
	RESULT(4, (R12)(R8*4), Z20, Z21); \
	RESULT(5, (R12)(R10*1), Z22, Z23)

// MINIMUM subtracts the sums of minima lo and hi; Z24 and Z25 are dmin.
#define MINIMUM(row, from, lo, hi) \
	VBROADCASTSS from, Z26; \
	VMULPS Z26, Z24, Z27; \
	VMULPS Z26, Z25, Z28; \
	VCVTDQ2PS lo, lo; \
	VCVTDQ2PS hi, hi; \
	VMOVUPS (128*row)(R13), Z29; \
	VMOVUPS (128*row+64)(R13), Z30; \
	VFNMADD231PS lo, Z27, Z29; \
	VFNMADD231PS hi, Z28, Z30; \
	VMOVUPS Z29, (128*row)(R13); \
	VMOVUPS Z30, (128*row+64)(R13)

// MINIMA computes the sums of minima from n pairs of groups, and subtracts them.
#define MINIMA(next, none) \
	MOVQ int8PanelTile_pairs(R14), AX; \
	TESTQ AX, AX; \
	JZ none; \
	MOVQ int8PanelTile_sums(R14), R11; \
	ADDQ R15, R11; \
	LEAQ int8Panel_least(DI), DX; \
	ZERO(Z0, Z1, Z2, Z3, Z4, Z5); \
	ZERO(Z6, Z7, Z8, Z9, Z10, Z11); \
next: \
	PAIRS; \
	DECQ AX; \
	JNZ next; \
	VMOVUPS int8Panel_min(DI), Z24; \
	VMOVUPS (int8Panel_min+64)(DI), Z25; \
	MINIMUM(0, (R12), Z0, Z1); \
	MINIMUM(1, (R12)(R8*1), Z2, Z3); \
	MINIMUM(2, (R12)(R8*2), Z4, Z5); \
	MINIMUM(3, (R12)(R9*1), Z6, Z7); \
	MINIMUM(4, (R12)(R8*4), Z8, Z9); \
	MINIMUM(5, (R12)(R10*1), Z10, Z11); \
none:

// func int8Panel32AVX512(a *int8PanelTile)
TEXT ·int8Panel32AVX512(SB), NOSPLIT, $0-8
	ROWS
tile:
	TILE
	ZEROSUMS
	MOVQ $8, AX
group:
	START
	QUADS32
	ADDQ $1024, DI
	ADDQ $32, BX
	SCALES
	DECQ AX
	JNZ group
	RESULTS
	MINIMA(pair, none)
	NEXT
	JG tile
	VZEROUPPER
	RET

// func int8Panel16AVX512(a *int8PanelTile)
TEXT ·int8Panel16AVX512(SB), NOSPLIT, $0-8
	ROWS
tile:
	TILE
	ZEROSUMS
	MOVQ $16, AX
group:
	START
	QUADS16
	ADDQ $512, DI
	ADDQ $16, BX
	SCALES
	DECQ AX
	JNZ group
	RESULTS
	MINIMA(pair, none)
	NEXT
	JG tile
	VZEROUPPER
	RET

// TERM continues the chains lo and hi of a row by the sums x and y of a group; Z24 and Z25
// are d.
#define TERM(from, x, y, lo, hi) \
	VBROADCASTSS from, Z26; \
	VMULPS Z26, Z24, Z27; \
	VMULPS Z26, Z25, Z28; \
	VCVTDQ2PS x, x; \
	VCVTDQ2PS y, y; \
	VFMADD231PS x, Z27, lo; \
	VFMADD231PS y, Z28, hi

// LEAST is TERM for the minima of a group: less is -128 times the group's sum, Z31 2^-7.
#define LEAST(less, from, lo, hi) \
	VBROADCASTSS from, Z26; \
	VMULPS Z26, Z24, Z27; \
	VMULPS Z26, Z25, Z28; \
	VPBROADCASTD less, Z29; \
	VCVTDQ2PS Z29, Z29; \
	VMULPS Z31, Z29, Z29; \
	VFMADD231PS Z29, Z27, lo; \
	VFMADD231PS Z29, Z28, hi

#define CHAINEND(row, lo, hi) \
	VADDPS (128*row)(R13), lo, lo; \
	VADDPS (128*row+64)(R13), hi, hi; \
	VMOVUPS lo, (128*row)(R13); \
	VMOVUPS hi, (128*row+64)(R13)

// func int8PanelChainAVX512(a *int8PanelTile)
TEXT ·int8PanelChainAVX512(SB), NOSPLIT, $0-8
	ROWS
tile:
	TILE
	ZEROSUMS
	MOVQ int8PanelTile_groups(R14), AX
group:
	START
	QUADS32
	ADDQ $1024, DI
	ADDQ $32, BX
	VMOVUPS (DX), Z24
	VMOVUPS 64(DX), Z25
	TERM((R12), Z0, Z1, Z12, Z13)
	TERM((R12)(R8*1), Z2, Z3, Z14, Z15)
	TERM((R12)(R8*2), Z4, Z5, Z16, Z17)
	TERM((R12)(R9*1), Z6, Z7, Z18, Z19)
	TERM((R12)(R8*4), Z8, Z9, Z20, Z21)
	TERM((R12)(R10*1), Z10, Z11, Z22, Z23)
	CMPQ int8PanelTile_pairs(R14), $0
	JEQ none
	MOVL $0x3c000000, R11 // 2^-7
	VPBROADCASTD R11, Z31
	VMOVUPS (int8Panel_least-int8Panel_scale)(DX), Z24
	VMOVUPS (int8Panel_least-int8Panel_scale+64)(DX), Z25
	LEAST(-4(SI), (R12), Z12, Z13)
	LEAST(-4(SI)(R8*1), (R12)(R8*1), Z14, Z15)
	LEAST(-4(SI)(R8*2), (R12)(R8*2), Z16, Z17)
	LEAST(-4(SI)(R9*1), (R12)(R9*1), Z18, Z19)
	LEAST(-4(SI)(R8*4), (R12)(R8*4), Z20, Z21)
	LEAST(-4(SI)(R10*1), (R12)(R10*1), Z22, Z23)
none:
	ADDQ $128, DX
	ADDQ $4, R12
	DECQ AX
	JNZ group
	CHAINEND(0, Z12, Z13)
	CHAINEND(1, Z14, Z15)
	CHAINEND(2, Z16, Z17)
	CHAINEND(3, Z18, Z19)
	CHAINEND(4, Z20, Z21)
	CHAINEND(5, Z22, Z23)
	NEXT
	JG tile
	VZEROUPPER
	RET

#define LOADROWS(at) \
	VMOVDQU64 (0*256+at)(SI), Z0; \
	VMOVDQU64 (1*256+at)(SI), Z1; \
	VMOVDQU64 (2*256+at)(SI), Z2; \
	VMOVDQU64 (3*256+at)(SI), Z3; \
	VMOVDQU64 (4*256+at)(SI), Z4; \
	VMOVDQU64 (5*256+at)(SI), Z5; \
	VMOVDQU64 (6*256+at)(SI), Z6; \
	VMOVDQU64 (7*256+at)(SI), Z7; \
	VMOVDQU64 (8*256+at)(SI), Z8; \
	VMOVDQU64 (9*256+at)(SI), Z9; \
	VMOVDQU64 (10*256+at)(SI), Z10; \
	VMOVDQU64 (11*256+at)(SI), Z11; \
	VMOVDQU64 (12*256+at)(SI), Z12; \
	VMOVDQU64 (13*256+at)(SI), Z13; \
	VMOVDQU64 (14*256+at)(SI), Z14; \
	VMOVDQU64 (15*256+at)(SI), Z15

// ZIP4 sets lane l of a, b, c, d to elements 0, 1, 2, 3 of lane l of all four. t to v are
// overwritten.
#define ZIP4(a, b, c, d, t, u, v, w) \
	VPUNPCKLDQ b, a, t; \
	VPUNPCKHDQ b, a, u; \
	VPUNPCKLDQ d, c, v; \
	VPUNPCKHDQ d, c, w; \
	VPUNPCKLQDQ v, t, a; \
	VPUNPCKHQDQ v, t, b; \
	VPUNPCKLQDQ w, u, c; \
	VPUNPCKHQDQ w, u, d

// LANES4 stores quads k, k+4, k+8 and k+12 of sixteen rows, whose lanes a, b, c and d hold.
#define LANES4(a, b, c, d, k, t, u, v, w) \
	VSHUFI32X4 $0x44, b, a, t; \
	VSHUFI32X4 $0xee, b, a, u; \
	VSHUFI32X4 $0x44, d, c, v; \
	VSHUFI32X4 $0xee, d, c, w; \
	VSHUFI32X4 $0x88, v, t, a; \
	VSHUFI32X4 $0xdd, v, t, b; \
	VSHUFI32X4 $0x88, w, u, c; \
	VSHUFI32X4 $0xdd, w, u, d; \
	VPXORD Z31, a, a; \
	VPXORD Z31, b, b; \
	VPXORD Z31, c, c; \
	VPXORD Z31, d, d; \
	VMOVDQU64 a, (128*k)(DI); \
	VMOVDQU64 b, (128*(k+4))(DI); \
	VMOVDQU64 c, (128*(k+8))(DI); \
	VMOVDQU64 d, (128*(k+12))(DI)

// func int8TransposeAVX512(dst, src unsafe.Pointer)
TEXT ·int8TransposeAVX512(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVL $0x80, CX
	VPBROADCASTB CX, Z31
	MOVQ $4, CX
next:
	LOADROWS(0)
	ZIP4(Z0, Z1, Z2, Z3, Z16, Z17, Z18, Z19)
	ZIP4(Z4, Z5, Z6, Z7, Z16, Z17, Z18, Z19)
	ZIP4(Z8, Z9, Z10, Z11, Z16, Z17, Z18, Z19)
	ZIP4(Z12, Z13, Z14, Z15, Z16, Z17, Z18, Z19)
	LANES4(Z0, Z4, Z8, Z12, 0, Z16, Z17, Z18, Z19)
	LANES4(Z1, Z5, Z9, Z13, 1, Z16, Z17, Z18, Z19)
	LANES4(Z2, Z6, Z10, Z14, 2, Z16, Z17, Z18, Z19)
	LANES4(Z3, Z7, Z11, Z15, 3, Z16, Z17, Z18, Z19)
	ADDQ $64, SI
	ADDQ $2048, DI
	DECQ CX
	JNZ next
	VZEROUPPER
	RET

#define LOADWORDS \
	VMOVDQU64 (SI), Z0; \
	VMOVDQU64 64(SI), Z1; \
	VMOVDQU64 128(SI), Z2; \
	VMOVDQU64 192(SI), Z3; \
	VMOVQ AX, X6

#define SCALEBYTE(word, to) \
	VPSLLQ X5, word, Z8; \
	VPSRAQ $56, Z8, Z8; \
	VPMOVQD Z8, to(DI)

// func int8ScalesAVX512(dst *[32]int32, words *[32]uint64, groups, bits int)
TEXT ·int8ScalesAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ words+8(FP), SI
	MOVQ bits+24(FP), AX
	LOADWORDS
	MOVQ groups+16(FP), CX
	MOVQ $56, AX
	VMOVQ AX, X5
next:
	SCALEBYTE(Z0, 0)
	SCALEBYTE(Z1, 32)
	SCALEBYTE(Z2, 64)
	SCALEBYTE(Z3, 96)
	VPSUBQ X6, X5, X5
	ADDQ $128, DI
	DECQ CX
	JNZ next
	VZEROUPPER
	RET

#define LEASTBYTES(word, to) \
	VPSRLQ X5, word, Z8; \
	VPSRLQ X7, word, Z9; \
	VPANDQ Z10, Z8, Z8; \
	VPANDQ Z10, Z9, Z9; \
	VPSLLQ $16, Z9, Z9; \
	VPORQ Z9, Z8, Z8; \
	VPMOVQD Z8, to(DI)

// func int8LeastAVX512(dst *[32][2]int16, words *[32]uint64, pairs, bits int)
TEXT ·int8LeastAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ words+8(FP), SI
	MOVQ bits+24(FP), AX
	LOADWORDS
	MOVQ pairs+16(FP), CX
	VPXORQ X5, X5, X5
	VMOVDQA X6, X7
	VPADDQ X6, X6, X6
	MOVQ $255, AX
	VPBROADCASTQ AX, Z10
next:
	LEASTBYTES(Z0, 0)
	LEASTBYTES(Z1, 32)
	LEASTBYTES(Z2, 64)
	LEASTBYTES(Z3, 96)
	VPADDQ X6, X5, X5
	VPADDQ X6, X7, X7
	ADDQ $128, DI
	DECQ CX
	JNZ next
	VZEROUPPER
	RET
