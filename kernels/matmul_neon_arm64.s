//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// Tiles of matrix products for NEON. The skeleton is in matmul_neon_arm64.h;
// here are its inner steps and, per weight type, how four lanes are loaded.

// G<R><C> is a quarter group of R rows of x times C rows of w, at the offsets xo
// and wo of the running rows. LX and LW load four lanes. The twelve sums are in
// the order of 4r+c.
#define X1(LX, xo) LX(xo, R1, F24, V24)
#define X2(LX, xo) X1(LX, xo); LX(xo, R2, F25, V25)
#define X3(LX, xo) X2(LX, xo); LX(xo, R3, F26, V26)
#define COL1(LW, wo, row, a) LW(wo, row, F27, V27); VFMLA V27.S4, V24.S4, a.S4
#define COL2(LW, wo, row, a, e) COL1(LW, wo, row, a); VFMLA V27.S4, V25.S4, e.S4
#define COL3(LW, wo, row, a, e, i) COL2(LW, wo, row, a, e); VFMLA V27.S4, V26.S4, i.S4

#define G11(LX, LW, xo, wo, a, b, c, d, e, f, g, h, i, j, k, l) X1(LX, xo); COL1(LW, wo, R4, a)
#define G21(LX, LW, xo, wo, a, b, c, d, e, f, g, h, i, j, k, l) X2(LX, xo); COL2(LW, wo, R4, a, e)
#define G31(LX, LW, xo, wo, a, b, c, d, e, f, g, h, i, j, k, l) X3(LX, xo); COL3(LW, wo, R4, a, e, i)
#define G14(LX, LW, xo, wo, a, b, c, d, e, f, g, h, i, j, k, l) \
	X1(LX, xo);                   \
	COL1(LW, wo, R4, a);          \
	COL1(LW, wo, R5, b);          \
	COL1(LW, wo, R6, c);          \
	COL1(LW, wo, R7, d)
#define G24(LX, LW, xo, wo, a, b, c, d, e, f, g, h, i, j, k, l) \
	X2(LX, xo);                   \
	COL2(LW, wo, R4, a, e);       \
	COL2(LW, wo, R5, b, f);       \
	COL2(LW, wo, R6, c, g);       \
	COL2(LW, wo, R7, d, h)
#define G34(LX, LW, xo, wo, a, b, c, d, e, f, g, h, i, j, k, l) \
	X3(LX, xo);                   \
	COL3(LW, wo, R4, a, e, i);    \
	COL3(LW, wo, R5, b, f, j);    \
	COL3(LW, wo, R6, c, g, k);    \
	COL3(LW, wo, R7, d, h, l)

#define LOAD(off, row, F, V) FMOVQ off(row), F
#define WIDENBF16(off, row, F, V) FMOVD off(row), F; VZIP1 V.H8, V28.H8, V.H8
#define WIDENF16(off, row, F, V) FMOVD off(row), F; WORD $0x0E217B7B // FCVTL V27.4H, V27.4S
// The odd elements of 8 bf16 (upper halves), the even ones.
#define ODD(off, row, F, V) FMOVQ off(row), F; VAND V28.B16, V.B16, V.B16
#define EVEN(off, row, F, V) FMOVQ off(row), F; VSHL $16, V.S4, V.S4

#define ZERO(v) VEOR v.B16, v.B16, v.B16
#define CLEAR4(a, b, c, d) ZERO(a); ZERO(b); ZERO(c); ZERO(d)

// START sets the running rows to half group half.
#define START(half) \
	ADD  $(half*2*XQ), R23, R1;   \
	ADD  R8, R1, R2;              \
	ADD  R8, R2, R3;              \
	ADD  $(half*2*WQ), R24, R4;   \
	ADD  R9, R4, R5;              \
	ADD  R9, R5, R6;              \
	ADD  R9, R6, R7;              \
	MOVD R13, R14
#define NEXT \
	ADD  $(4*XQ), R1;             \
	ADD  $(4*XQ), R2;             \
	ADD  $(4*XQ), R3;             \
	ADD  $(4*WQ), R4;             \
	ADD  $(4*WQ), R5;             \
	ADD  $(4*WQ), R6;             \
	ADD  $(4*WQ), R7;             \
	SUB  $1, R14
#define HALF(loop, G) \
loop:                             \
	STEP(G, 0, V0, V1, V2, V3, V4, V5, V6, V7, V8, V9, V10, V11);          \
	STEP(G, 1, V12, V13, V14, V15, V16, V17, V18, V19, V20, V21, V22, V23); \
	NEXT;                         \
	CBNZ R14, loop
#define CLEAR24 \
	CLEAR4(V0, V1, V2, V3);       \
	CLEAR4(V4, V5, V6, V7);       \
	CLEAR4(V8, V9, V10, V11);     \
	CLEAR4(V12, V13, V14, V15);   \
	CLEAR4(V16, V17, V18, V19);   \
	CLEAR4(V20, V21, V22, V23)
#define PUT4(a, b, c, d) VST1.P [a.B16, b.B16, c.B16, d.B16], 64(R22)

// Both passes. The frame holds, per row of x, lanes 0–3 of four sums, then 4–7.
#define BOTH(lo, hi, G) \
	CLEAR24;                      \
	START(0);                     \
	FLUSH;                        \
	HALF(lo, G);                  \
	MOVD R21, R22;                \
	PUT4(V0, V1, V2, V3);         \
	PUT4(V12, V13, V14, V15);     \
	PUT4(V4, V5, V6, V7);         \
	PUT4(V16, V17, V18, V19);     \
	PUT4(V8, V9, V10, V11);       \
	PUT4(V20, V21, V22, V23);     \
	CLEAR24;                      \
	START(1);                     \
	HALF(hi, G);                  \
	KEEP;                         \
	MOVD R10, R17

