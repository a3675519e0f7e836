// Bodies of the kernels for many rows of queries. They read panels: f32 copies of
// 64 keys [component][64] or of 64 columns of values [slot][64]. Rows of queries,
// weights and accumulators come in groups of six, ROW bytes apart (attention_amd64.h).

#define PANEL 256 // bytes of 64 columns

// A step of a tile of 6 rows and 64 columns: Z0–Z23 += a · b, row r and vector c of
// 16 columns in Z(4r+c). a is step elements behind R9, b as many rows behind DX; Z24–Z31
// are overwritten.
#define STEP64 STEP64_AT(0)
#define STEP64_AT(step) \
	VMOVUPS (PANEL*step)(DX), Z24; \
	VMOVUPS (PANEL*step+64)(DX), Z25; \
	VMOVUPS (PANEL*step+128)(DX), Z26; \
	VMOVUPS (PANEL*step+192)(DX), Z27; \
	VBROADCASTSS (4*step)(R9), Z28; \
	VBROADCASTSS (ROW+4*step)(R9), Z29; \
	VFMADD231PS Z24, Z28, Z0; \
	VFMADD231PS Z25, Z28, Z1; \
	VFMADD231PS Z26, Z28, Z2; \
	VFMADD231PS Z27, Z28, Z3; \
	VBROADCASTSS (2*ROW+4*step)(R9), Z30; \
	VFMADD231PS Z24, Z29, Z4; \
	VFMADD231PS Z25, Z29, Z5; \
	VFMADD231PS Z26, Z29, Z6; \
	VFMADD231PS Z27, Z29, Z7; \
	VBROADCASTSS (3*ROW+4*step)(R9), Z31; \
	VFMADD231PS Z24, Z30, Z8; \
	VFMADD231PS Z25, Z30, Z9; \
	VFMADD231PS Z26, Z30, Z10; \
	VFMADD231PS Z27, Z30, Z11; \
	VBROADCASTSS (4*ROW+4*step)(R9), Z28; \
	VFMADD231PS Z24, Z31, Z12; \
	VFMADD231PS Z25, Z31, Z13; \
	VFMADD231PS Z26, Z31, Z14; \
	VFMADD231PS Z27, Z31, Z15; \
	VBROADCASTSS (5*ROW+4*step)(R9), Z29; \
	VFMADD231PS Z24, Z28, Z16; \
	VFMADD231PS Z25, Z28, Z17; \
	VFMADD231PS Z26, Z28, Z18; \
	VFMADD231PS Z27, Z28, Z19; \
	VFMADD231PS Z24, Z29, Z20; \
	VFMADD231PS Z25, Z29, Z21; \
	VFMADD231PS Z26, Z29, Z22; \
	VFMADD231PS Z27, Z29, Z23

// The same for 16 columns in 6 registers.
#define STEP16 STEP16_AT(0)
#define STEP16_AT(step) \
	VMOVUPS (PANEL*step)(DX), Z24; \
	VBROADCASTSS (4*step)(R9), Z25; \
	VBROADCASTSS (ROW+4*step)(R9), Z26; \
	VBROADCASTSS (2*ROW+4*step)(R9), Z27; \
	VBROADCASTSS (3*ROW+4*step)(R9), Z28; \
	VBROADCASTSS (4*ROW+4*step)(R9), Z29; \
	VBROADCASTSS (5*ROW+4*step)(R9), Z30; \
	VFMADD231PS Z24, Z25, Z0; \
	VFMADD231PS Z24, Z26, Z1; \
	VFMADD231PS Z24, Z27, Z2; \
	VFMADD231PS Z24, Z28, Z3; \
	VFMADD231PS Z24, Z29, Z4; \
	VFMADD231PS Z24, Z30, Z5

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

// Scores of groups of 6 queries with the 64 keys of a panel. STEP takes EACH
// components, which are ROWS rows of the panel; ON and OFF stand around the chains.
#define SCORES6_AVX512(STEP, EACH, ROWS, ON, OFF) \
	MOVQ p+0(FP), DI; \
	MOVQ q+8(FP), SI; \
	MOVQ k+16(FP), R12; \
	MOVQ d+24(FP), CX; \
	MOVQ groups+32(FP), R8; \
	MOVQ nextK+40(FP), BX; \
	MOVQ nextV+48(FP), R13; \
	MOVQ pace+56(FP), R14; \
	SUBQ BX, R13; \
	IMULQ $EACH, R14; \
