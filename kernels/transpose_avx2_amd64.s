//go:build !purego

#include "textflag.h"

// PAIR interleaves the elements of a and b: their lower halves to lo, their upper ones
// to hi. L and H are the instructions for an element size.
#define PAIR(L, H, a, b, lo, hi) \
	L b, a, lo; \
	H b, a, hi

// func transpose8AVX2(dst unsafe.Pointer, dstStep int, src unsafe.Pointer, srcStep, n int)
//
// A block of 8 × 8 at a time, in three rounds over elements of 2, 4 and 8 bytes. After the
// first, a register holds 4 columns of 2 rows, after the second 2 of 4, after the third one
// of 8.
TEXT ·transpose8AVX2(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ dstStep+8(FP), DX
	MOVQ src+16(FP), SI
	MOVQ srcStep+24(FP), BX
	MOVQ n+32(FP), CX
	LEAQ (BX)(BX*2), R10
	LEAQ (DX)(DX*2), R11
	LEAQ (SI)(BX*4), R8
	LEAQ (DI)(DX*4), R9
next:
	VMOVDQU (SI), X0
	VMOVDQU (SI)(BX*1), X1
	VMOVDQU (SI)(BX*2), X2
	VMOVDQU (SI)(R10*1), X3
	VMOVDQU (R8), X4
	VMOVDQU (R8)(BX*1), X5
	VMOVDQU (R8)(BX*2), X6
	VMOVDQU (R8)(R10*1), X7
	PAIR(VPUNPCKLWD, VPUNPCKHWD, X0, X1, X8, X9)
	PAIR(VPUNPCKLWD, VPUNPCKHWD, X2, X3, X10, X11)
	PAIR(VPUNPCKLWD, VPUNPCKHWD, X4, X5, X12, X13)
	PAIR(VPUNPCKLWD, VPUNPCKHWD, X6, X7, X14, X15)
	PAIR(VPUNPCKLDQ, VPUNPCKHDQ, X8, X10, X0, X1)
	PAIR(VPUNPCKLDQ, VPUNPCKHDQ, X9, X11, X2, X3)
	PAIR(VPUNPCKLDQ, VPUNPCKHDQ, X12, X14, X4, X5)
	PAIR(VPUNPCKLDQ, VPUNPCKHDQ, X13, X15, X6, X7)
	PAIR(VPUNPCKLQDQ, VPUNPCKHQDQ, X0, X4, X8, X9)
	PAIR(VPUNPCKLQDQ, VPUNPCKHQDQ, X1, X5, X10, X11)
	PAIR(VPUNPCKLQDQ, VPUNPCKHQDQ, X2, X6, X12, X13)
	PAIR(VPUNPCKLQDQ, VPUNPCKHQDQ, X3, X7, X14, X15)
	VMOVDQU X8, (DI)
	VMOVDQU X9, (DI)(DX*1)
	VMOVDQU X10, (DI)(DX*2)
	VMOVDQU X11, (DI)(R11*1)
	VMOVDQU X12, (R9)
	VMOVDQU X13, (R9)(DX*1)
	VMOVDQU X14, (R9)(DX*2)
	VMOVDQU X15, (R9)(R11*1)
	ADDQ $16, SI
	ADDQ $16, R8
	LEAQ (DI)(DX*8), DI
	LEAQ (R9)(DX*8), R9
	SUBQ $8, CX
	JNZ next
	VZEROUPPER
	RET
