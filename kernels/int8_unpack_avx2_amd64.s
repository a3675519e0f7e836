//go:build !purego

#include "textflag.h"

// The integers of blocks, as tensor.Type.UnpackIntegers defines them: of one block of 256
// elements, or of n blocks of 32. What follows in the same row is prefetched: a panel takes some
// columns of every row at a time.

#define BYTES(v, Y) \
	MOVL $v, R8; \
	VMOVD R8, X15; \
	VPBROADCASTB X15, Y

// func unpackQ8_0(dst *int8, src unsafe.Pointer, n int)
TEXT ·unpackQ8_0(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
next:
	VMOVDQU 2(SI), Y0
	VMOVDQU Y0, (DI)
	PREFETCHT1 1088(SI)
	ADDQ $34, SI
	ADDQ $32, DI
	DECQ CX
	JNZ next
	VZEROUPPER
	RET

// func unpackLevels(dst *int8, src unsafe.Pointer, n, step int, table *[16]int8)
TEXT ·unpackLevels(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ step+24(FP), DX
	MOVQ table+32(FP), BX
	VBROADCASTI128 (BX), Y13
	BYTES(0x0f, Y14)
next:
	VMOVDQU (SI), X0
	VPSRLW $4, X0, X1
	VINSERTI128 $1, X1, Y0, Y0
	VPAND Y14, Y0, Y0
	VPSHUFB Y0, Y13, Y0
	VMOVDQU Y0, (DI)
	PREFETCHT1 640(SI)
	ADDQ DX, SI
	ADDQ $32, DI
	DECQ CX
	JNZ next
	VZEROUPPER
	RET

#define NIBBLES(at, lo, hi) \
	VMOVDQU at(SI), lo; \
	VPSRLW $4, lo, hi; \
	VPAND Y14, lo, lo; \
	VPAND Y14, hi, hi

// func unpackQ4_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ4_K(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	BYTES(0x0f, Y14)
	NIBBLES(16, Y0, Y1)
	NIBBLES(48, Y2, Y3)
	NIBBLES(80, Y4, Y5)
	NIBBLES(112, Y6, Y7)
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	VMOVDQU Y2, 64(DI)
	VMOVDQU Y3, 96(DI)
	VMOVDQU Y4, 128(DI)
	VMOVDQU Y5, 160(DI)
	VMOVDQU Y6, 192(DI)
	VMOVDQU Y7, 224(DI)
	PREFETCHT1 576(SI)
	PREFETCHT1 640(SI)
	PREFETCHT1 704(SI)
	VZEROUPPER
	RET

// FIFTH moves a bit of every byte of Y8 to bit 4 and stores y with it.
#define FIFTH(shift, n, y, to) \
	shift $n, Y8, Y9; \
	VPAND Y13, Y9, Y9; \
	VPOR Y9, y, y; \
	VMOVDQU y, to(DI)

// func unpackQ5_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ5_K(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	BYTES(0x0f, Y14)
	BYTES(0x10, Y13)
	VMOVDQU 16(SI), Y8
	NIBBLES(48, Y0, Y1)
	NIBBLES(80, Y2, Y3)
	NIBBLES(112, Y4, Y5)
	NIBBLES(144, Y6, Y7)
	FIFTH(VPSLLW, 4, Y0, 0)
	FIFTH(VPSLLW, 3, Y1, 32)
	FIFTH(VPSLLW, 2, Y2, 64)
	FIFTH(VPSLLW, 1, Y3, 96)
	FIFTH(VPSLLW, 0, Y4, 128)
	FIFTH(VPSRLW, 1, Y5, 160)
	FIFTH(VPSRLW, 2, Y6, 192)
	FIFTH(VPSRLW, 3, Y7, 224)
	PREFETCHT1 704(SI)
	PREFETCHT1 768(SI)
	PREFETCHT1 832(SI)
	VZEROUPPER
	RET

// SIXTH is FIFTH for two bits, and subtracts 32.
#define SIXTH(shift, n, y, to) \
	shift $n, Y8, Y9; \
	VPAND Y13, Y9, Y9; \
	VPOR Y9, y, y; \
	VPSUBB Y12, y, y; \
	VMOVDQU y, to(DI)

// func unpackQ6_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ6_K(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	BYTES(0x0f, Y14)
	BYTES(0x30, Y13)
	BYTES(32, Y12)
	NIBBLES(0, Y0, Y2)
	NIBBLES(32, Y1, Y3)
	VMOVDQU 128(SI), Y8
	SIXTH(VPSLLW, 4, Y0, 0)
	SIXTH(VPSLLW, 2, Y1, 32)
	SIXTH(VPSLLW, 0, Y2, 64)
	SIXTH(VPSRLW, 2, Y3, 96)
	NIBBLES(64, Y0, Y2)
	NIBBLES(96, Y1, Y3)
	VMOVDQU 160(SI), Y8
	SIXTH(VPSLLW, 4, Y0, 128)
	SIXTH(VPSLLW, 2, Y1, 160)
	SIXTH(VPSLLW, 0, Y2, 192)
	SIXTH(VPSRLW, 2, Y3, 224)
	PREFETCHT1 840(SI)
	PREFETCHT1 904(SI)
	PREFETCHT1 968(SI)
	PREFETCHT1 1032(SI)
	VZEROUPPER
	RET

// Bit i of a word, for byte i of four bytes that hold the word.
DATA unpackBit<>+0(SB)/8, $0x8040201008040201
GLOBL unpackBit<>(SB), RODATA|NOPTR, $8

// Every byte of a word eight times.
DATA unpackByte<>+0(SB)/8, $0x0000000000000000
DATA unpackByte<>+8(SB)/8, $0x0101010101010101
DATA unpackByte<>+16(SB)/8, $0x0202020202020202
DATA unpackByte<>+24(SB)/8, $0x0303030303030303
GLOBL unpackByte<>(SB), RODATA|NOPTR, $32

// func unpackFifth(dst *int8, src unsafe.Pointer, n, step int, less int8)
TEXT ·unpackFifth(SB), NOSPLIT, $0-33
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVQ step+24(FP), DX
	VPBROADCASTB less+32(FP), Y12
	VPBROADCASTQ unpackBit<>(SB), Y11
	VMOVDQU unpackByte<>(SB), Y10
	BYTES(0x0f, Y14)
	BYTES(0x10, Y13)
next:
	VPBROADCASTD (SI), Y1
	VPSHUFB Y10, Y1, Y1
	VPAND Y11, Y1, Y1
	VPCMPEQB Y11, Y1, Y1
	VPAND Y13, Y1, Y1
	VMOVDQU 4(SI), X0
	VPSRLW $4, X0, X2
	VINSERTI128 $1, X2, Y0, Y0
	VPAND Y14, Y0, Y0
	VPOR Y1, Y0, Y0
	VPSUBB Y12, Y0, Y0
	VMOVDQU Y0, (DI)
	PREFETCHT1 640(SI)
	ADDQ DX, SI
	ADDQ $32, DI
	DECQ CX
	JNZ next
	VZEROUPPER
	RET

// PAIR stores two bits of every byte of Y0.
#define PAIR(shift, to) \
	VPSRLW $shift, Y0, Y1; \
	VPAND Y14, Y1, Y1; \
	VMOVDQU Y1, to(DI)

// func unpackQ2_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ2_K(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	BYTES(0x03, Y14)
	VMOVDQU 16(SI), Y0
	PAIR(0, 0)
	PAIR(2, 32)
	PAIR(4, 64)
	PAIR(6, 96)
	VMOVDQU 48(SI), Y0
	PAIR(0, 128)
	PAIR(2, 160)
	PAIR(4, 192)
	PAIR(6, 224)
	PREFETCHT1 336(SI)
	PREFETCHT1 400(SI)
	VZEROUPPER
	RET

// THIRD is PAIR, less 4 where a bit of Y8 is set.
#define THIRD(shift, move, n, to) \
	VPSRLW $shift, Y0, Y1; \
	VPAND Y14, Y1, Y1; \
	move $n, Y8, Y2; \
	VPAND Y13, Y2, Y2; \
	VPSUBB Y2, Y1, Y1; \
	VMOVDQU Y1, to(DI)

// func unpackQ3_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ3_K(SB), NOSPLIT, $0-16
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	BYTES(0x03, Y14)
	BYTES(0x04, Y13)
	VPCMPEQB Y8, Y8, Y8
	VPXOR (SI), Y8, Y8
	VMOVDQU 32(SI), Y0
	THIRD(0, VPSLLW, 2, 0)
	THIRD(2, VPSLLW, 1, 32)
	THIRD(4, VPSLLW, 0, 64)
	THIRD(6, VPSRLW, 1, 96)
	VMOVDQU 64(SI), Y0
	THIRD(0, VPSRLW, 2, 128)
	THIRD(2, VPSRLW, 3, 160)
	THIRD(4, VPSRLW, 4, 192)
	THIRD(6, VPSRLW, 5, 224)
	PREFETCHT1 440(SI)
	PREFETCHT1 504(SI)
	VZEROUPPER
	RET

#define WIDEN(at, to) \
	VPMOVSXBD at(SI), Y2; \
	VCVTDQ2PS Y2, Y2; \
	VMULPS Y0, Y2, Y2; \
	VSUBPS Y1, Y2, Y2; \
	VMOVUPS Y2, to(DI)

// func widenInt8(dst *float32, src *int8, scale, least *float32, groups int)
TEXT ·widenInt8(SB), NOSPLIT, $0-40
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ scale+16(FP), R8
	MOVQ least+24(FP), R9
	MOVQ groups+32(FP), CX
next:
	VBROADCASTSS (R8), Y0
	VBROADCASTSS (R9), Y1
	WIDEN(0, 0)
	WIDEN(8, 32)
	ADDQ $16, SI
	ADDQ $64, DI
	ADDQ $4, R8
	ADDQ $4, R9
	DECQ CX
	JNZ next
	VZEROUPPER
	RET
