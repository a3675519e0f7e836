//go:build !purego

#include "textflag.h"
#include "go_asm.h"
#include "neon_arm64.h"
#include "int8_neon_arm64.h"

#define ROW 1088
#define HALF 544

// Four rows of pairs of int16 by 16 columns of pairs of bytes: keys, where a row is a query and
// a column a slot, or pairs of values, where a row has weights and a column is a component. Row
// r has its sums in four registers from V16+4r on.
//
// PAIR takes the pairs at R9, where a row has those at R10, HALF bytes from the next.
#define PAIR \
	VLD2 (R9), [V4.B16, V5.B16]; \
	FMOVS (R10), F0; \
	FMOVS HALF(R10), F1; \
	FMOVS (2*HALF)(R10), F2; \
	FMOVS (3*HALF)(R10), F3; \
	SXTL16(4, 6); \
	SXTL216(4, 7); \
	SXTL16(5, 8); \
	SXTL216(5, 9); \
	MULTIPLY(0, 16, 17, 18, 19); \
	MULTIPLY(1, 20, 21, 22, 23); \
	MULTIPLY(2, 24, 25, 26, 27); \
	MULTIPLY(3, 28, 29, 30, 31); \
	ADD $4, R10
#define MULTIPLY(q, a, b, c, d) \
	SMLALE(q, 0, 6, a); \
	SMLAL2E(q, 0, 6, b); \
	SMLALE(q, 0, 7, c); \
	SMLAL2E(q, 0, 7, d); \
	SMLALE(q, 1, 8, a); \
	SMLAL2E(q, 1, 8, b); \
	SMLALE(q, 1, 9, c); \
	SMLAL2E(q, 1, 9, d)

#define ZERO4(A, B, C, D) \
	VMOVI $0, A.B16; \
	VMOVI $0, B.B16; \
	VMOVI $0, C.B16; \
	VMOVI $0, D.B16

// SCORES adds a group of a row to its scores at R16. V4 to V7 are the scales.
#define SCORES(a, b, c, d, A, B, C, D) \
	VLD1R.P 4(R14), [V8.S4]; \
	VLD1 (R16), [V0.S4, V1.S4, V2.S4, V3.S4]; \
	SCVTF(a, a); \
	SCVTF(b, b); \
	SCVTF(c, c); \
	SCVTF(d, d); \
	FMUL(8, 4, 9); \
	FMUL(8, 5, 10); \
	FMUL(8, 6, 11); \
	FMUL(8, 7, 12); \
	VFMLA V9.S4, A.S4, V0.S4; \
	VFMLA V10.S4, B.S4, V1.S4; \
	VFMLA V11.S4, C.S4, V2.S4; \
	VFMLA V12.S4, D.S4, V3.S4; \
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R16); \
	ADD $ROW, R16

// func scoresIntNEON(a *intScores)
TEXT ·scoresIntNEON(SB), NOSPLIT, $0-8
	MOVD a+0(FP), R0
	MOVD intScores_p(R0), R1
	MOVD intScores_k(R0), R9
	MOVD intScores_scales(R0), R3
	MOVD intScores_step(R0), R4
	MOVD intScores_tiles(R0), R5
	MOVD intScores_next(R0), R6
tile:
	ZERO4(V0, V1, V2, V3)
	MOVD R1, R16
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R16)
	ADD $ROW, R16
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R16)
	ADD $ROW, R16
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R16)
	ADD $ROW, R16
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R16)
	MOVD intScores_q(R0), R10
	MOVD R3, R7
	MOVD intScores_groups(R0), R11
group:
	ZERO4(V16, V17, V18, V19)
	ZERO4(V20, V21, V22, V23)
	ZERO4(V24, V25, V26, V27)
	ZERO4(V28, V29, V30, V31)
	MOVD intScores_pairs(R0), R12
pair:
	PAIR
	PRFM (R6), PLDL1KEEP
	ADD $32, R9
	ADD $32, R6
	SUB $1, R12
	CBNZ R12, pair
	VLD1 (R7), [V4.S4, V5.S4, V6.S4, V7.S4]
	MOVD intScores_factors(R0), R14
	MOVD R1, R16
	SCORES(16, 17, 18, 19, V16, V17, V18, V19)
	SCORES(20, 21, 22, 23, V20, V21, V22, V23)
	SCORES(24, 25, 26, 27, V24, V25, V26, V27)
	SCORES(28, 29, 30, 31, V28, V29, V30, V31)
	ADD R4, R7
	SUB $1, R11
	CBNZ R11, group
	ADD $64, R1
	ADD $64, R3
	SUB $1, R5
	CBNZ R5, tile
	RET

// func valuesIntNEON(a *intValues)
TEXT ·valuesIntNEON(SB), NOSPLIT, $0-8
	MOVD a+0(FP), R0
	MOVD intValues_acc(R0), R1
	MOVD intValues_v(R0), R2
	MOVD intValues_stride(R0), R4
	MOVD intValues_cols(R0), R5
	MOVD intValues_next(R0), R6
