// Bodies of the attention kernels, for each element type of the cache.

// Distance of rows of queries, weights and accumulators: attentionStride elements.
#define ROW 1088

#define CLEAR4(a, b, c, d) \
	VEOR a.B16, a.B16, a.B16; \
	VEOR b.B16, b.B16, b.B16; \
	VEOR c.B16, c.B16, c.B16; \
	VEOR d.B16, d.B16, d.B16

// Running pointers to four rows from R(at) on.
#define ROWS(at) \
	MOVD at, R9; \
	ADD $ROW, at, R10; \
	ADD $(2*ROW), at, R11; \
	ADD $(3*ROW), at, R12

// The next element of each of four rows in all lanes of V24 to V27.
#define BROADCAST4 \
	VLD1R.P 4(R9), [V24.S4]; \
	VLD1R.P 4(R10), [V25.S4]; \
	VLD1R.P 4(R11), [V26.S4]; \
	VLD1R.P 4(R12), [V27.S4]

#define MULADD16(v, a, b, c, d) \
	VFMLA V16.S4, v.S4, a.S4; \
	VFMLA V17.S4, v.S4, b.S4; \
	VFMLA V18.S4, v.S4, c.S4; \
	VFMLA V19.S4, v.S4, d.S4

#define MUL4(s, a, b, c, d) \
	FMUL(s, a, a); \
	FMUL(s, b, b); \
	FMUL(s, c, c); \
	FMUL(s, d, d)

// Scores of 4 queries with the 16 keys of each of n neighbouring tiles.
//
//	for i < n, r < 4, j < 16:
//		t = fma chain over c < d of q[r][c]·k[i][c][j] from +0
//		p[r][16i+j] = t·scale
//
#define SCORES4(LOAD) \
	MOVD p+0(FP), R1; \
	MOVD q+8(FP), R2; \
	MOVD k+16(FP), R3; \
	MOVD d+24(FP), R4; \
	MOVD n+32(FP), R5; \
	MOVD $scale+48(FP), R6; \
	VLD1R (R6), [V31.S4]; \
tile: \
	CLEAR4(V0, V1, V2, V3); \
	CLEAR4(V4, V5, V6, V7); \
	CLEAR4(V8, V9, V10, V11); \
	CLEAR4(V12, V13, V14, V15); \
	ROWS(R2); \
	MOVD R4, R7; \
component: \
	LOAD(R3); \
	BROADCAST4; \
	MULADD16(V24, V0, V1, V2, V3); \
	MULADD16(V25, V4, V5, V6, V7); \
	MULADD16(V26, V8, V9, V10, V11); \
	MULADD16(V27, V12, V13, V14, V15); \
	SUB $1, R7; \
	CBNZ R7, component; \
	MUL4(31, 0, 1, 2, 3); \
	MUL4(31, 4, 5, 6, 7); \
	MUL4(31, 8, 9, 10, 11); \
	MUL4(31, 12, 13, 14, 15); \
	ROWS(R1); \
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R9); \
	VST1 [V4.S4, V5.S4, V6.S4, V7.S4], (R10); \
	VST1 [V8.S4, V9.S4, V10.S4, V11.S4], (R11); \
	VST1 [V12.S4, V13.S4, V14.S4, V15.S4], (R12); \
	ADD $64, R1; \
	SUB $1, R5; \
	CBNZ R5, tile; \
	RET

// The same for one query, p contiguous.
#define SCORES1(LOAD) \
	MOVD p+0(FP), R1; \
	MOVD q+8(FP), R2; \
	MOVD k+16(FP), R3; \
	MOVD d+24(FP), R4; \
	MOVD n+32(FP), R5; \
	MOVD $scale+48(FP), R6; \
	VLD1R (R6), [V31.S4]; \
tile: \
	CLEAR4(V0, V1, V2, V3); \
	MOVD R2, R9; \
	MOVD R4, R7; \
component: \
	LOAD(R3); \
	VLD1R.P 4(R9), [V24.S4]; \
	MULADD16(V24, V0, V1, V2, V3); \
	SUB $1, R7; \
	CBNZ R7, component; \
	MUL4(31, 0, 1, 2, 3); \
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R1); \
	SUB $1, R5; \
	CBNZ R5, tile; \
	RET

// Weighted values of n slots for 4 rows, columns c < cols, cols a multiple of 16;
// the rows of v are stride bytes apart.
//
//	for j < n, r < 4, c < cols: acc[r][c] = fma(p[r][j], v[j][c], acc[r][c])
//
#define VALUES4(LOAD, SIZE) \
	MOVD acc+0(FP), R1; \
	MOVD p+8(FP), R2; \
	MOVD v+16(FP), R3; \
	MOVD stride+24(FP), R4; \
	MOVD n+32(FP), R5; \
	MOVD cols+40(FP), R6; \
column: \
	ROWS(R1); \
	VLD1 (R9), [V0.S4, V1.S4, V2.S4, V3.S4]; \
	VLD1 (R10), [V4.S4, V5.S4, V6.S4, V7.S4]; \
	VLD1 (R11), [V8.S4, V9.S4, V10.S4, V11.S4]; \
	VLD1 (R12), [V12.S4, V13.S4, V14.S4, V15.S4]; \
	ROWS(R2); \
	MOVD R3, R8; \
	MOVD R5, R7; \
slot: \
	MOVD R8, R13; \
	LOAD(R13); \
	BROADCAST4; \
	MULADD16(V24, V0, V1, V2, V3); \
	MULADD16(V25, V4, V5, V6, V7); \
	MULADD16(V26, V8, V9, V10, V11); \
	MULADD16(V27, V12, V13, V14, V15); \
	ADD R4, R8; \
	SUB $1, R7; \
	CBNZ R7, slot; \
	ROWS(R1); \
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R9); \
	VST1 [V4.S4, V5.S4, V6.S4, V7.S4], (R10); \
	VST1 [V8.S4, V9.S4, V10.S4, V11.S4], (R11); \
	VST1 [V12.S4, V13.S4, V14.S4, V15.S4], (R12); \
	ADD $64, R1; \
	ADD $(16*SIZE), R3; \
	SUB $16, R6; \
	CBNZ R6, column; \
	RET

// The same for one row.
#define VALUES1(LOAD, SIZE) \
	MOVD acc+0(FP), R1; \
	MOVD p+8(FP), R2; \
	MOVD v+16(FP), R3; \
	MOVD stride+24(FP), R4; \
	MOVD n+32(FP), R5; \
	MOVD cols+40(FP), R6; \
column: \
	VLD1 (R1), [V0.S4, V1.S4, V2.S4, V3.S4]; \
	MOVD R2, R9; \
	MOVD R3, R8; \
	MOVD R5, R7; \
slot: \
	MOVD R8, R13; \
	LOAD(R13); \
	VLD1R.P 4(R9), [V24.S4]; \
	MULADD16(V24, V0, V1, V2, V3); \
	ADD R4, R8; \
	SUB $1, R7; \
	CBNZ R7, slot; \
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R1); \
	ADD $(16*SIZE), R3; \
	SUB $16, R6; \
	CBNZ R6, column; \
	RET
