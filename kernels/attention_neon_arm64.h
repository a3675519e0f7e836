// Bodies of the attention kernels, for each element type of the cache and, where
// PAIRS is defined, for attention in bf16.
//
// A chain goes along the elements of rows (queries or weights, from R2 on) and what
// the columns (keys or values, from R3 on) hold for them, stride bytes apart. START
// prepares for that. STEP(LOAD, by, on) takes one element of each row, R9 to R14, and
// its columns, R8, and goes on by that many bytes; TURN takes EACH elements, in the
// contract's order. FLUSH and KEEP stand around the chains.

#ifdef PAIRS
// Elements 1, 0, 3, 2, …, with flushing. The processor flushes a sum that is tiny
// before rounding, the contract one that is tiny after. Either way the flag for
// underflow (FPSR bit 3) is raised; REPORT then sets the word at next. R23 is FPCR
// as found, R24 the same with flushing, inputs too, R25 the flags that chains raised.
#define EACH 2
#define START(stride) \
	MRS FPCR, R23; \
	ORR $(1<<24), R23, R24; \
	MOVD ZR, R25; \
	MOVD stride, R22; \
	ADD R22, R3; \
	ADD $4, R2; \
	MOVD $-4, R19; \
	NEG R22, R20; \
	MOVD $12, R21; \
	ADD R22<<1, R22
#define TURN(STEP, LOAD) \
	STEP(LOAD, R19, R20); \
	STEP(LOAD, R21, R22)
#define FLUSH \
	MSR R24, FPCR; \
	MSR R25, FPSR
#define KEEP \
	MSR R23, FPCR; \
	MRS FPSR, R25
#define REPORT(next) \
	TBZ $3, R25, quiet; \
	MOVD next, R1; \
	MOVD $1, R2; \
	MOVW R2, (R1); \
quiet:
#else
#define EACH 1
#define START(stride) \
	MOVD $4, R19; \
	MOVD stride, R20
#define TURN(STEP, LOAD) STEP(LOAD, R19, R20)
#define FLUSH
#define KEEP
#define REPORT(next)
#endif

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

// 16 numbers of the columns, widened into V16 to V19.
#define NEXT_F32(on) VLD1.P (R8)(on), [V16.S4, V17.S4, V18.S4, V19.S4]
#define NEXT_F16(on) \
	VLD1.P (R8)(on), [V20.H8, V21.H8]; \
	WIDEN_F16
#define NEXT_BF16(on) \
	VLD1.P (R8)(on), [V20.H8, V21.H8]; \
	WIDEN_BF16

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

// A step of four rows and 16 columns: row r in V4r to V4r+3.
#define STEP4(LOAD, by, on) \
	LOAD(on); \
	VLD1R.P (R9)(by), [V24.S4]; \
	VLD1R.P (R10)(by), [V25.S4]; \
	VLD1R.P (R11)(by), [V26.S4]; \
	VLD1R.P (R12)(by), [V27.S4]; \
	MULADD16(V24, V0, V1, V2, V3); \
	MULADD16(V25, V4, V5, V6, V7); \
	MULADD16(V26, V8, V9, V10, V11); \
	MULADD16(V27, V12, V13, V14, V15)

// The same for one row.
#define STEP1(LOAD, by, on) \
	LOAD(on); \
	VLD1R.P (R9)(by), [V24.S4]; \
	MULADD16(V24, V0, V1, V2, V3)

#define LOAD4 \
	VLD1 (R9), [V0.S4, V1.S4, V2.S4, V3.S4]; \
	VLD1 (R10), [V4.S4, V5.S4, V6.S4, V7.S4]; \
	VLD1 (R11), [V8.S4, V9.S4, V10.S4, V11.S4]; \
	VLD1 (R12), [V12.S4, V13.S4, V14.S4, V15.S4]

#define STORE4 \
	VST1 [V0.S4, V1.S4, V2.S4, V3.S4], (R9); \
	VST1 [V4.S4, V5.S4, V6.S4, V7.S4], (R10); \
	VST1 [V8.S4, V9.S4, V10.S4, V11.S4], (R11); \
	VST1 [V12.S4, V13.S4, V14.S4, V15.S4], (R12)