group: \
	CLEAR_ROW(Z0, Z1, Z2, Z3); \
	CLEAR_ROW(Z4, Z5, Z6, Z7); \
	CLEAR_ROW(Z8, Z9, Z10, Z11); \
	CLEAR_ROW(Z12, Z13, Z14, Z15); \
	CLEAR_ROW(Z16, Z17, Z18, Z19); \
	CLEAR_ROW(Z20, Z21, Z22, Z23); \
	MOVQ R12, DX; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
	ON; \
component: \
	FETCH; \
	STEP; \
	ADDQ $(ROWS*PANEL), DX; \
	ADDQ $(4*ROWS), R9; \
	SUBQ $EACH, R10; \
	JNZ component; \
	OFF; \
	VBROADCASTSS scale+64(FP), Z31; \
	SCALE_ROW(Z0, Z1, Z2, Z3); \
	STORE_ROW(0, Z0, Z1, Z2, Z3); \
	SCALE_ROW(Z4, Z5, Z6, Z7); \
	STORE_ROW(ROW, Z4, Z5, Z6, Z7); \
	SCALE_ROW(Z8, Z9, Z10, Z11); \
	STORE_ROW(2*ROW, Z8, Z9, Z10, Z11); \
	SCALE_ROW(Z12, Z13, Z14, Z15); \
	STORE_ROW(3*ROW, Z12, Z13, Z14, Z15); \
	SCALE_ROW(Z16, Z17, Z18, Z19); \
	STORE_ROW(4*ROW, Z16, Z17, Z18, Z19); \
	SCALE_ROW(Z20, Z21, Z22, Z23); \
	STORE_ROW(5*ROW, Z20, Z21, Z22, Z23); \
	ADDQ $(6*ROW), SI; \
	ADDQ $(6*ROW), DI; \
	DECQ R8; \
	JNZ group; \
	VZEROUPPER; \
	RET

// Weighted values of n slots for groups of 6 rows.
#define VALUES6_AVX512(STEP, NARROWSTEP, EACH) \
	MOVQ acc+0(FP), R13; \
	MOVQ p+8(FP), SI; \
	MOVQ v+16(FP), BX; \
	MOVQ n+24(FP), CX; \
	MOVQ groups+32(FP), R8; \
group: \
	MOVQ R13, DI; \
	MOVQ BX, R12; \
	MOVQ cols+40(FP), R11; \
	CMPQ R11, $64; \
	JLT columns16; \
	LOAD_ROW(0, Z0, Z1, Z2, Z3); \
	LOAD_ROW(ROW, Z4, Z5, Z6, Z7); \
	LOAD_ROW(2*ROW, Z8, Z9, Z10, Z11); \
	LOAD_ROW(3*ROW, Z12, Z13, Z14, Z15); \
	LOAD_ROW(4*ROW, Z16, Z17, Z18, Z19); \
	LOAD_ROW(5*ROW, Z20, Z21, Z22, Z23); \
	MOVQ R12, DX; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
slot64: \
	STEP; \
	ADDQ $(EACH*PANEL), DX; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10; \
	JNZ slot64; \
	STORE_ROW(0, Z0, Z1, Z2, Z3); \
	STORE_ROW(ROW, Z4, Z5, Z6, Z7); \
	STORE_ROW(2*ROW, Z8, Z9, Z10, Z11); \
	STORE_ROW(3*ROW, Z12, Z13, Z14, Z15); \
	STORE_ROW(4*ROW, Z16, Z17, Z18, Z19); \
	STORE_ROW(5*ROW, Z20, Z21, Z22, Z23); \
	JMP next; \
columns16: \
	VMOVUPS (DI), Z0; \
	VMOVUPS ROW(DI), Z1; \
	VMOVUPS (2*ROW)(DI), Z2; \
	VMOVUPS (3*ROW)(DI), Z3; \
	VMOVUPS (4*ROW)(DI), Z4; \
	VMOVUPS (5*ROW)(DI), Z5; \
	MOVQ R12, DX; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
slot16: \
	NARROWSTEP; \
	ADDQ $(EACH*PANEL), DX; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10; \
	JNZ slot16; \
	VMOVUPS Z0, (DI); \
	VMOVUPS Z1, ROW(DI); \
	VMOVUPS Z2, (2*ROW)(DI); \
	VMOVUPS Z3, (3*ROW)(DI); \
	VMOVUPS Z4, (4*ROW)(DI); \
	VMOVUPS Z5, (5*ROW)(DI); \
	ADDQ $64, DI; \
	ADDQ $64, R12; \
	SUBQ $16, R11; \
	JNZ columns16; \
next: \
	ADDQ $(6*ROW), R13; \
	ADDQ $(6*ROW), SI; \
	DECQ R8; \
	JNZ group

