// Bodies of the kernels for many rows of queries. They read panels: f32 copies of
// 64 keys [component][64] or of 64 columns of values [slot][64]. Rows of queries,
// weights and accumulators come in groups of six, ROW bytes apart (attention_amd64.h).

#define PANEL 256 // bytes of 64 columns

// A step of a tile of 6 rows and 64 columns: Z0–Z23 += a · b, row r and vector c of
// 16 columns in Z(4r+c). R9 is at a[0][step], DX at b[step]; Z24–Z31 are overwritten.
#define STEP64 \
	VMOVUPS (DX), Z24; \
	VMOVUPS 64(DX), Z25; \
	VMOVUPS 128(DX), Z26; \
	VMOVUPS 192(DX), Z27; \
	VBROADCASTSS (R9), Z28; \
	VBROADCASTSS ROW(R9), Z29; \
	VFMADD231PS Z24, Z28, Z0; \
	VFMADD231PS Z25, Z28, Z1; \
	VFMADD231PS Z26, Z28, Z2; \
	VFMADD231PS Z27, Z28, Z3; \
	VBROADCASTSS (2*ROW)(R9), Z30; \
	VFMADD231PS Z24, Z29, Z4; \
	VFMADD231PS Z25, Z29, Z5; \
	VFMADD231PS Z26, Z29, Z6; \
	VFMADD231PS Z27, Z29, Z7; \
	VBROADCASTSS (3*ROW)(R9), Z31; \
	VFMADD231PS Z24, Z30, Z8; \
	VFMADD231PS Z25, Z30, Z9; \
	VFMADD231PS Z26, Z30, Z10; \
	VFMADD231PS Z27, Z30, Z11; \
	VBROADCASTSS (4*ROW)(R9), Z28; \
	VFMADD231PS Z24, Z31, Z12; \
	VFMADD231PS Z25, Z31, Z13; \
	VFMADD231PS Z26, Z31, Z14; \
	VFMADD231PS Z27, Z31, Z15; \
	VBROADCASTSS (5*ROW)(R9), Z29; \
	VFMADD231PS Z24, Z28, Z16; \
	VFMADD231PS Z25, Z28, Z17; \
	VFMADD231PS Z26, Z28, Z18; \
	VFMADD231PS Z27, Z28, Z19; \
	VFMADD231PS Z24, Z29, Z20; \
	VFMADD231PS Z25, Z29, Z21; \
	VFMADD231PS Z26, Z29, Z22; \
	VFMADD231PS Z27, Z29, Z23; \
	ADDQ $PANEL, DX; \
	ADDQ $4, R9

// The same for 16 columns in 6 registers.
#define STEP16 \
	VMOVUPS (DX), Z24; \
	VBROADCASTSS (R9), Z25; \
	VBROADCASTSS ROW(R9), Z26; \
	VBROADCASTSS (2*ROW)(R9), Z27; \
	VBROADCASTSS (3*ROW)(R9), Z28; \
	VBROADCASTSS (4*ROW)(R9), Z29; \
	VBROADCASTSS (5*ROW)(R9), Z30; \
	VFMADD231PS Z24, Z25, Z0; \
	VFMADD231PS Z24, Z26, Z1; \
	VFMADD231PS Z24, Z27, Z2; \
	VFMADD231PS Z24, Z28, Z3; \
	VFMADD231PS Z24, Z29, Z4; \
	VFMADD231PS Z24, Z30, Z5; \
	ADDQ $PANEL, DX; \
	ADDQ $4, R9

#define LOAD_ROW(at, a, b, c, d) \
	VMOVUPS at(DI), a; \
	VMOVUPS (at+64)(DI), b; \
	VMOVUPS (at+128)(DI), c; \
	VMOVUPS (at+192)(DI), d

#define STORE_ROW(at, a, b, c, d) \
	VMOVUPS a, at(DI); \
	VMOVUPS b, (at+64)(DI); \
	VMOVUPS c, (at+128)(DI); \
	VMOVUPS d, (at+192)(DI)

#define CLEAR_ROW(a, b, c, d) \
	VPXORD a, a, a; \
	VPXORD b, b, b; \
	VPXORD c, c, c; \
	VPXORD d, d, d

#define SCALE_ROW(a, b, c, d) \
	VMULPS Z31, a, a; \
	VMULPS Z31, b, b; \
	VMULPS Z31, c, c; \
	VMULPS Z31, d, d