columns:
	MOVD R2, R9
	MOVD intValues_w(R0), R10
	MOVD intValues_pairs(R0), R12
	ADD $ROW, R1, R13
	ADD $ROW, R13, R14
	ADD $ROW, R14, R15
	VLD1 (R1), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1 (R13), [V20.S4, V21.S4, V22.S4, V23.S4]
	VLD1 (R14), [V24.S4, V25.S4, V26.S4, V27.S4]
	VLD1 (R15), [V28.S4, V29.S4, V30.S4, V31.S4]
pair:
	PAIR
	PRFM (R6), PLDL1KEEP
	ADD R4, R9
	ADD $32, R6
	SUB $1, R12
	CBNZ R12, pair
	VST1 [V16.S4, V17.S4, V18.S4, V19.S4], (R1)
	VST1 [V20.S4, V21.S4, V22.S4, V23.S4], (R13)
	VST1 [V24.S4, V25.S4, V26.S4, V27.S4], (R14)
	VST1 [V28.S4, V29.S4, V30.S4, V31.S4], (R15)
	ADD $64, R1
	ADD $32, R2
	SUB $16, R5
	CBNZ R5, columns
	RET

// PRODUCTS sets V0 to V3 to x·s, 0 where x is 0.
#define PRODUCT(v, s, m) \
	FCMEQ0(v, m); \
	FMUL(s, v, v); \
	BIC(m, v, v)
#define PRODUCTS(X, S) \
	VLD1.P 64(X), [V0.S4, V1.S4, V2.S4, V3.S4]; \
	VLD1.P 64(S), [V4.S4, V5.S4, V6.S4, V7.S4]; \
	PRODUCT(0, 4, 16); \
	PRODUCT(1, 5, 17); \
	PRODUCT(2, 6, 18); \
	PRODUCT(3, 7, 19)

// func roundInt16s(n *int16, x, s *float32, count int, magnitude float32) (factor float32)
TEXT ·roundInt16s(SB), NOSPLIT, $0-44
	MOVD n+0(FP), R1
	MOVD x+8(FP), R2
	MOVD s+16(FP), R3
	MOVD count+24(FP), R4
	VMOVI $0, V20.B16
	MOVD R4, R5
most:
	PRODUCTS(R2, R3)
	FABS(0, 0)
	FABS(1, 1)
	FABS(2, 2)
	FABS(3, 3)
	UMAX(1, 0, 0)
	UMAX(3, 2, 2)
	UMAX(2, 0, 0)
	UMAX(0, 20, 20)
	SUB $16, R5
	CBNZ R5, most
	UMAXV(20, 20)
	FMOVS F20, R6
	FMOVS ZR, F21
	MOVW $0x0d800000, R7 // 2^-100
	CMPW R7, R6
	BLO none
	MOVW $0x7fc00000, R8 // NaN
	FMOVS R8, F21
	MOVW $0x7f800000, R7
	CMPW R7, R6
	BHS none
	FMOVS magnitude+32(FP), F22
	FDIVS F20, F22, F23
	FDIVS F22, F20, F21
	DUP(23, 23)
	MOVD x+8(FP), R2
	MOVD s+16(FP), R3
next:
	PRODUCTS(R2, R3)
	FMUL(23, 0, 0)
	FMUL(23, 1, 1)
	FMUL(23, 2, 2)
	FMUL(23, 3, 3)
	FCVTNS(0, 0)
	FCVTNS(1, 1)
	FCVTNS(2, 2)
	FCVTNS(3, 3)
	VUZP1 V1.H8, V0.H8, V0.H8
	VUZP1 V3.H8, V2.H8, V1.H8
	VST1.P [V0.H8, V1.H8], 32(R1)
	SUB $16, R4
	CBNZ R4, next
	FMOVS F21, factor+40(FP)
	RET
none:
	VMOVI $0, V0.B16
	VMOVI $0, V1.B16
zero:
	VST1.P [V0.H8, V1.H8], 32(R1)
	SUB $16, R4
	CBNZ R4, zero
	FMOVS F21, factor+40(FP)
	RET

// func scaleInts(x *float32, n int, factor float32)
TEXT ·scaleInts(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R1
	MOVD n+8(FP), R2
	FMOVS factor+16(FP), F4
	DUP(4, 4)
next:
	VLD1 (R1), [V0.S4, V1.S4, V2.S4, V3.S4]
	SCVTF(0, 0)
	SCVTF(1, 1)
	SCVTF(2, 2)
	SCVTF(3, 3)
	FMUL(4, 0, 0)
	FMUL(4, 1, 1)
	FMUL(4, 2, 2)
	FMUL(4, 3, 3)
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R1)
	SUB $16, R2
	CBNZ R2, next
	RET

