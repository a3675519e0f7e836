// Instructions that Go's assembler lacks, on four (S4) or eight (H8) elements.
// Operands are register numbers in Go's order: the destination stands last.

#define FADD(m, n, d)  WORD $(0x4E20D400 | (m)<<16 | (n)<<5 | (d)) // d = n + m
#define FSUB(m, n, d)  WORD $(0x4EA0D400 | (m)<<16 | (n)<<5 | (d)) // d = n - m
#define FMUL(m, n, d)  WORD $(0x6E20DC00 | (m)<<16 | (n)<<5 | (d)) // d = n · m
#define FDIV(m, n, d)  WORD $(0x6E20FC00 | (m)<<16 | (n)<<5 | (d)) // d = n / m
#define FMAXNM(m, n, d) WORD $(0x4E20C400 | (m)<<16 | (n)<<5 | (d)) // a NaN loses
#define FMINNM(m, n, d) WORD $(0x4EA0C400 | (m)<<16 | (n)<<5 | (d)) // a NaN loses
#define FCMEQ0(n, d)   WORD $(0x4EA0D800 | (n)<<5 | (d)) // d = n = 0
#define FCMGE(m, n, d) WORD $(0x6E20E400 | (m)<<16 | (n)<<5 | (d)) // d = n ≥ m
#define FCMGT(m, n, d) WORD $(0x6EA0E400 | (m)<<16 | (n)<<5 | (d)) // d = n > m
#define FADDP(m, n, d) WORD $(0x6E20D400 | (m)<<16 | (n)<<5 | (d)) // sums of neighbours
#define FMAXNMV(n, d)  WORD $(0x6E30C800 | (n)<<5 | (d)) // scalar: the largest of four
#define FNEG(n, d)     WORD $(0x6EA0F800 | (n)<<5 | (d))
#define FRINTN(n, d)   WORD $(0x4E218800 | (n)<<5 | (d)) // to nearest even
#define FCVTNS(n, d)   WORD $(0x4E21A800 | (n)<<5 | (d)) // to int32
#define BIC(m, n, d)   WORD $(0x4E601C00 | (m)<<16 | (n)<<5 | (d)) // d = n &^ m
#define BIT(m, n, d)   WORD $(0x6EA01C00 | (m)<<16 | (n)<<5 | (d)) // n where m is set
#define MOV(n, d)      WORD $(0x4EA01C00 | (n)<<16 | (n)<<5 | (d))
#define DUP(n, d)      WORD $(0x4E040400 | (n)<<5 | (d)) // lane 0 in all lanes
#define FCVTL(n, d)    WORD $(0x0E217800 | (n)<<5 | (d)) // lower four f16
#define FCVTL2(n, d)   WORD $(0x4E217800 | (n)<<5 | (d)) // upper four f16
#define FCVTN(n, d)    WORD $(0x0E216800 | (n)<<5 | (d))
#define FCVTN2(n, d)   WORD $(0x4E216800 | (n)<<5 | (d))
#define XTN(n, d)      WORD $(0x0E612800 | (n)<<5 | (d)) // lower halves of four int32
#define XTN2(n, d)     WORD $(0x4E612800 | (n)<<5 | (d))
#define FCMEQ(m, n, d) WORD $(0x4E20E400 | (m)<<16 | (n)<<5 | (d))
#define BIF(m, n, d)   WORD $(0x6EE01C00 | (m)<<16 | (n)<<5 | (d)) // n where m is clear
#define FMLS(m, n, d)  WORD $(0x4EA0CC00 | (m)<<16 | (n)<<5 | (d)) // d -= n · m, fused
#define SHLL(n, d)     WORD $(0x2E613800 | (n)<<5 | (d)) // lower four bf16
#define SHLL2(n, d)    WORD $(0x6E613800 | (n)<<5 | (d)) // upper four bf16

// 16 numbers of f16 or bf16 in V20 and V21, widened into V16 to V19.
#define WIDEN_F16 \
	FCVTL(20, 16); \
	FCVTL2(20, 17); \
	FCVTL(21, 18); \
	FCVTL2(21, 19)
#define WIDEN_BF16 \
	SHLL(20, 16); \
	SHLL2(20, 17); \
	SHLL(21, 18); \
	SHLL2(21, 19)

// Loads of 16 elements at R(at), widened into V16 to V19; V20 and V21 are overwritten.
#define LOAD_F32(at) VLD1.P 64(at), [V16.S4, V17.S4, V18.S4, V19.S4]
#define LOAD_F16(at) \
	VLD1.P 32(at), [V20.H8, V21.H8]; \
	WIDEN_F16
#define LOAD_BF16(at) \
	VLD1.P 32(at), [V20.H8, V21.H8]; \
	WIDEN_BF16

// Exp2 of exp.go. EXP2(x, n, t, p) replaces Vx by 2^Vx; EXP2SUM adds the small
// correction Ve to the exponent. Vn, Vt and Vp are overwritten. The constants
// are loaded into V20 to V31 by EXP2_CONSTANTS, which leaves R0 at log2eLo. V19 is
// overwritten, too.
#define EXP2_CONSTANTS \
	MOVD $·exp2Constants(SB), R0; \
	VLD1R.P 4(R0), [V20.S4]; \
	VLD1R.P 4(R0), [V21.S4]; \
	VLD1R.P 4(R0), [V22.S4]; \
	VLD1R.P 4(R0), [V23.S4]; \
	VLD1R.P 4(R0), [V24.S4]; \
	VLD1R.P 4(R0), [V25.S4]; \
	VLD1R.P 4(R0), [V26.S4]; \
	VLD1R.P 4(R0), [V27.S4]; \
	VLD1R.P 4(R0), [V28.S4]; \
	VLD1R.P 4(R0), [V29.S4]; \
	VLD1R.P 4(R0), [V30.S4]; \
	VLD1R.P 4(R0), [V31.S4]

#define EXP2_FINISH(x, n, t, p, VN, VT, VP) \
	FCVTNS(n, n); \
	VADD V31.S4, VN.S4, VN.S4; \
	VSHL $23, VN.S4, VN.S4; \
	MOV(21, p); \
	VFMLA V20.S4, VT.S4, VP.S4; \
	EXP2_STEP(22, t, p); \
	EXP2_STEP(23, t, p); \
	EXP2_STEP(24, t, p); \
	EXP2_STEP(25, t, p); \
	EXP2_STEP(26, t, p); \
	FMUL(n, p, p); \
	FCMGT(x, 27, n); \
	BIC(n, p, p); \
	FCMGE(28, x, n); \
	MOV(p, x); \
	BIT(n, 29, x)

// p = p·t + c, by way of V19.
#define EXP2_STEP(c, t, p) \
	MOV(c, 19); \
	WORD $(0x4E20CC00 | (t)<<16 | (p)<<5 | 19); \
	MOV(19, p)

#define EXP2(x, n, t, p, VN, VT, VP) \
	FRINTN(x, n); \
	FSUB(n, x, t); \
	EXP2_FINISH(x, n, t, p, VN, VT, VP)

#define EXP2SUM(x, n, t, p, e, VN, VT, VP) \
	FRINTN(x, n); \
	FSUB(n, x, t); \
	FADD(e, t, t); \
	EXP2_FINISH(x, n, t, p, VN, VT, VP)
