// Rows of activations as 8-bit integers by up to 256 columns of four rows of weights, see
// int8Quad. Included once with SDOT and once without. The including file defines
//
//	QUAD16, QUAD32, CHAIN  the symbols
//	FIRST(w, q, P, p)      four sums of the products of 16 bytes in Vw and Vq, in Vp
//	MORE(w, q, p)          adds such sums to Vp
//
// The four sums of a row of weights are added up at the end: integers have no order.
//
// Registers: R1 q, R2 scales, R3 sums of the current row of activations, R4 the distance of
// rows, R5 the quad, R6 acc, R7 rows left, R8 whether there are minima, R10 to R13 weights,
// R14 their scales; V0 to V3 activations, V4 to V7 weights, V16 to V19 sums of the four rows.

// TREE sets V16 to the sums of the elements of V16, V17, V18 and V19, as f32.
#define TREE \
	ADDP(17, 16, 16); \
	ADDP(19, 18, 18); \
	ADDP(18, 16, 16); \
	SCVTF(16, 16)

#define ROWS \
	MOVD a+0(FP), R0; \
	MOVD int8QuadTile_quad(R0), R5; \
	MOVD int8QuadTile_q(R0), R1; \
	MOVD int8QuadTile_sums(R0), R3; \
	MOVD int8QuadTile_scale(R0), R2; \
	MOVD int8QuadTile_stride(R0), R4; \
	MOVD int8QuadTile_acc(R0), R6; \
	MOVD int8QuadTile_rows(R0), R7; \
	MOVD int8QuadTile_minima(R0), R8

#define WEIGHTS \
	MOVD R5, R10; \
	ADD $256, R5, R11; \
	ADD $512, R5, R12; \
	ADD $768, R5, R13

#define NEXT \
	ADD R4, R1; \
	ADD R4, R2; \
	ADD R4, R3; \
	ADD $16, R6; \
	SUB $1, R7

// ROW16 and ROW32 are 64 columns of row i of the weights. LEAST16 and LEAST32 are the products
// of its minima with V0 (and V1), the sums of groups.
#define ROW16(i, R, acc) \
	VLD1.P 64(R), [V4.B16, V5.B16, V6.B16, V7.B16]; \
	FMOVQ (64*i)(R14), F24; \
	FIRST(4, 0, V20, 20); \
	FIRST(5, 1, V21, 21); \
	FIRST(6, 2, V22, 22); \
	FIRST(7, 3, V23, 23); \
	MLAE(24, 0, 20, acc); \
	MLAE(24, 1, 21, acc); \
	MLAE(24, 2, 22, acc); \
	MLAE(24, 3, 23, acc)
#define ROW32(i, R, acc) \
	VLD1.P 64(R), [V4.B16, V5.B16, V6.B16, V7.B16]; \
	FMOVD (64*i)(R14), F24; \
	FIRST(4, 0, V20, 20); \
	FIRST(6, 2, V21, 21); \
	MORE(5, 1, 20); \
	MORE(7, 3, 21); \
	MLAE(24, 0, 20, acc); \
	MLAE(24, 1, 21, acc)
#define LEAST16(acc) \
	VLD1.P 32(R14), [V4.H8, V5.H8]; \
	SMULL(4, 0, acc); \
	SMLAL2(4, 0, acc); \
	SMLAL(5, 1, acc); \
	SMLAL2(5, 1, acc)
#define LEAST32(acc) \
	VLD1 (R14), [V4.H8]; \
	ADD $32, R14; \
	SMULL(4, 0, acc); \
	SMLAL2(4, 0, acc)

// BODY has 64 columns in a turn of the inner loop. bytes is the size of their scales.
#define BODY(ROW, LEAST, bytes) \
	ROWS; \
	ADD $int8Quad_d, R5, R9; \
	VLD1 (R9), [V25.S4]; \
	ADD $int8Quad_min, R5, R9; \
	VLD1 (R9), [V26.S4]; \
row: \
	WEIGHTS; \
	ADD $int8Quad_scale, R5, R14; \
	MOVD R1, R9; \
	MOVD $4, R15; \
	VMOVI $0, V16.B16; \
	VMOVI $0, V17.B16; \
	VMOVI $0, V18.B16; \
	VMOVI $0, V19.B16; \
columns: \
	VLD1.P 64(R9), [V0.B16, V1.B16, V2.B16, V3.B16]; \
	ROW(0, R10, 16); \
	ROW(1, R11, 17); \
	ROW(2, R12, 18); \
	ROW(3, R13, 19); \
	ADD $bytes, R14; \
	SUB $1, R15; \
	CBNZ R15, columns; \
	TREE; \
	VLD1R (R2), [V27.S4]; \
	FMUL(27, 25, 28); \
	VLD1 (R6), [V29.S4]; \
	VFMLA V28.S4, V16.S4, V29.S4; \
	CBZ R8, none; \
	VLD1 (R3), [V0.H8, V1.H8]; \
	ADD $int8Quad_least, R5, R14; \
	LEAST(16); \
	LEAST(17); \
	LEAST(18); \
	LEAST(19); \
	TREE; \
	FMUL(27, 26, 28); \
	FMLS(28, 16, 29); \
none: \
	VST1 [V29.S4], (R6); \
	NEXT; \
	CBNZ R7, row; \
	RET

TEXT QUAD16, NOSPLIT, $0-8
	BODY(ROW16, LEAST16, 16)

TEXT QUAD32, NOSPLIT, $0-8
	BODY(ROW32, LEAST32, 8)

#define BLOCK(R, A, acc) \
	VLD1.P 32(R), [V4.B16, V5.B16]; \
	FIRST(4, 0, A, acc); \
	MORE(5, 1, acc)

TEXT CHAIN, NOSPLIT, $0-8
	ROWS
chain:
	WEIGHTS
	ADD $int8Quad_chain, R5, R14
	MOVD int8QuadTile_groups(R0), R15
	MOVD R1, R9
	MOVD R2, R16
	MOVD R3, R17
	VMOVI $0, V29.B16
block:
	VLD1.P 32(R9), [V0.B16, V1.B16]
	BLOCK(R10, V16, 16)
	BLOCK(R11, V17, 17)
	BLOCK(R12, V18, 18)
	BLOCK(R13, V19, 19)
	TREE
	VLD1R.P 4(R16), [V27.S4]
	VLD1 (R14), [V25.S4]
	FMUL(27, 25, 28)
	VFMLA V28.S4, V16.S4, V29.S4
	CBZ R8, all
	VLD1R.P 4(R17), [V16.S4] // -128 times the sum of the block
	SCVTF7(16, 16)
	ADD $128, R14, R19
	VLD1 (R19), [V26.S4]
	FMUL(27, 26, 28)
	VFMLA V28.S4, V16.S4, V29.S4
all:
	ADD $16, R14
	SUB $1, R15
	CBNZ R15, block
	VLD1 (R6), [V28.S4]
	FADD(29, 28, 29)
	VST1 [V29.S4], (R6)
	NEXT
	CBNZ R7, chain
	RET