// A step of a tile of 6 rows and 16 columns: Y0–Y11 += a · b, row r and vector c
// of 8 columns in Y(2r+c); Y12–Y15 are overwritten.
#define STEP16_AVX2(step) \
	VMOVUPS (step*PANEL)(DX), Y12; \
	VMOVUPS (step*PANEL+32)(DX), Y13; \
	VBROADCASTSS (4*step)(R9), Y14; \
	VBROADCASTSS (ROW+4*step)(R9), Y15; \
	VFMADD231PS Y12, Y14, Y0; \
	VFMADD231PS Y13, Y14, Y1; \
	VBROADCASTSS (2*ROW+4*step)(R9), Y14; \
	VFMADD231PS Y12, Y15, Y2; \
	VFMADD231PS Y13, Y15, Y3; \
	VBROADCASTSS (3*ROW+4*step)(R9), Y15; \
	VFMADD231PS Y12, Y14, Y4; \
	VFMADD231PS Y13, Y14, Y5; \
	VBROADCASTSS (4*ROW+4*step)(R9), Y14; \
	VFMADD231PS Y12, Y15, Y6; \
	VFMADD231PS Y13, Y15, Y7; \
	VBROADCASTSS (5*ROW+4*step)(R9), Y15; \
	VFMADD231PS Y12, Y14, Y8; \
	VFMADD231PS Y13, Y14, Y9; \
	VFMADD231PS Y12, Y15, Y10; \
	VFMADD231PS Y13, Y15, Y11

#define STORE_PAIR(at, a, b) \
	VMOVUPS a, at(DI); \
	VMOVUPS b, (at+32)(DI)

#define LOAD_PAIR(at, a, b) \
	VMOVUPS at(DI), a; \
	VMOVUPS (at+32)(DI), b

// 16 elements, widened.
#define MOVE_F32_AVX2(at, to) \
	LOAD_F32(at, Y0, Y1); \
	VMOVUPS Y0, to(R9); \
	VMOVUPS Y1, (to+32)(R9)

#define MOVE_F16_AVX2(at, to) \
	LOAD_F16(at, Y0, Y1); \
	VMOVUPS Y0, to(R9); \
	VMOVUPS Y1, (to+32)(R9)

#define MOVE_BF16_AVX2(at, to) \
	LOAD_BF16(at, Y0, Y1); \
	VMOVUPS Y0, to(R9); \
	VMOVUPS Y1, (to+32)(R9)

#define MOVE_F32_AVX512(at, to) \
	LOADZ_F32((at), Z0); \
	VMOVUPS Z0, to(R9)

#define MOVE_F16_AVX512(at, to) \
	LOADZ_F16((at), Z0); \
	VMOVUPS Z0, to(R9)

#define MOVE_BF16_AVX512(at, to) \
	LOADZ_BF16((at), Z0); \
	VMOVUPS Z0, to(R9)

// Asks for the keys at BX and the values R13 bytes further, which the next panels are made
// of, a little with every step.
#define FETCH \
	PREFETCHT0 (BX); \
	PREFETCHT0 (BX)(R13*1); \
	ADDQ R14, BX

// Panel of n rows of cols columns, a multiple of 16 up to 64; rows of src are
// stride bytes apart, and in a row groups of 16 columns step bytes.
//
//	for i < n, c < cols: dst[i][c] = src[i][c], widened
//
#define WIDEN(MOVE) \
	MOVQ dst+0(FP), DI; \
	MOVQ src+8(FP), SI; \
	MOVQ stride+16(FP), R11; \
	MOVQ step+24(FP), R12; \
	MOVQ n+32(FP), R8; \
	MOVQ cols+40(FP), CX; \
	CMPQ CX, $64; \
	JNE row; \
row64: \
	MOVQ SI, R10; \
	MOVQ DI, R9; \
	MOVE(R10, 0); \
	ADDQ R12, R10; \
	MOVE(R10, 64); \
	ADDQ R12, R10; \
	MOVE(R10, 128); \
	ADDQ R12, R10; \
	MOVE(R10, 192); \
	ADDQ R11, SI; \
	ADDQ $PANEL, DI; \
	DECQ R8; \
	JNZ row64; \
	VZEROUPPER; \
	RET; \
row: \
	MOVQ SI, R10; \
	MOVQ DI, R9; \
	MOVQ CX, DX; \
column: \
	MOVE(R10, 0); \
	ADDQ R12, R10; \
	ADDQ $64, R9; \
	SUBQ $16, DX; \
	JNZ column; \
	ADDQ R11, SI; \
	ADDQ $PANEL, DI; \
	DECQ R8; \
	JNZ row; \
	VZEROUPPER; \
	RET
