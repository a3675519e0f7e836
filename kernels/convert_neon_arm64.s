//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"

// ROUND rounds 4 numbers x to bf16 in the lower halves of x's elements; t, u and
// V31 are overwritten. Constants: V24 1, V25 0x7fff, V26 0x40.
#define ROUND(x, X, T, U) \
	VUSHR $16, X.S4, T.S4; \
	VAND V24.B16, T.B16, U.B16; \
	VADD V25.S4, U.S4, U.S4; \
	VADD X.S4, U.S4, U.S4; \
	VUSHR $16, U.S4, U.S4; \
	VORR V26.B16, T.B16, T.B16; \
	FCMEQ(x, x, 31); \
	VORR U.B16, U.B16, X.B16

// NANS puts T where V31 is clear.
#define NANS(x, t) BIF(31, t, x)

// FLUSH clears the subnormals of x but for their signs; T, U are overwritten.
// Constants: V27 0x7f800000, V28 0x80000000, V29 0.
#define FLUSH(x, t, u, X, T, U) \
	VAND V27.B16, X.B16, T.B16; \
	VCMEQ V29.S4, T.S4, T.S4; \
	VAND V28.B16, X.B16, U.B16; \
	BIT(t, u, x)

#define CONSTANTS \
	MOVD $1, R4; \
	VDUP R4, V24.S4; \
	MOVD $0x7fff, R4; \
	VDUP R4, V25.S4; \
	MOVD $0x40, R4; \
	VDUP R4, V26.S4; \
	MOVD $0x7f800000, R4; \
	VDUP R4, V27.S4; \
	MOVD $0x80000000, R4; \
	VDUP R4, V28.S4; \
	VEOR V29.B16, V29.B16, V29.B16

// func roundBF16NEON(dst unsafe.Pointer, src *float32, n int)
TEXT ·roundBF16NEON(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
	CONSTANTS
next:
	VLD1.P 32(R2), [V0.S4, V1.S4]
	FLUSH(0, 2, 3, V0, V2, V3)
	ROUND(0, V0, V2, V3)
	NANS(0, 2)
	FLUSH(1, 2, 3, V1, V2, V3)
	ROUND(1, V1, V2, V3)
	NANS(1, 2)
	XTN(0, 4)
	XTN2(1, 4)
	VST1.P [V4.H8], 16(R1)
	SUB $8, R3
	CBNZ R3, next
	RET

// func narrowBF16NEON(dst unsafe.Pointer, src *float32, n int)
TEXT ·narrowBF16NEON(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
	CONSTANTS
next:
	VLD1.P 32(R2), [V0.S4, V1.S4]
	ROUND(0, V0, V2, V3)
	NANS(0, 2)
	ROUND(1, V1, V2, V3)
	NANS(1, 2)
	XTN(0, 4)
	XTN2(1, 4)
	VST1.P [V4.H8], 16(R1)
	SUB $8, R3
	CBNZ R3, next
	RET

// func narrowF16NEON(dst unsafe.Pointer, src *float32, n int)
TEXT ·narrowF16NEON(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
next:
	VLD1.P 32(R2), [V0.S4, V1.S4]
	FCVTN(0, 4)
	FCVTN2(1, 4)
	VST1.P [V4.H8], 16(R1)
	SUB $8, R3
	CBNZ R3, next
	RET

// func widenF16NEON(dst *float32, src unsafe.Pointer, n int)
TEXT ·widenF16NEON(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
next:
	LOAD_F16(R2)
	VST1.P [V16.S4, V17.S4, V18.S4, V19.S4], 64(R1)
	SUB $16, R3
	CBNZ R3, next
	RET

// func widenBF16NEON(dst *float32, src unsafe.Pointer, n int)
TEXT ·widenBF16NEON(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
next:
	LOAD_BF16(R2)
	VST1.P [V16.S4, V17.S4, V18.S4, V19.S4], 64(R1)
	SUB $16, R3
	CBNZ R3, next
	RET
