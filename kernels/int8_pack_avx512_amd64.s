//go:build !purego

#include "textflag.h"
#include "go_asm.h"

// Panels of weights for 8-bit activations: 256 columns of 32 rows in the form of a file become
// an int8Panel. The routines take sixteen rows at a time.
//
// Registers: AX the argument, DX the half of the panel; SI, R10, R11 and R12 rows 0, 4, 8 and
// 12, R8 the bytes from one row to the next, R9 three times that; DI the integers of the panel;
// R13 the address to prefetch, which moves by R14 for every 16 bytes of sixteen rows.

#define ARGUMENT \
	MOVQ a+0(FP), AX; \
	MOVQ int8Pack_stride(AX), R8; \
	LEAQ (R8)(R8*2), R9; \
	MOVQ int8Pack_ahead(AX), R13; \
	MOVQ int8Pack_each(AX), R14; \
	XORQ DX, DX

#define HALF \
	MOVQ DX, SI; \
	SHLQ $4, SI; \
	IMULQ R8, SI; \
	ADDQ int8Pack_src(AX), SI; \
	LEAQ (SI)(R8*4), R10; \
	LEAQ (SI)(R8*8), R11; \
	LEAQ (R10)(R8*8), R12; \
	MOVQ DX, DI; \
	SHLQ $6, DI; \
	ADDQ int8Pack_panel(AX), DI

#define ADVANCE(by) \
	ADDQ by, SI; \
	ADDQ by, R10; \
	ADDQ by, R11; \
	ADDQ by, R12

#define OTHERHALF(half) \
	INCQ DX; \
	CMPQ DX, $2; \
	JLT half

// ROWS16 loads 16 bytes of sixteen rows: lane l of Z0 to Z3 is from rows 4l to 4l + 3.
#define ROWS16(at) \
	VMOVDQU at(SI), X0; \
	VMOVDQU at(SI)(R8*1), X1; \
	VMOVDQU at(SI)(R8*2), X2; \
	VMOVDQU at(SI)(R9*1), X3; \
	VINSERTI128 $1, at(R10), Y0, Y0; \
	VINSERTI128 $1, at(R10)(R8*1), Y1, Y1; \
	VINSERTI128 $1, at(R10)(R8*2), Y2, Y2; \
	VINSERTI128 $1, at(R10)(R9*1), Y3, Y3; \
	VINSERTI32X4 $2, at(R11), Z0, Z0; \
	VINSERTI32X4 $2, at(R11)(R8*1), Z1, Z1; \
	VINSERTI32X4 $2, at(R11)(R8*2), Z2, Z2; \
	VINSERTI32X4 $2, at(R11)(R9*1), Z3, Z3; \
	VINSERTI32X4 $3, at(R12), Z0, Z0; \
	VINSERTI32X4 $3, at(R12)(R8*1), Z1, Z1; \
	VINSERTI32X4 $3, at(R12)(R8*2), Z2, Z2; \
	VINSERTI32X4 $3, at(R12)(R9*1), Z3, Z3

// ZIP4 sets lane l of a, b, c and d to words 0, 1, 2 and 3 of lane l of all four.
#define ZIP4(a, b, c, d) \
	VPUNPCKLDQ b, a, Z4; \
	VPUNPCKHDQ b, a, Z5; \
	VPUNPCKLDQ d, c, Z6; \
	VPUNPCKHDQ d, c, Z7; \
	VPUNPCKLQDQ Z6, Z4, a; \
	VPUNPCKHQDQ Z6, Z4, b; \
	VPUNPCKLQDQ Z7, Z5, c; \
	VPUNPCKHQDQ Z7, Z5, d

// AHEAD prefetches the first three of the four lines or so that sixteen rows of 16 bytes are: processors
// fetch lines in pairs.
#define AHEAD \
	PREFETCHT1 (R13); \
	PREFETCHT1 64(R13); \
	PREFETCHT1 128(R13); \
	ADDQ R14, R13

