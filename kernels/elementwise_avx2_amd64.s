//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"

// All lengths n are positive multiples of what the comments in elementwise_amd64.go say.

// func dotAVX2(x, y *float32, n int, lanes *[16]float32)
TEXT ·dotAVX2(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), SI
	MOVQ y+8(FP), DX
	MOVQ n+16(FP), CX
	MOVQ lanes+24(FP), DI
	VXORPS Y0, Y0, Y0 // lanes 0 to 7
	VXORPS Y1, Y1, Y1 // 8 to 15
next:
	VMOVUPS (SI), Y2
	VMOVUPS 32(SI), Y3
	VFMADD231PS (DX), Y2, Y0
	VFMADD231PS 32(DX), Y3, Y1
	ADDQ $64, SI
	ADDQ $64, DX
	SUBQ $16, CX
	JNZ next
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	VZEROUPPER
	RET

// func addAVX2(dst, x *float32, n int)
TEXT ·addAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
next:
	VMOVUPS (DI), Y1
	VMOVUPS 32(DI), Y2
	VADDPS (SI), Y1, Y1
	VADDPS 32(SI), Y2, Y2
	VMOVUPS Y1, (DI)
	VMOVUPS Y2, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func scaleMulAVX2(dst, x, w *float32, n int, s float32)
TEXT ·scaleMulAVX2(SB), NOSPLIT, $0-36
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ w+16(FP), DX
	MOVQ n+24(FP), CX
	VBROADCASTSS s+32(FP), Y0
next:
	VMULPS (SI), Y0, Y1
	VMULPS 32(SI), Y0, Y2
	VMULPS (DX), Y1, Y1
	VMULPS 32(DX), Y2, Y2
	VMOVUPS Y1, (DI)
	VMOVUPS Y2, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DX
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func ropeAVX2(a, b, cos, sin *float32, n int)
TEXT ·ropeAVX2(SB), NOSPLIT, $0-40
	MOVQ a+0(FP), DI
	MOVQ b+8(FP), SI
	MOVQ cos+16(FP), R8
	MOVQ sin+24(FP), R9
	MOVQ n+32(FP), CX
next:
	VMOVUPS (DI), Y0
	VMOVUPS (SI), Y1
	VMOVUPS (R8), Y2
	VMOVUPS (R9), Y3
	VMULPS Y2, Y0, Y4 // a·cos
	VMULPS Y3, Y1, Y5 // b·sin
	VMULPS Y2, Y1, Y6 // b·cos
	VMULPS Y3, Y0, Y7 // a·sin
	VSUBPS Y5, Y4, Y4
	VADDPS Y7, Y6, Y6
	VMOVUPS Y4, (DI)
	VMOVUPS Y6, (SI)
	ADDQ $32, DI
	ADDQ $32, SI
	ADDQ $32, R8
	ADDQ $32, R9
	SUBQ $8, CX
	JNZ next
	VZEROUPPER
	RET

// func swigluAVX2(dst, gate, up *float32, n int)
TEXT ·swigluAVX2(SB), NOSPLIT, $0-32
	MOVQ dst+0(FP), DI
	MOVQ gate+8(FP), SI
	MOVQ up+16(FP), DX
	MOVQ n+24(FP), CX
	EXP2_CONSTANTS_AVX2
next:
	VMOVUPS (SI), Y5
	VMULPS EXP2_NLOG2E, Y5, Y0      // -gate·log2e
	VMOVAPS Y0, Y4
	VFMSUB231PS EXP2_NLOG2E, Y5, Y4 // the same, exact, minus Y0
	VFNMADD231PS EXP2_LOG2ELO, Y5, Y4
	EXP2SUM_AVX2(Y0, Y1, Y2, Y3, Y4)
	VADDPS Y13, Y0, Y0
	VDIVPS Y0, Y5, Y5
	VMULPS (DX), Y5, Y5
	VMOVUPS Y5, (DI)
	ADDQ $32, SI
	ADDQ $32, DX
	ADDQ $32, DI
	SUBQ $8, CX
	JNZ next
	VZEROUPPER
	RET

// func maxAVX2(x *float32, n int) float32
TEXT ·maxAVX2(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS ·minusInf(SB), Y0
	VMOVAPS Y0, Y1
	VMOVAPS Y0, Y2
	VMOVAPS Y0, Y3
next:
	VMOVUPS (SI), Y4
	VMOVUPS 32(SI), Y5
	VMOVUPS 64(SI), Y6
	VMOVUPS 96(SI), Y7
	VMAXPS Y0, Y4, Y0 // Y4 > Y0 ? Y4 : Y0; a NaN in Y4 loses
	VMAXPS Y1, Y5, Y1
	VMAXPS Y2, Y6, Y2
	VMAXPS Y3, Y7, Y3
	ADDQ $128, SI
	SUBQ $32, CX
	JNZ next
	VMAXPS Y1, Y0, Y0
	VMAXPS Y3, Y2, Y2
	VMAXPS Y2, Y0, Y0
	VEXTRACTF128 $1, Y0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0x4e, X0, X1
	VMAXPS X1, X0, X0
	VPERMILPS $0xb1, X0, X1
	VMAXPS X1, X0, X0
	VMOVSS X0, ret+16(FP)
	VZEROUPPER
	RET

// func indexAVX2(x *float32, n int, v float32) int
TEXT ·indexAVX2(SB), NOSPLIT, $0-32
	MOVQ x+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS v+16(FP), Y0
	XORQ AX, AX
next:
	VCMPPS $0, (SI)(AX*4), Y0, Y1
	VMOVMSKPS Y1, DX
	TESTL DX, DX
	JNZ found
	ADDQ $8, AX
	CMPQ AX, CX
	JLT next
	JMP done
found:
	BSFL DX, DX
	ADDQ DX, AX
done:
	MOVQ AX, ret+24(FP)
	VZEROUPPER
	RET
