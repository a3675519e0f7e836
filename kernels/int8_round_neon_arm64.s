//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"
#include "int8_neon_arm64.h"

// func int8Round(dst *int8, x *float32, n int) (scale float32)
TEXT ·int8Round(SB), NOSPLIT, $0-28
	MOVD dst+0(FP), R1
	MOVD x+8(FP), R2
	MOVD n+16(FP), R3
	VMOVI $0, V0.B16
	MOVD R2, R4
	MOVD R3, R5
most:
	VLD1.P 64(R4), [V1.S4, V2.S4, V3.S4, V4.S4]
	FABS(1, 1)
	FABS(2, 2)
	FABS(3, 3)
	FABS(4, 4)
	UMAX(1, 2, 1)
	UMAX(3, 4, 3)
	UMAX(1, 3, 1)
	UMAX(1, 0, 0)
	SUB $16, R5
	CBNZ R5, most
	UMAXV(0, 0)
	FMOVS F0, R6
	FMOVS ZR, F5
	MOVW $0x0d800000, R7 // 2^-100
	CMPW R7, R6
	BLO none
	MOVW $0x7fc00000, R8 // NaN
	FMOVS R8, F5
	MOVW $0x7f800000, R7
	CMPW R7, R6
	BHS none
	MOVW $0x42fe0000, R7 // 127
	FMOVS R7, F1
	FDIVS F0, F1, F2
	FDIVS F1, F0, F5
	DUP(2, 2)
next:
	VLD1.P 64(R2), [V16.S4, V17.S4, V18.S4, V19.S4]
	FMUL(2, 16, 16)
	FMUL(2, 17, 17)
	FMUL(2, 18, 18)
	FMUL(2, 19, 19)
	FCVTNS(16, 16)
	FCVTNS(17, 17)
	FCVTNS(18, 18)
	FCVTNS(19, 19)
	VUZP1 V17.H8, V16.H8, V16.H8
	VUZP1 V19.H8, V18.H8, V18.H8
	VUZP1 V18.B16, V16.B16, V16.B16
	VST1.P [V16.B16], 16(R1)
	SUB $16, R3
	CBNZ R3, next
	FMOVS F5, scale+24(FP)
	RET
none:
	VMOVI $0, V0.B16
zero:
	VST1.P [V0.B16], 16(R1)
	SUB $16, R3
	CBNZ R3, zero
	FMOVS F5, scale+24(FP)
	RET

// LESS stores -128 times the eight int16 of Vn.
#define LESS(n, R) \
	SSHLL(7, n, 16); \
	SSHLL2(7, n, 17); \
	NEG(16, 16); \
	NEG(17, 17); \
	VST1.P [V16.S4, V17.S4], 32(R)

// func int8Sums(q *int8, n int, less32, less16 *int32, sums32, sums16 *int16, less8 *int32)
TEXT ·int8Sums(SB), NOSPLIT, $0-56
	MOVD q+0(FP), R1
	MOVD n+8(FP), R2
	MOVD less32+16(FP), R3
	MOVD less16+24(FP), R4
	MOVD sums32+32(FP), R5
	MOVD sums16+40(FP), R6
next:
	VLD1.P 64(R1), [V0.B16, V1.B16, V2.B16, V3.B16]
	VLD1.P 64(R1), [V4.B16, V5.B16, V6.B16, V7.B16]
	SADDLP16(0, 0)
	SADDLP16(1, 1)
	SADDLP16(2, 2)
	SADDLP16(3, 3)
	SADDLP16(4, 4)
	SADDLP16(5, 5)
	SADDLP16(6, 6)
	SADDLP16(7, 7)
	ADDP16(1, 0, 0)
	ADDP16(3, 2, 2)
	ADDP16(5, 4, 4)
	ADDP16(7, 6, 6)
	ADDP16(2, 0, 0)
	ADDP16(6, 4, 4)
	ADDP16(4, 0, 0) // of 16
	ADDP16(0, 0, 1) // of 32, twice
	VST1.P [V0.H8], 16(R6)
	VST1.P [V1.B8], 8(R5)
	LESS(0, R4)
	SSHLL(7, 1, 16)
	NEG(16, 16)
	VST1.P [V16.S4], 16(R3)
	SUB $128, R2
	CBNZ R2, next
	RET
