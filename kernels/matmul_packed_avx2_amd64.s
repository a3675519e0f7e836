//go:build !purego

#include "go_asm.h"
#include "textflag.h"

// Tiles of six rows of bf16 x and any even number of rows of bf16 w for AVX2. x is
// widened once, by the first pair of rows of w, into a copy that stays in the
// first-level cache; so a step needs few instructions beside its multiplications,
// and w comes from the second-level cache once for six rows. Both leave room for
// whoever shares the core.
//
// A part of the block is at most packedSteps groups. What the lanes of a pair hold
// at its end waits in memory, since the next pair comes first.
//
// Packed x, per group of 32 elements: the odd elements of lanes 0–7 of six rows,
// the even ones, the same of lanes 8–15; 24 vectors.
// Sums, per pair of rows of w: lanes 0–7 of row r and column c in vector 2r+c,
// then lanes 8–15; 24 vectors.
//
// Registers of tilePackedAVX2
//	DI  w, row 0      R11 row distance of w                      AX  packed x
//	SI  x, row 0      DX  x, row 3     R8  row distance of x     R9  sums
//	BX  rows of w left    R14 bytes of the part in packed x, R13 in a row of x or w
//	CX  bytes left in a row, negative
//	R10 end of what to prefetch    R15 list of what to prefetch    R12 bytes of earlier parts
//	Y0–Y11 sums, row r and column c in 2r+c; Y12, Y13 w; Y14 upper; Y15 x
//	0(SP), 4(SP) MXCSR flushing, as found; 8(SP) 1 after an even pair
// Once x is packed, SI is where w is read.

// The upper half of a pair of bf16: the odd element, as f32.
DATA upper<>+0(SB)/4, $0xffff0000
GLOBL upper<>(SB), RODATA|NOPTR, $4
DATA negative<>+0(SB)/8, $0x8000000080000000
DATA negative<>+8(SB)/8, $0x8000000080000000
GLOBL negative<>(SB), RODATA|NOPTR, $16

#define MUL(a, b) VFMADD231PS Y12, Y15, a; VFMADD231PS Y13, Y15, b
#define ODD(m0, m1) VANDPS m0, Y14, Y12; VANDPS m1, Y14, Y13
#define EVEN(m0, m1) \
	VMOVUPS m0, Y12;        \
	VPSLLD  $16, Y12, Y12;  \
	VMOVUPS m1, Y13;        \
	VPSLLD  $16, Y13, Y13

// Half a group with packed x: o is where it is in rows of w, p in packed x. In front of
// lanes 8–15 there is something to read: loaded two bytes earlier, their even elements
// are where the odd ones are.
#define ROW(p, a, b) VMOVUPS (p)(AX), Y15; MUL(a, b)
#define SIX(p) \
	ROW((p), Y0, Y1);        \
	ROW((p+32), Y2, Y3);     \
	ROW((p+64), Y4, Y5);     \
	ROW((p+96), Y6, Y7);     \
	ROW((p+128), Y8, Y9);    \
	ROW((p+160), Y10, Y11)
#define LOWER(o, p) \
	ODD((o)(SI), (o)(SI)(R11*1));      \
	SIX(p);                            \
	EVEN((o)(SI), (o)(SI)(R11*1));     \
	SIX((p+192))
#define UPPER(o, p) \
	ODD((o)(SI), (o)(SI)(R11*1));      \
	SIX(p);                            \
	ODD((o-2)(SI), (o-2)(SI)(R11*1));  \
	SIX((p+192))

// Half a group with x as it is, which is packed on the way.
#define ODDROW(mem, p, a, b) VANDPS mem, Y14, Y15; VMOVUPS Y15, (p)(AX); MUL(a, b)
#define EVENROW(mem, p, a, b) VMOVUPS mem, Y15; VPSLLD $16, Y15, Y15; VMOVUPS Y15, (p)(AX); MUL(a, b)
#define EACH(DO, o, p) \
	DO((o)(SI), p, Y0, Y1);                   \
	DO((o)(SI)(R8*1), (p+32), Y2, Y3);        \
	DO((o)(SI)(R8*2), (p+64), Y4, Y5);        \
	DO((o)(DX), (p+96), Y6, Y7);              \
	DO((o)(DX)(R8*1), (p+128), Y8, Y9);       \
	DO((o)(DX)(R8*2), (p+160), Y10, Y11)
