//go:build !purego

#include "textflag.h"
#include "go_asm.h"
#include "neon_arm64.h"
#include "int8_neon_arm64.h"

// func int8Quad16Dot(a *int8QuadTile)
// func int8Quad32Dot(a *int8QuadTile)
// func int8ChainDot(a *int8QuadTile)
#define QUAD16 ·int8Quad16Dot(SB)
#define QUAD32 ·int8Quad32Dot(SB)
#define CHAIN ·int8ChainDot(SB)
#define FIRST(w, q, P, p) VMOVI $0, P.B16; SDOT(w, q, p)
#define MORE(w, q, p) SDOT(w, q, p)
#include "int8_quad_neon_arm64.h"
#undef QUAD16
#undef QUAD32
#undef CHAIN
#undef FIRST
#undef MORE
#undef TREE
#undef ROWS
#undef WEIGHTS
#undef NEXT
#undef ROW16
#undef ROW32
#undef LEAST16
#undef LEAST32
#undef BODY
#undef BLOCK

// The sum of two products, 2·128·127 at most, is an int16.
//
// func int8Quad16NEON(a *int8QuadTile)
// func int8Quad32NEON(a *int8QuadTile)
// func int8ChainNEON(a *int8QuadTile)
#define QUAD16 ·int8Quad16NEON(SB)
#define QUAD32 ·int8Quad32NEON(SB)
#define CHAIN ·int8ChainNEON(SB)
#define PRODUCTS(w, q) SMULL16(w, q, 30); SMLAL216(w, q, 30)
#define FIRST(w, q, P, p) PRODUCTS(w, q); SADDLP(30, p)
#define MORE(w, q, p) PRODUCTS(w, q); SADALP(30, p)
#include "int8_quad_neon_arm64.h"

// func int8HalvesNEON(dst *float32, src unsafe.Pointer, n, step, flip int)
TEXT ·int8HalvesNEON(SB), NOSPLIT, $0-40
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
	MOVD step+24(FP), R4
	MOVD flip+32(FP), R5
next:
	MOVHU (R2), R6
	EOR R5, R6
	FMOVS R6, F0
	FCVTSH(0, 0)
	FMOVS F0, (R1)
	ADD R4, R2
	ADD $16, R1
	SUB $1, R3
	CBNZ R3, next
	RET

// func int8SixBitsNEON(p *int8Quad, i int, src unsafe.Pointer)
TEXT ·int8SixBitsNEON(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R1
	MOVD i+8(FP), R2
	MOVD src+16(FP), R3
	ADD R2<<2, R1, R4
	FMOVS (R3), F0 // d, dmin
	FCVTL(0, 0)
	FMOVS F0, int8Quad_d(R4)
	VDUP V0.S[1], V0.S4
	FMOVS F0, int8Quad_min(R4)

	// As Quants.sixBits of package tensor.
	MOVWU 4(R3), R5
	MOVWU 8(R3), R6
	MOVWU 12(R3), R7
	AND $0x3f3f3f3f, R5, R8
	LSR $2, R5, R5
	AND $0x30303030, R5, R5
	AND $0x0f0f0f0f, R7, R9
	ORR R9, R5, R5
	ORR R5<<32, R8, R8 // scales
	AND $0x3f3f3f3f, R6, R9
	LSR $2, R6, R6
	AND $0x30303030, R6, R6
	LSR $4, R7, R7
	AND $0x0f0f0f0f, R7, R7
	ORR R7, R6, R6
	ORR R6<<32, R9, R9 // minima
	FMOVD R8, F0
	FMOVD R9, F1
	SXTL16(0, 0)
	SXTL16(1, 1)
	SXTL(0, 2)
	SXTL2(0, 3)
	ADD R2<<6, R1, R4
	ADD $int8Quad_scale, R4
	VST1 [V2.S4, V3.S4], (R4)
	ADD R2<<5, R1, R4
	ADD $int8Quad_least, R4
	VST1 [V1.H8], (R4)
	RET

// func int8Scales16NEON(dst *[16]int32, src unsafe.Pointer)
TEXT ·int8Scales16NEON(SB), NOSPLIT, $0-16
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	VLD1 (R2), [V0.B16]
	SXTL16(0, 1)
	SXTL216(0, 2)
	SXTL(1, 4)
	SXTL2(1, 5)
	SXTL(2, 6)
	SXTL2(2, 7)
	VST1 [V4.S4, V5.S4, V6.S4, V7.S4], (R1)
	RET