// QUADS sets Z0 to Z3 to four bytes each of sixteen rows.
#define QUADS(at) \
	ROWS16(at); \
	AHEAD; \
	ZIP4(Z0, Z1, Z2, Z3)

#define BYTES(x, at) \
	VPXORD Z31, x, x; \
	VMOVDQU64 x, at(DI)

// func int8PackBytesAVX512(a *int8Pack)
TEXT ·int8PackBytesAVX512(SB), NOSPLIT, $0-8
	ARGUMENT
	MOVQ int8Pack_step(AX), R15
	MOVL $0x80, CX
	VPBROADCASTB CX, Z31
half:
	HALF
	MOVQ $8, CX
block:
	QUADS(0)
	BYTES(Z0, 0)
	BYTES(Z1, 128)
	BYTES(Z2, 256)
	BYTES(Z3, 384)
	QUADS(16)
	BYTES(Z0, 512)
	BYTES(Z1, 640)
	BYTES(Z2, 768)
	BYTES(Z3, 896)
	ADVANCE(R15)
	ADDQ $1024, DI
	DECQ CX
	JNZ block
	OTHERHALF(half)
	VZEROUPPER
	RET

// LEVELS looks up the nibbles of x: the upper ones go BX further.
#define LEVELS(x, at) \
	VPSRLW $4, x, Z8; \
	VPANDD Z31, x, x; \
	VPANDD Z31, Z8, Z8; \
	VPSHUFB x, Z30, x; \
	VPSHUFB Z8, Z30, Z8; \
	VMOVDQU64 x, at(DI); \
	VMOVDQU64 Z8, at(DI)(BX*1)

#define LEVELS4 \
	QUADS(0); \
	LEVELS(Z0, 0); \
	LEVELS(Z1, 128); \
	LEVELS(Z2, 256); \
	LEVELS(Z3, 384)

// func int8PackNibblesAVX512(a *int8Pack)
TEXT ·int8PackNibblesAVX512(SB), NOSPLIT, $0-8
	ARGUMENT
	MOVQ int8Pack_step(AX), R15
	MOVL $0x0f, CX
	VPBROADCASTB CX, Z31
	MOVQ int8Pack_levels(AX), CX
	VBROADCASTI32X4 (CX), Z30
	MOVL $0x80, CX
	VPBROADCASTB CX, Z29
	VPXORD Z29, Z30, Z30
half:
	HALF
	MOVQ $4, CX
	MOVQ int8Pack_upper(AX), BX
pair:
	LEVELS4
	ADVANCE(R15)
	ADDQ $1536, DI
	SUBQ BX, DI
	LEVELS4
	ADVANCE(R15)
	LEAQ 512(DI)(BX*1), DI
	DECQ CX
	JNZ pair
	OTHERHALF(half)
	VZEROUPPER
	RET

// FIFTH is LEVELS for Q5_K: the fifth bits of the lower nibbles are the lowest of h, those of the
// upper ones the next.
#define FIFTH(x, h, at) \
	VPSRLW $4, x, Z8; \
	VPANDD Z31, x, x; \
	VPANDD Z31, Z8, Z8; \
	VPSLLW $4, h, Z9; \
	VPSLLW $3, h, Z10; \
	VPTERNLOGD $0xf8, Z30, Z9, x; \
	VPTERNLOGD $0xf8, Z30, Z10, Z8; \
	VPADDB Z29, x, x; \
	VPADDB Z29, Z8, Z8; \
	VPSRLW $2, h, h; \
	VMOVDQU64 x, at(DI); \
	VMOVDQU64 Z8, (1024+at)(DI)

// UPPER moves the results of QUADS.
#define UPPER(a, b, c, d) \
	VMOVDQA64 Z0, a; \
	VMOVDQA64 Z1, b; \
	VMOVDQA64 Z2, c; \
	VMOVDQA64 Z3, d

