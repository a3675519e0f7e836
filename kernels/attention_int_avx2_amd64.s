//go:build !purego

#include "textflag.h"

#define ROW 1088
#define HALF 544

#define MULTIPLY(at, a, b) \
	VPBROADCASTD at, Y10; \
	VPMADDWD Y10, Y8, Y11; \
	VPMADDWD Y10, Y9, Y12; \
	VPADDD Y11, a, a; \
	VPADDD Y12, b, b

// SCORES adds a group of a row to its scores at p; Y8 and Y9 hold the scales.
#define SCORES(factor, a, b, p, p2) \
	VBROADCASTSS factor, Y10; \
	VCVTDQ2PS a, a; \
	VCVTDQ2PS b, b; \
	VMULPS Y10, Y8, Y11; \
	VMULPS Y10, Y9, Y12; \
	VMOVUPS p, Y13; \
	VMOVUPS p2, Y14; \
	VFMADD231PS Y11, a, Y13; \
	VFMADD231PS Y12, b, Y14; \
	VMOVUPS Y13, p; \
	VMOVUPS Y14, p2

// func scoresIntAVX2(a *intScores)
TEXT ·scoresIntAVX2(SB), NOSPLIT, $0-8
	MOVQ a+0(FP), AX
	MOVQ 0(AX), DI   // p
	MOVQ 8(AX), SI   // q
	MOVQ 16(AX), DX  // k
	MOVQ 24(AX), R8  // scales
	MOVQ 32(AX), R9  // step
	MOVQ 40(AX), R10 // factors
	MOVQ 48(AX), R11 // pairs
	MOVQ 64(AX), R13 // tiles
	MOVQ 72(AX), BX  // next
tile:
	VPXOR Y0, Y0, Y0
	VMOVUPS Y0, 0(DI)
	VMOVUPS Y0, 32(DI)
	VMOVUPS Y0, ROW(DI)
	VMOVUPS Y0, ROW+32(DI)
	VMOVUPS Y0, 2*ROW(DI)
	VMOVUPS Y0, 2*ROW+32(DI)
	VMOVUPS Y0, 3*ROW(DI)
	VMOVUPS Y0, 3*ROW+32(DI)
	MOVQ SI, CX
	MOVQ R8, R14
	MOVQ a+0(FP), AX
	MOVQ 56(AX), AX // groups
group:
	VPXOR Y0, Y0, Y0
	VPXOR Y1, Y1, Y1
	VPXOR Y2, Y2, Y2
	VPXOR Y3, Y3, Y3
	VPXOR Y4, Y4, Y4
	VPXOR Y5, Y5, Y5
	VPXOR Y6, Y6, Y6
	VPXOR Y7, Y7, Y7
	MOVQ R11, R12
pair:
	VPMOVSXBW 0(DX), Y8
	VPMOVSXBW 16(DX), Y9
	MULTIPLY(0(CX), Y0, Y1)
	MULTIPLY(HALF(CX), Y2, Y3)
	PREFETCHT0 (BX)
	MULTIPLY(2*HALF(CX), Y4, Y5)
	MULTIPLY(3*HALF(CX), Y6, Y7)
	ADDQ $32, DX
	ADDQ $32, BX
	ADDQ $4, CX
	DECQ R12
	JNZ pair
	VMOVUPS 0(R14), Y8
	VMOVUPS 32(R14), Y9
	SCORES(0(R10), Y0, Y1, 0(DI), 32(DI))
	SCORES(4(R10), Y2, Y3, ROW(DI), ROW+32(DI))
	SCORES(8(R10), Y4, Y5, 2*ROW(DI), 2*ROW+32(DI))
	SCORES(12(R10), Y6, Y7, 3*ROW(DI), 3*ROW+32(DI))
	ADDQ R9, R14
	DECQ AX
	JNZ group
	ADDQ $64, DI
	ADDQ $64, R8
	DECQ R13
	JNZ tile
	VZEROUPPER
	RET

#define LOAD(at, a, b) \
	VMOVDQU at(DI), a; \
	VMOVDQU at+32(DI), b

#define STORE(at, a, b) \
	VMOVDQU a, at(DI); \
	VMOVDQU b, at+32(DI)

// func valuesIntAVX2(a *intValues)
TEXT ·valuesIntAVX2(SB), NOSPLIT, $0-8
	MOVQ a+0(FP), AX
	MOVQ 0(AX), DI  // acc
	MOVQ 8(AX), SI  // w
	MOVQ 16(AX), DX // v
	MOVQ 24(AX), R8 // stride
	MOVQ 40(AX), R9 // cols
	MOVQ 48(AX), BX // next
columns:
	MOVQ 32(AX), R12 // pairs
	MOVQ DX, R11
	MOVQ SI, CX
	LOAD(0, Y0, Y1)
	LOAD(ROW, Y2, Y3)
	LOAD(2*ROW, Y4, Y5)
	LOAD(3*ROW, Y6, Y7)
