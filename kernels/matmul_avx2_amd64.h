// Matrix-product tiles for AVX2, included once per weight type by
// matmul_avx2_amd64.s. The including file defines
//
//	XSTEP, WSTEP   bytes of a group of 16 lanes in a row of x, of w
//	STEP(G)        one half group (8 lanes), by G = G<R><C>, of R rows of x times C rows of w
//	PAIR1          both halves of one group, one row of x, four rows of w
//	MASK           sets what PAIR1 needs in Y11
//	PREFETCH(OP)   asks for the 4·WSTEP bytes at R10 with instruction OP
//	FLUSH, KEEP    switch the treatment of subnormal numbers around the loops
//
// A tile has up to 3 × 4 outputs. Lanes 0–7 of all of them are summed in one pass
// over a chunk of the block, lanes 8–15 in a second: twelve accumulators fit into
// sixteen registers, and the frame holds the others. A single row of x has
// registers for all lanes and prefetches: each quarter of its steps one row of the
// next quad of w, so that the memory sees long runs and not four interleaved ones.
//
// Registers
//	SI  x, row 0      R8  row distance of x
//	DI  w, row 0      R11 row distance of w, R12 three times that
//	DX  dst           R13 row distance of dst
//	BX  rows of w left    R14 groups of the block    CX  groups left
//	R9  bytes of the block in a row of x    R10 what to prefetch    R15 list of what to prefetch
//	AX  scratch, dst of the row being stored
//	Y0–Y11 sums, row r of x and row c of w in 4r+c, or Y11 what MASK sets; Y12–Y14 x; Y15 w
//	0(SP) sums of lanes 0–7 in the same order, 384(SP) of lanes 8–15
//	768(SP), 772(SP) MXCSR flushing, as found
//	776(SP) groups left of the block, 784(SP) groups of a chunk or quarter
//	792(SP) bytes of the block in a row of w
//	800(SP) from the end of a prefetched quarter to the next row
//	808(SP) m, 824(SP) s, four lanes each: what the sums are added to is dst & m | s
//	840(SP) far, 848(SP) more, 856(SP) full; 864(SP), 880(SP) m and s of the first block;
//	896(SP) near

TEXT NAME, 0, $904-8
	MOVQ    a+0(FP), AX
	MOVQ    tile_x(AX), SI
	MOVQ    tile_ldx(AX), R8
	MOVQ    tile_w(AX), DI
	MOVQ    tile_ldw(AX), R11
	MOVQ    tile_dst(AX), DX
	MOVQ    tile_ldd(AX), R13
	MOVQ    tile_cols(AX), BX
	MOVQ    tile_step(AX), R14
	MOVQ    tile_ahead(AX), R15
	MOVQ    tile_far(AX), CX
	MOVQ    CX, 840(SP)
	// The sums are added to dst & m | s: dst itself, or negative zero, the
	// neutral element of addition.
	MOVQ    tile_add(AX), CX
	VMOVQ   CX, X0
	VPBROADCASTQ X0, X0
	VMOVUPS X0, 808(SP)
	VPANDN  signs<>(SB), X0, X0
	VMOVUPS X0, 824(SP)
	LEAQ    (R11)(R11*2), R12
	IMUL3Q  $XSTEP, R14, R9
	IMUL3Q  $WSTEP, R14, CX
	MOVQ    CX, 792(SP)
	STMXCSR 772(SP)
	MOVL    772(SP), CX
	ORL     $0x8040, CX         // flush to zero, denormals are zero
	MOVL    CX, 768(SP)
	MOVQ    tile_rows(AX), CX
	CMPQ    CX, $2
	JEQ     two
	JGT     threefirst
	MASK
	MOVQ    a+0(FP), AX
	CMPQ    tile_run(AX), $0
	JNE     runs

	LEAQ    3(R14), CX
	SHRQ    $2, CX
	MOVQ    CX, 784(SP)
	IMUL3Q  $(4*WSTEP), CX, CX
	NEGQ    CX
	ADDQ    R11, CX
	MOVQ    CX, 800(SP)
one:
	CMPQ    BX, $4
	JLT     one1
	ZERO4(Y0, Y1, Y2, Y3)
	ZERO4(Y4, Y5, Y6, Y7)
	MOVQ    R14, CX
	LEAQ    (DI)(R11*4), R10
	FLUSH
onepart:
	MOVQ    784(SP), AX
	CMPQ    CX, AX
	CMOVQLT CX, AX
	SUBQ    AX, CX
	CMPQ    840(SP), $0
	JNE     onefar
onenear:
	ONESTEP(PREFETCHT0)
	JNZ     onenear
	JMP     onesummed
onefar:
	ONESTEP(PREFETCHT1)
	JNZ     onefar
onesummed:
	ADDQ    800(SP), R10
	TESTQ   CX, CX
	JNZ     onepart
	KEEP
	PUT4(0, Y0, Y1, Y2, Y3)
	MOVQ    DX, AX
	REDUCE4(0, Y4, Y5, Y6, Y7)
	QUADDONE
	JMP     one
