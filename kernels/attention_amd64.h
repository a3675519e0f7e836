// Bodies of the attention kernels, for each element type of the cache.

// Rows of queries, weights and accumulators lie ROW bytes apart: attentionStride
// elements, not a power of two, so that rows do not share cache sets.
#define ROW 1088

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

// What 64 elements take in the cache, asked for ahead of need.
#define PREFETCH_4(at) \
	PREFETCHT0 (at); \
	PREFETCHT0 64(at); \
	PREFETCHT0 128(at); \
	PREFETCHT0 192(at)

#define PREFETCH_2(at) \
	PREFETCHT0 (at); \
	PREFETCHT0 64(at)

#define LOADZ_F32(at, z) VMOVUPS at, z

#define LOADZ_F16(at, z) VCVTPH2PS at, z

#define LOADZ_BF16(at, z) \
	VPMOVZXWD at, z; \
	VPSLLD $16, z, z

// NOTHING stands for macros that have nothing to do.
#define NOTHING

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

// The 64 numbers in Z16 to Z19 times the number at off(R9) of each of four rows: row r
// in Z(4r) to Z(4r+3).
#define TIMES16(off) \
	VBROADCASTSS (off)(R9), Z20; \
	VBROADCASTSS (ROW+off)(R9), Z21; \
	VBROADCASTSS (2*ROW+off)(R9), Z22; \
	VBROADCASTSS (3*ROW+off)(R9), Z23; \
	VFMADD231PS Z16, Z20, Z0; \
	VFMADD231PS Z16, Z21, Z4; \
	VFMADD231PS Z16, Z22, Z8; \
	VFMADD231PS Z16, Z23, Z12; \
	VFMADD231PS Z17, Z20, Z1; \
	VFMADD231PS Z17, Z21, Z5; \
	VFMADD231PS Z17, Z22, Z9; \
	VFMADD231PS Z17, Z23, Z13; \
	VFMADD231PS Z18, Z20, Z2; \
	VFMADD231PS Z18, Z21, Z6; \
	VFMADD231PS Z18, Z22, Z10; \
	VFMADD231PS Z18, Z23, Z14; \
	VFMADD231PS Z19, Z20, Z3; \
	VFMADD231PS Z19, Z21, Z7; \
	VFMADD231PS Z19, Z22, Z11; \
	VFMADD231PS Z19, Z23, Z15

// The numbers of four neighbouring tiles at at(DX), of 64 neighbouring columns at
// at(R12) or, plus the row distance, of the next row.
#define TILES(LOADZ, at) \
	LOADZ((at)(DX), Z16); \
	LOADZ((at)(DX)(R11*1), Z17); \
	LOADZ((at)(DX)(R11*2), Z18); \
	LOADZ((at)(DX)(R12*1), Z19)
#define COLUMNS(LOADZ, SIZE) \
	LOADZ((R12), Z16); \
	LOADZ((16*SIZE)(R12), Z17); \
	LOADZ((32*SIZE)(R12), Z18); \
	LOADZ((48*SIZE)(R12), Z19)
#define NEXT_COLUMNS(LOADZ, SIZE) \
	LOADZ((R12)(R11*1), Z16); \
	LOADZ((16*SIZE)(R12)(R11*1), Z17); \
	LOADZ((32*SIZE)(R12)(R11*1), Z18); \
	LOADZ((48*SIZE)(R12)(R11*1), Z19)

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
component: \
	PREFETCHT0 (BX); \
	STEP; \
	ADDQ $(EACH*16*SIZE), DX; \
	ADDQ $(EACH*16*SIZE), BX; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10; \
	JNZ component; \
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

// The same for 4 queries and n groups of 4 neighbouring tiles.
#define SCORES4_AVX512(STEP, EACH, PREFETCHES, SIZE, ON, OFF) \
	MOVQ p+0(FP), DI; \
	MOVQ q+8(FP), SI; \
	MOVQ k+16(FP), DX; \
	MOVQ d+24(FP), CX; \
	MOVQ n+32(FP), R8; \
	MOVQ next+40(FP), BX; \
	VBROADCASTSS scale+48(FP), Z31; \
	MOVQ CX, R11; \
	IMULQ $(16*SIZE), R11; \
	LEAQ (R11)(R11*2), R12; \