// func int8PackQ5_KAVX512(a *int8Pack)
TEXT ·int8PackQ5_KAVX512(SB), NOSPLIT, $0-8
	ARGUMENT
	MOVL $0x0f, CX
	VPBROADCASTB CX, Z31
	MOVL $0x10, CX
	VPBROADCASTB CX, Z30
	MOVL $(128-16), CX
	VPBROADCASTB CX, Z29
half:
	HALF
	QUADS(16)
	UPPER(Z16, Z17, Z18, Z19)
	QUADS(32)
	UPPER(Z20, Z21, Z22, Z23)
	MOVQ $4, CX
pair:
	QUADS(48)
	FIFTH(Z0, Z16, 0)
	FIFTH(Z1, Z17, 128)
	FIFTH(Z2, Z18, 256)
	FIFTH(Z3, Z19, 384)
	QUADS(64)
	FIFTH(Z0, Z20, 512)
	FIFTH(Z1, Z21, 640)
	FIFTH(Z2, Z22, 768)
	FIFTH(Z3, Z23, 896)
	ADVANCE($32)
	ADDQ $2048, DI
	DECQ CX
	JNZ pair
	OTHERHALF(half)
	VZEROUPPER
	RET

// SIXTH joins nibbles with two bits of h, which low and high shift to bits 4 and 5.
#define SIXTH(x, h, low, by, high, hby, at) \
	VPSRLW $4, x, Z8; \
	VPANDD Z31, x, x; \
	VPANDD Z31, Z8, Z8; \
	low $by, h, Z9; \
	high $hby, h, Z10; \
	VPTERNLOGD $0xf8, Z30, Z9, x; \
	VPTERNLOGD $0xf8, Z30, Z10, Z8; \
	VPADDB Z29, x, x; \
	VPADDB Z29, Z8, Z8; \
	VMOVDQU64 x, at(DI); \
	VMOVDQU64 Z8, (2048+at)(DI)

#define SIXTH4(from, h0, h1, h2, h3, by, hby, at) \
	QUADS(from); \
	SIXTH(Z0, h0, VPSLLW, by, VPSRLW, hby, at); \
	SIXTH(Z1, h1, VPSLLW, by, VPSRLW, hby, (128+at)); \
	SIXTH(Z2, h2, VPSLLW, by, VPSRLW, hby, (256+at)); \
	SIXTH(Z3, h3, VPSLLW, by, VPSRLW, hby, (384+at))

#define SIXTHS(from, upper) \
	QUADS(upper); \
	UPPER(Z16, Z17, Z18, Z19); \
	QUADS((16+upper)); \
	UPPER(Z20, Z21, Z22, Z23); \
	SIXTH4(from, Z16, Z17, Z18, Z19, 4, 0, 0); \
	SIXTH4((16+from), Z20, Z21, Z22, Z23, 4, 0, 512); \
	SIXTH4((32+from), Z16, Z17, Z18, Z19, 2, 2, 1024); \
	SIXTH4((48+from), Z20, Z21, Z22, Z23, 2, 2, 1536)

// func int8PackQ6_KAVX512(a *int8Pack)
TEXT ·int8PackQ6_KAVX512(SB), NOSPLIT, $0-8
	ARGUMENT
	MOVL $0x0f, CX
	VPBROADCASTB CX, Z31
	MOVL $0x30, CX
	VPBROADCASTB CX, Z30
	MOVL $(128-32), CX
	VPBROADCASTB CX, Z29
half:
	HALF
	SIXTHS(0, 128)
	ADDQ $4096, DI
	SIXTHS(64, 160)
	OTHERHALF(half)
	VZEROUPPER
	RET

