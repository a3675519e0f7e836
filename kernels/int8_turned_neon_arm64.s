//go:build !purego

#include "textflag.h"
#include "go_asm.h"
#include "neon_arm64.h"
#include "int8_neon_arm64.h"

// Six rows of activations by up to 256 columns of four rows of weights, whose sums stand side
// by side: SDOT multiplies four columns of all four rows by an element of a register, four
// columns of a row of activations. See int8Quad.turned.
//
// Registers: R1 q, R2 scales, R3 sums of the first row of activations, R4 the distance of rows,
// R5 the quad, R6 acc, R7 rows left, R8 whether there are minima, R9 to R14 activations, R19
// weights, R20 their scales; V0 to V5 sums of the six rows, V6 to V11 those of a group, V16 to
// V19 weights, V20 to V25 activations.

#define ROWS \
	MOVD a+0(FP), R0; \
	MOVD int8QuadTile_quad(R0), R5; \
	MOVD int8QuadTile_q(R0), R1; \
	MOVD int8QuadTile_sums(R0), R3; \
	MOVD int8QuadTile_scale(R0), R2; \
	MOVD int8QuadTile_stride(R0), R4; \
	MOVD int8QuadTile_acc(R0), R6; \
	MOVD int8QuadTile_rows(R0), R7; \
	MOVD int8QuadTile_minima(R0), R8

// START sets the running pointers, and V0 to V5 to zero.
#define START \
	MOVD R1, R9; \
	ADD R4, R9, R10; \
	ADD R4, R10, R11; \
	ADD R4, R11, R12; \
	ADD R4, R12, R13; \
	ADD R4, R13, R14; \
	ADD $int8Quad_turned, R5, R19; \
	VMOVI $0, V0.B16; \
	VMOVI $0, V1.B16; \
	VMOVI $0, V2.B16; \
	VMOVI $0, V3.B16; \
	VMOVI $0, V4.B16; \
	VMOVI $0, V5.B16

// NEXT goes on to the next six rows.
#define NEXT \
	ADD R4<<1, R4, R21; \
	LSL $1, R21, R21; \
	ADD R21, R1; \
	ADD R21, R2; \
	ADD R21, R3; \
	SUB $6, R7

#define CLEAR \
	VMOVI $0, V6.B16; \
	VMOVI $0, V7.B16; \
	VMOVI $0, V8.B16; \
	VMOVI $0, V9.B16; \
	VMOVI $0, V10.B16; \
	VMOVI $0, V11.B16

#define SIX(i, w) \
	SDOTE(20, i, w, 6); \
	SDOTE(21, i, w, 7); \
	SDOTE(22, i, w, 8); \
	SDOTE(23, i, w, 9); \
	SDOTE(24, i, w, 10); \
	SDOTE(25, i, w, 11)

// COLUMNS is 16 columns.
#define COLUMNS \
	VLD1.P 64(R19), [V16.B16, V17.B16, V18.B16, V19.B16]; \
	VLD1.P 16(R9), [V20.B16]; \
	VLD1.P 16(R10), [V21.B16]; \
	VLD1.P 16(R11), [V22.B16]; \
	VLD1.P 16(R12), [V23.B16]; \
	VLD1.P 16(R13), [V24.B16]; \
	VLD1.P 16(R14), [V25.B16]; \
	SIX(0, 16); \
	SIX(1, 17); \
	SIX(2, 18); \
	SIX(3, 19)

#define SCALED \
	VLD1.P 16(R20), [V26.S4]; \
	MLA(26, 6, 0); \
	MLA(26, 7, 1); \
	MLA(26, 8, 2); \
	MLA(26, 9, 3); \
	MLA(26, 10, 4); \
	MLA(26, 11, 5)

