//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// func expNEON(dst, x *float32, n int)
TEXT ·expNEON(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R1
	MOVD x+8(FP), R2
	MOVD n+16(FP), R3
	EXP2_CONSTANTS
	VLD1R (R0), [V5.S4]
next:
	VLD1.P 16(R2), [V1.S4]
	FMUL(30, 1, 0)
	FNEG(0, 4)
	VFMLA V30.S4, V1.S4, V4.S4 // the exact product minus V0
	VFMLA V5.S4, V1.S4, V4.S4
	EXP2SUM(0, 16, 17, 18, 4, V16, V17, V18)
	VST1.P [V0.S4], 16(R1)
	SUB $4, R3
	CBNZ R3, next
	RET
