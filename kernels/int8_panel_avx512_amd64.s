//go:build !purego

#include "textflag.h"
#include "go_asm.h"

// Two, four or six rows of activations as 8-bit integers by a panel: 256 columns (at most) of 32
// rows of weights, unpacked; see int8Panel. The lanes of a register are 16 rows of weights.
// ROWS23 and ROWS45 hold the instructions of rows 2 and 3, and of rows 4 and 5, for the routines
// that have them.
//
// Registers: AX groups left, BX q, SI less, R11 sums, R12 scales, all of the tile's first row
// and, with R8, R9 and R10 one, three and five rows further on, of all; DI w, DX its scales;
// R13 acc, R14 the argument, R15 the bytes of the rows before the tile. Within groups CX is q of
// the next tile, and R11 the address of weights to prefetch.

#define ROWS \
	MOVQ a+0(FP), R14; \
	MOVQ int8PanelTile_stride(R14), R8; \
	LEAQ (R8)(R8*2), R9; \
	LEAQ (R8)(R8*4), R10; \
	MOVQ int8PanelTile_acc(R14), R13; \
	XORQ R15, R15

// TILE points to the rows from R15 bytes on.
#define TILE \
	MOVQ int8PanelTile_q(R14), BX; \
	ADDQ R15, BX; \
	MOVQ int8PanelTile_less(R14), SI; \
	ADDQ R15, SI; \
	MOVQ int8PanelTile_scale(R14), R12; \
	ADDQ R15, R12; \
	MOVQ int8PanelTile_panel(R14), DI; \
	ROWS45(AFTER(SI); NEXTROWS; AFTER(R12); NEXTROWS); \
	LEAQ int8Panel_scale(DI), DX

#define BOTH(from, lo, hi) \
	VPBROADCASTD from, lo; \
	VMOVDQA64 lo, hi

// NEXTROWS prefetches six rows, the next tile's, from CX on.
#define NEXTROWS \
	PREFETCHT0 (CX); \
	PREFETCHT0 (CX)(R8*1); \
	PREFETCHT0 (CX)(R8*2); \
	PREFETCHT0 (CX)(R9*1); \
	PREFETCHT0 (CX)(R8*4); \
	PREFETCHT0 (CX)(R10*1)

// AFTER sets CX to the next tile's place of at.
#define AFTER(at) \
	LEAQ (R8)(R10*1), CX; \
	ADDQ at, CX

// START sets Z0 to Z11, two registers a row, to the sums of a group that w + 128 adds, negated.
#define START \
	BOTH((SI), Z0, Z1); \
	BOTH((SI)(R8*1), Z2, Z3); \
	ROWS23(BOTH((SI)(R8*2), Z4, Z5); BOTH((SI)(R9*1), Z6, Z7)); \
	ROWS45(BOTH((SI)(R8*4), Z8, Z9); BOTH((SI)(R10*1), Z10, Z11)); \
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
	ROWS23(DOT((4*k)(BX)(R8*2), Z28, Z4, Z5); DOT((4*k)(BX)(R9*1), Z29, Z6, Z7)); \
	ROWS45(DOT((4*k)(BX)(R8*4), Z30, Z8, Z9); DOT((4*k)(BX)(R10*1), Z31, Z10, Z11))

// QUADS16 and QUADS32 add those of 16 and 32, and prefetch.
#define QUADS16 \
	QUAD(0); \
	PREFETCHT1 (R11); \
	QUAD(1); \
	QUAD(2); \
	PREFETCHT1 SPACING(R11); \
	QUAD(3)

#define QUADS32 \
	QUADS16; \
	QUAD(4); \
	PREFETCHT1 (2*SPACING)(R11); \
	QUAD(5); \
	QUAD(6); \
	PREFETCHT1 (3*SPACING)(R11); \
	QUAD(7)

#define SPACING 64

// WIDE adds x times its scales to sum, NARROW where they fit 16 bits.
#define WIDE(x, scale, sum) \
	VPMULLD scale, x, x; \
	VPADDD x, sum, sum

#define NARROW(x, scale, sum) \
	VPDPWSSD scale, x, sum

// SCALES adds the sums of a group, times its scales, to Z12 to Z23.
#define SCALES(SCALED) \
	VMOVDQU64 (DX), Z24; \
	VMOVDQU64 64(DX), Z25; \
	ADDQ $128, DX; \
	SCALED(Z0, Z24, Z12); \
	SCALED(Z1, Z25, Z13); \
	SCALED(Z2, Z24, Z14); \
	SCALED(Z3, Z25, Z15); \
	ROWS23(SCALED(Z4, Z24, Z16); SCALED(Z5, Z25, Z17); SCALED(Z6, Z24, Z18); SCALED(Z7, Z25, Z19)); \
	ROWS45(SCALED(Z8, Z24, Z20); SCALED(Z9, Z25, Z21); SCALED(Z10, Z24, Z22); SCALED(Z11, Z25, Z23))

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

