// Bodies of the attention kernels for AVX2, for each element type of the cache.
//
// Kernels for many rows of queries read panels: f32 copies of 64 keys [component][64] or
// of 64 columns of values [slot][64].

// Loads of 16 (AVX2) elements and of 16 (AVX-512) elements, widened.
#define LOAD_F32(at, y0, y1) \
	VMOVUPS (at), y0; \
	VMOVUPS 32(at), y1

#define LOAD_F16(at, y0, y1) \
	VCVTPH2PS (at), y0; \
	VCVTPH2PS 16(at), y1

#define LOAD_BF16(at, y0, y1) \
	VPMOVZXWD (at), y0; \
	VPMOVZXWD 16(at), y1; \
	VPSLLD $16, y0, y0; \
	VPSLLD $16, y1, y1

// 16 numbers at R(at) times the number at off(R9) of each of four rows: row r in
// Y(2r) and Y(2r+1).
#define TIMES4(LOAD, at, off) \
	LOAD(at, Y8, Y9); \
	VBROADCASTSS (off)(R9), Y10; \
	VBROADCASTSS (ROW+off)(R9), Y11; \
	VBROADCASTSS (2*ROW+off)(R9), Y12; \
	VBROADCASTSS (3*ROW+off)(R9), Y13; \
	VFMADD231PS Y8, Y10, Y0; \
	VFMADD231PS Y9, Y10, Y1; \
	VFMADD231PS Y8, Y11, Y2; \
	VFMADD231PS Y9, Y11, Y3; \
	VFMADD231PS Y8, Y12, Y4; \
	VFMADD231PS Y9, Y12, Y5; \
	VFMADD231PS Y8, Y13, Y6; \
	VFMADD231PS Y9, Y13, Y7

// The same for one row, in Y0 and Y1.
#define TIMES1(LOAD, at, off) \
	LOAD(at, Y8, Y9); \
	VBROADCASTSS (off)(R9), Y10; \
	VFMADD231PS Y8, Y10, Y0; \
	VFMADD231PS Y9, Y10, Y1

// Scores of 4 queries with the 16 keys of each of n neighbouring tiles. STEP takes EACH
// components (slots, in the macros of values); ON and OFF stand around the chains.
//
//	for i < n, r < 4, j < 16:
//		t = fma chain over c < d of q[r][c]·k[i][c][j] from +0
//		p[r][16i+j] = t·scale
//
#define SCORES4_AVX2(STEP, EACH, SIZE, ON, OFF) \
	MOVQ p+0(FP), DI; \
	MOVQ q+8(FP), SI; \
	MOVQ k+16(FP), DX; \
	MOVQ d+24(FP), CX; \
	MOVQ n+32(FP), R8; \
	MOVQ next+40(FP), BX; \
	VBROADCASTSS scale+48(FP), Y15; \
tile: \
	VXORPS Y0, Y0, Y0; \
	VXORPS Y1, Y1, Y1; \
	VXORPS Y2, Y2, Y2; \
	VXORPS Y3, Y3, Y3; \
	VXORPS Y4, Y4, Y4; \
	VXORPS Y5, Y5, Y5; \
	VXORPS Y6, Y6, Y6; \
	VXORPS Y7, Y7, Y7; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
	ON; \
	LOOP(component, far, scored, PREFETCH_1, BX, COMPONENT(STEP, EACH, SIZE, 16)); \
	OFF; \
	VMULPS Y15, Y0, Y0; \
	VMULPS Y15, Y1, Y1; \
	VMULPS Y15, Y2, Y2; \
	VMULPS Y15, Y3, Y3; \
	VMULPS Y15, Y4, Y4; \
	VMULPS Y15, Y5, Y5; \
	VMULPS Y15, Y6, Y6; \
	VMULPS Y15, Y7, Y7; \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y1, 32(DI); \
	VMOVUPS Y2, ROW(DI); \
	VMOVUPS Y3, (ROW+32)(DI); \
	VMOVUPS Y4, (2*ROW)(DI); \
	VMOVUPS Y5, (2*ROW+32)(DI); \
	VMOVUPS Y6, (3*ROW)(DI); \
	VMOVUPS Y7, (3*ROW+32)(DI); \
	ADDQ $64, DI; \
	DECQ R8; \
	JNZ tile; \
	VZEROUPPER; \
	RET