pair:
	VPMOVSXBW 0(R11), Y8
	VPMOVSXBW 16(R11), Y9
	MULTIPLY(0(CX), Y0, Y1)
	MULTIPLY(HALF(CX), Y2, Y3)
	PREFETCHT0 (BX)
	MULTIPLY(2*HALF(CX), Y4, Y5)
	MULTIPLY(3*HALF(CX), Y6, Y7)
	ADDQ R8, R11
	ADDQ $32, BX
	ADDQ $4, CX
	DECQ R12
	JNZ pair
	STORE(0, Y0, Y1)
	STORE(ROW, Y2, Y3)
	STORE(2*ROW, Y4, Y5)
	STORE(3*ROW, Y6, Y7)
	ADDQ $64, DI
	ADDQ $32, DX
	SUBQ $16, R9
	JNZ columns
	VZEROUPPER
	RET

// PRODUCTS sets y to x·s, 0 where x is 0.
#define PRODUCTS(at, y, m) \
	VMOVUPS at(SI), y; \
	VCMPPS $4, Y14, y, m; \
	VMULPS at(R8), y, y; \
	VANDPS m, y, y

// func roundInt16s(n *int16, x, s *float32, count int, magnitude float32) (factor float32)
//
// count is a positive multiple of 16.
TEXT ·roundInt16s(SB), NOSPLIT, $0-44
	MOVQ n+0(FP), DI
	MOVQ x+8(FP), SI
	MOVQ s+16(FP), R8
	MOVQ count+24(FP), CX
	VPCMPEQD Y15, Y15, Y15
	VPSRLD $1, Y15, Y15 // all but the sign
	VPXOR Y14, Y14, Y14
	VPXOR Y0, Y0, Y0
	MOVQ CX, DX
most:
	PRODUCTS(0, Y1, Y3)
	PRODUCTS(32, Y2, Y4)
	VPAND Y15, Y1, Y1
	VPAND Y15, Y2, Y2
	VPMAXUD Y1, Y0, Y0
	VPMAXUD Y2, Y0, Y0
	ADDQ $64, SI
	ADDQ $64, R8
	SUBQ $16, DX
	JNZ most
	VEXTRACTI128 $1, Y0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0x4e, X0, X1
	VPMAXUD X1, X0, X0
	VPSHUFD $0xb1, X0, X1
	VPMAXUD X1, X0, X0
	VMOVD X0, AX
	VXORPS X5, X5, X5
	CMPL AX, $0x0d800000 // 2^-100
	JCS none
	VPCMPEQD X5, X5, X5 // NaN
	CMPL AX, $0x7f800000
	JCC none
	VMOVSS magnitude+32(FP), X1
	VDIVSS X0, X1, X6
	VDIVSS X1, X0, X5
	VBROADCASTSS X6, Y6
	MOVQ x+8(FP), SI
	MOVQ s+16(FP), R8
next:
	PRODUCTS(0, Y1, Y3)
	PRODUCTS(32, Y2, Y4)
	VMULPS Y6, Y1, Y1
	VMULPS Y6, Y2, Y2
	VCVTPS2DQ Y1, Y1
	VCVTPS2DQ Y2, Y2
	VPACKSSDW Y2, Y1, Y1
	VPERMQ $0xd8, Y1, Y1
	VMOVDQU Y1, (DI)
	ADDQ $64, SI
	ADDQ $64, R8
	ADDQ $32, DI
	SUBQ $16, CX
	JNZ next
	VMOVSS X5, factor+40(FP)
	VZEROUPPER
	RET
none:
	VPXOR Y0, Y0, Y0
zero:
	VMOVDQU Y0, (DI)
	ADDQ $32, DI
	SUBQ $16, CX
	JNZ zero
	VMOVSS X5, factor+40(FP)
	VZEROUPPER
	RET

// func scaleInts(x *float32, n int, factor float32)
//
// n is a positive multiple of 16.
TEXT ·scaleInts(SB), NOSPLIT, $0-20
	MOVQ x+0(FP), DI
	MOVQ n+8(FP), CX
	VBROADCASTSS factor+16(FP), Y2
next:
	VCVTDQ2PS (DI), Y0
	VCVTDQ2PS 32(DI), Y1
	VMULPS Y2, Y0, Y0
	VMULPS Y2, Y1, Y1
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func unpackInt4(dst, src unsafe.Pointer, n int)
//
// n is a positive multiple of 32.
TEXT ·unpackInt4(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	MOVL $0x0f0f0f0f, AX
	VMOVD AX, X15
	VPBROADCASTD X15, Y15
	MOVL $0x08080808, AX
	VMOVD AX, X14
	VPBROADCASTD X14, Y14
next:
	VPMOVZXBW (SI), Y0
	VPMOVZXBW 16(SI), Y1
	VPSLLW $4, Y0, Y2
	VPSLLW $4, Y1, Y3
	VPOR Y2, Y0, Y0
	VPOR Y3, Y1, Y1
	VPAND Y15, Y0, Y0
	VPAND Y15, Y1, Y1
	VPSUBB Y14, Y0, Y0
	VPSUBB Y14, Y1, Y1
	VMOVDQU Y0, (DI)
	VMOVDQU Y1, 32(DI)
	PREFETCHT0 1024(SI)
	ADDQ $32, SI
	ADDQ $64, DI
	SUBQ $32, CX
	JNZ next
	VZEROUPPER
	RET