quad: \
	VPXORD Z0, Z0, Z0; \
	VPXORD Z1, Z1, Z1; \
	VPXORD Z2, Z2, Z2; \
	VPXORD Z3, Z3, Z3; \
	VPXORD Z4, Z4, Z4; \
	VPXORD Z5, Z5, Z5; \
	VPXORD Z6, Z6, Z6; \
	VPXORD Z7, Z7, Z7; \
	VPXORD Z8, Z8, Z8; \
	VPXORD Z9, Z9, Z9; \
	VPXORD Z10, Z10, Z10; \
	VPXORD Z11, Z11, Z11; \
	VPXORD Z12, Z12, Z12; \
	VPXORD Z13, Z13, Z13; \
	VPXORD Z14, Z14, Z14; \
	VPXORD Z15, Z15, Z15; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
	ON; \
component: \
	PREFETCHES(BX); \
	STEP; \
	ADDQ $(EACH*16*SIZE), DX; \
	ADDQ $(EACH*64*SIZE), BX; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10; \
	JNZ component; \
	OFF; \
	ADDQ R12, DX; \
	VMULPS Z31, Z0, Z0; \
	VMULPS Z31, Z1, Z1; \
	VMULPS Z31, Z2, Z2; \
	VMULPS Z31, Z3, Z3; \
	VMULPS Z31, Z4, Z4; \
	VMULPS Z31, Z5, Z5; \
	VMULPS Z31, Z6, Z6; \
	VMULPS Z31, Z7, Z7; \
	VMULPS Z31, Z8, Z8; \
	VMULPS Z31, Z9, Z9; \
	VMULPS Z31, Z10, Z10; \
	VMULPS Z31, Z11, Z11; \
	VMULPS Z31, Z12, Z12; \
	VMULPS Z31, Z13, Z13; \
	VMULPS Z31, Z14, Z14; \
	VMULPS Z31, Z15, Z15; \
	VMOVUPS Z0, (DI); \
	VMOVUPS Z1, 64(DI); \
	VMOVUPS Z2, 128(DI); \
	VMOVUPS Z3, 192(DI); \
	VMOVUPS Z4, ROW(DI); \
	VMOVUPS Z5, (ROW+64)(DI); \
	VMOVUPS Z6, (ROW+128)(DI); \
	VMOVUPS Z7, (ROW+192)(DI); \
	VMOVUPS Z8, (2*ROW)(DI); \
	VMOVUPS Z9, (2*ROW+64)(DI); \
	VMOVUPS Z10, (2*ROW+128)(DI); \
	VMOVUPS Z11, (2*ROW+192)(DI); \
	VMOVUPS Z12, (3*ROW)(DI); \
	VMOVUPS Z13, (3*ROW+64)(DI); \
	VMOVUPS Z14, (3*ROW+128)(DI); \
	VMOVUPS Z15, (3*ROW+192)(DI); \
	ADDQ $256, DI; \
	DECQ R8; \
	JNZ quad; \
	VZEROUPPER; \
	RET

// The same for one query and n groups of 8 neighbouring tiles, p contiguous.
#define SCORES1_AVX512(LOADZ, SIZE) \
	MOVQ p+0(FP), DI; \
	MOVQ q+8(FP), SI; \
	MOVQ k+16(FP), DX; \
	MOVQ d+24(FP), CX; \
	MOVQ n+32(FP), R8; \
	VBROADCASTSS scale+48(FP), Z31; \
	MOVQ CX, R11; \
	IMULQ $(16*SIZE), R11; \
	LEAQ (R11)(R11*2), R12; \
	LEAQ (R11)(R11*4), R13; \
	LEAQ (R12)(R11*4), BX; \
group: \
	VPXORD Z0, Z0, Z0; \
	VPXORD Z1, Z1, Z1; \
	VPXORD Z2, Z2, Z2; \
	VPXORD Z3, Z3, Z3; \
	VPXORD Z4, Z4, Z4; \
	VPXORD Z5, Z5, Z5; \
	VPXORD Z6, Z6, Z6; \
	VPXORD Z7, Z7, Z7; \
	MOVQ SI, R9; \
	MOVQ CX, R10; \
