//go:build !purego

#include "textflag.h"
#include "neon_arm64.h"
#include "int8_neon_arm64.h"

// The integers of blocks, as tensor.Type.UnpackIntegers defines them: of one block of 256
// elements, or of n blocks of 32.

// func unpackQ8_0(dst *int8, src unsafe.Pointer, n int)
TEXT ·unpackQ8_0(SB), NOSPLIT, $0-24
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
	ADD $2, R2
	MOVD $34, R4
next:
	VLD1.P (R2)(R4), [V0.B16, V1.B16]
	VST1.P [V0.B16, V1.B16], 32(R1)
	SUB $1, R3
	CBNZ R3, next
	RET

// func unpackLevels(dst *int8, src unsafe.Pointer, n, step int, table *[16]int8)
TEXT ·unpackLevels(SB), NOSPLIT, $0-40
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
	MOVD step+24(FP), R4
	MOVD table+32(FP), R5
	VLD1 (R5), [V16.B16]
	BYTES(0x0f, V17)
next:
	VLD1.P (R2)(R4), [V0.B16]
	VUSHR $4, V0.B16, V1.B16
	VAND V17.B16, V0.B16, V0.B16
	VTBL V1.B16, [V16.B16], V1.B16
	VTBL V0.B16, [V16.B16], V0.B16
	VST1.P [V0.B16, V1.B16], 32(R1)
	SUB $1, R3
	CBNZ R3, next
	RET

// NIBBLES splits V into the lower ones, in place, and the upper ones. V17 is 0x0f.
#define NIBBLES(V, hi) \
	VUSHR $4, V.B16, hi.B16; \
	VAND V17.B16, V.B16, V.B16

// func unpackQ4_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ4_K(SB), NOSPLIT, $0-16
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	ADD $16, R2
	BYTES(0x0f, V17)
	MOVD $2, R3
next:
	VLD1.P 64(R2), [V0.B16, V1.B16, V2.B16, V3.B16]
	NIBBLES(V0, V4)
	NIBBLES(V1, V5)
	NIBBLES(V2, V6)
	NIBBLES(V3, V7)
	VST1.P [V0.B16, V1.B16], 32(R1)
	VST1.P [V4.B16, V5.B16], 32(R1)
	VST1.P [V2.B16, V3.B16], 32(R1)
	VST1.P [V6.B16, V7.B16], 32(R1)
	SUB $1, R3
	CBNZ R3, next
	RET

// ONTO sets bits of y to those of F, shifted, where V19 has them.
#define ONTO(shift, n, F, y) \
	shift $n, F.B16, V20.B16; \
	VAND V19.B16, V20.B16, V20.B16; \
	VORR V20.B16, y.B16, y.B16

// func unpackQ5_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ5_K(SB), NOSPLIT, $0-16
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	ADD $16, R2
	VLD1.P 32(R2), [V22.B16, V23.B16] // fifth bits: from the lowest on those of 32 elements each
	BYTES(0x0f, V17)
	BYTES(0x10, V19)
	MOVD $4, R3
next:
	VLD1.P 32(R2), [V0.B16, V1.B16]
	NIBBLES(V0, V2)
	NIBBLES(V1, V3)
	ONTO(VSHL, 4, V22, V0)
	ONTO(VSHL, 4, V23, V1)
	ONTO(VSHL, 3, V22, V2)
	ONTO(VSHL, 3, V23, V3)
	VUSHR $2, V22.B16, V22.B16
	VUSHR $2, V23.B16, V23.B16
	VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R1)
	SUB $1, R3
	CBNZ R3, next
	RET

// LESS32 subtracts 32, which is V18.
#define LESS32(a, b, c, d) \
	VSUB V18.B16, a.B16, a.B16; \
	VSUB V18.B16, b.B16, b.B16; \
	VSUB V18.B16, c.B16, c.B16; \
	VSUB V18.B16, d.B16, d.B16