one1:
	TESTQ   BX, BX
	JZ      done
	BOTH(one1lo, one1hi, G11, CLEAR1, PUT1)
	MOVQ    DX, AX
	REDUCE1(0, Y0)
	ONEDONE
	JMP     one1

	// One row of x and four runs of rows of w, tile.run rows each: the first rows of all
	// runs, the second, and so on, every row block by block to its end. Here R8 counts full
	// blocks, R11 is the distance of runs, R13 that of their results and R10 three times it,
	// R9 the bytes of a row of x, R15 leads from the end of a row of w to the next, and BX
	// counts rows of a run.
runs:
	MOVBQZX tile_near(AX), CX
	MOVQ    CX, 896(SP)
	MOVQ    tile_full(AX), CX
	MOVQ    CX, 856(SP)
	MOVQ    tile_more(AX), R8
	MOVQ    R8, 848(SP)
	IMULQ   R8, CX
	ADDQ    R14, CX             // groups of a row
	IMUL3Q  $XSTEP, CX, R9
	IMUL3Q  $WSTEP, CX, CX
	MOVQ    R11, R15
	SUBQ    CX, R15
	VMOVUPS 808(SP), Y0
	VMOVUPS Y0, 864(SP)
	MOVQ    tile_run(AX), R13
	IMULQ   R13, R11
	LEAQ    (R11)(R11*2), R12
	SHLQ    $2, R13
	LEAQ    (R13)(R13*2), R10
	SHRQ    $2, BX
runrow:
	MOVQ    848(SP), R8
	VMOVUPS 864(SP), Y0
	VMOVUPS Y0, 808(SP)
runblock:
	ZERO4(Y0, Y1, Y2, Y3)
	ZERO4(Y4, Y5, Y6, Y7)
	MOVQ    R14, CX
	TESTQ   R8, R8
	CMOVQNE 856(SP), CX
	FLUSH
	MOVQ    840(SP), AX
	ADDQ    DI, AX
rungroup:
	CMPQ    896(SP), $0
	JEQ     runlines
	NEARPAIR(runproduct)
runlines:
	FOUR(PREFETCHT1, 0, AX)
runproduct:
	PAIR1
	ADDQ    $XSTEP, SI
	ADDQ    $WSTEP, DI
	ADDQ    $WSTEP, AX
	DECQ    CX
	JNZ     rungroup
	KEEP
	PUT4(0, Y0, Y1, Y2, Y3)
	SUM4(0, Y4, Y5, Y6, Y7)
	VMOVSS  (DX), X13
	VINSERTPS $0x10, (DX)(R13*1), X13, X13
	VINSERTPS $0x20, (DX)(R13*2), X13, X13
	VINSERTPS $0x30, (DX)(R10*1), X13, X13
	VANDPS  808(SP), X13, X13
	VORPS   824(SP), X13, X13
	VADDPS  X13, X12, X12
	VMOVSS  X12, (DX)
	VEXTRACTPS $1, X12, (DX)(R13*1)
	VEXTRACTPS $2, X12, (DX)(R13*2)
	VEXTRACTPS $3, X12, (DX)(R10*1)
	VPCMPEQD X0, X0, X0         // to the first block's sums, the others are added
	VMOVUPS Y0, 808(SP)         // ones in the lower half, zeros in the upper
	DECQ    R8
	JPL     runblock
	SUBQ    R9, SI
	ADDQ    R15, DI
	ADDQ    $4, DX
	DECQ    BX
	JNZ     runrow
	JMP     done

two:
	CMPQ    BX, $4
	JLT     two1
	CMPQ    840(SP), $0
	JNE     twofar
	CHUNKS(twochunk, twolo, twohi, G24, NEXTQUAD, FETCHNEAR, ROWS2)
	JMP     twosummed
twofar:
	CHUNKS(farchunk, farlo, farhi, G24, NEXTQUAD, FETCHFAR, ROWS2)
twosummed:
	MOVQ    DX, AX
	REDUCE4(0, Y0, Y1, Y2, Y3)
	REDUCE4(128, Y4, Y5, Y6, Y7)
	QUADDONE
	JMP     two
two1:
	TESTQ   BX, BX
	JZ      done
	BOTH(two1lo, two1hi, G21, CLEAR2, PUT2)
	MOVQ    DX, AX
	REDUCE1(0, Y0)
	REDUCE1(128, Y4)
	ONEDONE
	JMP     two1

	// The rows of x are wanted at once, by the first quad, which has w to wait for.
threefirst:
	MOVQ    SI, AX
	MOVQ    R14, CX
threefetch:
	PREFETCHT0 (AX)
	PREFETCHT0 (AX)(R8*1)
	PREFETCHT0 (AX)(R8*2)
	ADDQ    $XSTEP, AX
	DECQ    CX
	JNZ     threefetch
three:
	CMPQ    BX, $4
	JLT     three1
	CHUNKS(threechunk, threelo, threehi, G34, AHEAD, FETCHAHEAD, ROWS3)
	MOVQ    DX, AX
	REDUCE4(0, Y0, Y1, Y2, Y3)
	REDUCE4(128, Y4, Y5, Y6, Y7)
	REDUCE4(256, Y8, Y9, Y10, Y11)
	QUADDONE
	JMP     three
three1:
	TESTQ   BX, BX
	JZ      done
	BOTH(three1lo, three1hi, G31, CLEAR3, PUT3)
	MOVQ    DX, AX
	REDUCE1(0, Y0)
	REDUCE1(128, Y4)
	REDUCE1(256, Y8)
	ONEDONE
	JMP     three1

done:
	VZEROUPPER
	RET
