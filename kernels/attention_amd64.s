//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "attention_amd64.h"

// func scores4F32AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F32AVX2(SB), NOSPLIT, $0-52
	SCORES4_AVX2(LOAD_F32, 4)

// func scores4F16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F16AVX2(SB), NOSPLIT, $0-52
	SCORES4_AVX2(LOAD_F16, 2)

// func scores4BF16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4BF16AVX2(SB), NOSPLIT, $0-52
	SCORES4_AVX2(LOAD_BF16, 2)

// func scores1F32AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F32AVX2(SB), NOSPLIT, $0-52
	SCORES1_AVX2(LOAD_F32, 4)

// func scores1F16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F16AVX2(SB), NOSPLIT, $0-52
	SCORES1_AVX2(LOAD_F16, 2)

// func scores1BF16AVX2(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1BF16AVX2(SB), NOSPLIT, $0-52
	SCORES1_AVX2(LOAD_BF16, 2)

// func scores4F32AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F32AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(LOADZ_F32, PREFETCH_4, 4)

// func scores4F16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F16AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(LOADZ_F16, PREFETCH_2, 2)

// func scores4BF16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4BF16AVX512(SB), NOSPLIT, $0-52
	SCORES4_AVX512(LOADZ_BF16, PREFETCH_2, 2)

// func scores1F32AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F32AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_F32, 4)

// func scores1F16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F16AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_F16, 2)

// func scores1BF16AVX512(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1BF16AVX512(SB), NOSPLIT, $0-52
	SCORES1_AVX512(LOADZ_BF16, 2)

// func values4F32AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F32AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(LOAD_F32, 4)

// func values4F16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F16AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(LOAD_F16, 2)

// func values4BF16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4BF16AVX2(SB), NOSPLIT, $0-56
	VALUES4_AVX2(LOAD_BF16, 2)

// func values1F32AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1F32AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(LOAD_F32, 4)

// func values1F16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1F16AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(LOAD_F16, 2)

// func values1BF16AVX2(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1BF16AVX2(SB), NOSPLIT, $0-56
	VALUES1_AVX2(LOAD_BF16, 2)

// func values4F32AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F32AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(LOADZ_F32, PREFETCH_4, 4)

// func values4F16AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F16AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(LOADZ_F16, PREFETCH_2, 2)

// func values4BF16AVX512(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4BF16AVX512(SB), NOSPLIT, $0-56
	VALUES4_AVX512(LOADZ_BF16, PREFETCH_2, 2)