// Scores of 4 queries with the 16 keys of each of n neighbouring tiles.
//
//	for i < n, r < 4, j < 16:
//		t = fma chain over c < d of q[r][c]·k[i][c][j] from +0
//		p[r][16i+j] = t·scale
//
#define SCORES4(LOAD, SIZE) \
	MOVD p+0(FP), R1; \
	MOVD q+8(FP), R2; \
	MOVD k+16(FP), R3; \
	MOVD d+24(FP), R4; \
	MOVD n+32(FP), R5; \
	MOVD $scale+48(FP), R6; \
	VLD1R (R6), [V31.S4]; \
	START($(16*SIZE)); \
	MOVD R3, R8; \
tile: \
	CLEAR4(V0, V1, V2, V3); \
	CLEAR4(V4, V5, V6, V7); \
	CLEAR4(V8, V9, V10, V11); \
	CLEAR4(V12, V13, V14, V15); \
	ROWS(R2); \
	MOVD R4, R7; \
	FLUSH; \
component: \
	TURN(STEP4, LOAD); \
	SUB $EACH, R7; \
	CBNZ R7, component; \
	KEEP; \
	MUL4(31, 0, 1, 2, 3); \
	MUL4(31, 4, 5, 6, 7); \
	MUL4(31, 8, 9, 10, 11); \
	MUL4(31, 12, 13, 14, 15); \
	ROWS(R1); \
	STORE4; \
	ADD $64, R1; \
	SUB $1, R5; \
	CBNZ R5, tile; \
	REPORT(next+40(FP)); \
	RET

// The same for one query, p contiguous. Not for PAIRS.
#define SCORES1(LOAD, SIZE) \
	MOVD p+0(FP), R1; \
	MOVD q+8(FP), R2; \
	MOVD k+16(FP), R3; \
	MOVD d+24(FP), R4; \
	MOVD n+32(FP), R5; \
	MOVD $scale+48(FP), R6; \
	VLD1R (R6), [V31.S4]; \
	START($(16*SIZE)); \
	MOVD R3, R8; \
tile: \
	CLEAR4(V0, V1, V2, V3); \
	MOVD R2, R9; \
	MOVD R4, R7; \
component: \
	TURN(STEP1, LOAD); \
	SUB $EACH, R7; \
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
	START(R4); \
	FLUSH; \
column: \
	ROWS(R1); \
	LOAD4; \
	ROWS(R2); \
	MOVD R3, R8; \
	MOVD R5, R7; \
slot: \
	TURN(STEP4, LOAD); \
	SUB $EACH, R7; \
	CBNZ R7, slot; \
	ROWS(R1); \
	STORE4; \
	ADD $64, R1; \
	ADD $(16*SIZE), R3; \
	SUB $16, R6; \
	CBNZ R6, column; \
	KEEP; \
	REPORT(next+48(FP)); \
	RET

// The same for one row.
#define VALUES1(LOAD, SIZE) \
	MOVD acc+0(FP), R1; \
	MOVD p+8(FP), R2; \
	MOVD v+16(FP), R3; \
	MOVD stride+24(FP), R4; \
	MOVD n+32(FP), R5; \
	MOVD cols+40(FP), R6; \
	START(R4); \
	FLUSH; \
column: \
	VLD1 (R1), [V0.S4, V1.S4, V2.S4, V3.S4]; \
	MOVD R2, R9; \
	MOVD R3, R8; \
	MOVD R5, R7; \
slot: \
	TURN(STEP1, LOAD); \
	SUB $EACH, R7; \
	CBNZ R7, slot; \
	VST1.P [V0.S4, V1.S4, V2.S4, V3.S4], 64(R1); \
	ADD $(16*SIZE), R3; \
	SUB $16, R6; \
	CBNZ R6, column; \
	KEEP; \
	REPORT(next+48(FP)); \
	RET

// Kernels for many rows of queries. They read panels: f32 copies of 64 keys
// [component][64] or of 64 columns of values [slot][64]. Rows of queries, weights
// and accumulators come in groups of six.

