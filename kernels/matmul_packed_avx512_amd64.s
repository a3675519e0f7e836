//go:build !purego

#include "go_asm.h"
#include "textflag.h"
#include "matmul_tree_avx512_amd64.h"

// Packed tiles of matrix products for AVX-512: six rows of x times any multiple of
// four rows of w. The skeleton is in matmul_packed_avx512_amd64.h; here is, per weight
// type, how x and w are widened.
//
// Packed x: vector i of six rows, i ascending. Packed w: per four rows the same of
// the whole block, vector i of four rows. A group of 32 bf16 makes two vectors, the
// odd elements before the even ones, a group of 16 one.
// Sums, per four rows of w: row r of x and c of w in vector 4r+c.

#define FMA4(a, b, c, d, x) \
	VFMADD231PS x, Z24, a; \
	VFMADD231PS x, Z25, b; \
	VFMADD231PS x, Z26, c; \
	VFMADD231PS x, Z27, d

// VECTOR is one vector of six rows of x times one of four rows of w. OLDX and OLDW load
// what is packed; p is where.
#define VECTOR(X, W, px, pw) \
	W((R12), (pw), Z24);               \
	W((R12)(R13*1), (pw+64), Z25);     \
	W((R12)(R13*2), (pw+128), Z26);    \
	W((R12)(R15*1), (pw+192), Z27);    \
	X((R8), (px), Z28);                \
	FMA4(Z0, Z1, Z2, Z3, Z28);         \
	X((R8)(R9*1), (px+64), Z29);       \
	FMA4(Z4, Z5, Z6, Z7, Z29);         \
	X((R8)(R9*2), (px+128), Z28);      \
	FMA4(Z8, Z9, Z10, Z11, Z28);       \
	X((R8)(R10*1), (px+192), Z29);     \
	FMA4(Z12, Z13, Z14, Z15, Z29);     \
	X((R8)(R9*4), (px+256), Z28);      \
	FMA4(Z16, Z17, Z18, Z19, Z28);     \
	X((R8)(R11*1), (px+320), Z29);     \
	FMA4(Z20, Z21, Z22, Z23, Z29)
#define OLDX(mem, p, z) VMOVUPS (p)(SI), z
#define OLDW(mem, p, z) VMOVUPS (p)(DI), z

#define TAKE(n, z) VMOVUPS (64*(n))(AX), z
#define PUT(n, z) VMOVUPS z, (64*(n))(AX)
#define ALL4(DO, n, a, b, c, d) DO(n, a); DO(n+1, b); DO(n+2, c); DO(n+3, d)
#define ALL(DO) \
	ALL4(DO, 0, Z0, Z1, Z2, Z3);     \
	ALL4(DO, 4, Z4, Z5, Z6, Z7);     \
	ALL4(DO, 8, Z8, Z9, Z10, Z11);   \
	ALL4(DO, 12, Z12, Z13, Z14, Z15); \
	ALL4(DO, 16, Z16, Z17, Z18, Z19); \
	ALL4(DO, 20, Z20, Z21, Z22, Z23)

#define AHEADW(mem, p, z) PREFETCHT0 (p+1024)(DI); VMOVUPS (p)(DI), z
#define STEPX ADDQ $XSTEP, R8
#define STEPW ADDQ $WSTEP, R12
#define NONE

// NEWX points at x.
#define NEWX \
	MOVQ    packedTile_x(DX), R8;   \
	MOVQ    packedTile_ldx(DX), R9; \
	LEAQ    (R9)(R9*2), R10;        \
	LEAQ    (R9)(R9*4), R11

// LOOP is the loop over the groups of a part.
#define LOOP(ODDX, EVENX, ODDW, EVENW, MOVEX, MOVEW, loop) \
loop:                                \
	PREFETCHT1 (R14);                \
	GROUP(ODDX, EVENX, ODDW, EVENW); \
	ADDQ BX, R14;                    \
	ADDQ $(384*VECTORS), SI;         \
	ADDQ $(256*VECTORS), DI;         \
	MOVEX;                           \
	MOVEW;                           \
	DECQ CX;                         \
	JNZ  loop

#define XSTEP 64

// f32 x: one vector a group, which counts as odd.
#define GROUP(ODDX, EVENX, ODDW, EVENW) VECTOR(ODDX, ODDW, 0, 0)
#define VECTORS 1
#define MXCSR 0
#define CONSTANT
#define NEWODDX(mem, p, z) VMOVUPS mem, z; VMOVUPS z, (p)(SI)
#define NEWEVENX NEWODDX
#define NEWEVENW NEWODDW

// func packedF32AVX512(a *packedTile)
#define NAME ·packedF32AVX512(SB)
#define WSTEP 64
#define NEWODDW(mem, p, z) VMOVUPS mem, z; VMOVUPS z, (p)(DI)
#include "matmul_packed_avx512_amd64.h"
#undef NAME
#undef WSTEP
#undef NEWODDW

#define WSTEP 32

// func packedBF16AVX512(a *packedTile)
#define NAME ·packedBF16AVX512(SB)
#define NEWODDW(mem, p, z) VPMOVZXWD mem, z; VPSLLD $16, z, z; VMOVUPS z, (p)(DI)
#include "matmul_packed_avx512_amd64.h"
#undef NAME
#undef NEWODDW

// func packedF16AVX512(a *packedTile)
#define NAME ·packedF16AVX512(SB)
#define NEWODDW(mem, p, z) VCVTPH2PS mem, z; VMOVUPS z, (p)(DI)
#include "matmul_packed_avx512_amd64.h"
#undef NAME
#undef NEWODDW
#undef WSTEP

// bf16 with bf16, two vectors a group.
#undef GROUP
#undef VECTORS
#undef MXCSR
#undef CONSTANT
#undef NEWODDX
#undef NEWEVENX
#undef NEWEVENW
#define GROUP(ODDX, EVENX, ODDW, EVENW) VECTOR(ODDX, ODDW, 0, 0); VECTOR(EVENX, EVENW, 384, 256)
#define VECTORS 2
#define MXCSR 0x8040 // flush to zero, denormals are zero
#define CONSTANT MOVL $0xFFFF0000, CX; VPBROADCASTD CX, Z30
#define WSTEP 64
#define NEWODDX(mem, p, z) VPANDD mem, Z30, z; VMOVUPS z, (p)(SI)
#define NEWEVENX(mem, p, z) VPSLLD $16, mem, z; VMOVUPS z, (p)(SI)
#define NEWODDW(mem, p, z) VPANDD mem, Z30, z; VMOVUPS z, (p)(DI)
#define NEWEVENW(mem, p, z) VPSLLD $16, mem, z; VMOVUPS z, (p)(DI)

// func packedDotAVX512(a *packedTile)
#define NAME ·packedDotAVX512(SB)
#include "matmul_packed_avx512_amd64.h"