// The same for AVX2, two components or slots at a time.
#define SCORES6_AVX2(FIRST, SECOND, ON, OFF) \
	MOVQ p+0(FP), DI; \
	MOVQ q+8(FP), SI; \
	MOVQ d+24(FP), CX; \
	MOVQ groups+32(FP), R8; \
	MOVQ nextK+40(FP), BX; \
	MOVQ nextV+48(FP), R13; \
	MOVQ pace+56(FP), R14; \
	SUBQ BX, R13; \
	SHRQ $1, R14; \
group: \
	MOVQ k+16(FP), R12; \
	MOVQ $4, R11; \
columns: \
	VXORPS Y0, Y0, Y0; \
	VXORPS Y1, Y1, Y1; \
	VXORPS Y2, Y2, Y2; \
	VXORPS Y3, Y3, Y3; \
	VXORPS Y4, Y4, Y4; \
	VXORPS Y5, Y5, Y5; \
	VXORPS Y6, Y6, Y6; \
	VXORPS Y7, Y7, Y7; \
	VXORPS Y8, Y8, Y8; \
	VXORPS Y9, Y9, Y9; \
	VXORPS Y10, Y10, Y10; \
	VXORPS Y11, Y11, Y11; \
	MOVQ R12, DX; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
	ON; \
component: \
	FETCH; \
	STEP16_AVX2(FIRST); \
	STEP16_AVX2(SECOND); \
	ADDQ $(2*PANEL), DX; \
	ADDQ $8, R9; \
	SUBQ $2, R10; \
	JNZ component; \
	OFF; \
	VBROADCASTSS scale+64(FP), Y15; \
	VMULPS Y15, Y0, Y0; \
	VMULPS Y15, Y1, Y1; \
	VMULPS Y15, Y2, Y2; \
	VMULPS Y15, Y3, Y3; \
	VMULPS Y15, Y4, Y4; \
	VMULPS Y15, Y5, Y5; \
	VMULPS Y15, Y6, Y6; \
	VMULPS Y15, Y7, Y7; \
	VMULPS Y15, Y8, Y8; \
	VMULPS Y15, Y9, Y9; \
	VMULPS Y15, Y10, Y10; \
	VMULPS Y15, Y11, Y11; \
	STORE_PAIR(0, Y0, Y1); \
	STORE_PAIR(ROW, Y2, Y3); \
	STORE_PAIR(2*ROW, Y4, Y5); \
	STORE_PAIR(3*ROW, Y6, Y7); \
	STORE_PAIR(4*ROW, Y8, Y9); \
	STORE_PAIR(5*ROW, Y10, Y11); \
	ADDQ $64, R12; \
	ADDQ $64, DI; \
	DECQ R11; \
	JNZ columns; \
	ADDQ $(6*ROW), SI; \
	ADDQ $(6*ROW-PANEL), DI; \
	DECQ R8; \
	JNZ group; \
	VZEROUPPER; \
	RET

#define VALUES6_AVX2(FIRST, SECOND) \
	MOVQ acc+0(FP), R13; \
	MOVQ p+8(FP), SI; \
	MOVQ n+24(FP), CX; \
	MOVQ groups+32(FP), R8; \
group: \
	MOVQ R13, DI; \
	MOVQ v+16(FP), R12; \
	MOVQ cols+40(FP), R11; \
columns: \
	LOAD_PAIR(0, Y0, Y1); \
	LOAD_PAIR(ROW, Y2, Y3); \
	LOAD_PAIR(2*ROW, Y4, Y5); \
	LOAD_PAIR(3*ROW, Y6, Y7); \
	LOAD_PAIR(4*ROW, Y8, Y9); \
	LOAD_PAIR(5*ROW, Y10, Y11); \
	MOVQ R12, DX; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
	SUBQ $2, R10; \
	JLT odd; \
slots: \
	STEP16_AVX2(FIRST); \
	STEP16_AVX2(SECOND); \
	ADDQ $(2*PANEL), DX; \
	ADDQ $8, R9; \
	SUBQ $2, R10; \
	JGE slots; \
odd: \
	ADDQ $2, R10; \
	JZ store; \
	STEP16_AVX2(0); \
store: \
	STORE_PAIR(0, Y0, Y1); \
	STORE_PAIR(ROW, Y2, Y3); \
	STORE_PAIR(2*ROW, Y4, Y5); \
	STORE_PAIR(3*ROW, Y6, Y7); \
	STORE_PAIR(4*ROW, Y8, Y9); \
	STORE_PAIR(5*ROW, Y10, Y11); \
	ADDQ $64, R12; \
	ADDQ $64, DI; \
	SUBQ $16, R11; \
	JNZ columns; \
	ADDQ $(6*ROW), R13; \
	ADDQ $(6*ROW), SI; \
	DECQ R8; \
	JNZ group
