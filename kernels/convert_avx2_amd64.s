//go:build !purego

#include "textflag.h"

// ROUND rounds 8 numbers x to bf16 in the lower halves of x's elements; t and u
// are overwritten. Constants: Y12 1, Y13 0x7fff, Y14 0x40.
#define ROUND(x, t, u) \
	VPSRLD $16, x, t; \
	VPAND Y12, t, u; \
	VPADDD Y13, u, u; \
	VPADDD x, u, u; \
	VPSRLD $16, u, u; \
	VPOR Y14, t, t; \
	VCMPPS $3, x, x, x; \
	VBLENDVPS x, t, u, x

// FLUSH clears the subnormals of x but for their signs; t and u are
// overwritten. Constants: Y11 0x7f800000, Y10 0x80000000, Y9 0.
#define FLUSH(x, t, u) \
	VPAND Y11, x, t; \
	VPCMPEQD Y9, t, t; \
	VPAND Y10, x, u; \
	VBLENDVPS t, u, x, x

#define CONSTANTS \
	VPCMPEQD Y12, Y12, Y12; \
	VPSRLD $17, Y12, Y13; \
	VPSRLD $31, Y12, Y12; \
	VPSLLD $6, Y12, Y14; \
	VPSLLD $31, Y12, Y10; \
	VPXOR Y9, Y9, Y9; \
	VPCMPEQD Y11, Y11, Y11; \
	VPSRLD $24, Y11, Y11; \
	VPSLLD $23, Y11, Y11

// func roundBF16AVX2(dst unsafe.Pointer, src *float32, n int)
TEXT ·roundBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	CONSTANTS
next:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	FLUSH(Y0, Y2, Y3)
	FLUSH(Y1, Y4, Y5)
	ROUND(Y0, Y2, Y3)
	ROUND(Y1, Y4, Y5)
	VPACKUSDW Y1, Y0, Y0
	VPERMQ $0xd8, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $64, SI
	ADDQ $32, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func narrowBF16AVX2(dst unsafe.Pointer, src *float32, n int)
TEXT ·narrowBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	CONSTANTS
next:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	ROUND(Y0, Y2, Y3)
	ROUND(Y1, Y4, Y5)
	VPACKUSDW Y1, Y0, Y0
	VPERMQ $0xd8, Y0, Y0
	VMOVUPS Y0, (DI)
	ADDQ $64, SI
	ADDQ $32, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func narrowF16AVX2(dst unsafe.Pointer, src *float32, n int)
TEXT ·narrowF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
next:
	VMOVUPS (SI), Y0
	VMOVUPS 32(SI), Y1
	VCVTPS2PH $0, Y0, (DI)
	VCVTPS2PH $0, Y1, 16(DI)
	ADDQ $64, SI
	ADDQ $32, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func widenF16AVX2(dst *float32, src unsafe.Pointer, n int)
TEXT ·widenF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
next:
	VCVTPH2PS (SI), Y0
	VCVTPH2PS 16(SI), Y1
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	ADDQ $32, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET

// func widenBF16AVX2(dst *float32, src unsafe.Pointer, n int)
TEXT ·widenBF16AVX2(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
next:
	VPMOVZXWD (SI), Y0
	VPMOVZXWD 16(SI), Y1
	VPSLLD $16, Y0, Y0
	VPSLLD $16, Y1, Y1
	VMOVUPS Y0, (DI)
	VMOVUPS Y1, 32(DI)
	ADDQ $32, SI
	ADDQ $64, DI
	SUBQ $16, CX
	JNZ next
	VZEROUPPER
	RET