// The same for one query, p contiguous.
#define SCORES1_AVX2(LOAD, SIZE) \
	MOVQ p+0(FP), DI; \
	MOVQ q+8(FP), SI; \
	MOVQ k+16(FP), DX; \
	MOVQ d+24(FP), CX; \
	MOVQ n+32(FP), R8; \
	VBROADCASTSS scale+48(FP), Y15; \
	MOVQ CX, R11; \
	IMULQ $(16*SIZE), R11; \
	JMP pairs; \
pair: \
	VXORPS Y0, Y0, Y0; \
	VXORPS Y1, Y1, Y1; \
	VXORPS Y2, Y2, Y2; \
	VXORPS Y3, Y3, Y3; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
	LEAQ (DX)(R11*1), R12; \
component2: \
	LOAD(DX, Y8, Y9); \
	LOAD(R12, Y11, Y12); \
	VBROADCASTSS (R9), Y10; \
	VFMADD231PS Y8, Y10, Y0; \
	VFMADD231PS Y9, Y10, Y1; \
	VFMADD231PS Y11, Y10, Y2; \
	VFMADD231PS Y12, Y10, Y3; \
	ADDQ $(16*SIZE), DX; \
	ADDQ $(16*SIZE), R12; \
	ADDQ $4, R9; \
	DECQ R10; \
	JNZ component2; \
	MOVQ R12, DX; \
	VMULPS Y15, Y0, Y0; \
	VMULPS Y15, Y1, Y1; \
	VMULPS Y15, Y2, Y2; \
	VMULPS Y15, Y3, Y3; \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y1, 32(DI); \
	VMOVUPS Y2, 64(DI); \
	VMOVUPS Y3, 96(DI); \
	ADDQ $128, DI; \
pairs: \
	SUBQ $2, R8; \
	JGE pair; \
	ADDQ $2, R8; \
	JZ done; \
	VXORPS Y0, Y0, Y0; \
	VXORPS Y1, Y1, Y1; \
component1: \
	LOAD(DX, Y8, Y9); \
	VBROADCASTSS (SI), Y10; \
	VFMADD231PS Y8, Y10, Y0; \
	VFMADD231PS Y9, Y10, Y1; \
	ADDQ $(16*SIZE), DX; \
	ADDQ $4, SI; \
	DECQ CX; \
	JNZ component1; \
	VMULPS Y15, Y0, Y0; \
	VMULPS Y15, Y1, Y1; \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y1, 32(DI); \
done: \
	VZEROUPPER; \
	RET

// Weighted values of n slots for 4 rows, columns c < cols, cols a multiple of 16;
// the rows of v are stride bytes apart.
//
//	for j < n, r < 4, c < cols: acc[r][c] = fma(p[r][j], v[j][c], acc[r][c])
//
#define VALUES4_AVX2(STEP, EACH, PREFETCHES, SIZE, OFF) \
	MOVQ acc+0(FP), DI; \
	MOVQ p+8(FP), SI; \
	MOVQ v+16(FP), DX; \
	MOVQ stride+24(FP), R11; \
	MOVQ n+32(FP), R8; \
	MOVQ cols+40(FP), CX; \
	MOVQ next+48(FP), BX; \
