//go:build !purego

#include "textflag.h"
#include "vector_arm64.h"
#include "attention_arm64.h"

// Kernels for many rows of queries. They read panels: f32 copies of 64 keys
// [component][64] or of 64 columns of values [slot][64]. Rows of queries, weights
// and accumulators come in groups of six, ROW bytes apart. A register tile is six
// rows and 16 columns: row r in V4r to V4r+3.

#define PANEL 256 // bytes of 64 columns

// Running pointers to six rows from R(at) on.
#define ROWS6(at) \
	ROWS(at); \
	ADD $(4*ROW), at, R13; \
	ADD $(5*ROW), at, R14

#define MULADD24(v, a, b, c, d) \
	VFMLA V24.S4, v.S4, a.S4; \
	VFMLA V25.S4, v.S4, b.S4; \
	VFMLA V26.S4, v.S4, c.S4; \
	VFMLA V27.S4, v.S4, d.S4

// The next element of each row times 16 columns of the panel at R8; V24 to V31
// are overwritten.
#define STEP6 \
	VLD1 (R8), [V24.S4, V25.S4, V26.S4, V27.S4]; \
	VLD1R.P 4(R9), [V28.S4]; \
	VLD1R.P 4(R10), [V29.S4]; \
	VLD1R.P 4(R11), [V30.S4]; \
	VLD1R.P 4(R12), [V31.S4]; \
	MULADD24(V28, V0, V1, V2, V3); \
	VLD1R.P 4(R13), [V28.S4]; \
	MULADD24(V29, V4, V5, V6, V7); \
	VLD1R.P 4(R14), [V29.S4]; \
	MULADD24(V30, V8, V9, V10, V11); \
	MULADD24(V31, V12, V13, V14, V15); \
	MULADD24(V28, V16, V17, V18, V19); \
	MULADD24(V29, V20, V21, V22, V23); \
	ADD $PANEL, R8

#define STORE6 \
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R9); \
	VST1 [V4.S4, V5.S4, V6.S4, V7.S4], (R10); \
	VST1 [V8.S4, V9.S4, V10.S4, V11.S4], (R11); \
	VST1 [V12.S4, V13.S4, V14.S4, V15.S4], (R12); \
	VST1 [V16.S4, V17.S4, V18.S4, V19.S4], (R13); \
	VST1 [V20.S4, V21.S4, V22.S4, V23.S4], (R14)

// Panel of n rows of cols columns, a multiple of 16 up to 64; rows of src are
// stride bytes apart, and in a row groups of 16 columns step bytes.
//
//	for i < n, c < cols: dst[i][c] = src[i][c], widened
//
#define WIDEN(LOAD) \
	MOVD dst+0(FP), R1; \
	MOVD src+8(FP), R2; \
	MOVD stride+16(FP), R3; \
	MOVD step+24(FP), R4; \
	MOVD n+32(FP), R5; \
	MOVD cols+40(FP), R6; \
row: \
	MOVD R1, R9; \
	MOVD R2, R10; \
	MOVD R6, R7; \
column: \
	MOVD R10, R11; \
	LOAD(R11); \
	VST1.P [V16.S4, V17.S4, V18.S4, V19.S4], 64(R9); \
	ADD R4, R10; \
	SUB $16, R7; \
	CBNZ R7, column; \
	ADD $PANEL, R1; \
	ADD R3, R2; \
	SUB $1, R5; \
	CBNZ R5, row; \
	RET

// Scores of groups of 6 queries with the 64 keys of a panel.
//
//	for r < 6·groups, j < 64:
//		t = fma chain over c < d of q[r][c]·k[c][j] from +0
//		p[r][j] = t·scale
//
// func scores6NEON(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6NEON(SB), NOSPLIT, $0-68
	MOVD p+0(FP), R1
	MOVD q+8(FP), R2
	MOVD k+16(FP), R3
	MOVD d+24(FP), R4
	MOVD groups+32(FP), R5
	MOVD $scale+64(FP), R16
group:
	MOVD $4, R6
	MOVD R3, R15
columns:
	CLEAR4(V0, V1, V2, V3)
	CLEAR4(V4, V5, V6, V7)
	CLEAR4(V8, V9, V10, V11)
	CLEAR4(V12, V13, V14, V15)
	CLEAR4(V16, V17, V18, V19)
	CLEAR4(V20, V21, V22, V23)
	ROWS6(R2)
	MOVD R15, R8
	MOVD R4, R7
component:
	STEP6
	SUB $1, R7
	CBNZ R7, component
	VLD1R (R16), [V31.S4]
	MUL4(31, 0, 1, 2, 3)
	MUL4(31, 4, 5, 6, 7)
	MUL4(31, 8, 9, 10, 11)
	MUL4(31, 12, 13, 14, 15)
	MUL4(31, 16, 17, 18, 19)
	MUL4(31, 20, 21, 22, 23)
	ROWS6(R1)
	STORE6
	ADD $64, R1
	ADD $64, R15
	SUB $1, R6
	CBNZ R6, columns
	ADD $(6*ROW-PANEL), R1
	ADD $(6*ROW), R2
	SUB $1, R5
	CBNZ R5, group
	RET

// Weighted values of n slots for groups of 6 rows, columns c < cols of a panel,
// cols a multiple of 16.
//
//	for j < n, r < 6·groups, c < cols: acc[r][c] = fma(p[r][j], v[j][c], acc[r][c])
//
// func values6NEON(acc, p, v *float32, n, groups, cols int)
TEXT ·values6NEON(SB), NOSPLIT, $0-48
	MOVD acc+0(FP), R1
	MOVD p+8(FP), R2
	MOVD v+16(FP), R3
	MOVD n+24(FP), R4
	MOVD groups+32(FP), R5
	MOVD cols+40(FP), R16
group:
	MOVD R16, R6
	MOVD R1, R17
	MOVD R3, R15
columns:
	ROWS6(R17)
	VLD1 (R9), [V0.S4, V1.S4, V2.S4, V3.S4]
	VLD1 (R10), [V4.S4, V5.S4, V6.S4, V7.S4]
	VLD1 (R11), [V8.S4, V9.S4, V10.S4, V11.S4]
	VLD1 (R12), [V12.S4, V13.S4, V14.S4, V15.S4]
	VLD1 (R13), [V16.S4, V17.S4, V18.S4, V19.S4]
	VLD1 (R14), [V20.S4, V21.S4, V22.S4, V23.S4]
	ROWS6(R2)
	MOVD R15, R8
	MOVD R4, R7
slot:
	STEP6
	SUB $1, R7
	CBNZ R7, slot
	ROWS6(R17)
	STORE6
	ADD $64, R17
	ADD $64, R15
	SUB $16, R6
	CBNZ R6, columns
	ADD $(6*ROW), R1
	ADD $(6*ROW), R2
	SUB $1, R5
	CBNZ R5, group
	RET

// func panelF32NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF32NEON(SB), NOSPLIT, $0-48
	WIDEN(LOAD_F32)

// func panelF16NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF16NEON(SB), NOSPLIT, $0-48
	WIDEN(LOAD_F16)

// func panelBF16NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelBF16NEON(SB), NOSPLIT, $0-48
	WIDEN(LOAD_BF16)