// func softmaxBlockAVX2(p *float32, n int, st *Softmax)
TEXT ·softmaxBlockAVX2(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ st+16(FP), DI
	EXP2_CONSTANTS_AVX2
	VBROADCASTSS ·minusInf(SB), Y1
	VMOVAPS Y1, Y2
	MOVQ SI, R9
	MOVQ CX, R10
largest:
	VMOVUPS (R9), Y4
	VMOVUPS 32(R9), Y5
	VMAXPS Y1, Y4, Y1       // Y4 > Y1 ? Y4 : Y1; a NaN in Y4 loses
	VMAXPS Y2, Y5, Y2
	ADDQ $64, R9
	SUBQ $16, R10
	JNZ largest
	VMAXPS Y2, Y1, Y1
	VPERM2F128 $1, Y1, Y1, Y2
	VMAXPS Y2, Y1, Y1
	VPERMILPS $0x4e, Y1, Y2
	VMAXPS Y2, Y1, Y1
	VPERMILPS $0xb1, Y1, Y2
	VMAXPS Y2, Y1, Y1
	VXORPS Y2, Y2, Y2       // denominator lanes 0 to 7
	VXORPS Y3, Y3, Y3       // 8 to 15
	VADDPS Y2, Y1, Y1       // the maximum in all lanes, no negative zero
	VMOVSS X1, (DI)
weight:
	VMOVUPS (SI), Y4
	VSUBPS Y1, Y4, Y4
	EXP2_AVX2(Y4, Y5, Y6, Y0)
	VMOVUPS Y4, (SI)
	VADDPS Y4, Y2, Y2
	VMOVUPS 32(SI), Y4
	VSUBPS Y1, Y4, Y4
	EXP2_AVX2(Y4, Y5, Y6, Y0)
	VMOVUPS Y4, 32(SI)
	VADDPS Y4, Y3, Y3
	ADDQ $64, SI
	SUBQ $16, CX
	JNZ weight
	SUM_LANES(Y2, Y3, X2, X3)
	VMOVSS X2, 4(DI)
	VZEROUPPER
	RET

// func softmaxBlockAVX512(p *float32, n int, st *Softmax)
TEXT ·softmaxBlockAVX512(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	MOVQ st+16(FP), DI
	EXP2_CONSTANTS_AVX512
	VBROADCASTSS ·minusInf(SB), Z1
	MOVQ SI, R9
	MOVQ CX, R10
largest:
	VMOVUPS (R9), Z4
	VMAXPS Z1, Z4, Z1       // Z4 > Z1 ? Z4 : Z1; a NaN in Z4 loses
	ADDQ $64, R9
	SUBQ $16, R10
	JNZ largest
	VEXTRACTF64X4 $1, Z1, Y2
	VMAXPS Y2, Y1, Y1
	VEXTRACTF128 $1, Y1, X2
	VMAXPS X2, X1, X1
	VPERMILPS $0x4e, X1, X2
	VMAXPS X2, X1, X1
	VPERMILPS $0xb1, X1, X2
	VMAXPS X2, X1, X1
	VXORPS X2, X2, X2       // denominator
	VADDPS X2, X1, X1       // no negative zero
	VMOVSS X1, (DI)
	VBROADCASTSS X1, Z1     // the maximum in all lanes
weight:
	VMOVUPS (SI), Z4
	VSUBPS Z1, Z4, Z4
	EXP2_AVX512(Z4, Z5, Z6, Z0)
	VMOVUPS Z4, (SI)
	VADDPS Z4, Z2, Z2
	ADDQ $64, SI
	SUBQ $16, CX
	JNZ weight
	VEXTRACTF64X4 $1, Z2, Y3
	SUM_LANES(Y2, Y3, X2, X3)
	VMOVSS X2, 4(DI)
	VZEROUPPER
	RET

// func mergeAVX2(out, acc *float32, n int, a, b *Softmax)
TEXT ·mergeAVX2(SB), NOSPLIT, $0-40
	MOVQ out+0(FP), DI
	MOVQ acc+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ a+24(FP), R8
	MOVQ b+32(FP), R9
	EXP2_CONSTANTS_AVX2
	VBROADCASTSS (R8), Y0
	VBROADCASTSS (R9), Y1
	VMAXPS Y1, Y0, Y2
	VMOVSS X2, (R8)
	VSUBPS Y2, Y0, Y0
	VSUBPS Y2, Y1, Y1
	EXP2_AVX2(Y0, Y3, Y4, Y5) // factor of out
	EXP2_AVX2(Y1, Y3, Y4, Y5) // factor of acc
	VMULSS 4(R8), X0, X2
	VMULSS 4(R9), X1, X3
	VADDSS X3, X2, X2
	VMOVSS X2, 4(R8)
next:
	VMULPS (DI), Y0, Y2
	VMULPS 32(DI), Y0, Y3
	VMULPS (SI), Y1, Y4
	VMULPS 32(SI), Y1, Y5
	VADDPS Y4, Y2, Y2
	VADDPS Y5, Y3, Y3
	VMOVUPS Y2, (DI)
	VMOVUPS Y3, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func softmaxWeightsAVX2(p *float32, n int, st Softmax)
TEXT ·softmaxWeightsAVX2(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	VBROADCASTSS st_Max+16(FP), Y0
	VBROADCASTSS st_Sum+20(FP), Y1
	EXP2_CONSTANTS_AVX2
weight:
	VMOVUPS (SI), Y4
	VSUBPS Y0, Y4, Y4
	EXP2_AVX2(Y4, Y5, Y6, Y2)
	VDIVPS Y1, Y4, Y4
	VMOVUPS Y4, (SI)
	ADDQ $32, SI
	SUBQ $8, CX
	JNZ weight
	VZEROUPPER
	RET

// func softmaxWeightsAVX512(p *float32, n int, st Softmax)
TEXT ·softmaxWeightsAVX512(SB), NOSPLIT, $0-24
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
	EXP2_CONSTANTS_AVX512
	VBROADCASTSS st_Max+16(FP), Z0
	VBROADCASTSS st_Sum+20(FP), Z1
weight:
	VMOVUPS (SI), Z4
	VSUBPS Z0, Z4, Z4
	EXP2_AVX512(Z4, Z5, Z6, Z2)
	VDIVPS Z1, Z4, Z4
	VMOVUPS Z4, (SI)
	ADDQ $64, SI
	SUBQ $16, CX
	JNZ weight
	VZEROUPPER
	RET

// func divideAVX2(dst, x *float32, n int, total float32)
TEXT ·divideAVX2(SB), NOSPLIT, $0-28
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ n+16(FP), CX
	VBROADCASTSS total+24(FP), Y0
	VXORPS Y3, Y3, Y3
next:
	VMOVUPS (SI), Y1
	VMOVUPS 32(SI), Y2
	VDIVPS Y0, Y1, Y1
	VDIVPS Y0, Y2, Y2
	VADDPS Y3, Y1, Y1       // -0 becomes +0
	VADDPS Y3, Y2, Y2
	VMOVUPS Y1, (DI)
	VMOVUPS Y2, 32(DI)
	ADDQ $64, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET
