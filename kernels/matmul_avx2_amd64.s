//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// Tiles of matrix products for AVX2 with FMA and F16C. The skeleton is in
// matmul_avx2_amd64.h; here are its inner steps and, per weight type, how a
// half group of 8 lanes is loaded.

// X3 loads a half group of up to three rows of x, COL multiplies it with row w.
#define X1(LX) LX((SI), Y12)
#define X2(LX) X1(LX); LX((SI)(R8*1), Y13)
#define X3(LX) X2(LX); LX((SI)(R8*2), Y14)
#define COL1(LW, w, a) LW(w, Y15); VFMADD231PS Y15, Y12, a
#define COL2(LW, w, a, b) COL1(LW, w, a); VFMADD231PS Y15, Y13, b
#define COL3(LW, w, a, b, c) COL2(LW, w, a, b); VFMADD231PS Y15, Y14, c

#define G11(LX, LW) X1(LX); COL1(LW, (DI), Y0)
#define G21(LX, LW) X2(LX); COL2(LW, (DI), Y0, Y4)
#define G31(LX, LW) X3(LX); COL3(LW, (DI), Y0, Y4, Y8)
#define G24(LX, LW) \
	X2(LX);                             \
	COL2(LW, (DI), Y0, Y4);             \
	COL2(LW, (DI)(R11*1), Y1, Y5);      \
	COL2(LW, (DI)(R11*2), Y2, Y6);      \
	COL2(LW, (DI)(R12*1), Y3, Y7)
#define G34(LX, LW) \
	X3(LX);                             \
	COL3(LW, (DI), Y0, Y4, Y8);         \
	COL3(LW, (DI)(R11*1), Y1, Y5, Y9);  \
	COL3(LW, (DI)(R11*2), Y2, Y6, Y10); \
	COL3(LW, (DI)(R12*1), Y3, Y7, Y11)

// One row of x, four of w, lanes 0–7 or 8–15 by the offsets.
#define H14(LX, LW, xoff, woff, a, b, c, d) \
	LX(xoff(SI), Y12);                  \
	COL1(LW, woff(DI), a);              \
	COL1(LW, woff(DI)(R11*1), b);       \
	COL1(LW, woff(DI)(R11*2), c);       \
	COL1(LW, woff(DI)(R12*1), d)

#define LOAD(mem, y) VMOVUPS mem, y
#define WIDENBF16(mem, y) VPMOVZXWD mem, y; VPSLLD $16, y, y
#define WIDENF16(mem, y) VCVTPH2PS mem, y
// The odd elements of 16 bf16 (upper halves), the even ones.
#define ODD(mem, y) VMOVUPS upper<>(SB), y; VPAND mem, y, y
#define EVEN(mem, y) VMOVUPS mem, y; VPSLLD $16, y, y

DATA upper<>+0(SB)/8, $0xFFFF0000FFFF0000
DATA upper<>+8(SB)/8, $0xFFFF0000FFFF0000
DATA upper<>+16(SB)/8, $0xFFFF0000FFFF0000
DATA upper<>+24(SB)/8, $0xFFFF0000FFFF0000
GLOBL upper<>(SB), RODATA|NOPTR, $32

#define ZERO1(a) VXORPS a, a, a
#define ZERO4(a, b, c, d) ZERO1(a); ZERO1(b); ZERO1(c); ZERO1(d)

// The fixed tree for four sums of one row, of which lanes 0–7 are at off(SP).
#define REDUCE4(off, a, b, c, d) \
	VADDPS      (off+0)(SP), a, a;  \
	VADDPS      (off+32)(SP), b, b; \
	VADDPS      (off+64)(SP), c, c; \
	VADDPS      (off+96)(SP), d, d; \
	VPERM2F128  $0x20, b, a, Y12;   \
	VPERM2F128  $0x31, b, a, Y13;   \
	VADDPS      Y13, Y12, Y12;      \ // four lanes of a, of b
	VPERM2F128  $0x20, d, c, Y14;   \
	VPERM2F128  $0x31, d, c, Y13;   \
	VADDPS      Y13, Y14, Y14;      \ // four lanes of c, of d
	VUNPCKLPD   Y14, Y12, Y13;      \
	VUNPCKHPD   Y14, Y12, Y12;      \
	VADDPS      Y13, Y12, Y12;      \ // two lanes of a, of c; of b, of d
	VHADDPS     Y12, Y12, Y12;      \ // a c … ; b d …
	VEXTRACTF128 $1, Y12, X13;      \
	VUNPCKLPS   X13, X12, X12;      \
	VADDPS      (AX), X12, X12;     \
	VMOVUPS     X12, (AX);          \
	ADDQ        R13, AX

