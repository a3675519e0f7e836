// Bodies of the attention kernels for AVX-512, for each element type of the cache.
//
// Kernels for many rows of queries read panels: f32 copies of 64 keys [component][64] or
// of 64 columns of values [slot][64].

#define LOADZ_F32(at, z) VMOVUPS at, z

#define LOADZ_F16(at, z) VCVTPH2PS at, z

#define LOADZ_BF16(at, z) \
	VPMOVZXWD at, z; \
	VPSLLD $16, z, z

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

// The same for 4 queries and n groups of 4 neighbouring tiles.
// Bodies of loops over components and slots of 64 columns.
#define COMPONENT64(STEP, EACH, SIZE) \
	STEP; \
	ADDQ $(EACH*16*SIZE), DX; \
	ADDQ next+40(FP), AX; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10
#define SLOT64(STEP, EACH, SIZE) \
	STEP; \
	LEAQ (R12)(R11*EACH), R12; \
	ADDQ next+48(FP), AX; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10

#define SCORES4_AVX512(STEP, EACH, SIZE, ON, OFF) \
	MOVQ p+0(FP), DI; \
	MOVQ q+8(FP), SI; \
	MOVQ k+16(FP), DX; \
	MOVQ d+24(FP), CX; \
	MOVQ n+32(FP), R8; \
	MOVQ next+40(FP), AX; \
	PLACES(EACH*16*SIZE, next+40(FP)); \
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
	LOOP(component, far, scored, PREFETCH_PLACES, AX, COMPONENT64(STEP, EACH, SIZE)); \
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

// The same for 4 rows, cols a multiple of 64.
#define VALUES4_AVX512(STEP, EACH, SIZE, OFF) \
	MOVQ acc+0(FP), DI; \
	MOVQ p+8(FP), SI; \
	MOVQ v+16(FP), DX; \
	MOVQ stride+24(FP), R11; \
	MOVQ n+32(FP), R8; \
	MOVQ cols+40(FP), CX; \
	MOVQ next+48(FP), AX; \
	PLACES(EACH*16*SIZE, next+48(FP)); \
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
	MOVQ R8, R10; \
	LOOP(slot, far, valued, PREFETCH_PLACES, AX, SLOT64(STEP, EACH, SIZE)); \
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

#define MOVE_F32_AVX512(at, to) \
	LOADZ_F32((at), Z0); \
	VMOVUPS Z0, to(R9)

#define MOVE_F16_AVX512(at, to) \
	LOADZ_F16((at), Z0); \
	VMOVUPS Z0, to(R9)

#define MOVE_BF16_AVX512(at, to) \
	LOADZ_BF16((at), Z0); \
	VMOVUPS Z0, to(R9)

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