// PAIRS adds words of two groups, times their sums, to two registers a row.
#define PAIRS(a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, a10, a11) \
	VMOVDQU64 (DX), Z24; \
	VMOVDQU64 64(DX), Z25; \
	ADDQ $128, DX; \
	PAIR((R11), a0, a1); \
	PAIR((R11)(R8*1), a2, a3); \
	ROWS23(PAIR((R11)(R8*2), a4, a5); PAIR((R11)(R9*1), a6, a7)); \
	ROWS45(PAIR((R11)(R8*4), a8, a9); PAIR((R11)(R10*1), a10, a11)); \
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
	ROWS23(RESULT(2, (R12)(R8*2), Z16, Z17); RESULT(3, (R12)(R9*1), Z18, Z19)); \
	ROWS45(RESULT(4, (R12)(R8*4), Z20, Z21); RESULT(5, (R12)(R10*1), Z22, Z23))

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
	PAIRS(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11); \
	DECQ AX; \
	JNZ next; \
	VMOVUPS int8Panel_min(DI), Z24; \
	VMOVUPS (int8Panel_min+64)(DI), Z25; \
	MINIMUM(0, (R12), Z0, Z1); \
	MINIMUM(1, (R12)(R8*1), Z2, Z3); \
	ROWS23(MINIMUM(2, (R12)(R8*2), Z4, Z5); MINIMUM(3, (R12)(R9*1), Z6, Z7)); \
	ROWS45(MINIMUM(4, (R12)(R8*4), Z8, Z9); MINIMUM(5, (R12)(R10*1), Z10, Z11)); \
none:

// LIFT starts the sums Z12 to Z23 with the share of the amount by which a panel lowers integers.
#define LIFT(next, none) \
	CMPQ int8PanelTile_lift(R14), $0; \
	JEQ none; \
	MOVQ int8PanelTile_sums(R14), R11; \
	ADDQ R15, R11; \
	LEAQ int8Panel_lift(DI), DX; \
	MOVQ $4, CX; \
next: \
	PAIRS(Z12, Z13, Z14, Z15, Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23); \
	DECQ CX; \
	JNZ next; \
	LEAQ int8Panel_scale(DI), DX; \
	MOVQ int8PanelTile_kind(R14), CX; \
none:

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

// EIGHTS adds the products of all groups of 16 columns, in halves.
#define EIGHTS(enter, group) \
enter: \
	MOVQ int8PanelTile_ahead(R14), R11; \
	AFTER(BX); \
group: \
	START; \
	QUAD(0); \
	PREFETCHT1 (R11); \
	QUAD(1); \
	SCALES(NARROW); \
	SUBQ $128, DX; \
	START; \
	ROWS45(NEXTROWS); \
	QUAD(2); \
	PREFETCHT1 SPACING(R11); \
	QUAD(3); \
	ADDQ $512, DI; \
	ADDQ $16, BX; \
	ADDQ $16, CX; \
	ADDQ int8PanelTile_each(R14), R11; \
	SCALES(NARROW); \
	DECQ AX; \
	JNZ group

// GROUPS adds the products of all groups of 32 or 16 columns.
#define GROUPS(enter, group, QUADS, columns, SCALED) \
enter: \
	MOVQ int8PanelTile_ahead(R14), R11; \
	AFTER(BX); \
group: \
	START; \
	ROWS45(NEXTROWS); \
	QUADS; \
	ADDQ $(32*columns), DI; \
	ADDQ $columns, BX; \
	ADDQ $columns, CX; \
	ADDQ int8PanelTile_each(R14), R11; \
	SCALES(SCALED); \
	DECQ AX; \
	JNZ group

// TERMS continues the chains by the sums of a group, LEASTS by its minima.
#define TERMS \
	VMOVUPS (DX), Z24; \
	VMOVUPS 64(DX), Z25; \
	TERM((R12), Z0, Z1, Z12, Z13); \
	TERM((R12)(R8*1), Z2, Z3, Z14, Z15); \
	ROWS23(TERM((R12)(R8*2), Z4, Z5, Z16, Z17); TERM((R12)(R9*1), Z6, Z7, Z18, Z19)); \
	ROWS45(TERM((R12)(R8*4), Z8, Z9, Z20, Z21); TERM((R12)(R10*1), Z10, Z11, Z22, Z23))

#define LEASTS \
	VMOVUPS (int8Panel_least-int8Panel_scale)(DX), Z24; \
	VMOVUPS (int8Panel_least-int8Panel_scale+64)(DX), Z25; \
	LEAST(-4(SI), (R12), Z12, Z13); \
	LEAST(-4(SI)(R8*1), (R12)(R8*1), Z14, Z15); \
	ROWS23(LEAST(-4(SI)(R8*2), (R12)(R8*2), Z16, Z17); LEAST(-4(SI)(R9*1), (R12)(R9*1), Z18, Z19)); \
	ROWS45(LEAST(-4(SI)(R8*4), (R12)(R8*4), Z20, Z21); LEAST(-4(SI)(R10*1), (R12)(R10*1), Z22, Z23))

#define CHAINENDS \
	CHAINEND(0, Z12, Z13); \
	CHAINEND(1, Z14, Z15); \
	ROWS23(CHAINEND(2, Z16, Z17); CHAINEND(3, Z18, Z19)); \
	ROWS45(CHAINEND(4, Z20, Z21); CHAINEND(5, Z22, Z23))

DATA int8Seventh<>+0(SB)/4, $0x3c000000 // 2^-7
GLOBL int8Seventh<>(SB), RODATA|NOPTR, $4

#define NAME ·int8Panel6AVX512
#define TILEROWS 6
#define NEXTROW LEAQ (R8)(R10*1), DX
#define ROWS23(x) x
#define ROWS45(x) x
#include "int8_panel_amd64.h"

#undef NAME
#undef TILEROWS
#undef NEXTROW
#undef ROWS45
#define NAME ·int8Panel4AVX512
#define TILEROWS 4
#define NEXTROW LEAQ (R8)(R9*1), DX
#define ROWS45(x)
#include "int8_panel_amd64.h"

#undef NAME
#undef TILEROWS
#undef NEXTROW
#undef ROWS23
#define NAME ·int8Panel2AVX512
#define TILEROWS 2
#define NEXTROW LEAQ (R8)(R8*1), DX
#define ROWS23(x)
#include "int8_panel_amd64.h"