// func unpackQ6_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ6_K(SB), NOSPLIT, $0-16
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	ADD $128, R2, R4
	BYTES(0x0f, V17)
	BYTES(32, V18)
	BYTES(0x30, V19)
	MOVD $2, R3
next:
	VLD1.P 64(R2), [V0.B16, V1.B16, V2.B16, V3.B16]
	VLD1.P 32(R4), [V22.B16, V23.B16]
	NIBBLES(V0, V4)
	NIBBLES(V1, V5)
	NIBBLES(V2, V6)
	NIBBLES(V3, V7)
	ONTO(VSHL, 4, V22, V0)
	ONTO(VSHL, 4, V23, V1)
	ONTO(VSHL, 2, V22, V2)
	ONTO(VSHL, 2, V23, V3)
	VAND V19.B16, V22.B16, V20.B16
	VORR V20.B16, V4.B16, V4.B16
	VAND V19.B16, V23.B16, V20.B16
	VORR V20.B16, V5.B16, V5.B16
	ONTO(VUSHR, 2, V22, V6)
	ONTO(VUSHR, 2, V23, V7)
	LESS32(V0, V1, V2, V3)
	LESS32(V4, V5, V6, V7)
	VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R1)
	VST1.P [V4.B16, V5.B16, V6.B16, V7.B16], 64(R1)
	SUB $1, R3
	CBNZ R3, next
	RET

// Bit i of a byte, for element i of eight that share it.
DATA unpackBit<>+0(SB)/8, $0x8040201008040201
DATA unpackBit<>+8(SB)/8, $0x8040201008040201
GLOBL unpackBit<>(SB), RODATA|NOPTR, $16

// Every byte of a word eight times.
DATA unpackByte<>+0(SB)/8, $0x0000000000000000
DATA unpackByte<>+8(SB)/8, $0x0101010101010101
DATA unpackByte<>+16(SB)/8, $0x0202020202020202
DATA unpackByte<>+24(SB)/8, $0x0303030303030303
GLOBL unpackByte<>(SB), RODATA|NOPTR, $32

// func unpackFifth(dst *int8, src unsafe.Pointer, n, step int, less int8)
TEXT ·unpackFifth(SB), NOSPLIT, $0-33
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD n+16(FP), R3
	MOVD step+24(FP), R4
	MOVB less+32(FP), R5
	VDUP R5, V18.B16
	MOVD $unpackBit<>(SB), R6
	VLD1 (R6), [V21.B16]
	MOVD $unpackByte<>(SB), R6
	VLD1 (R6), [V22.B16, V23.B16]
	BYTES(0x0f, V17)
	BYTES(0x10, V19)
next:
	VLD1R (R2), [V4.S4]
	ADD $4, R2, R7
	VLD1 (R7), [V0.B16]
	VUSHR $4, V0.B16, V1.B16
	VAND V17.B16, V0.B16, V0.B16
	VTBL V23.B16, [V4.B16], V5.B16
	VTBL V22.B16, [V4.B16], V4.B16
	VCMTST V21.B16, V4.B16, V4.B16
	VCMTST V21.B16, V5.B16, V5.B16
	VAND V19.B16, V4.B16, V4.B16
	VAND V19.B16, V5.B16, V5.B16
	VORR V4.B16, V0.B16, V0.B16
	VORR V5.B16, V1.B16, V1.B16
	VSUB V18.B16, V0.B16, V0.B16
	VSUB V18.B16, V1.B16, V1.B16
	VST1.P [V0.B16, V1.B16], 32(R1)
	ADD R4, R2
	SUB $1, R3
	CBNZ R3, next
	RET

