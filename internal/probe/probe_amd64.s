//go:build !purego

#include "textflag.h"

// func readSSE(p unsafe.Pointer, n int)
TEXT ·readSSE(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
loop:
	MOVOU 0(SI), X0
	MOVOU 16(SI), X1
	MOVOU 32(SI), X2
	MOVOU 48(SI), X3
	MOVOU 64(SI), X4
	MOVOU 80(SI), X5
	MOVOU 96(SI), X6
	MOVOU 112(SI), X7
	ADDQ  $128, SI
	SUBQ  $128, CX
	JNE   loop
	RET

// func readAVX2(p unsafe.Pointer, n int)
TEXT ·readAVX2(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
loop:
	VMOVDQU 0(SI), Y0
	VMOVDQU 32(SI), Y1
	VMOVDQU 64(SI), Y2
	VMOVDQU 96(SI), Y3
	VMOVDQU 128(SI), Y4
	VMOVDQU 160(SI), Y5
	VMOVDQU 192(SI), Y6
	VMOVDQU 224(SI), Y7
	ADDQ    $256, SI
	SUBQ    $256, CX
	JNE     loop
	VZEROUPPER
	RET

// func readAVX512(p unsafe.Pointer, n int)
TEXT ·readAVX512(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), SI
	MOVQ n+8(FP), CX
loop:
	VMOVDQU64 0(SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VMOVDQU64 256(SI), Z4
	VMOVDQU64 320(SI), Z5
	VMOVDQU64 384(SI), Z6
	VMOVDQU64 448(SI), Z7
	ADDQ      $512, SI
	SUBQ      $512, CX
	JNE       loop
	VZEROUPPER
	RET

// Four streams, a quarter of the bytes each, two lines of each at a time, and what follows
// in AHEAD bytes asked for.
#define FOURAVX2(AHEAD) \
	MOVQ p+0(FP), SI; \
	MOVQ n+8(FP), CX; \
	SHRQ $2, CX; \
	LEAQ (SI)(CX*1), R8; \
	LEAQ (SI)(CX*2), R9; \
	LEAQ (R8)(CX*2), R10; \
loop: \
	PREFETCHT1 AHEAD(SI); \
	PREFETCHT1 (AHEAD+64)(SI); \
	VMOVDQU 0(SI), Y0; \
	VMOVDQU 32(SI), Y1; \
	VMOVDQU 64(SI), Y2; \
	VMOVDQU 96(SI), Y3; \
	PREFETCHT1 AHEAD(R8); \
	PREFETCHT1 (AHEAD+64)(R8); \
	VMOVDQU 0(R8), Y4; \
	VMOVDQU 32(R8), Y5; \
	VMOVDQU 64(R8), Y6; \
	VMOVDQU 96(R8), Y7; \
	PREFETCHT1 AHEAD(R9); \
	PREFETCHT1 (AHEAD+64)(R9); \
	VMOVDQU 0(R9), Y0; \
	VMOVDQU 32(R9), Y1; \
	VMOVDQU 64(R9), Y2; \
	VMOVDQU 96(R9), Y3; \
	PREFETCHT1 AHEAD(R10); \
	PREFETCHT1 (AHEAD+64)(R10); \
	VMOVDQU 0(R10), Y4; \
	VMOVDQU 32(R10), Y5; \
	VMOVDQU 64(R10), Y6; \
	VMOVDQU 96(R10), Y7; \
	ADDQ $128, SI; \
	ADDQ $128, R8; \
	ADDQ $128, R9; \
	ADDQ $128, R10; \
	SUBQ $128, CX; \
	JNE loop; \
	VZEROUPPER; \
	RET

// Four streams, a quarter of the bytes each, and what follows in 2 KiB asked for.
//
// func streamsAVX2(p unsafe.Pointer, n int)
TEXT ·streamsAVX2(SB), NOSPLIT, $0-16
	FOURAVX2(2048)

// Four streams, a quarter of the bytes each, and what follows in 1 KiB asked for.
//
// func nearAVX2(p unsafe.Pointer, n int)
TEXT ·nearAVX2(SB), NOSPLIT, $0-16
	FOURAVX2(1024)

// Four streams, a quarter of the bytes each, two lines of each at a time, and what follows
// in AHEAD bytes asked for.
#define FOURAVX512(AHEAD) \
	MOVQ p+0(FP), SI; \
	MOVQ n+8(FP), CX; \
	SHRQ $2, CX; \
	LEAQ (SI)(CX*1), R8; \
	LEAQ (SI)(CX*2), R9; \
	LEAQ (R8)(CX*2), R10; \
loop: \
	PREFETCHT1 AHEAD(SI); \
	PREFETCHT1 (AHEAD+64)(SI); \
	VMOVDQU64 0(SI), Z0; \
	VMOVDQU64 64(SI), Z1; \
	PREFETCHT1 AHEAD(R8); \
	PREFETCHT1 (AHEAD+64)(R8); \
	VMOVDQU64 0(R8), Z2; \
	VMOVDQU64 64(R8), Z3; \
	PREFETCHT1 AHEAD(R9); \
	PREFETCHT1 (AHEAD+64)(R9); \
	VMOVDQU64 0(R9), Z4; \
	VMOVDQU64 64(R9), Z5; \
	PREFETCHT1 AHEAD(R10); \
	PREFETCHT1 (AHEAD+64)(R10); \
	VMOVDQU64 0(R10), Z6; \
	VMOVDQU64 64(R10), Z7; \
	ADDQ $128, SI; \
	ADDQ $128, R8; \
	ADDQ $128, R9; \
	ADDQ $128, R10; \
	SUBQ $128, CX; \
	JNE loop; \
	VZEROUPPER; \
	RET

// Four streams, a quarter of the bytes each, and what follows in 2 KiB asked for.
//
// func streamsAVX512(p unsafe.Pointer, n int)
TEXT ·streamsAVX512(SB), NOSPLIT, $0-16
	FOURAVX512(2048)

// Four streams, a quarter of the bytes each, and what follows in 1 KiB asked for.
//
// func nearAVX512(p unsafe.Pointer, n int)
TEXT ·nearAVX512(SB), NOSPLIT, $0-16
	FOURAVX512(1024)

// FOURSTREAMS reads four streams, a quarter of the bytes each, of which BODY reads STEP bytes each.
#define FOURSTREAMS(STEP, BODY) \
	MOVQ p+0(FP), SI; \
	MOVQ n+8(FP), CX; \
	SHRQ $2, CX; \
	LEAQ (CX)(CX*2), R8; \
	MOVQ CX, R9; \
loop: \
	BODY; \
	ADDQ $STEP, SI; \
	SUBQ $STEP, R9; \
	JNE loop; \
	VZEROUPPER; \
	RET

// ASK prefetches, LOAD loads the same place in all four streams.
#define ASK(OP, off) OP off(SI); OP off(SI)(CX*1); OP off(SI)(CX*2); OP off(SI)(R8*1)
#define LOAD(OP, off, a, b, c, d) OP off(SI), a; OP off(SI)(CX*1), b; OP off(SI)(CX*2), c; OP off(SI)(R8*1), d

#define LINEAVX2(off) LOAD(VMOVDQU, off, Y0, Y1, Y2, Y3); LOAD(VMOVDQU, (off+32), Y4, Y5, Y6, Y7)
#define LINEAVX512(off) LOAD(VMOVDQU64, off, Z0, Z1, Z2, Z3)

// AHEADLINE asks for the line in 1.5 KiB; AHEADPAIR for one line of two in 3 KiB, and for the
// next two lines as the first to leave the first-level cache.
#define AHEADLINE ASK(PREFETCHT1, 1536)
#define AHEADPAIR ASK(PREFETCHT1, 3072); ASK(PREFETCHNTA, 128); ASK(PREFETCHNTA, 192)

#define LINESAVX2 AHEADLINE; LINEAVX2(0)
#define PAIRSAVX2 AHEADPAIR; LINEAVX2(0); LINEAVX2(64)
#define LINESAVX512 AHEADLINE; LINEAVX512(0)
#define PAIRSAVX512 AHEADPAIR; LINEAVX512(0); LINEAVX512(64)

// func linesAVX2(p unsafe.Pointer, n int)
TEXT ·linesAVX2(SB), NOSPLIT, $0-16
	FOURSTREAMS(64, LINESAVX2)

// func pairsAVX2(p unsafe.Pointer, n int)
TEXT ·pairsAVX2(SB), NOSPLIT, $0-16
	FOURSTREAMS(128, PAIRSAVX2)

// func linesAVX512(p unsafe.Pointer, n int)
TEXT ·linesAVX512(SB), NOSPLIT, $0-16
	FOURSTREAMS(64, LINESAVX512)

// func pairsAVX512(p unsafe.Pointer, n int)
TEXT ·pairsAVX512(SB), NOSPLIT, $0-16
	FOURSTREAMS(128, PAIRSAVX512)

// func fmaAVX2(n int)
//
// Y0–Y13 sums, Y14, Y15 ones. A latency of 4 cycles with two units, or 5 with
// two, leaves 8 to 10 in flight.
TEXT ·fmaAVX2(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
	MOVL $0x3f800000, AX
	VMOVD AX, X14
	VBROADCASTSS X14, Y14
	VMOVAPS Y14, Y15
	VMOVAPS Y14, Y0
	VMOVAPS Y14, Y1
	VMOVAPS Y14, Y2
	VMOVAPS Y14, Y3
	VMOVAPS Y14, Y4
	VMOVAPS Y14, Y5
	VMOVAPS Y14, Y6
	VMOVAPS Y14, Y7
	VMOVAPS Y14, Y8
	VMOVAPS Y14, Y9
	VMOVAPS Y14, Y10
	VMOVAPS Y14, Y11
	VMOVAPS Y14, Y12
	VMOVAPS Y14, Y13
loop:
	VFMADD231PS Y14, Y15, Y0
	VFMADD231PS Y14, Y15, Y1
	VFMADD231PS Y14, Y15, Y2
	VFMADD231PS Y14, Y15, Y3
	VFMADD231PS Y14, Y15, Y4
	VFMADD231PS Y14, Y15, Y5
	VFMADD231PS Y14, Y15, Y6
	VFMADD231PS Y14, Y15, Y7
	VFMADD231PS Y14, Y15, Y8
	VFMADD231PS Y14, Y15, Y9
	VFMADD231PS Y14, Y15, Y10
	VFMADD231PS Y14, Y15, Y11
	VFMADD231PS Y14, Y15, Y12
	VFMADD231PS Y14, Y15, Y13
	DECQ CX
	JNE  loop
	VZEROUPPER
	RET

// ONES sets Z0–Z23 to zero, Z30 and Z31 to the 32-bit pattern p in every lane.
#define ONES(p) \
	MOVL p, AX \
	VPBROADCASTD AX, Z30 \
	VPBROADCASTD AX, Z31 \
	VPXORD Z0, Z0, Z0 \
	VMOVDQA64 Z0, Z1 \
	VMOVDQA64 Z0, Z2 \
	VMOVDQA64 Z0, Z3 \
	VMOVDQA64 Z0, Z4 \
	VMOVDQA64 Z0, Z5 \
	VMOVDQA64 Z0, Z6 \
	VMOVDQA64 Z0, Z7 \
	VMOVDQA64 Z0, Z8 \
	VMOVDQA64 Z0, Z9 \
	VMOVDQA64 Z0, Z10 \
	VMOVDQA64 Z0, Z11 \
	VMOVDQA64 Z0, Z12 \
	VMOVDQA64 Z0, Z13 \
	VMOVDQA64 Z0, Z14 \
	VMOVDQA64 Z0, Z15 \
	VMOVDQA64 Z0, Z16 \
	VMOVDQA64 Z0, Z17 \
	VMOVDQA64 Z0, Z18 \
	VMOVDQA64 Z0, Z19 \
	VMOVDQA64 Z0, Z20 \
	VMOVDQA64 Z0, Z21 \
	VMOVDQA64 Z0, Z22 \
	VMOVDQA64 Z0, Z23

// func fmaAVX512(n int)
TEXT ·fmaAVX512(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
	ONES($0x3f800000)
loop:
	VFMADD231PS Z30, Z31, Z0
	VFMADD231PS Z30, Z31, Z1
	VFMADD231PS Z30, Z31, Z2
	VFMADD231PS Z30, Z31, Z3
	VFMADD231PS Z30, Z31, Z4
	VFMADD231PS Z30, Z31, Z5
	VFMADD231PS Z30, Z31, Z6
	VFMADD231PS Z30, Z31, Z7
	VFMADD231PS Z30, Z31, Z8
	VFMADD231PS Z30, Z31, Z9
	VFMADD231PS Z30, Z31, Z10
	VFMADD231PS Z30, Z31, Z11
	VFMADD231PS Z30, Z31, Z12
	VFMADD231PS Z30, Z31, Z13
	VFMADD231PS Z30, Z31, Z14
	VFMADD231PS Z30, Z31, Z15
	VFMADD231PS Z30, Z31, Z16
	VFMADD231PS Z30, Z31, Z17
	VFMADD231PS Z30, Z31, Z18
	VFMADD231PS Z30, Z31, Z19
	VFMADD231PS Z30, Z31, Z20
	VFMADD231PS Z30, Z31, Z21
	VFMADD231PS Z30, Z31, Z22
	VFMADD231PS Z30, Z31, Z23
	DECQ CX
	JNE  loop
	VZEROUPPER
	RET

// VDPBF16PS Z31, Z30, Zd, which the assembler does not know: EVEX.512.F3.0F38.W0
// 52 /r. The byte after 62 holds the upper bits of d, inverted; modrm the lower.
#define DOT(bits, modrm) BYTE $0x62; BYTE $bits; BYTE $0x0E; BYTE $0x40; BYTE $0x52; BYTE $modrm

// func dotAVX512BF16(n int)
//
// 24 sums: the latency of 6.5 cycles on Zen 5, with two units, needs 13.
TEXT ·dotAVX512BF16(SB), NOSPLIT, $0-8
	MOVQ n+0(FP), CX
	ONES($0x3f803f80)
loop:
	DOT(0x92, 0xC7)
	DOT(0x92, 0xCF)
	DOT(0x92, 0xD7)
	DOT(0x92, 0xDF)
	DOT(0x92, 0xE7)
	DOT(0x92, 0xEF)
	DOT(0x92, 0xF7)
	DOT(0x92, 0xFF)
	DOT(0x12, 0xC7)
	DOT(0x12, 0xCF)
	DOT(0x12, 0xD7)
	DOT(0x12, 0xDF)
	DOT(0x12, 0xE7)
	DOT(0x12, 0xEF)
	DOT(0x12, 0xF7)
	DOT(0x12, 0xFF)
	DOT(0x82, 0xC7)
	DOT(0x82, 0xCF)
	DOT(0x82, 0xD7)
	DOT(0x82, 0xDF)
	DOT(0x82, 0xE7)
	DOT(0x82, 0xEF)
	DOT(0x82, 0xF7)
	DOT(0x82, 0xFF)
	DECQ CX
	JNE  loop
	VZEROUPPER
	RET