// A sum of vectors is a fused multiply-add with one (V31): the assembler has no
// other, and the result is the same.
#define ONES MOVD $0x3F800000, R22; VDUP R22, V31.S4
#define PLUS(a, e) VFMLA V31.S4, e.S4, a.S4
#define ADD4(a, b, c, d, e, f, g, h) PLUS(a, e); PLUS(b, f); PLUS(c, g); PLUS(d, h)

// The rest of the tree for four sums of one row whose lanes i and i+8 are joined:
// lanes 0–3 in a … d, 4–7 in e … h. The results are added to dst at R17.
#define REDUCE4(a, b, c, d, e, f, g, h) \
	ADD4(a, b, c, d, e, f, g, h);    \
	VZIP1 b.D2, a.D2, V29.D2;        \
	VZIP2 b.D2, a.D2, V30.D2;        \
	PLUS(V29, V30);                  \
	VZIP1 d.D2, c.D2, V30.D2;        \
	VZIP2 d.D2, c.D2, V24.D2;        \
	PLUS(V30, V24);                  \
	WORD  $0x6E3ED7BD;               \ // FADDP V30.4S, V29.4S, V29.4S
	VLD1  (R17), [V30.S4];           \
	PLUS(V29, V30);                  \
	VST1  [V29.S4], (R17);           \
	ADD   R11, R17
#define STORE4(off, a, b, c, d, e, f, g, h) \
	ADD   $off, R21, R22;            \
	VLD1.P 64(R22), [V24.B16, V25.B16, V26.B16, V27.B16]; \
	ADD4(a, b, c, d, V24, V25, V26, V27); \
	VLD1  (R22), [V24.B16, V25.B16, V26.B16, V27.B16]; \
	ADD4(e, f, g, h, V24, V25, V26, V27); \
	REDUCE4(a, b, c, d, e, f, g, h)

// The same for one sum.
#define STORE1(off, a, e) \
	FMOVQ off(R21), F24;             \
	FMOVQ (off+64)(R21), F25;        \
	PLUS(a, V24);                    \
	PLUS(e, V25);                    \
	PLUS(a, e);                      \
	VEXT  $8, a.B16, a.B16, V24.B16; \
	PLUS(a, V24);                    \
	VDUP  a.S[1], V24.S4;            \
	PLUS(V24, a);                    \
	FMOVS (R17), F25;                \
	FADDS F25, F24, F24;             \
	FMOVS F24, (R17);                \
	ADD   R11, R17

#define QUADDONE \
	ADD  R9<<2, R24;                 \
	ADD  $16, R10;                   \
	SUB  $4, R12
#define ONEDONE \
	ADD  R9, R24;                    \
	ADD  $4, R10;                    \
	SUB  $1, R12

#define XQ 16

#define FLUSH
#define KEEP ONES
#define CONSTANT ZERO(V28)

// func tileF32NEON(a *tile) (done int)
#define NAME ·tileF32NEON(SB)
#define WQ 16
#define STEP(G, q, a, b, c, d, e, f, g, h, i, j, k, l) \
	G(LOAD, LOAD, (q*XQ), (q*WQ), a, b, c, d, e, f, g, h, i, j, k, l)
#include "matmul_neon_arm64.h"
#undef NAME
#undef WQ
#undef STEP

// func tileBF16NEON(a *tile) (done int)
#define NAME ·tileBF16NEON(SB)
#define WQ 8
#define STEP(G, q, a, b, c, d, e, f, g, h, i, j, k, l) \
	G(LOAD, WIDENBF16, (q*XQ), (q*WQ), a, b, c, d, e, f, g, h, i, j, k, l)
#include "matmul_neon_arm64.h"
#undef NAME
#undef WQ
#undef STEP

// func tileF16NEON(a *tile) (done int)
#define NAME ·tileF16NEON(SB)
#define WQ 8
#define STEP(G, q, a, b, c, d, e, f, g, h, i, j, k, l) \
	G(LOAD, WIDENF16, (q*XQ), (q*WQ), a, b, c, d, e, f, g, h, i, j, k, l)
#include "matmul_neon_arm64.h"
#undef NAME
#undef WQ
#undef STEP

#undef FLUSH
#undef KEEP
#undef CONSTANT

// The processor flushes a sum that is tiny before rounding, the contract one that
// is tiny after. Either way the flag for underflow (FPSR bit 3) is raised.
#define FLUSH MSR R19, FPCR; MSR ZR, FPSR
#define KEEP MSR R20, FPCR; MRS FPSR, R22; TBNZ $3, R22, done; ONES
#define CONSTANT MOVD $0xFFFF0000, R22; VDUP R22, V28.S4

// func tileDotNEON(a *tile) (done int)
#define NAME ·tileDotNEON(SB)
#define WQ 16
#define STEP(G, q, a, b, c, d, e, f, g, h, i, j, k, l) \
	G(ODD, ODD, (q*XQ), (q*WQ), a, b, c, d, e, f, g, h, i, j, k, l);     \
	G(EVEN, EVEN, (q*XQ), (q*WQ), a, b, c, d, e, f, g, h, i, j, k, l)
#include "matmul_neon_arm64.h"
#undef NAME
#undef WQ
#undef STEP
