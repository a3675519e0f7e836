// What the bodies of the attention kernels have in common; attention_avx2_amd64.h and
// attention_avx512_amd64.h build on it.

// Rows of queries, weights and accumulators lie ROW bytes apart: attentionStride
// elements, not a power of two, so that rows do not share cache sets.
#define ROW 1088

// PLACES takes the four places that AX points to, see hint in attention_rows.go, and puts
// what leads from a step to the next, so many times BYTES, into the argument that held AX.
// PREFETCH_PLACES asks for a line at each of them.
#define PLACES(BYTES, next) \
	MOVQ 32(AX), BX; \
	IMULQ $(BYTES), BX; \
	MOVQ BX, next; \
	MOVQ (AX), BX; \
	MOVQ 8(AX), R13; \
	MOVQ 16(AX), R14; \
	MOVQ 24(AX), R15; \
	XORL AX, AX
#define PREFETCH_PLACES(OP, at) \
	OP (BX)(at*1); \
	OP (R13)(at*1); \
	OP (R14)(at*1); \
	OP (R15)(at*1)

// LOOP is a loop of BODY, which sets the flags, with PREFETCHES(OP, at): into the
// second-level cache, by the loop named far, if the address next in BX is odd.
#define LOOP(near, far, done, PREFETCHES, at, BODY) \
	TESTQ $1, BX; \
	JNZ far; \
near: \
	PREFETCHES(PREFETCHT0, at); \
	BODY; \
	JNZ near; \
	JMP done; \
far: \
	PREFETCHES(PREFETCHT1, at); \
	BODY; \
	JNZ far; \
done:

// Bodies of loops over components, of which the hints are as many columns wide, and slots.
#define COMPONENT(STEP, EACH, SIZE, COLUMNS) \
	STEP; \
	ADDQ $(EACH*16*SIZE), DX; \
	ADDQ $(EACH*COLUMNS*SIZE), BX; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10
#define SLOT(STEP, EACH) \
	STEP; \
	LEAQ (R12)(R11*EACH), R12; \
	LEAQ (R13)(R11*EACH), R13; \
	ADDQ $(4*EACH), R9; \
	SUBQ $EACH, R10

// What 16 elements take, of one slot or of two, R11 bytes apart.
#define PREFETCH_1(OP, at) OP (at)
#define PREFETCH_BOTH(OP, at) OP (at); OP (at)(R11*1)

// NOTHING stands for macros that have nothing to do.
#define NOTHING

// The lanes of a denominator, joined by the fixed tree into lane 0 of the lower half.
#define SUM_LANES(ylo, yhi, xlo, xhi) \
	VADDPS yhi, ylo, ylo; \
	VEXTRACTF128 $1, ylo, xhi; \
	VADDPS xhi, xlo, xlo; \
	VPERMILPS $0x4e, xlo, xhi; \
	VADDPS xhi, xlo, xlo; \
	VPERMILPS $0xb1, xlo, xhi; \
	VADDPS xhi, xlo, xlo

#define PANEL 256 // bytes of 64 columns

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

// MODES puts MXCSR with flushing at 0(SP) and as found at 4(SP).
#define MODES \
	STMXCSR 4(SP); \
	MOVL 4(SP), AX; \
	ORL $0x8040, AX; \
	MOVL AX, 0(SP)
#define FLUSH LDMXCSR 0(SP)
#define KEEP LDMXCSR 4(SP)

// Rounds the weights x, which are not negative, to bf16; t is overwritten, c is 0x7fff.
#define ROUND_WEIGHTS(x, t, c) \
	VPSLLD $15, x, t; \
	VPSRLD $31, t, t; \
	VPADDD c, t, t; \
	VPADDD t, x, x; \
	VPSRLD $16, x, x; \
	VPSLLD $16, x, x