column: \
	VMOVUPS (DI), Y0; \
	VMOVUPS 32(DI), Y1; \
	VMOVUPS ROW(DI), Y2; \
	VMOVUPS (ROW+32)(DI), Y3; \
	VMOVUPS (2*ROW)(DI), Y4; \
	VMOVUPS (2*ROW+32)(DI), Y5; \
	VMOVUPS (3*ROW)(DI), Y6; \
	VMOVUPS (3*ROW+32)(DI), Y7; \
	MOVQ SI, R9; \
	MOVQ DX, R12; \
	MOVQ BX, R13; \
	MOVQ R8, R10; \
	LOOP(slot, far, valued, PREFETCHES, R13, SLOT(STEP, EACH)); \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y1, 32(DI); \
	VMOVUPS Y2, ROW(DI); \
	VMOVUPS Y3, (ROW+32)(DI); \
	VMOVUPS Y4, (2*ROW)(DI); \
	VMOVUPS Y5, (2*ROW+32)(DI); \
	VMOVUPS Y6, (3*ROW)(DI); \
	VMOVUPS Y7, (3*ROW+32)(DI); \
	ADDQ $64, DI; \
	ADDQ $(16*SIZE), DX; \
	ADDQ $(16*SIZE), BX; \
	SUBQ $16, CX; \
	JNZ column; \
	OFF; \
	VZEROUPPER; \
	RET

// The same for one row.
#define VALUES1_AVX2(STEP, EACH, SIZE, OFF) \
	MOVQ acc+0(FP), DI; \
	MOVQ p+8(FP), SI; \
	MOVQ v+16(FP), DX; \
	MOVQ stride+24(FP), R11; \
	MOVQ n+32(FP), R8; \
	MOVQ cols+40(FP), CX; \
column: \
	VMOVUPS (DI), Y0; \
	VMOVUPS 32(DI), Y1; \
	MOVQ SI, R9; \
	MOVQ DX, R12; \
	MOVQ R8, R10; \
slot: \
	STEP; \
	LEAQ (R12)(R11*EACH), R12; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10; \
	JNZ slot; \
	VMOVUPS Y0, (DI); \
	VMOVUPS Y1, 32(DI); \
	ADDQ $64, DI; \
	ADDQ $(16*SIZE), DX; \
	SUBQ $16, CX; \
	JNZ column; \
	OFF; \
	VZEROUPPER; \
	RET

// Exp2 of exp_amd64.h for numbers that are not above zero, and NaN.
#define EXP2_DOWN_AVX2(x, n, t, p) \
	VROUNDPS $8, x, n; \
	VSUBPS n, x, t; \
	VMOVAPS Y7, p; \
	VFMADD213PS Y8, t, p; \
	VFMADD213PS Y9, t, p; \
	VFMADD213PS Y10, t, p; \
	VFMADD213PS Y11, t, p; \
	VFMADD213PS Y12, t, p; \
	VFMADD213PS Y13, t, p; \
	VCVTPS2DQ n, n; \
	VPADDD EXP2_BIAS, n, n; \
	VPSLLD $23, n, n; \
	VMULPS n, p, p; \
	VCMPPS $5, Y14, x, n; \
	VANDPS n, p, x

// The largest of the scores of the row at R8, to the statistics and into all lanes of
// Y1; starts the denominator in Y2 and Y3 and the pass over the R11 scores.
#define SOFTMAX_MAX_AVX2 \
	VBROADCASTSS ·minusInf(SB), Y1; \
	VMOVAPS Y1, Y2; \
	MOVQ R8, SI; \
	MOVQ R11, CX; \
largest: \
	VMOVUPS (SI), Y4; \
	VMOVUPS 32(SI), Y5; \
	VMAXPS Y1, Y4, Y1; \
	VMAXPS Y2, Y5, Y2; \
	ADDQ $64, SI; \
	SUBQ $16, CX; \
	JNZ largest; \
	VMAXPS Y2, Y1, Y1; \
	VPERM2F128 $1, Y1, Y1, Y2; \
	VMAXPS Y2, Y1, Y1; \
	VPERMILPS $0x4e, Y1, Y2; \
	VMAXPS Y2, Y1, Y1; \
	VPERMILPS $0xb1, Y1, Y2; \
	VMAXPS Y2, Y1, Y1; \
	VXORPS Y2, Y2, Y2; \
	VXORPS Y3, Y3, Y3; \
	VADDPS Y2, Y1, Y1; \
	VMOVSS X1, (DI); \
	MOVQ R8, SI; \
	MOVQ R11, CX

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