// PAIRS sets V0 to V7 to the four pairs of bits of the bytes of V0 and V1, the lowest pairs in
// V0 and V1. V17 is 0x03.
#define PAIRS \
	VUSHR $2, V0.B16, V2.B16; \
	VUSHR $2, V1.B16, V3.B16; \
	VUSHR $4, V0.B16, V4.B16; \
	VUSHR $4, V1.B16, V5.B16; \
	VUSHR $6, V0.B16, V6.B16; \
	VUSHR $6, V1.B16, V7.B16; \
	VAND V17.B16, V0.B16, V0.B16; \
	VAND V17.B16, V1.B16, V1.B16; \
	VAND V17.B16, V2.B16, V2.B16; \
	VAND V17.B16, V3.B16, V3.B16; \
	VAND V17.B16, V4.B16, V4.B16; \
	VAND V17.B16, V5.B16, V5.B16

// func unpackQ2_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ2_K(SB), NOSPLIT, $0-16
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	ADD $16, R2
	BYTES(0x03, V17)
	MOVD $2, R3
next:
	VLD1.P 32(R2), [V0.B16, V1.B16]
	PAIRS
	VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R1)
	VST1.P [V4.B16, V5.B16, V6.B16, V7.B16], 64(R1)
	SUB $1, R3
	CBNZ R3, next
	RET

// THIRD subtracts 4 from y where a bit of F, shifted to bit 2, is clear. V19 is 0x04.
#define THIRD(shift, n, F, y) \
	shift $n, F.B16, V20.B16; \
	VAND V19.B16, V20.B16, V20.B16; \
	VADD V20.B16, y.B16, y.B16; \
	VSUB V19.B16, y.B16, y.B16

// func unpackQ3_K(dst *int8, src unsafe.Pointer)
TEXT ·unpackQ3_K(SB), NOSPLIT, $0-16
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	VLD1.P 32(R2), [V22.B16, V23.B16] // third bits: from the lowest on those of 32 elements each
	BYTES(0x03, V17)
	BYTES(0x04, V19)
	MOVD $2, R3
next:
	VLD1.P 32(R2), [V0.B16, V1.B16]
	PAIRS
	THIRD(VSHL, 2, V22, V0)
	THIRD(VSHL, 2, V23, V1)
	THIRD(VSHL, 1, V22, V2)
	THIRD(VSHL, 1, V23, V3)
	THIRD(VSHL, 0, V22, V4)
	THIRD(VSHL, 0, V23, V5)
	THIRD(VUSHR, 1, V22, V6)
	THIRD(VUSHR, 1, V23, V7)
	VUSHR $4, V22.B16, V22.B16
	VUSHR $4, V23.B16, V23.B16
	VST1.P [V0.B16, V1.B16, V2.B16, V3.B16], 64(R1)
	VST1.P [V4.B16, V5.B16, V6.B16, V7.B16], 64(R1)
	SUB $1, R3
	CBNZ R3, next
	RET

// WIDEN sets V4 and V5 to the eight int16 of V3, times V1, minus V2.
#define WIDEN \
	SXTL(3, 4); \
	SXTL2(3, 5); \
	SCVTF(4, 4); \
	SCVTF(5, 5); \
	FMUL(1, 4, 4); \
	FMUL(1, 5, 5); \
	FSUB(2, 4, 4); \
	FSUB(2, 5, 5)

// func widenInt8(dst *float32, src *int8, scale, least *float32, groups int)
TEXT ·widenInt8(SB), NOSPLIT, $0-40
	MOVD dst+0(FP), R1
	MOVD src+8(FP), R2
	MOVD scale+16(FP), R3
	MOVD least+24(FP), R4
	MOVD groups+32(FP), R5
next:
	VLD1.P 16(R2), [V0.B16]
	VLD1R.P 4(R3), [V1.S4]
	VLD1R.P 4(R4), [V2.S4]
	SXTL16(0, 3)
	WIDEN
	VST1.P [V4.S4, V5.S4], 32(R1)
	SXTL216(0, 3)
	WIDEN
	VST1.P [V4.S4, V5.S4], 32(R1)
	SUB $1, R5
	CBNZ R5, next
	RET