// LEAST sets V13 to minima of eight groups in V16 to V19 times the sums in V12; MORELEAST adds
// those of V20 to V23 times V14.
#define LEAST \
	SMULLE(12, 0, 16, 13); \
	SMLAL2E(12, 1, 16, 13); \
	SMLALE(12, 2, 17, 13); \
	SMLAL2E(12, 3, 17, 13); \
	SMLALE(12, 4, 18, 13); \
	SMLAL2E(12, 5, 18, 13); \
	SMLALE(12, 6, 19, 13); \
	SMLAL2E(12, 7, 19, 13)
#define MORELEAST \
	SMLALE(14, 0, 20, 13); \
	SMLAL2E(14, 1, 20, 13); \
	SMLALE(14, 2, 21, 13); \
	SMLAL2E(14, 3, 21, 13); \
	SMLALE(14, 4, 22, 13); \
	SMLAL2E(14, 5, 22, 13); \
	SMLALE(14, 6, 23, 13); \
	SMLAL2E(14, 7, 23, 13)

#define LEAST16 \
	VLD1 (R17), [V12.H8]; \
	ADD $16, R17, R21; \
	VLD1 (R21), [V14.H8]; \
	LEAST; \
	MORELEAST
#define LEAST32 \
	VLD1 (R17), [V12.H8]; \
	LEAST

// PLAIN adds the sums V of a row to its results, at R6; WITH subtracts minima, too.
#define PLAIN(v, V) \
	VLD1R (R16), [V27.S4]; \
	ADD R4, R16; \
	SCVTF(v, v); \
	FMUL(27, 28, 29); \
	VLD1 (R6), [V30.S4]; \
	VFMLA V29.S4, V.S4, V30.S4
#define PUT VST1.P [V30.S4], 16(R6)
#define WITH(v, V, LEASTS) \
	PLAIN(v, V); \
	LEASTS; \
	ADD R4, R17; \
	SCVTF(13, 13); \
	FMUL(27, 31, 29); \
	FMLS(29, 13, 30); \
	PUT

#define STORE(LEASTS) \
	MOVD R2, R16; \
	CBNZ R8, least; \
	PLAIN(0, V0); \
	PUT; \
	PLAIN(1, V1); \
	PUT; \
	PLAIN(2, V2); \
	PUT; \
	PLAIN(3, V3); \
	PUT; \
	PLAIN(4, V4); \
	PUT; \
	PLAIN(5, V5); \
	PUT; \
	NEXT; \
	CBNZ R7, rows; \
	RET; \
least: \
	MOVD R3, R17; \
	ADD $int8Quad_turnedLeast, R5, R21; \
	VLD1.P 64(R21), [V16.H8, V17.H8, V18.H8, V19.H8]; \
	VLD1 (R21), [V20.H8, V21.H8, V22.H8, V23.H8]; \
	WITH(0, V0, LEASTS); \
	WITH(1, V1, LEASTS); \
	WITH(2, V2, LEASTS); \
	WITH(3, V3, LEASTS); \
	WITH(4, V4, LEASTS); \
	WITH(5, V5, LEASTS); \
	NEXT; \
	CBNZ R7, rows; \
	RET

#define BEGIN \
	ROWS; \
	ADD $int8Quad_d, R5, R21; \
	VLD1 (R21), [V28.S4]; \
	ADD $int8Quad_min, R5, R21; \
	VLD1 (R21), [V31.S4]

// func int8Turned16Dot(a *int8QuadTile)
TEXT ·int8Turned16Dot(SB), NOSPLIT, $0-8
	BEGIN
rows:
	START
	ADD $int8Quad_turnedScale, R5, R20
	MOVD $16, R15
group:
	CLEAR
	COLUMNS
	SCALED
	SUB $1, R15
	CBNZ R15, group
	STORE(LEAST16)

// func int8Turned32Dot(a *int8QuadTile)
TEXT ·int8Turned32Dot(SB), NOSPLIT, $0-8
	BEGIN
rows:
	START
	ADD $int8Quad_turnedScale, R5, R20
	MOVD $8, R15
group:
	CLEAR
	COLUMNS
	COLUMNS
	SCALED
	SUB $1, R15
	CBNZ R15, group
	STORE(LEAST32)

