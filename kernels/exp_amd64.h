// Exp2 and Exp of exp.go on vector registers.
//
// EXP2_set(x, n, t, p) replaces x by 2^x; EXP2SUM_set(x, n, t, p, e) replaces x
// by 2^(x+e), where e is a small correction of x. n, t and p are overwritten.
// The constants are rows of exp2Table (exp_amd64.go). EXP2_CONSTANTS_AVX2 loads
// those of Y7 to Y15, EXP2_CONSTANTS_AVX512 those of Z16 to Z25; the latter
// macros also use K1 and K2.

#define EXP2_C6    ·exp2Table+0(SB)
#define EXP2_C5    ·exp2Table+32(SB)
#define EXP2_C4    ·exp2Table+64(SB)
#define EXP2_C3    ·exp2Table+96(SB)
#define EXP2_C2    ·exp2Table+128(SB)
#define EXP2_C1    ·exp2Table+160(SB)
#define EXP2_ONE   ·exp2Table+192(SB)
#define EXP2_LOW   ·exp2Table+224(SB)
#define EXP2_HIGH  ·exp2Table+256(SB)
#define EXP2_INF   ·exp2Table+288(SB)
#define EXP2_LOG2E ·exp2Table+320(SB)
#define EXP2_NLOG2E ·exp2Table+352(SB)
#define EXP2_LOG2ELO ·exp2Table+384(SB)
#define EXP2_BIAS  ·exp2Bias(SB)

#define EXP2_CONSTANTS_AVX2 \
	VMOVUPS EXP2_C6, Y7; \
	VMOVUPS EXP2_C5, Y8; \
	VMOVUPS EXP2_C4, Y9; \
	VMOVUPS EXP2_C3, Y10; \
	VMOVUPS EXP2_C2, Y11; \
	VMOVUPS EXP2_C1, Y12; \
	VMOVUPS EXP2_ONE, Y13; \
	VMOVUPS EXP2_LOW, Y14; \
	VMOVUPS EXP2_HIGH, Y15

// VROUNDPS $8 rounds to nearest even. The first comparison is "not less", the
// second "greater or equal": a NaN passes both as the NaN that p is then.
#define EXP2_FINISH_AVX2(x, n, t, p) \
	VMOVAPS Y7, p; \
	VFMADD213PS Y8, t, p; \
	VFMADD213PS Y9, t, p; \
	VFMADD213PS Y10, t, p; \
	VFMADD213PS Y11, t, p; \
	VFMADD213PS Y12, t, p; \
	VFMADD213PS Y13, t, p; \
	VCVTPS2DQ n, n; \
	VPADDD EXP2_BIAS, n, n; \
	VPSLLD $23, n, n; \
	VMULPS n, p, p; \
	VCMPPS $5, Y14, x, n; \
	VANDPS n, p, p; \
	VCMPPS $13, Y15, x, n; \
	VBLENDVPS n, EXP2_INF, p, x

#define EXP2_AVX2(x, n, t, p) \
	VROUNDPS $8, x, n; \
	VSUBPS n, x, t; \
	EXP2_FINISH_AVX2(x, n, t, p)

#define EXP2SUM_AVX2(x, n, t, p, e) \
	VROUNDPS $8, x, n; \
	VSUBPS n, x, t; \
	VADDPS e, t, t; \
	EXP2_FINISH_AVX2(x, n, t, p)

#define EXP2_CONSTANTS_AVX512 \
	VBROADCASTSS EXP2_C6, Z16; \
	VBROADCASTSS EXP2_C5, Z17; \
	VBROADCASTSS EXP2_C4, Z18; \
	VBROADCASTSS EXP2_C3, Z19; \
	VBROADCASTSS EXP2_C2, Z20; \
	VBROADCASTSS EXP2_C1, Z21; \
	VBROADCASTSS EXP2_ONE, Z22; \
	VBROADCASTSS EXP2_LOW, Z23; \
	VBROADCASTSS EXP2_HIGH, Z24; \
	VBROADCASTSS EXP2_INF, Z25

#define EXP2_FINISH_AVX512(x, n, t, p) \
	VMOVAPS Z16, p; \
	VFMADD213PS Z17, t, p; \
	VFMADD213PS Z18, t, p; \
	VFMADD213PS Z19, t, p; \
	VFMADD213PS Z20, t, p; \
	VFMADD213PS Z21, t, p; \
	VFMADD213PS Z22, t, p; \
	VCMPPS $5, Z23, x, K1; \
	VCMPPS $13, Z24, x, K2; \
	VSCALEFPS.Z n, p, K1, x; \
	VMOVAPS Z25, K2, x

#define EXP2_AVX512(x, n, t, p) \
	VRNDSCALEPS $8, x, n; \
	VSUBPS n, x, t; \
	EXP2_FINISH_AVX512(x, n, t, p)

#define EXP2SUM_AVX512(x, n, t, p, e) \
	VRNDSCALEPS $8, x, n; \
	VSUBPS n, x, t; \
	VADDPS e, t, t; \
	EXP2_FINISH_AVX512(x, n, t, p)