#define PANEL 256 // bytes of 64 columns

// Running pointers to six rows from R(at) on.
#define ROWS6(at) \
	ROWS(at); \
	ADD $(4*ROW), at, R13; \
	ADD $(5*ROW), at, R14

// 16 numbers of a panel.
#define NEXT_PANEL(on) VLD1.P (R8)(on), [V24.S4, V25.S4, V26.S4, V27.S4]

#define MULADD24(v, a, b, c, d) \
	VFMLA V24.S4, v.S4, a.S4; \
	VFMLA V25.S4, v.S4, b.S4; \
	VFMLA V26.S4, v.S4, c.S4; \
	VFMLA V27.S4, v.S4, d.S4

// A step of six rows and 16 columns: row r in V4r to V4r+3; V28 to V31 are overwritten.
#define STEP6(LOAD, by, on) \
	LOAD(on); \
	VLD1R.P (R9)(by), [V28.S4]; \
	VLD1R.P (R10)(by), [V29.S4]; \
	VLD1R.P (R11)(by), [V30.S4]; \
	VLD1R.P (R12)(by), [V31.S4]; \
	MULADD24(V28, V0, V1, V2, V3); \
	VLD1R.P (R13)(by), [V28.S4]; \
	MULADD24(V29, V4, V5, V6, V7); \
	VLD1R.P (R14)(by), [V29.S4]; \
	MULADD24(V30, V8, V9, V10, V11); \
	MULADD24(V31, V12, V13, V14, V15); \
	MULADD24(V28, V16, V17, V18, V19); \
	MULADD24(V29, V20, V21, V22, V23)

#define LOAD6 \
	LOAD4; \
	VLD1 (R13), [V16.S4, V17.S4, V18.S4, V19.S4]; \
	VLD1 (R14), [V20.S4, V21.S4, V22.S4, V23.S4]

#define STORE6 \
	STORE4; \
	VST1 [V16.S4, V17.S4, V18.S4, V19.S4], (R13); \
	VST1 [V20.S4, V21.S4, V22.S4, V23.S4], (R14)

// Scores of groups of 6 queries with the 64 keys of a panel.
//
//	for r < 6·groups, j < 64:
//		t = fma chain over c < d of q[r][c]·k[c][j] from +0
//		p[r][j] = t·scale
//
#define SCORES6 \
	MOVD p+0(FP), R1; \
	MOVD q+8(FP), R2; \
	MOVD k+16(FP), R3; \
	MOVD d+24(FP), R4; \
	MOVD groups+32(FP), R5; \
	MOVD $scale+64(FP), R16; \
	START($PANEL); \
group: \
	MOVD $4, R6; \
	MOVD R3, R15; \
columns: \
	CLEAR4(V0, V1, V2, V3); \
	CLEAR4(V4, V5, V6, V7); \
	CLEAR4(V8, V9, V10, V11); \
	CLEAR4(V12, V13, V14, V15); \
	CLEAR4(V16, V17, V18, V19); \
	CLEAR4(V20, V21, V22, V23); \
	ROWS6(R2); \
	MOVD R15, R8; \
	MOVD R4, R7; \
	FLUSH; \
component: \
	TURN(STEP6, NEXT_PANEL); \
	SUB $EACH, R7; \
	CBNZ R7, component; \
	KEEP; \
	VLD1R (R16), [V31.S4]; \
	MUL4(31, 0, 1, 2, 3); \
	MUL4(31, 4, 5, 6, 7); \
	MUL4(31, 8, 9, 10, 11); \
	MUL4(31, 12, 13, 14, 15); \
	MUL4(31, 16, 17, 18, 19); \
	MUL4(31, 20, 21, 22, 23); \
	ROWS6(R1); \
	STORE6; \
	ADD $64, R1; \
	ADD $64, R15; \
	SUB $1, R6; \
	CBNZ R6, columns; \
	ADD $(6*ROW-PANEL), R1; \
	ADD $(6*ROW), R2; \
	SUB $1, R5; \
	CBNZ R5, group; \
	REPORT(nextK+40(FP)); \
	RET

