//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"
#include "attention_neon_arm64.h"

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

// func scores6NEON(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6NEON(SB), NOSPLIT, $0-68
	SCORES6

// func values6NEON(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6NEON(SB), NOSPLIT, $0-56
	VALUES6

// func panelF32NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF32NEON(SB), NOSPLIT, $0-48
	WIDEN(LOAD_F32)

// func panelF16NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF16NEON(SB), NOSPLIT, $0-48
	WIDEN(LOAD_F16)

// func panelBF16NEON(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelBF16NEON(SB), NOSPLIT, $0-48
	WIDEN(LOAD_BF16)
