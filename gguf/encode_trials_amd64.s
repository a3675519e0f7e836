//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// The lanes of a register are four trials: Y7 inverses of their steps, Y8 offsets, Y9 steps,
// Y10 lo, Y11 hi, Y12 -0, Y13 clearly, Y14 whether an inverse was not enough.

// ENTER prepares a loop over the trials of DI, four at a time: DX left, from BX on.
#define ENTER \
	MOVQ t+0(FP), DI; \
	MOVQ trials_n(DI), DX; \
	MOVQ DI, BX; \
	VBROADCASTSD trials_lo(DI), Y10; \
	VBROADCASTSD trials_hi(DI), Y11; \
	VBROADCASTSD minusZero<>(SB), Y12; \
	VBROADCASTSD clearly<>(SB), Y13

// GROUP loads four trials, and the first of CX elements at SI.
#define GROUP \
	VMOVUPD trials_step(BX), Y9; \
	VMOVUPD trials_offset(BX), Y8; \
	MOVQ trials_size(DI), CX; \
	MOVQ DI, SI

#define INVERSE \
	VBROADCASTSD one<>(SB), Y7; \
	VDIVPD Y9, Y7, Y7; \
	VXORPD Y14, Y14, Y14

// NEXT goes to label for the next element.
#define NEXT(label) \
	ADDQ $8, SI; \
	DECQ CX; \
	JNZ label

// PRODUCT leaves the element in Y3, and in Y4 its integer by a product with the inverse.
#define PRODUCT \
	VBROADCASTSD trials_x(SI), Y3; \
	VADDPD Y8, Y3, Y4; \
	VMULPD Y7, Y4, Y5; \
	VROUNDPD $0, Y5, Y4; \
	VSUBPD Y4, Y5, Y5; \
	VANDNPD Y5, Y12, Y5; \
	VCMPPD $6, Y13, Y5, Y5; \
	VORPD Y5, Y14, Y14; \
	CLAMP

// QUOTIENT is PRODUCT by division. No number, of nothing in steps of nothing, becomes an
// end, whose product with the step is 0.
#define QUOTIENT \
	VBROADCASTSD trials_x(SI), Y3; \
	VADDPD Y8, Y3, Y4; \
	VDIVPD Y9, Y4, Y4; \
	VROUNDPD $0, Y4, Y4; \
	CLAMP

#define CLAMP \
	VMAXPD Y10, Y4, Y4; \
	VMINPD Y11, Y4, Y4

// SUM adds to sq, sqq and sqx in Y0, Y1, Y2.
#define SUM \
	VBROADCASTSD trials_w(SI), Y5; \
	VMULPD Y4, Y5, Y5; \
	VADDPD Y5, Y0, Y0; \
	VMULPD Y4, Y5, Y5; \
	VADDPD Y5, Y1, Y1; \
	VBROADCASTSD trials_xw(SI), Y6; \
	VMULPD Y4, Y6, Y6; \
	VADDPD Y6, Y2, Y2

#define CLEAR_SUMS \
	VXORPD Y0, Y0, Y0; \
	VXORPD Y1, Y1, Y1; \
	VXORPD Y2, Y2, Y2

#define CLEAR_ERRORS VXORPD Y0, Y0, Y0

// MEASURE adds to e in Y0.
#define MEASURE \
	VMULPD Y9, Y4, Y4; \
	VSUBPD Y8, Y4, Y4; \
	VSUBPD Y4, Y3, Y3; \
	VMULPD Y3, Y3, Y3; \
	VBROADCASTSD trials_w(SI), Y5; \
	VMULPD Y5, Y3, Y3; \
	VADDPD Y3, Y0, Y0

// TRIALS computes four trials after four: it clears their sums and adds every element's part, by
// products, and once more by quotients if those were not enough. STORED ends it.
#define TRIALS(CLEAR, ADD) \
	ENTER; \
	TESTQ DX, DX; \
	JLE done; \
group: \
	GROUP; \
	INVERSE; \
	CLEAR; \
product: \
	PRODUCT; \
	ADD; \
	NEXT(product); \
	VMOVMSKPD Y14, AX; \
	TESTL AX, AX; \
	JZ store; \
	GROUP; \
	CLEAR; \
quotient: \
	QUOTIENT; \
	ADD; \
	NEXT(quotient); \
store:

#define STORED \
	ADDQ $32, BX; \
	SUBQ $4, DX; \
	JG group; \
done: \
	VZEROUPPER; \
	RET

// func sumTrials(t *trials)
TEXT ·sumTrials(SB), NOSPLIT, $0-8
	TRIALS(CLEAR_SUMS, SUM)
	VMOVUPD Y0, trials_sq(BX)
	VMOVUPD Y1, trials_sqq(BX)
	VMOVUPD Y2, trials_sqx(BX)
	STORED

// func measureTrials(t *trials)
TEXT ·measureTrials(SB), NOSPLIT, $0-8
	TRIALS(CLEAR_ERRORS, MEASURE)
	VMOVUPD Y0, trials_e(BX)
	STORED

DATA one<>+0(SB)/8, $1.0
GLOBL one<>(SB), RODATA|NOPTR, $8
DATA minusZero<>+0(SB)/8, $0x8000000000000000
GLOBL minusZero<>(SB), RODATA|NOPTR, $8
DATA clearly<>+0(SB)/8, $0x3fdfffffffffc000 // 0.5 - 2^-40
GLOBL clearly<>(SB), RODATA|NOPTR, $8