// LINK continues the chain V of a row by the sums G of a block.
#define LINK(g, G, V) \
	VLD1R (R16), [V27.S4]; \
	ADD R4, R16; \
	SCVTF(g, g); \
	FMUL(27, 28, 29); \
	VFMLA V29.S4, G.S4, V.S4
#define LEASTLINK(V) \
	VLD1R (R16), [V27.S4]; \
	VLD1R (R17), [V30.S4]; \ // -128 times the sum of the block
	ADD R4, R16; \
	ADD R4, R17; \
	SCVTF7(30, 30); \
	FMUL(27, 31, 29); \
	VFMLA V29.S4, V30.S4, V.S4
#define END(v) \
	VLD1 (R6), [V30.S4]; \
	FADD(v, 30, 30); \
	PUT

// func int8TurnedChainDot(a *int8QuadTile)
TEXT ·int8TurnedChainDot(SB), NOSPLIT, $0-8
	ROWS
rows:
	START
	ADD $int8Quad_chain, R5, R20
	MOVD int8QuadTile_groups(R0), R15
	MOVD R2, R22
	MOVD R3, R23
block:
	CLEAR
	COLUMNS
	COLUMNS
	MOVD R22, R16
	VLD1 (R20), [V28.S4]
	LINK(6, V6, V0)
	LINK(7, V7, V1)
	LINK(8, V8, V2)
	LINK(9, V9, V3)
	LINK(10, V10, V4)
	LINK(11, V11, V5)
	CBZ R8, linked
	MOVD R22, R16
	MOVD R23, R17
	ADD $128, R20, R21
	VLD1 (R21), [V31.S4]
	LEASTLINK(V0)
	LEASTLINK(V1)
	LEASTLINK(V2)
	LEASTLINK(V3)
	LEASTLINK(V4)
	LEASTLINK(V5)
linked:
	ADD $4, R22
	ADD $4, R23
	ADD $16, R20
	SUB $1, R15
	CBNZ R15, block
	END(0)
	END(1)
	END(2)
	END(3)
	END(4)
	END(5)
	NEXT
	CBNZ R7, rows
	RET

// func int8TurnNEON(p *int8Quad, scales int)
TEXT ·int8TurnNEON(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R1
	MOVD scales+8(FP), R2
	ADD $256, R1, R3
	ADD $512, R1, R4
	ADD $768, R1, R5
	ADD $int8Quad_turned, R1, R6
	MOVD R1, R8
	MOVD $16, R7
weights:
	VLD1.P 16(R8), [V0.B16]
	VLD1.P 16(R3), [V1.B16]
	VLD1.P 16(R4), [V2.B16]
	VLD1.P 16(R5), [V3.B16]
	VST4.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R6)
	SUB $1, R7
	CBNZ R7, weights
	CBZ R2, done
	ADD $int8Quad_scale, R1, R8
	ADD $64, R8, R3
	ADD $128, R8, R4
	ADD $192, R8, R5
	ADD $int8Quad_turnedScale, R1, R6
	MOVD $4, R7
scales:
	VLD1.P 16(R8), [V0.S4]
	VLD1.P 16(R3), [V1.S4]
	VLD1.P 16(R4), [V2.S4]
	VLD1.P 16(R5), [V3.S4]
	VST4.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R6)
	SUB $1, R7
	CBNZ R7, scales
	ADD $int8Quad_least, R1, R8
	ADD $32, R8, R3
	ADD $64, R8, R4
	ADD $96, R8, R5
	ADD $int8Quad_turnedLeast, R1, R6
	MOVD $2, R7
least:
	VLD1.P 16(R8), [V0.H8]
	VLD1.P 16(R3), [V1.H8]
	VLD1.P 16(R4), [V2.H8]
	VLD1.P 16(R5), [V3.H8]
	VST4.P [V0.H8, V1.H8, V2.H8, V3.H8], 64(R6)
	SUB $1, R7
	CBNZ R7, least
done:
	RET