// func unpackInt4(dst, src unsafe.Pointer, n int)
TEXT ·unpackInt4(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
	BYTES(0x0f, V16)
	BYTES(0x08, V17)
next:
	VLD1.P 32(R2), [V0.B16, V1.B16]
	VUSHR $4, V1.B16, V3.B16
	VAND V16.B16, V1.B16, V2.B16
	VUSHR $4, V0.B16, V1.B16
	VAND V16.B16, V0.B16, V0.B16
	VSUB V17.B16, V0.B16, V0.B16
	VSUB V17.B16, V1.B16, V1.B16
	VSUB V17.B16, V2.B16, V2.B16
	VSUB V17.B16, V3.B16, V3.B16
	VST2.P [V0.B16, V1.B16], 32(R1)
	VST2.P [V2.B16, V3.B16], 32(R1)
	SUB $32, R3
	CBNZ R3, next
	RET

// Signs of odd elements, and of the upper half.
DATA alternate<>+0(SB)/8, $0x8000000000000000
DATA alternate<>+8(SB)/8, $0x8000000000000000
DATA alternate<>+16(SB)/8, $0x0000000000000000
DATA alternate<>+24(SB)/8, $0x8000000080000000
GLOBL alternate<>(SB), RODATA|NOPTR, $32

// func rotatePart(x *float32, n int, factor float32)
TEXT ·rotatePart(SB), NOSPLIT, $0-20
	MOVD x+0(FP), R1
	MOVD n+8(FP), R2
	LSL $2, R2, R2
	ADD R1, R2, R3 // end
	MOVD $alternate<>(SB), R4
	VLD1 (R4), [V20.B16, V21.B16]
	MOVD R1, R5
four: // x[i] + x[i+h] and x[i] - x[i+h] are the swapped register plus x with signs
	VLD1 (R5), [V0.S4]
	VREV64 V0.S4, V1.S4
	VEOR V20.B16, V0.B16, V0.B16
	FADD(0, 1, 0)
	VEXT $8, V0.B16, V0.B16, V1.B16
	VEOR V21.B16, V0.B16, V0.B16
	FADD(0, 1, 0)
	VST1.P [V0.S4], 16(R5)
	CMP R3, R5
	BNE four
	MOVD $16, R6 // h in bytes
stage:
	CMP R2, R6
	BEQ last
	MOVD R1, R5
block:
	ADD R6, R5, R7 // end of the first half, where the second begins
	MOVD R7, R8
pair:
	VLD1 (R5), [V0.S4]
	VLD1 (R8), [V1.S4]
	FADD(1, 0, 2)
	FSUB(1, 0, 3)
	VST1.P [V2.S4], 16(R5)
	VST1.P [V3.S4], 16(R8)
	CMP R7, R5
	BNE pair
	MOVD R8, R5
	CMP R3, R5
	BNE block
	LSL $1, R6, R6
	B stage
last:
	FMOVS factor+16(FP), F4
	DUP(4, 4)
scale:
	VLD1 (R1), [V0.S4]
	FMUL(4, 0, 0)
	VST1.P [V0.S4], 16(R1)
	CMP R3, R1
	BNE scale
	RET

#define ROUND(v) \
	FDIV(16, v, v); \
	FMAXNM(18, v, v); \
	FMINNM(17, v, v); \
	FCVTNS(v, v)

// func packNibbles(dst *byte, x *float32, s float32)
TEXT ·packNibbles(SB), NOSPLIT, $0-20
	MOVD dst+0(FP), R1
	MOVD x+8(FP), R2
	FMOVS s+16(FP), F16
	DUP(16, 16)
	MOVD $0x40e00000, R3 // 7
	VDUP R3, V17.S4
	FNEG(17, 18)
	BYTES(8, V19)
	VLD1.P 64(R2), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1 (R2), [V4.S4, V5.S4, V6.S4, V7.S4]
	ROUND(0)
	ROUND(1)
	ROUND(2)
	ROUND(3)
	ROUND(4)
	ROUND(5)
	ROUND(6)
	ROUND(7)
	VUZP1 V1.H8, V0.H8, V0.H8
	VUZP1 V3.H8, V2.H8, V2.H8
	VUZP1 V5.H8, V4.H8, V4.H8
	VUZP1 V7.H8, V6.H8, V6.H8
	VUZP1 V2.B16, V0.B16, V0.B16
	VUZP1 V6.B16, V4.B16, V4.B16
	VADD V19.B16, V0.B16, V0.B16
	VADD V19.B16, V4.B16, V4.B16
	VUZP1 V4.B16, V0.B16, V1.B16 // even elements
	VUZP2 V4.B16, V0.B16, V2.B16
	VSHL $4, V2.B16, V2.B16
	VORR V2.B16, V1.B16, V1.B16
	VST1 [V1.B16], (R1)
	RET