// Weighted values of n slots for groups of 6 rows, columns c < cols of a panel,
// cols a multiple of 16.
//
//	for j < n, r < 6·groups, c < cols: acc[r][c] = fma(p[r][j], v[j][c], acc[r][c])
//
#define VALUES6 \
	MOVD acc+0(FP), R1; \
	MOVD p+8(FP), R2; \
	MOVD v+16(FP), R3; \
	MOVD n+24(FP), R4; \
	MOVD groups+32(FP), R5; \
	MOVD cols+40(FP), R16; \
	START($PANEL); \
	FLUSH; \
group: \
	MOVD R16, R6; \
	MOVD R1, R17; \
	MOVD R3, R15; \
columns: \
	ROWS6(R17); \
	LOAD6; \
	ROWS6(R2); \
	MOVD R15, R8; \
	MOVD R4, R7; \
slot: \
	TURN(STEP6, NEXT_PANEL); \
	SUB $EACH, R7; \
	CBNZ R7, slot; \
	ROWS6(R17); \
	STORE6; \
	ADD $64, R17; \
	ADD $64, R15; \
	SUB $16, R6; \
	CBNZ R6, columns; \
	ADD $(6*ROW), R1; \
	ADD $(6*ROW), R2; \
	SUB $1, R5; \
	CBNZ R5, group; \
	KEEP; \
	REPORT(next+48(FP)); \
	RET

// Weights of rows of scores. FINISH does something to the weights in V4 to V7, by
// way of V16, before they are summed and stored. EXP2_CONSTANTS stands before.
#define SOFTMAX(FINISH) \
	MOVD p+0(FP), R1; \
	MOVD n+8(FP), R2; \
	MOVD rows+16(FP), R6; \
	MOVD st+24(FP), R3; \
row: \
	FNEG(29, 0); \ // -Inf
	MOVD R1, R4; \
	MOVD R2, R5; \
largest: \
	VLD1.P 64(R4), [V4.S4, V5.S4, V6.S4, V7.S4]; \
	FMAXNM(4, 0, 0); \
	FMAXNM(5, 0, 0); \
	FMAXNM(6, 0, 0); \
	FMAXNM(7, 0, 0); \
	SUB $16, R5; \
	CBNZ R5, largest; \
	FMAXNMV(0, 0); \
	DUP(0, 0); \
	CLEAR4(V8, V9, V10, V11); \ // denominator
	FADD(8, 0, 0); \ // the maximum in all lanes, no negative zero
	FMOVS F0, (R3); \
	MOVD R1, R4; \
	MOVD R2, R5; \
weight: \
	VLD1 (R4), [V4.S4, V5.S4, V6.S4, V7.S4]; \
	FSUB(0, 4, 4); \
	FSUB(0, 5, 5); \
	FSUB(0, 6, 6); \
	FSUB(0, 7, 7); \
	EXP2(4, 16, 17, 18, V16, V17, V18); \
	EXP2(5, 16, 17, 18, V16, V17, V18); \
	EXP2(6, 16, 17, 18, V16, V17, V18); \
	EXP2(7, 16, 17, 18, V16, V17, V18); \
	FINISH(V4); \
	FINISH(V5); \
	FINISH(V6); \
	FINISH(V7); \
	FADD(4, 8, 8); \
	FADD(5, 9, 9); \
	FADD(6, 10, 10); \
	FADD(7, 11, 11); \
	VST1.P [V4.S4, V5.S4, V6.S4, V7.S4], 64(R4); \
	SUB $16, R5; \
	CBNZ R5, weight; \
	FADD(10, 8, 8); \ // lanes i + i+8
	FADD(11, 9, 9); \
	FADD(9, 8, 8); \ // i + i+4
	VEXT $8, V8.B16, V8.B16, V9.B16; \
	FADD(9, 8, 8); \ // i + i+2
	FADDP(8, 8, 8); \
	FMOVS F8, 4(R3); \
	ADD $8, R3; \
	ADD $ROW, R1; \
	SUB $1, R6; \
	CBNZ R6, row; \
	RET