// func int8PackHalvesAVX512(a *int8Pack, dst unsafe.Pointer, at, n, flip int)
//
// It sets [n][32] f32 to the f16 at byte at of n blocks of every row, with the bits of flip
// flipped.
TEXT ·int8PackHalvesAVX512(SB), NOSPLIT, $512-40
	ARGUMENT
	MOVQ dst+8(FP), DI
	MOVQ at+16(FP), R11
	MOVQ n+24(FP), R12
	MOVQ flip+32(FP), CX
	VPBROADCASTD CX, Z31
	ADDQ int8Pack_src(AX), R11
	LEAQ halves-512(SP), BX
	MOVQ R12, R13
block:
	MOVQ R11, SI
	MOVQ $8, CX
rows:
	MOVWLZX (SI), R14
	MOVWLZX (SI)(R8*1), R15
	MOVW R14, (BX)
	MOVW R15, 2(BX)
	MOVWLZX (SI)(R8*2), R14
	MOVWLZX (SI)(R9*1), R15
	MOVW R14, 4(BX)
	MOVW R15, 6(BX)
	LEAQ (SI)(R8*4), SI
	ADDQ $8, BX
	DECQ CX
	JNZ rows
	ADDQ int8Pack_step(AX), R11
	DECQ R13
	JNZ block
	LEAQ halves-512(SP), BX
widen:
	VCVTPH2PS (BX), Z0
	VCVTPH2PS 32(BX), Z1
	VPXORD Z31, Z0, Z0
	VPXORD Z31, Z1, Z1
	VMOVUPS Z0, (DI)
	VMOVUPS Z1, 64(DI)
	ADDQ $64, BX
	ADDQ $128, DI
	DECQ R12
	JNZ widen
	VZEROUPPER
	RET

// Bytes of a word as the uppermost of words, which a shift moves down; and pairs of bytes as
// words of 16 bits.
DATA int8Upper<>+0(SB)/8, $0x0480808000808080
DATA int8Upper<>+8(SB)/8, $0x0c80808008808080
GLOBL int8Upper<>(SB), RODATA|NOPTR, $16

DATA int8Pairs<>+0(SB)/8, $0x8005800480018000
DATA int8Pairs<>+8(SB)/8, $0x800d800c80098008
GLOBL int8Pairs<>(SB), RODATA|NOPTR, $16

#define BYTECONSTANTS \
	VBROADCASTI32X4 int8Upper<>(SB), Z29; \
	VBROADCASTI32X4 int8Pairs<>(SB), Z28

// SCALE sets Z8 to the lowest bytes of x.
#define SCALE(x) \
	VPSHUFB Z29, x, Z8; \
	VPSRAD $24, Z8, Z8; \
	VPSRLD $8, x, x

// SCALES2 stores two bytes of the words of x, R15 bytes apart, with the bits of Z30.
#define SCALES2(x) \
	SCALE(x); \
	VPANDD Z30, Z8, Z8; \
	VMOVDQU64 Z8, (BX); \
	ADDQ R15, BX; \
	SCALE(x); \
	VPANDD Z30, Z8, Z8; \
	VMOVDQU64 Z8, (BX); \
	ADDQ $128, BX

// TWICE stores a byte of the words of x twice, R15 bytes apart.
#define TWICE(x) \
	SCALE(x); \
	VMOVDQU64 Z8, (BX); \
	VMOVDQU64 Z8, (BX)(R15*1); \
	LEAQ 128(BX)(R15*1), BX

#define TWICE4(x) \
	TWICE(x); \
	TWICE(x); \
	TWICE(x); \
	TWICE(x)

#define LEAST4(x) \
	VPSHUFB Z28, x, Z8; \
	VPSRLD $16, x, x; \
	VPSHUFB Z28, x, Z9; \
	VMOVDQU64 Z8, (BX); \
	VMOVDQU64 Z9, 128(BX); \
	ADDQ $256, BX

// func int8PackScalesAVX512(a *int8Pack, dst unsafe.Pointer, at, even, mask int)
TEXT ·int8PackScalesAVX512(SB), NOSPLIT, $0-40
	ARGUMENT
	BYTECONSTANTS
	MOVQ mask+32(FP), R15
	VPBROADCASTD R15, Z30
	MOVQ even+24(FP), R15
