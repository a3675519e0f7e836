//go:build !purego

#include "textflag.h"
#include "go_asm.h"

// Rows of activations as 8-bit integers by 256 columns (at most) of four rows of weights,
// which are int16; see int8Quad.
//
// Registers: BX q, SI scales, R11 sums of the current row, R8 the distance of rows, DI w, DX
// acc, CX rows left, AX the argument.

#define ROWS \
	MOVQ a+0(FP), AX; \
	MOVQ int8QuadTile_stride(AX), R8; \
	MOVQ int8QuadTile_q(AX), BX; \
	MOVQ int8QuadTile_scale(AX), SI; \
	MOVQ int8QuadTile_sums(AX), R11; \
	MOVQ int8QuadTile_quad(AX), DI; \
	MOVQ int8QuadTile_acc(AX), DX; \
	MOVQ int8QuadTile_rows(AX), CX

#define NEXT \
	ADDQ R8, BX; \
	ADDQ R8, SI; \
	ADDQ R8, R11; \
	ADDQ $16, DX; \
	DECQ CX

#define FIRST(i) \
	VPMOVSXBW (16*i)(BX), Y4; \
	VPMADDWD (32*i)(DI), Y4, Y0; \
	VPMADDWD (512+32*i)(DI), Y4, Y1; \
	VPMADDWD (1024+32*i)(DI), Y4, Y2; \
	VPMADDWD (1536+32*i)(DI), Y4, Y3

#define MORE(i) \
	VPMOVSXBW (16*i)(BX), Y4; \
	VPMADDWD (32*i)(DI), Y4, Y5; \
	VPADDD Y5, Y0, Y0; \
	VPMADDWD (512+32*i)(DI), Y4, Y6; \
	VPADDD Y6, Y1, Y1; \
	VPMADDWD (1024+32*i)(DI), Y4, Y7; \
	VPADDD Y7, Y2, Y2; \
	VPMADDWD (1536+32*i)(DI), Y4, Y8; \
	VPADDD Y8, Y3, Y3

// SUMS sets X0 to the sums of the elements of Y0, Y1, Y2 and Y3, as f32.
#define SUMS \
	VPHADDD Y1, Y0, Y0; \
	VPHADDD Y3, Y2, Y2; \
	VPHADDD Y2, Y0, Y0; \
	VEXTRACTI128 $1, Y0, X1; \
	VPADDD X1, X0, X0; \
	VCVTDQ2PS X0, X0

// func int8QuadAVX2(a *int8QuadTile)
TEXT ·int8QuadAVX2(SB), NOSPLIT, $0-8
	ROWS
	VMOVUPS int8Quad_d(DI), X14
	VMOVUPS int8Quad_min(DI), X13
row:
	FIRST(0)
	MORE(1)
	MORE(2)
	MORE(3)
	MORE(4)
	MORE(5)
	MORE(6)
	MORE(7)
	MORE(8)
	MORE(9)
	MORE(10)
	MORE(11)
	MORE(12)
	MORE(13)
	MORE(14)
	MORE(15)
	SUMS
	VBROADCASTSS (SI), X12
	VMULPS X12, X14, X11
	VMOVUPS (DX), X10
	VFMADD231PS X0, X11, X10
	CMPQ int8QuadTile_minima(AX), $0
	JEQ none
	VMOVDQU (R11), Y4
	VPMADDWD int8Quad_least(DI), Y4, Y0
	VPMADDWD (int8Quad_least+32)(DI), Y4, Y1
	VPMADDWD (int8Quad_least+64)(DI), Y4, Y2
	VPMADDWD (int8Quad_least+96)(DI), Y4, Y3
	SUMS
	VMULPS X12, X13, X11
	VFNMADD231PS X0, X11, X10
none:
	VMOVUPS X10, (DX)
	NEXT
	JNZ row
	VZEROUPPER
	RET

// func int8QuadChainAVX2(a *int8QuadTile)
TEXT ·int8QuadChainAVX2(SB), NOSPLIT, $0-8
	ROWS
	MOVL $0x3c000000, R9 // 2^-7
	VMOVD R9, X15
	VPBROADCASTD X15, X15
row:
	VXORPS X10, X10, X10
	MOVQ int8QuadTile_groups(AX), R9
	XORQ R10, R10
	LEAQ int8Quad_chain(DI), R12
group:
	FIRST(0)
	MORE(1)
	SUMS
	VBROADCASTSS (SI)(R10*4), X12
	VMULPS (R12), X12, X11
	VFMADD231PS X0, X11, X10
	CMPQ int8QuadTile_minima(AX), $0
	JEQ none
	VPBROADCASTD (R11)(R10*4), X0 // -128 times the group's sum
	VCVTDQ2PS X0, X0
	VMULPS X15, X0, X0
	VMULPS 128(R12), X12, X11
	VFMADD231PS X0, X11, X10
none:
	ADDQ $32, BX
	ADDQ $64, DI
	ADDQ $16, R12
	INCQ R10
	DECQ R9
	JNZ group
	VADDPS (DX), X10, X10
	VMOVUPS X10, (DX)
	SHLQ $5, R10
	SUBQ R10, BX
	MOVQ int8QuadTile_quad(AX), DI
	NEXT
	JNZ row
	VZEROUPPER
	RET

#define SCALE(i) \
	VPMOVSXBW (16*i)(SI), Y0; \
	VPBROADCASTB i(DX), X1; \
	VPMOVSXBW X1, Y1; \
	VPMULLW Y1, Y0, Y0; \
	VMOVDQU Y0, (32*i)(DI)

// func int8ScaleAVX2(dst *[256]int16, src *[256]int8, scale *[16]int8)
TEXT ·int8ScaleAVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ scale+16(FP), DX
	SCALE(0)
	SCALE(1)
	SCALE(2)
	SCALE(3)
	SCALE(4)
	SCALE(5)
	SCALE(6)
	SCALE(7)
	SCALE(8)
	SCALE(9)
	SCALE(10)
	SCALE(11)
	SCALE(12)
	SCALE(13)
	SCALE(14)
	SCALE(15)
	VZEROUPPER
	RET
