//go:build !purego

#include "textflag.h"

DATA alternate1<>+0(SB)/8, $0x8000000000000000
DATA alternate1<>+8(SB)/8, $0x8000000000000000
DATA alternate1<>+16(SB)/8, $0x8000000000000000
DATA alternate1<>+24(SB)/8, $0x8000000000000000
GLOBL alternate1<>(SB), RODATA|NOPTR, $32

DATA alternate2<>+0(SB)/8, $0x0000000000000000
DATA alternate2<>+8(SB)/8, $0x8000000080000000
DATA alternate2<>+16(SB)/8, $0x0000000000000000
DATA alternate2<>+24(SB)/8, $0x8000000080000000
GLOBL alternate2<>(SB), RODATA|NOPTR, $32

DATA alternate4<>+0(SB)/8, $0x0000000000000000
DATA alternate4<>+8(SB)/8, $0x0000000000000000
DATA alternate4<>+16(SB)/8, $0x8000000080000000
DATA alternate4<>+24(SB)/8, $0x8000000080000000
GLOBL alternate4<>(SB), RODATA|NOPTR, $32

DATA nibbleOrder<>+0(SB)/8, $0x0000000400000000
DATA nibbleOrder<>+8(SB)/8, $0x0000000500000001
DATA nibbleOrder<>+16(SB)/8, $0x0000000600000002
DATA nibbleOrder<>+24(SB)/8, $0x0000000700000003
GLOBL nibbleOrder<>(SB), RODATA|NOPTR, $32

// func rotatePart(x *float32, n int, factor float32)
//
// One part of n elements, a power of two from 8 on.
TEXT ·rotatePart(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), DI
	MOVQ n+8(FP), CX
	VMOVUPS alternate1<>(SB), Y13
	VMOVUPS alternate2<>(SB), Y14
	VMOVUPS alternate4<>(SB), Y15
	LEAQ (DI)(CX*4), R8 // end
	MOVQ DI, SI
eight: // x[i] + x[i+h] and x[i] - x[i+h] are the swapped register plus x with signs
	VMOVUPS (SI), Y0
	VPERMILPS $0xb1, Y0, Y1
	VXORPS Y13, Y0, Y0
	VADDPS Y0, Y1, Y0
	VPERMILPS $0x4e, Y0, Y1
	VXORPS Y14, Y0, Y0
	VADDPS Y0, Y1, Y0
	VPERM2F128 $1, Y0, Y0, Y1
	VXORPS Y15, Y0, Y0
	VADDPS Y0, Y1, Y0
	VMOVUPS Y0, (SI)
	ADDQ $32, SI
	CMPQ SI, R8
	JNE eight
	MOVQ $32, DX // h in bytes
	SHLQ $2, CX
stage:
	CMPQ DX, CX
	JEQ last
	MOVQ DI, SI
block:
	LEAQ (SI)(DX*1), R9 // end of the first half
pair:
	VMOVUPS (SI), Y0
	VMOVUPS (SI)(DX*1), Y1
	VADDPS Y1, Y0, Y2
	VSUBPS Y1, Y0, Y3
	VMOVUPS Y2, (SI)
	VMOVUPS Y3, (SI)(DX*1)
	ADDQ $32, SI
	CMPQ SI, R9
	JNE pair
	ADDQ DX, SI
	CMPQ SI, R8
	JNE block
	SHLQ $1, DX
	JMP stage
last:
	VBROADCASTSS factor+16(FP), Y1
scale:
	VMULPS (DI), Y1, Y0
	VMOVUPS Y0, (DI)
	ADDQ $32, DI
	CMPQ DI, R8
	JNE scale
	VZEROUPPER
	RET

#define ROUND(at, y) \
	VMOVUPS at(SI), y; \
	VDIVPS Y15, y, y; \
	VMAXPS Y13, y, y; \
	VMINPS Y14, y, y; \
	VCVTPS2DQ y, y

// func packNibbles(dst *byte, x *float32, s float32)
//
// A group of 32 elements, with a scale that is finite and not 0.
TEXT ·packNibbles(SB), NOSPLIT, $0-20
	MOVQ dst+0(FP), DI
	MOVQ x+8(FP), SI
	VBROADCASTSS s+16(FP), Y15
	MOVL $0x40e00000, AX // 7
	VMOVD AX, X14
	VPBROADCASTD X14, Y14
	MOVL $0xc0e00000, AX // -7
	VMOVD AX, X13
	VPBROADCASTD X13, Y13
	ROUND(0, Y0)
	ROUND(32, Y1)
	ROUND(64, Y2)
	ROUND(96, Y3)
	VPACKSSDW Y1, Y0, Y0
	VPACKSSDW Y3, Y2, Y2
	VPACKSSWB Y2, Y0, Y0
	VMOVDQU nibbleOrder<>(SB), Y12
	VPERMD Y0, Y12, Y0
	MOVL $0x08080808, AX
	VMOVD AX, X1
	VPBROADCASTD X1, Y1
	VPADDB Y1, Y0, Y0
	MOVL $0x10011001, AX // 1 and 16
	VMOVD AX, X1
	VPBROADCASTD X1, Y1
	VPMADDUBSW Y1, Y0, Y0
	VEXTRACTI128 $1, Y0, X1
	VPACKUSWB X1, X0, X0
	VMOVDQU X0, (DI)
	VZEROUPPER
	RET
