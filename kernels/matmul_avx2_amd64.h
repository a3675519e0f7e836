// Matrix-product tiles for AVX2, included once per weight type by
// matmul_avx2_amd64.s. The including file defines
//
//	XSTEP, WSTEP   bytes of a group of 16 lanes in a row of x, of w
//	STEP(G)        one half group (8 lanes), by G = G<R><C>, of R rows of x times C rows of w
//	PAIR1          both halves of one group, one row of x, four rows of w
//	FLUSH, KEEP    switch the treatment of subnormal numbers around the loops
//
// A tile has up to 3 × 4 outputs. Lanes 0–7 of all of them are summed in a first
// pass over the block, put aside in the frame, then lanes 8–15 in a second pass:
// twelve accumulators fit into sixteen registers.
//
// Registers
//	SI  x, row 0      R8  row distance of x
//	DI  w, row 0      R11 row distance of w, R12 three times that
//	DX  dst           R13 row distance of dst
//	BX  rows of w left    R14 groups of the block    CX  groups left
//	R9  bytes of the block in a row of x, R10 in a row of w
//	Y0–Y11 sums, row r of x and row c of w in 4r+c; Y12–Y14 x; Y15 w
//	0(SP) sums of lanes 0–7 in the same order; 384(SP), 388(SP) MXCSR flushing, as found

TEXT NAME, NOSPLIT, $400-8
	MOVQ  a+0(FP), AX
	MOVQ  tile_x(AX), SI
	MOVQ  tile_ldx(AX), R8
	MOVQ  tile_w(AX), DI
	MOVQ  tile_ldw(AX), R11
	MOVQ  tile_dst(AX), DX
	MOVQ  tile_ldd(AX), R13
	MOVQ  tile_cols(AX), BX
	MOVQ  tile_step(AX), R14
	LEAQ  (R11)(R11*2), R12
	IMUL3Q $XSTEP, R14, R9
	IMUL3Q $WSTEP, R14, R10
	STMXCSR 388(SP)
	MOVL  388(SP), CX
	ORL   $0x8040, CX         // flush to zero, denormals are zero
	MOVL  CX, 384(SP)
	MOVQ  tile_rows(AX), CX
	CMPQ  CX, $2
	JEQ   two
	JGT   three

one:
	CMPQ  BX, $4
	JLT   one1
	ZERO4(Y0, Y1, Y2, Y3)
	ZERO4(Y4, Y5, Y6, Y7)
	FLUSH
	MOVQ  R14, CX
onepair:
	PAIR1
	ADDQ  $XSTEP, SI
	ADDQ  $WSTEP, DI
	DECQ  CX
	JNZ   onepair
	KEEP
	KEEP4(0, Y0, Y1, Y2, Y3)
	MOVQ  DX, AX
	REDUCE4(0, Y4, Y5, Y6, Y7)
	SUBQ  R9, SI
	SUBQ  R10, DI
	LEAQ  (DI)(R11*4), DI
	ADDQ  $16, DX
	SUBQ  $4, BX
	JMP   one
one1:
	TESTQ BX, BX
	JZ    done
	ZERO1(Y0)
	FLUSH
	PASS(G11, one1lo)
	VMOVUPS Y0, 0(SP)
	ZERO1(Y0)
	SECOND
	PASS(G11, one1hi)
	KEEP
	MOVQ  DX, AX
	REDUCE1(0, Y0)
	NEXT(4, 1)
	ADDQ  R11, DI
	JMP   one1

two:
	CMPQ  BX, $4
	JLT   two1
	ZERO4(Y0, Y1, Y2, Y3)
	ZERO4(Y4, Y5, Y6, Y7)
	FLUSH
	PASS(G24, twolo)
	KEEP4(0, Y0, Y1, Y2, Y3)
	KEEP4(128, Y4, Y5, Y6, Y7)
	ZERO4(Y0, Y1, Y2, Y3)
	ZERO4(Y4, Y5, Y6, Y7)
	SECOND
	PASS(G24, twohi)
	KEEP
	MOVQ  DX, AX
	REDUCE4(0, Y0, Y1, Y2, Y3)
	REDUCE4(128, Y4, Y5, Y6, Y7)
	NEXT(16, 4)
	LEAQ  (DI)(R11*4), DI
	JMP   two
two1:
	TESTQ BX, BX
	JZ    done
	ZERO1(Y0)
	ZERO1(Y4)
	FLUSH
	PASS(G21, two1lo)
	VMOVUPS Y0, 0(SP)
	VMOVUPS Y4, 128(SP)
	ZERO1(Y0)
	ZERO1(Y4)
	SECOND
	PASS(G21, two1hi)
	KEEP
	MOVQ  DX, AX
	REDUCE1(0, Y0)
	REDUCE1(128, Y4)
	NEXT(4, 1)
	ADDQ  R11, DI
	JMP   two1

three:
	CMPQ  BX, $4
	JLT   three1
	ZERO4(Y0, Y1, Y2, Y3)
	ZERO4(Y4, Y5, Y6, Y7)
	ZERO4(Y8, Y9, Y10, Y11)
	FLUSH
	PASS(G34, threelo)
	KEEP4(0, Y0, Y1, Y2, Y3)
	KEEP4(128, Y4, Y5, Y6, Y7)
	KEEP4(256, Y8, Y9, Y10, Y11)
	ZERO4(Y0, Y1, Y2, Y3)
	ZERO4(Y4, Y5, Y6, Y7)
	ZERO4(Y8, Y9, Y10, Y11)
	SECOND
	PASS(G34, threehi)
	KEEP
	MOVQ  DX, AX
	REDUCE4(0, Y0, Y1, Y2, Y3)
	REDUCE4(128, Y4, Y5, Y6, Y7)
	REDUCE4(256, Y8, Y9, Y10, Y11)
	NEXT(16, 4)
	LEAQ  (DI)(R11*4), DI
	JMP   three
three1:
	TESTQ BX, BX
	JZ    done
	ZERO1(Y0)
	ZERO1(Y4)
	ZERO1(Y8)
	FLUSH
	PASS(G31, three1lo)
	VMOVUPS Y0, 0(SP)
	VMOVUPS Y4, 128(SP)
	VMOVUPS Y8, 256(SP)
	ZERO1(Y0)
	ZERO1(Y4)
	ZERO1(Y8)
	SECOND
	PASS(G31, three1hi)
	KEEP
	MOVQ  DX, AX
	REDUCE1(0, Y0)
	REDUCE1(128, Y4)
	REDUCE1(256, Y8)
	NEXT(4, 1)
	ADDQ  R11, DI
	JMP   three1

done:
	VZEROUPPER
	RET
