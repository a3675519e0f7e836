//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"

// All lengths n are positive multiples of what the comments in elementwise_amd64.go say.

// func swigluAVX512(dst, gate, up *float32, n int)
TEXT ·swigluAVX512(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), DX
	MOVQ n+24(FP), CX
	EXP2_CONSTANTS_AVX512
	VBROADCASTSS EXP2_NLOG2E, Z26
	VBROADCASTSS EXP2_LOG2ELO, Z27
next:
	VMOVUPS (SI), Z5
	VMULPS Z26, Z5, Z0      // -gate·log2e
	VMOVAPS Z0, Z4
	VFMSUB231PS Z26, Z5, Z4 // the same, exact, minus Z0
	VFNMADD231PS Z27, Z5, Z4
	EXP2SUM_AVX512(Z0, Z1, Z2, Z3, Z4)
	VADDPS Z22, Z0, Z0
	VDIVPS Z0, Z5, Z5
	VMULPS (DX), Z5, Z5
	VMOVUPS Z5, (DI)
	ADDQ $64, SI
	ADDQ $64, DX
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET
