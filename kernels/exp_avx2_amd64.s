//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"

// func expAVX2(dst, x *float32, n int)
TEXT ·expAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	EXP2_CONSTANTS_AVX2
	VMOVUPS EXP2_LOG2E, Y6
next:
	VMOVUPS (SI), Y5
	VMULPS Y6, Y5, Y0
	VMOVAPS Y0, Y4
	VFMSUB231PS Y6, Y5, Y4 // the exact product minus Y0
	VFMADD231PS EXP2_LOG2ELO, Y5, Y4
	EXP2SUM_AVX2(Y0, Y1, Y2, Y3, Y4)
	VMOVUPS Y0, (DI)
	ADDQ $32, SI
	ADDQ $32, DI
	SUBQ $8, CX
	JNZ next
	VZEROUPPER
	RET
