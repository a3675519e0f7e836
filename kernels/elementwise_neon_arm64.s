//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// func dotNEON(x, y *float32, n int, lanes *[16]float32)
TEXT ·dotNEON(SB), NOSPLIT, $0-32
	MOVD x+0(FP), R1
	MOVD y+8(FP), R2
	MOVD n+16(FP), R3
	MOVD lanes+24(FP), R4
	VEOR V0.B16, V0.B16, V0.B16
	VEOR V1.B16, V1.B16, V1.B16
	VEOR V2.B16, V2.B16, V2.B16
	VEOR V3.B16, V3.B16, V3.B16
next:
	VLD1.P 64(R1), [V4.S4, V5.S4, V6.S4, V7.S4]
	VLD1.P 64(R2), [V8.S4, V9.S4, V10.S4, V11.S4]
	VFMLA V8.S4, V4.S4, V0.S4
	VFMLA V9.S4, V5.S4, V1.S4
	VFMLA V10.S4, V6.S4, V2.S4
	VFMLA V11.S4, V7.S4, V3.S4
	SUB $16, R3
	CBNZ R3, next
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R4)
	RET

// func scaleMulNEON(dst, x, w *float32, n int, s float32)
TEXT ·scaleMulNEON(SB), NOSPLIT, $0-36
	MOVD dst+0(FP), R1
	MOVD x+8(FP), R2
	MOVD w+16(FP), R3
	MOVD n+24(FP), R4
	MOVD $s+32(FP), R5
	VLD1R (R5), [V0.S4]
next:
	VLD1.P 16(R2), [V4.S4]
	VLD1.P 16(R3), [V5.S4]
	FMUL(0, 4, 4)
	FMUL(5, 4, 4)
	VST1.P [V4.S4], 16(R1)
	SUB $4, R4
	CBNZ R4, next
	RET

// func ropeNEON(a, b, cos, sin *float32, n int)
TEXT ·ropeNEON(SB), NOSPLIT, $0-40
	MOVD a+0(FP), R1
	MOVD b+8(FP), R2
	MOVD cos+16(FP), R3
	MOVD sin+24(FP), R4
	MOVD n+32(FP), R5
next:
	VLD1 (R1), [V0.S4]
	VLD1 (R2), [V1.S4]
	VLD1.P 16(R3), [V2.S4]
	VLD1.P 16(R4), [V3.S4]
	FMUL(2, 0, 4) // a·cos
	FMUL(3, 1, 5) // b·sin
	FMUL(2, 1, 6) // b·cos
	FMUL(3, 0, 7) // a·sin
	FSUB(5, 4, 4)
	FADD(7, 6, 6)
	VST1.P [V4.S4], 16(R1)
	VST1.P [V6.S4], 16(R2)
	SUB $4, R5
	CBNZ R5, next
	RET

// func swigluNEON(dst, gate, up *float32, n int)
TEXT ·swigluNEON(SB), NOSPLIT, $0-32
	MOVD dst+0(FP), R1
	MOVD gate+8(FP), R2
	MOVD up+16(FP), R3
	MOVD n+24(FP), R4
	EXP2_CONSTANTS
	VLD1R (R0), [V5.S4]
next:
	VLD1.P 16(R2), [V0.S4]
	VLD1.P 16(R3), [V1.S4]
	FNEG(0, 2)
	FMUL(30, 2, 3)              // -gate·log2e
	FNEG(3, 4)
	VFMLA V30.S4, V2.S4, V4.S4  // the exact product minus V3
	VFMLA V5.S4, V2.S4, V4.S4
	EXP2SUM(3, 16, 17, 18, 4, V16, V17, V18)
	FADD(26, 3, 3)
	FDIV(3, 0, 0)
	FMUL(1, 0, 0)
	VST1.P [V0.S4], 16(R1)
	SUB $4, R4
	CBNZ R4, next
	RET
