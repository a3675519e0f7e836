//go:build !purego

#define PAIRS
#include "textflag.h"
#include "neon_arm64.h"
#include "attention_neon_arm64.h"

// Attention in bf16. Queries, weights and panels hold numbers of bf16 as f32.

// func scores4DotNEON(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
TEXT ·scores4DotNEON(SB), NOSPLIT, $0-52
	SCORES4(NEXT_BF16, 2)

// func values4DotNEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values4DotNEON(SB), NOSPLIT, $0-56
	VALUES4(NEXT_BF16, 2)

// func values1DotNEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·values1DotNEON(SB), NOSPLIT, $0-56
	VALUES1(NEXT_BF16, 2)

// func panelValues1DotNEON(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
TEXT ·panelValues1DotNEON(SB), NOSPLIT, $0-56
	VALUES1(NEXT_F32, 4)

// func scores6DotNEON(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6DotNEON(SB), NOSPLIT, $0-68
	SCORES6

// func values6DotNEON(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6DotNEON(SB), NOSPLIT, $0-56
	VALUES6

// Rounds weights, which are not negative, to bf16. V12 is 0x7fff, V13 0xffff0000.
#define ROUND_WEIGHTS(w) \
	VSHL $15, w.S4, V16.S4; \
	VADD V12.S4, w.S4, w.S4; \
	VUSRA $31, V16.S4, w.S4; \ // the last bit that stays: ties to even
	VAND V13.B16, w.B16, w.B16

// func softmaxDotNEON(p *float32, n, rows int, st *Softmax)
TEXT ·softmaxDotNEON(SB), NOSPLIT, $0-32
	EXP2_CONSTANTS
	MOVD $·minWeights(SB), R0
	VLD1R (R0), [V27.S4]     // for exp2Low
	MOVD $0x7fff, R0
	VDUP R0, V12.S4
	MOVD $0xffff0000, R0
	VDUP R0, V13.S4
	SOFTMAX(ROUND_WEIGHTS)