half:
	HALF
	MOVQ DX, BX
	SHLQ $6, BX
	ADDQ dst+8(FP), BX
	ADVANCE(at+16(FP))
	ROWS16(0)
	ZIP4(Z0, Z1, Z2, Z3)
	SCALES2(Z0)
	SCALES2(Z0)
	SCALES2(Z1)
	SCALES2(Z1)
	SCALES2(Z2)
	SCALES2(Z2)
	SCALES2(Z3)
	SCALES2(Z3)
	OTHERHALF(half)
	VZEROUPPER
	RET

// func int8PackLeastAVX512(a *int8Pack, dst unsafe.Pointer, at int)
TEXT ·int8PackLeastAVX512(SB), NOSPLIT, $0-24
	ARGUMENT
	BYTECONSTANTS
half:
	HALF
	MOVQ DX, BX
	SHLQ $6, BX
	ADDQ dst+8(FP), BX
	ADVANCE(at+16(FP))
	ROWS16(0)
	ZIP4(Z0, Z1, Z2, Z3)
	LEAST4(Z0)
	LEAST4(Z1)
	LEAST4(Z2)
	LEAST4(Z3)
	OTHERHALF(half)
	VZEROUPPER
	RET

#define HALVES(x, at) \
	VPMOVDW x, Y8; \
	VCVTPH2PS Y8, Z8; \
	VMOVUPS Z8, at(DI)

// LIFT4 is LEAST4 with words shifted by X27.
#define LIFT4(x) \
	VPSHUFB Z28, x, Z8; \
	VPSRLD $16, x, x; \
	VPSHUFB Z28, x, Z9; \
	VPSLLW X27, Z8, Z8; \
	VPSLLW X27, Z9, Z9; \
	VMOVDQU64 Z8, (BX); \
	VMOVDQU64 Z9, 128(BX); \
	ADDQ $256, BX

// func int8PackHeadersAVX512(a *int8Pack, twice, shift int)
//
// The first 16 bytes of Q4_K and Q5_K: d, dmin, and 6-bit scales and minima. Scales are stored
// twice, twice bytes apart; multiplied by 1<<shift they are the panel's lift.
TEXT ·int8PackHeadersAVX512(SB), NOSPLIT, $0-24
	ARGUMENT
	BYTECONSTANTS
	MOVQ twice+8(FP), R15
	VMOVQ shift+16(FP), X27
	MOVL $0x3f3f3f3f, CX
	VPBROADCASTD CX, Z26
	MOVL $0x0f0f0f0f, CX
	VPBROADCASTD CX, Z25
	VPANDND Z26, Z25, Z24 // 0x30…
half:
	HALF
	ROWS16(0)
	ZIP4(Z0, Z1, Z2, Z3)
	HALVES(Z0, int8Panel_d)
	VPSRLD $16, Z0, Z0
	HALVES(Z0, int8Panel_min)
	VPSRLD $2, Z1, Z10
	VPSRLD $2, Z2, Z11
	VPANDD Z26, Z1, Z1
	VPANDD Z26, Z2, Z2
	VPANDD Z25, Z3, Z12
	VPSRLD $4, Z3, Z13
	VPANDD Z25, Z13, Z13
	VPTERNLOGD $0xf8, Z24, Z10, Z12
	VPTERNLOGD $0xf8, Z24, Z11, Z13
	LEAQ int8Panel_least(DI), BX
	LEAST4(Z2)
	LEAST4(Z13)
	VMOVDQA64 Z1, Z2
	VMOVDQA64 Z12, Z3
	LEAQ int8Panel_lift(DI), BX
	LIFT4(Z1)
	LIFT4(Z12)
	LEAQ int8Panel_scale(DI), BX
	TWICE4(Z2)
	TWICE4(Z3)
	OTHERHALF(half)
	VZEROUPPER
	RET
