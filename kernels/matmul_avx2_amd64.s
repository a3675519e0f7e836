//go:build !purego

#include "go_asm.h"
#include "textflag.h"
#include "matmul_runs_amd64.h"

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

// The same for 16 bf16, the odd ones first: what memory may still be bringing is loaded once.
#define DOT1(mem, a) \
	VMOVUPS mem, Y15;       \
	VPAND Y11, Y15, Y14;    \
	VFMADD231PS Y14, Y13, a; \
	VPSLLD $16, Y15, Y15;   \
	VFMADD231PS Y15, Y12, a
#define DOT14(off, a, b, c, d) \
	VMOVUPS off(SI), Y12;       \
	VPAND Y11, Y12, Y13;        \
	VPSLLD $16, Y12, Y12;       \
	DOT1(off(DI), a);           \
	DOT1(off(DI)(R11*1), b);    \
	DOT1(off(DI)(R11*2), c);    \
	DOT1(off(DI)(R12*1), d)

#define LOAD(mem, y) VMOVUPS mem, y
#define WIDENBF16(mem, y) VPMOVZXWD mem, y; VPSLLD $16, y, y
#define WIDENF16(mem, y) VCVTPH2PS mem, y
// The odd elements of 16 bf16 (upper halves), the even ones.
#define ODD(mem, y) VPXOR y, y, y; VPBLENDW $0xAA, mem, y, y
#define EVEN(mem, y) VMOVUPS mem, y; VPSLLD $16, y, y

DATA signs<>+0(SB)/8, $0x8000000080000000
DATA signs<>+8(SB)/8, $0x8000000080000000
GLOBL signs<>(SB), RODATA|NOPTR, $16

#define ZERO1(a) VXORPS a, a, a
#define ZERO4(a, b, c, d) ZERO1(a); ZERO1(b); ZERO1(c); ZERO1(d)

// The fixed tree for four sums, of which lanes 0–7 are at off(SP), to X12.
#define SUM4(off, a, b, c, d) \
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
	VUNPCKLPS   X13, X12, X12

// The same for four sums of one row, added to dst at AX.
#define REDUCE4(off, a, b, c, d) \
	SUM4(off, a, b, c, d);          \
	VMOVUPS     808(SP), X13;       \
	VANDPS      (AX), X13, X13;     \
	VORPS       824(SP), X13, X13;  \
	VADDPS      X13, X12, X12;      \
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
	VMOVSS      (AX), X13;          \
	VANDPS      808(SP), X13, X13;  \
	VORPS       824(SP), X13, X13;  \
	VADDSS      X13, X12, X12;      \
	VMOVSS      X12, (AX);          \
	ADDQ        R13, AX

#define PUT4(off, a, b, c, d) \
	VMOVUPS a, (off+0)(SP);  \
	VMOVUPS b, (off+32)(SP); \
	VMOVUPS c, (off+64)(SP); \
	VMOVUPS d, (off+96)(SP)
#define GET4(off, a, b, c, d) \
	VMOVUPS (off+0)(SP), a;  \
	VMOVUPS (off+32)(SP), b; \
	VMOVUPS (off+64)(SP), c; \
	VMOVUPS (off+96)(SP), d
#define ROWS2(DO, off) DO(off, Y0, Y1, Y2, Y3); DO((off+128), Y4, Y5, Y6, Y7)
#define ROWS3(DO, off) ROWS2(DO, off); DO((off+256), Y8, Y9, Y10, Y11)
#define CLEAR4(off, a, b, c, d) ZERO4(a, b, c, d)

// Two rows of x prefetch the next quad of w, three what the list says; where it
// says nothing, what is there already.
#define NEXTQUAD LEAQ (DI)(R11*4), R10
#define AHEAD MOVQ (R15), R10; ADDQ $8, R15; TESTQ R10, R10; CMOVQEQ DI, R10
#define FETCH0
#define FETCHAHEAD PREFETCHT1 (R10); ADDQ $64, R10
#define FETCHNEAR FETCHQUAD(PREFETCHT0)
#define FETCHFAR FETCHQUAD(PREFETCHT1)
#define FETCHQUAD(OP) \
	OP (R10);        \
	OP (R10)(R11*1); \
	OP (R10)(R11*2); \
	OP (R10)(R12*1); \
	ADDQ $WSTEP, R10

// CHUNKS sums a quad of rows of w over the block, in chunks of CHUNK groups: the second
// pass finds in the first-level cache what the first has read, and the processor
// is at one while it waits for what the other reads. It
// leaves lanes 0–7 at 0(SP), lanes 8–15 in the registers, SI and DI at the end.
#define CHUNKS(chunk, lo, hi, G, AIM, FETCH, ROWS) \
	ROWS(CLEAR4, 0);     \
	ROWS(PUT4, 0);       \
	ROWS(PUT4, 384);     \
	MOVQ R14, 776(SP);   \
	AIM;                 \
	FLUSH;               \