#define PACKING(o, p) \
	ODD((o)(DI), (o)(DI)(R11*1));    \
	EACH(ODDROW, o, p);              \
	EVEN((o)(DI), (o)(DI)(R11*1));   \
	EACH(EVENROW, o, (p+192))

// One pass over the groups of the part, two at a time; leaves AX, and what MOVE moves, at
// its end. Of what is to be prefetched a pass takes every second line.
#define PASS(FETCH, HALF, MOVE, o, p, loop) \
	MOVQ    R13, CX;         \
	NEGQ    CX;              \
loop:                        \
	FETCH;                   \
	HALF((o), (p));          \
	HALF((o+64), (p+768));   \
	MOVE;                    \
	ADDQ    $1536, AX;       \
	ADDQ    $128, CX;        \
	JNZ     loop
#define MOVEW ADDQ $128, SI
#define MOVEXW ADDQ $128, SI; ADDQ $128, DX; ADDQ $128, DI
#define FETCH PREFETCHT1 (R10)(CX*1)
#define NOFETCH

#define GET2(o, a, b) VMOVUPS (o)(R9), a; VMOVUPS (o+32)(R9), b
#define PUT2(o, a, b) VMOVUPS a, (o)(R9); VMOVUPS b, (o+32)(R9)
#define ALL(DO, o) \
	DO((o), Y0, Y1);       \
	DO((o+64), Y2, Y3);    \
	DO((o+128), Y4, Y5);   \
	DO((o+192), Y6, Y7);   \
	DO((o+256), Y8, Y9);   \
	DO((o+320), Y10, Y11)
#define CLEAR2(o, a, b) VXORPS a, a, a; VXORPS b, b, b

// BEGIN takes up half of a pair's sums, which begin at zero in the first part.
#define BEGIN(o, get, go) \
	TESTQ   R12, R12;    \
	JNZ     get;         \
	ALL(CLEAR2, 0);      \
	JMP     go;          \
get:                     \
	ALL(GET2, o);        \
go:

// func tilePackedAVX2(a *tile)
TEXT ·tilePackedAVX2(SB), NOSPLIT, $16-8
	MOVQ    a+0(FP), CX
	MOVQ    tile_x(CX), SI
	MOVQ    tile_ldx(CX), R8
	MOVQ    tile_w(CX), DI
	MOVQ    tile_ldw(CX), R11
	MOVQ    tile_cols(CX), BX
	MOVQ    tile_step(CX), R13
	MOVQ    tile_ahead(CX), R15
	MOVQ    tile_sums(CX), R9
	MOVQ    tile_packed(CX), AX
	MOVQ    tile_part(CX), R12
	SHLQ    $6, R12
	LEAQ    (SI)(R8*2), DX
	ADDQ    R8, DX
	IMUL3Q  $768, R13, R14
	SHLQ    $6, R13
	VBROADCASTSS upper<>(SB), Y14
	STMXCSR 4(SP)
	MOVL    4(SP), CX
	ORL     $0x8040, CX         // flush to zero, denormals are zero
	MOVL    CX, 0(SP)
	LDMXCSR 0(SP)

	// An entry of the list is for two pairs: every second line for each. Where there
	// is none, what is there already is fetched.
	MOVQ    (R15), R10
	ADDQ    R12, R10
	CMPQ    (R15), $0
	CMOVQEQ DI, R10
	ADDQ    R13, R10
	MOVQ    $1, 8(SP)

	// The first pair packs, and has lanes 0–7 and then 8–15 like the others.
	BEGIN(0, packget0, packgo0)
	PASS(FETCH, PACKING, MOVEXW, 0, 0, packlower)
	ALL(PUT2, 0)
	SUBQ    R13, SI
	SUBQ    R13, DX
	SUBQ    R13, DI
	SUBQ    R14, AX
	BEGIN(384, packget1, packgo1)
	PASS(NOFETCH, PACKING, MOVEXW, 32, 384, packupper)
	ALL(PUT2, 384)
	SUBQ    R14, AX
	SUBQ    R13, DI

