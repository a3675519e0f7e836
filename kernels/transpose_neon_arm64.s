//go:build !purego

#include "textflag.h"

// PAIR interleaves the elements of a and b, of the size that T says: their lower halves
// to lo, their upper ones to hi.
#define PAIR(T, a, b, lo, hi) \
	VZIP1 b.T, a.T, lo.T; \
	VZIP2 b.T, a.T, hi.T

// func transpose8NEON(dst unsafe.Pointer, dstStep int, src unsafe.Pointer, srcStep, n int)
//
// A block of 8 × 8 at a time, in three rounds over elements of 2, 4 and 8 bytes. After the
// first, a register holds 4 columns of 2 rows, after the second 2 of 4, after the third one
// of 8.
TEXT ·transpose8NEON(SB), NOSPLIT, $0-40
	MOVD dst+0(FP), R0
	MOVD dstStep+8(FP), R1
	MOVD src+16(FP), R2
	MOVD srcStep+24(FP), R3
	MOVD n+32(FP), R4
next:
	MOVD R2, R5
	VLD1.P (R5)(R3), [V0.H8]
	VLD1.P (R5)(R3), [V1.H8]
	VLD1.P (R5)(R3), [V2.H8]
	VLD1.P (R5)(R3), [V3.H8]
	VLD1.P (R5)(R3), [V4.H8]
	VLD1.P (R5)(R3), [V5.H8]
	VLD1.P (R5)(R3), [V6.H8]
	VLD1 (R5), [V7.H8]
	PAIR(H8, V0, V1, V8, V9)
	PAIR(H8, V2, V3, V10, V11)
	PAIR(H8, V4, V5, V12, V13)
	PAIR(H8, V6, V7, V14, V15)
	PAIR(S4, V8, V10, V0, V1)
	PAIR(S4, V9, V11, V2, V3)
	PAIR(S4, V12, V14, V4, V5)
	PAIR(S4, V13, V15, V6, V7)
	PAIR(D2, V0, V4, V8, V9)
	PAIR(D2, V1, V5, V10, V11)
	PAIR(D2, V2, V6, V12, V13)
	PAIR(D2, V3, V7, V14, V15)
	VST1.P [V8.H8], (R0)(R1)
	VST1.P [V9.H8], (R0)(R1)
	VST1.P [V10.H8], (R0)(R1)
	VST1.P [V11.H8], (R0)(R1)
	VST1.P [V12.H8], (R0)(R1)
	VST1.P [V13.H8], (R0)(R1)
	VST1.P [V14.H8], (R0)(R1)
	VST1.P [V15.H8], (R0)(R1)
	ADD $16, R2
	SUB $8, R4
	CBNZ R4, next
	RET