chunk:                   \
	MOVQ $CHUNK, CX;     \
	CMPQ CX, 776(SP);    \
	CMOVQGT 776(SP), CX; \
	SUBQ CX, 776(SP);    \
	MOVQ CX, 784(SP);    \
	ROWS(GET4, 0);       \
	PASS(G, FETCH, lo); \
	ROWS(PUT4, 0);       \
	MOVQ 784(SP), CX;    \
	IMUL3Q $XSTEP, CX, AX; \
	SUBQ AX, SI;         \
	IMUL3Q $WSTEP, CX, AX; \
	SUBQ AX, DI;         \
	ADDQ $(XSTEP/2), SI; \
	ADDQ $(WSTEP/2), DI; \
	ROWS(GET4, 384);     \
	PASS(G, FETCH0, hi); \
	ROWS(PUT4, 384);     \
	SUBQ $(XSTEP/2), SI; \
	SUBQ $(WSTEP/2), DI; \
	CMPQ 776(SP), $0;    \
	JNE  chunk;          \
	KEEP

// One pass over CX groups; leaves SI and DI at their end.
#define PASS(G, FETCH, loop) \
	PCALIGN $64;       \
loop:                  \
	FETCH;             \
	STEP(G);           \
	ADDQ $XSTEP, SI;   \
	ADDQ $WSTEP, DI;   \
	DECQ CX;           \
	JNZ  loop

// BOTH sums a single row of w over the block, lanes 0–7 first; PUT puts them aside.
#define BOTH(lo, hi, G, CLEAR, PUT) \
	CLEAR;               \
	MOVQ R14, CX;        \
	FLUSH;               \
	PASS(G, FETCH0, lo); \
	PUT;                 \
	CLEAR;               \
	MOVQ R14, CX;        \
	SUBQ R9, SI;         \
	SUBQ 792(SP), DI;    \
	ADDQ $(XSTEP/2), SI; \
	ADDQ $(WSTEP/2), DI; \
	PASS(G, FETCH0, hi); \
	SUBQ $(XSTEP/2), SI; \
	SUBQ $(WSTEP/2), DI; \
	KEEP
#define CLEAR1 ZERO1(Y0)
#define CLEAR2 CLEAR1; ZERO1(Y4)
#define CLEAR3 CLEAR2; ZERO1(Y8)
#define PUT1 VMOVUPS Y0, 0(SP)
#define PUT2 PUT1; VMOVUPS Y4, 128(SP)
#define PUT3 PUT2; VMOVUPS Y8, 256(SP)

// From the end of the block to its start in the next quad or row of w.
#define QUADDONE \
	SUBQ R9, SI;          \
	SUBQ 792(SP), DI;     \
	LEAQ (DI)(R11*4), DI; \
	ADDQ $16, DX;         \
	SUBQ $4, BX
#define ONEDONE \
	SUBQ R9, SI;          \
	SUBQ 792(SP), DI;     \
	ADDQ R11, DI;         \
	ADDQ $4, DX;          \
	DECQ BX

#define PREFETCH2(OP) OP (R10); OP 64(R10)
#define PREFETCH4(OP) PREFETCH2(OP); OP 128(R10); OP 192(R10)

// A step of one row of x.
#define ONESTEP(OP) \
	PREFETCH(OP);         \
	PAIR1;                \
	ADDQ $XSTEP, SI;      \
	ADDQ $WSTEP, DI;      \
	ADDQ $(4*WSTEP), R10; \
	DECQ AX

#define XSTEP 64
#define CHUNK 8
#define NEAR 256
#define MASK
#define FLUSH
#define KEEP
// func tileF32AVX2(a *tile)
#define NAME ·tileF32AVX2(SB)
#define WSTEP 64
#define PREFETCH(OP) PREFETCH4(OP)
#define STEP(G) G(LOAD, LOAD)
#define PAIR1 H14(LOAD, LOAD, 0, 0, Y0, Y1, Y2, Y3); H14(LOAD, LOAD, 32, 32, Y4, Y5, Y6, Y7)
#include "matmul_avx2_amd64.h"
#undef NAME
#undef WSTEP
#undef PREFETCH
#undef STEP
#undef PAIR1

// func tileBF16AVX2(a *tile)
#define NAME ·tileBF16AVX2(SB)
#define WSTEP 32
#define PREFETCH(OP) PREFETCH2(OP)
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
#undef PREFETCH
#undef STEP
#undef PAIR1
#undef FLUSH
#undef KEEP
#undef CHUNK

// func tileDotAVX2(a *tile)
#define NAME ·tileDotAVX2(SB)
#define CHUNK 32 // twice the work for what a group brings, and changing passes costs
#define WSTEP 64
#define PREFETCH(OP) PREFETCH4(OP)
#define FLUSH LDMXCSR 768(SP)
#define KEEP LDMXCSR 772(SP)
#define STEP(G) G(ODD, ODD); G(EVEN, EVEN)
#undef MASK
#define MASK VPCMPEQD Y11, Y11, Y11; VPSLLD $16, Y11, Y11
#define PAIR1 DOT14(0, Y0, Y1, Y2, Y3); DOT14(32, Y4, Y5, Y6, Y7)
#include "matmul_avx2_amd64.h"