pair:
	SUBQ    $2, BX
	JZ      done
	LEAQ    (DI)(R11*2), DI
	ADDQ    $768, R9
	ADDQ    $64, R10
	XORQ    $1, 8(SP)
	JZ      lower
	ADDQ    $8, R15
	MOVQ    (R15), R10
	ADDQ    R12, R10
	CMPQ    (R15), $0
	CMOVQEQ DI, R10
	ADDQ    R13, R10
lower:
	BEGIN(0, get0, go0)
	MOVQ    DI, SI
	PASS(FETCH, LOWER, MOVEW, 0, 0, loop0)
	ALL(PUT2, 0)
	SUBQ    R14, AX
	BEGIN(384, get1, go1)
	MOVQ    DI, SI
	PASS(NOFETCH, UPPER, MOVEW, 32, 384, loop1)
	ALL(PUT2, 384)
	SUBQ    R14, AX
	JMP     pair
done:
	LDMXCSR 4(SP)
	VZEROUPPER
	RET

// LANES8 adds lanes 8–15 to lanes 0–7, TREE joins those of four sums, to X0.
#define LANES8(o, y) VMOVUPS (o)(R9), y; VADDPS (o+384)(R9), y, y
#define TREE(o, next) \
	LANES8(o, Y0);                  \
	LANES8((o+32), Y1);             \
	LANES8((o+next), Y2);           \
	LANES8((o+next+32), Y3);        \
	VPERM2F128   $0x20, Y1, Y0, Y4; \
	VPERM2F128   $0x31, Y1, Y0, Y5; \
	VADDPS       Y5, Y4, Y4;        \ // four lanes of 0, of 1
	VPERM2F128   $0x20, Y3, Y2, Y6; \
	VPERM2F128   $0x31, Y3, Y2, Y7; \
	VADDPS       Y7, Y6, Y6;        \ // four lanes of 2, of 3
	VUNPCKLPD    Y6, Y4, Y5;        \
	VUNPCKHPD    Y6, Y4, Y4;        \
	VADDPS       Y5, Y4, Y4;        \ // two lanes of 0, of 2; of 1, of 3
	VHADDPS      Y4, Y4, Y4;        \ // 0 2 … ; 1 3 …
	VEXTRACTF128 $1, Y4, X5;        \
	VUNPCKLPS    X5, X4, X0

// The sums are added to dst & X14 | X15: dst itself, or negative zero, the neutral
// element of addition.
#define ADDTO VANDPS X14, X1, X1; VORPS X15, X1, X1; VADDPS X1, X0, X0

// Four columns of one row, of two pairs; two columns of two rows, of one.
#define JOIN4(o) \
	PREFETCHT0 64(DX);   \
	TREE(o, 768);        \
	VMOVUPS (DX), X1;    \
	ADDTO;               \
	VMOVUPS X0, (DX);    \
	ADDQ    R13, DX
#define JOIN2(o) \
	TREE(o, 64);                     \
	VMOVSD  (DX), X1;                \
	VMOVHPD (DX)(R13*1), X1, X1;     \
	ADDTO;                           \
	VMOVLPD X0, (DX);                \
	VMOVHPD X0, (DX)(R13*1);         \
	LEAQ    (DX)(R13*2), DX

// func joinPackedAVX2(a *tile)
TEXT ·joinPackedAVX2(SB), NOSPLIT, $0-8
	MOVQ    a+0(FP), CX
	MOVQ    tile_dst(CX), DI
	MOVQ    tile_ldd(CX), R13
	MOVQ    tile_cols(CX), BX
	MOVQ    tile_sums(CX), R9
	VMOVQ   tile_add(CX), X14
	VPBROADCASTQ X14, X14
	VPANDN  negative<>(SB), X14, X15
	SUBQ    $4, BX
	JLT     last
quad:
	MOVQ    DI, DX
	JOIN4(0)
	JOIN4(64)
	JOIN4(128)
	JOIN4(192)
	JOIN4(256)
	JOIN4(320)
	ADDQ    $16, DI
	ADDQ    $1536, R9
	SUBQ    $4, BX
	JGE     quad
last:
	CMPQ    BX, $-4
	JEQ     joined
	MOVQ    DI, DX
	JOIN2(0)
	JOIN2(128)
	JOIN2(256)
joined:
	VZEROUPPER
	RET