// The same for one sum.
#define REDUCE1(off, a) \
	VADDPS      off(SP), a, Y12;    \
	VEXTRACTF128 $1, Y12, X13;      \
	VADDPS      X13, X12, X12;      \
	VPERMILPS   $0x4E, X12, X13;    \
	VADDPS      X13, X12, X12;      \
	VPERMILPS   $0xB1, X12, X13;    \
	VADDPS      X13, X12, X12;      \
	VADDSS      (AX), X12, X12;     \
	VMOVSS      X12, (AX);          \
	ADDQ        R13, AX

#define KEEP4(off, a, b, c, d) \
	VMOVUPS a, (off+0)(SP);  \
	VMOVUPS b, (off+32)(SP); \
	VMOVUPS c, (off+64)(SP); \
	VMOVUPS d, (off+96)(SP)

// One pass over the block; leaves SI and DI at its end.
#define PASS(G, loop) \
	MOVQ R14, CX;      \
loop:                  \
	STEP(G);           \
	ADDQ $XSTEP, SI;   \
	ADDQ $WSTEP, DI;   \
	DECQ CX;           \
	JNZ  loop

// From the end of the first pass to the start of the second, from the end of the
// second to the start of the next C rows of w.
#define SECOND \
	SUBQ R9, SI;          \
	SUBQ R10, DI;         \
	ADDQ $(XSTEP/2), SI;  \
	ADDQ $(WSTEP/2), DI
#define NEXT(bytes, c) \
	SUBQ R9, SI;          \
	SUBQ R10, DI;         \
	SUBQ $(XSTEP/2), SI;  \
	SUBQ $(WSTEP/2), DI;  \
	ADDQ $bytes, DX;      \
	SUBQ $c, BX

#define XSTEP 64
#define FLUSH
#define KEEP

// func tileF32AVX2(a *tile)
#define NAME ·tileF32AVX2(SB)
#define WSTEP 64
#define STEP(G) G(LOAD, LOAD)
#define PAIR1 H14(LOAD, LOAD, 0, 0, Y0, Y1, Y2, Y3); H14(LOAD, LOAD, 32, 32, Y4, Y5, Y6, Y7)
#include "matmul_avx2_amd64.h"
#undef NAME
#undef WSTEP
#undef STEP
#undef PAIR1

// func tileBF16AVX2(a *tile)
#define NAME ·tileBF16AVX2(SB)
#define WSTEP 32
#define STEP(G) G(LOAD, WIDENBF16)
#define PAIR1 H14(LOAD, WIDENBF16, 0, 0, Y0, Y1, Y2, Y3); H14(LOAD, WIDENBF16, 32, 16, Y4, Y5, Y6, Y7)
#include "matmul_avx2_amd64.h"
#undef NAME
#undef STEP
#undef PAIR1

// func tileF16AVX2(a *tile)
#define NAME ·tileF16AVX2(SB)
#define STEP(G) G(LOAD, WIDENF16)
#define PAIR1 H14(LOAD, WIDENF16, 0, 0, Y0, Y1, Y2, Y3); H14(LOAD, WIDENF16, 32, 16, Y4, Y5, Y6, Y7)
#include "matmul_avx2_amd64.h"
#undef NAME
#undef WSTEP
#undef STEP
#undef PAIR1
#undef FLUSH
#undef KEEP

// func tileDotAVX2(a *tile)
#define NAME ·tileDotAVX2(SB)
#define WSTEP 64
#define FLUSH LDMXCSR 384(SP)
#define KEEP LDMXCSR 388(SP)
#define STEP(G) G(ODD, ODD); G(EVEN, EVEN)
#define PAIR1 \
	H14(ODD, ODD, 0, 0, Y0, Y1, Y2, Y3);     \
	H14(EVEN, EVEN, 0, 0, Y0, Y1, Y2, Y3);   \
	H14(ODD, ODD, 32, 32, Y4, Y5, Y6, Y7);   \
	H14(EVEN, EVEN, 32, 32, Y4, Y5, Y6, Y7)
#include "matmul_avx2_amd64.h"