component: \
	VBROADCASTSS (R9), Z20; \
	LOADZ((DX), Z8); \
	LOADZ((DX)(R11*1), Z9); \
	LOADZ((DX)(R11*2), Z10); \
	LOADZ((DX)(R12*1), Z11); \
	LOADZ((DX)(R11*4), Z12); \
	LOADZ((DX)(R13*1), Z13); \
	LOADZ((DX)(R12*2), Z14); \
	LOADZ((DX)(BX*1), Z15); \
	VFMADD231PS Z8, Z20, Z0; \
	VFMADD231PS Z9, Z20, Z1; \
	VFMADD231PS Z10, Z20, Z2; \
	VFMADD231PS Z11, Z20, Z3; \
	VFMADD231PS Z12, Z20, Z4; \
	VFMADD231PS Z13, Z20, Z5; \
	VFMADD231PS Z14, Z20, Z6; \
	VFMADD231PS Z15, Z20, Z7; \
	ADDQ $(16*SIZE), DX; \
	ADDQ $4, R9; \
	DECQ R10; \
	JNZ component; \
	ADDQ BX, DX; \
	VMULPS Z31, Z0, Z0; \
	VMULPS Z31, Z1, Z1; \
	VMULPS Z31, Z2, Z2; \
	VMULPS Z31, Z3, Z3; \
	VMULPS Z31, Z4, Z4; \
	VMULPS Z31, Z5, Z5; \
	VMULPS Z31, Z6, Z6; \
	VMULPS Z31, Z7, Z7; \
	VMOVUPS Z0, 0(DI); \
	VMOVUPS Z1, 64(DI); \
	VMOVUPS Z2, 128(DI); \
	VMOVUPS Z3, 192(DI); \
	VMOVUPS Z4, 256(DI); \
	VMOVUPS Z5, 320(DI); \
	VMOVUPS Z6, 384(DI); \
	VMOVUPS Z7, 448(DI); \
	ADDQ $512, DI; \
	DECQ R8; \
	JNZ group; \
	VZEROUPPER; \
	RET

// Weighted values of n slots for 4 rows, columns c < cols, cols a multiple of 16;
// the rows of v are stride bytes apart.
//
//	for j < n, r < 4, c < cols: acc[r][c] = fma(p[r][j], v[j][c], acc[r][c])
//
#define VALUES4_AVX2(STEP, EACH, SIZE, OFF) \
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
slot: \
	PREFETCHT0 (R13); \
	STEP; \
	LEAQ (R12)(R11*EACH), R12; \
	LEAQ (R13)(R11*EACH), R13; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10; \
	JNZ slot; \
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

// The same for 4 rows, cols a multiple of 64.
#define VALUES4_AVX512(STEP, EACH, PREFETCHES, SIZE, OFF) \
	MOVQ acc+0(FP), DI; \
	MOVQ p+8(FP), SI; \
	MOVQ v+16(FP), DX; \
	MOVQ stride+24(FP), R11; \
	MOVQ n+32(FP), R8; \
	MOVQ cols+40(FP), CX; \
	MOVQ next+48(FP), BX; \
column: \
	VMOVUPS (DI), Z0; \
	VMOVUPS 64(DI), Z1; \
	VMOVUPS 128(DI), Z2; \
	VMOVUPS 192(DI), Z3; \
	VMOVUPS ROW(DI), Z4; \
	VMOVUPS (ROW+64)(DI), Z5; \
	VMOVUPS (ROW+128)(DI), Z6; \
	VMOVUPS (ROW+192)(DI), Z7; \
	VMOVUPS (2*ROW)(DI), Z8; \
	VMOVUPS (2*ROW+64)(DI), Z9; \
	VMOVUPS (2*ROW+128)(DI), Z10; \
	VMOVUPS (2*ROW+192)(DI), Z11; \
	VMOVUPS (3*ROW)(DI), Z12; \
	VMOVUPS (3*ROW+64)(DI), Z13; \
	VMOVUPS (3*ROW+128)(DI), Z14; \
	VMOVUPS (3*ROW+192)(DI), Z15; \
	MOVQ SI, R9; \
	MOVQ DX, R12; \
	MOVQ BX, R13; \
	MOVQ R8, R10; \
slot: \
	PREFETCHES(R13); \
	STEP; \
	LEAQ (R12)(R11*EACH), R12; \
	LEAQ (R13)(R11*EACH), R13; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10; \
	JNZ slot; \
	VMOVUPS Z0, (DI); \
	VMOVUPS Z1, 64(DI); \
	VMOVUPS Z2, 128(DI); \
	VMOVUPS Z3, 192(DI); \
	VMOVUPS Z4, ROW(DI); \
	VMOVUPS Z5, (ROW+64)(DI); \
	VMOVUPS Z6, (ROW+128)(DI); \
	VMOVUPS Z7, (ROW+192)(DI); \
	VMOVUPS Z8, (2*ROW)(DI); \
	VMOVUPS Z9, (2*ROW+64)(DI); \
	VMOVUPS Z10, (2*ROW+128)(DI); \
	VMOVUPS Z11, (2*ROW+192)(DI); \
	VMOVUPS Z12, (3*ROW)(DI); \
	VMOVUPS Z13, (3*ROW+64)(DI); \
	VMOVUPS Z14, (3*ROW+128)(DI); \
	VMOVUPS Z15, (3*ROW+192)(DI); \
	ADDQ $256, DI; \
	ADDQ $(64*SIZE), DX; \
	ADDQ $(64*SIZE), BX; \
	SUBQ $64, CX; \
	JNZ column; \
	OFF; \
	VZEROUPPER; \
	RET

