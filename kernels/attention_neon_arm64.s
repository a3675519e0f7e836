//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"
#include "attention_neon_arm64.h"

// func scores4F32NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F32NEON(SB), NOSPLIT, $0-52
	SCORES4(NEXT_F32, 4)

// func scores4F16NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4F16NEON(SB), NOSPLIT, $0-52
	SCORES4(NEXT_F16, 2)

// func scores4BF16NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4BF16NEON(SB), NOSPLIT, $0-52
	SCORES4(NEXT_BF16, 2)

// func scores1F32NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F32NEON(SB), NOSPLIT, $0-52
	SCORES1(NEXT_F32, 4)

// func scores1F16NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1F16NEON(SB), NOSPLIT, $0-52
	SCORES1(NEXT_F16, 2)

// func scores1BF16NEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores1BF16NEON(SB), NOSPLIT, $0-52
	SCORES1(NEXT_BF16, 2)

// func values4F32NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F32NEON(SB), NOSPLIT, $0-56
	VALUES4(NEXT_F32, 4)

// func values4F16NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4F16NEON(SB), NOSPLIT, $0-56
	VALUES4(NEXT_F16, 2)

// func values4BF16NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4BF16NEON(SB), NOSPLIT, $0-56
	VALUES4(NEXT_BF16, 2)

// func values1F32NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1F32NEON(SB), NOSPLIT, $0-56
	VALUES1(NEXT_F32, 4)

// func values1F16NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1F16NEON(SB), NOSPLIT, $0-56
	VALUES1(NEXT_F16, 2)

// func values1BF16NEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1BF16NEON(SB), NOSPLIT, $0-56
	VALUES1(NEXT_BF16, 2)

#define NOTHING(v)

// func softmaxRowsNEON(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxRowsNEON(SB), NOSPLIT, $0-32
	EXP2_CONSTANTS
	SOFTMAX(NOTHING)

// func mergeNEON(out, acc *float32, n int, a, b *Softmax)
TEXT ·mergeNEON(SB), NOSPLIT, $0-40
	MOVD out+0(FP), R1
	MOVD acc+8(FP), R2
	MOVD n+16(FP), R3
	MOVD a+24(FP), R4
	MOVD b+32(FP), R5
	EXP2_CONSTANTS
	VLD1R (R4), [V0.S4]
	VLD1R (R5), [V1.S4]
	FMAXNM(1, 0, 2)
	FMOVS F2, (R4)
	FSUB(2, 0, 0)
	FSUB(2, 1, 1)
	EXP2(0, 16, 17, 18, V16, V17, V18) // factor of out
	EXP2(1, 16, 17, 18, V16, V17, V18) // factor of acc
	FMOVS 4(R4), F2
	FMOVS 4(R5), F3
	FMULS F0, F2, F2
	FMULS F1, F3, F3
	FADDS F3, F2, F2
	FMOVS F2, 4(R4)
	CLEAR4(V12, V13, V14, V15)
next:
	VLD1 (R1), [V4.S4, V5.S4, V6.S4, V7.S4]
	VLD1 (R2), [V8.S4, V9.S4, V10.S4, V11.S4]
	VST1.P [V12.S4, V13.S4, V14.S4, V15.S4], 64(R2)
	MUL4(0, 4, 5, 6, 7)
	MUL4(1, 8, 9, 10, 11)
	FADD(8, 4, 4)
	FADD(9, 5, 5)
	FADD(10, 6, 6)
	FADD(11, 7, 7)
	VST1.P [V4.S4, V5.S4, V6.S4, V7.S4], 64(R1)
	SUB $16, R3
	CBNZ R3, next
	RET

// func softmaxWeightsNEON(p *float32, n int, st Softmax)
TEXT ·softmaxWeightsNEON(SB), NOSPLIT, $0-24
	MOVD p+0(FP), R1
	MOVD n+8(FP), R2
	MOVD $st_Max+16(FP), R3
	EXP2_CONSTANTS
	VLD1R (R3), [V0.S4]
	MOVD $st_Sum+20(FP), R3
	VLD1R (R3), [V1.S4]
next:
	VLD1 (R1), [V4.S4]
	FSUB(0, 4, 4)
	EXP2(4, 16, 17, 18, V16, V17, V18)
	FDIV(1, 4, 4)
	VST1.P [V4.S4], 16(R1)
	SUB $4, R2
	CBNZ R2, next
	RET

// func divideNEON(dst, x *float32, n int, total float32)
TEXT ·divideNEON(SB), NOSPLIT, $0-28
	MOVD dst+0(FP), R1
	MOVD x+8(FP), R2
	MOVD n+16(FP), R3
	MOVD $total+24(FP), R4
	VLD1R (R4), [V0.S4]
	VEOR V1.B16, V1.B16, V1.B16
next:
	VLD1.P 16(R2), [V4.S4]
	FDIV(0, 4, 4)
	FADD(1, 4, 4)            // -0 becomes +0
	VST1.P [V4.S4], 16(R1)
	SUB $4, R3
	CBNZ R3, next
	RET