// The largest of the lanes of z, into all lanes of xlo. Lanes are not NaN.
#define MAX_LANES(ylo, xlo, z, yhi, xhi) \
	VEXTRACTF64X4 $1, z, yhi; \
	VMAXPS yhi, ylo, ylo; \
	VEXTRACTF128 $1, ylo, xhi; \
	VMAXPS xhi, xlo, xlo; \
	VPERMILPS $0x4e, xlo, xhi; \
	VMAXPS xhi, xlo, xlo; \
	VPERMILPS $0xb1, xlo, xhi; \
	VMAXPS xhi, xlo, xlo

// The lanes of a denominator, joined by the fixed tree into lane 0 of the lower half.
#define SUM_LANES(ylo, yhi, xlo, xhi) \
	VADDPS yhi, ylo, ylo; \
	VEXTRACTF128 $1, ylo, xhi; \
	VADDPS xhi, xlo, xlo; \
	VPERMILPS $0x4e, xlo, xhi; \
	VADDPS xhi, xlo, xlo; \
	VPERMILPS $0xb1, xlo, xhi; \
	VADDPS xhi, xlo, xlo

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

#define EXP2_DOWN_AVX512(x, n, t, p) \
	VRNDSCALEPS $8, x, n; \
	VSUBPS n, x, t; \
	VMOVAPS Z16, p; \
	VFMADD213PS Z17, t, p; \
	VFMADD213PS Z18, t, p; \
	VFMADD213PS Z19, t, p; \
	VFMADD213PS Z20, t, p; \
	VFMADD213PS Z21, t, p; \
	VFMADD213PS Z22, t, p; \
	VCMPPS $5, Z23, x, K1; \
	VSCALEFPS.Z n, p, K1, x

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

// Weights of rows of scores, two at a time, so that one hides the latency of the
// other. FINISH stores the weights in Z4 and Z8, OUT bytes each, at R9 and ROW(R9), and
// adds them to the denominators in Z12 and Z13.
#define SOFTMAX_AVX512(FINISH, OUT) \
pair: \
	VBROADCASTSS ·minusInf(SB), Z1; \
	VMOVAPS Z1, Z2; \
	MOVQ R8, SI; \
	MOVQ R11, CX; \
largest: \
	VMOVUPS (SI), Z4; \
	VMOVUPS ROW(SI), Z5; \
	VMAXPS Z1, Z4, Z1; \
	VMAXPS Z2, Z5, Z2; \
	ADDQ $64, SI; \
	SUBQ $16, CX; \
	JNZ largest; \
	MAX_LANES(Y1, X1, Z1, Y4, X4); \
	MAX_LANES(Y2, X2, Z2, Y5, X5); \
	VXORPS X12, X12, X12; \
	VXORPS X13, X13, X13; \
	VADDPS X12, X1, X1; \
	VADDPS X13, X2, X2; \
	VMOVSS X1, (DI); \
	VMOVSS X2, 8(DI); \
	VBROADCASTSS X1, Z1; \
	VBROADCASTSS X2, Z2; \
	MOVQ R8, SI; \
	MOVQ R8, R9; \
	MOVQ R11, CX; \
weight: \
	VMOVUPS (SI), Z4; \
	VMOVUPS ROW(SI), Z8; \
	VSUBPS Z1, Z4, Z4; \
	VSUBPS Z2, Z8, Z8; \
	EXP2_DOWN_AVX512(Z4, Z5, Z6, Z7); \
	EXP2_DOWN_AVX512(Z8, Z9, Z10, Z11); \
	FINISH; \
	ADDQ $64, SI; \
	ADDQ $OUT, R9; \
	SUBQ $16, CX; \
	JNZ weight; \
	VEXTRACTF64X4 $1, Z12, Y4; \
	VEXTRACTF64X4 $1, Z13, Y5; \
	SUM_LANES(Y12, Y4, X12, X4); \
	SUM_LANES(Y13, Y5, X13, X5); \
	VMOVSS X12, 4(DI); \
	VMOVSS X13, 12(DI); \
	ADDQ $16, DI; \
	ADDQ $(2*ROW), R8; \
	SUBQ $2, DX; \
	JNZ pair; \
	VZEROUPPER; \
	RET
