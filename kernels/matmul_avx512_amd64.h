// Matrix-product tiles for AVX-512, included once per weight type by
// matmul_avx512_amd64.s. The including file defines
//
//	NAME           the symbol
//	XSTEP, WSTEP   bytes of a group in a row of x, of w
//	STEP(G)        one group, by G = G<R><C>, of R rows of x times C rows of w
//	FLUSH, KEEP    switch the treatment of subnormal numbers around the loops
//	CONSTANT       sets Z30
//	ONE            the loops for one row of x and rows of w in their order
//	PREFETCH(OP)   asks for the 4·WSTEP bytes at R14 with instruction OP
//
// A tile has up to 6 × 4 outputs, one register of 16 lanes each: enough
// accumulators to hide the latency of every multiply-add in use. Rows of w
// beyond the last multiple of four go one at a time.
//
// Registers
//	SI  x, row 0      R8  row distance of x, R9 three, R10 five times that
//	DI  w, row 0      R11 row distance of w, R12 three times that
//	DX  dst           R13 row distance of dst   AX dst of the row being stored
//	BX  rows of w left    CX  groups left of the block
//	Z0–Z23 sums, row r of x and row c of w in 4r+c; Z24–Z27 w; Z28, Z29 x; Z30 constant
//	K1  lanes 0, 4, 8, 12; K3 lanes 8–15; K4 odd lanes; Z28, Z29, Z31 are scratch in between
//	K2  ones where sums are added to dst, zeros where they replace it
//	R14 what to prefetch; R15 list of what to prefetch, quad by quad
//	0(SP) groups, 8(SP), 16(SP) bytes of the block in a row of x, of w; 24(SP), 28(SP) MXCSR flushing, as found;
//	32(SP) groups of a quarter of the block,
//	40(SP) from the end of a prefetched quarter, or of a row of a run, to the next row; 48(SP) part, 56(SP) sums; 64(SP) far; 72(SP) apart;
//	80(SP) more, 88(SP) full, 96(SP) full blocks left, 104(SP) add, 112(SP) near

TEXT NAME, NOSPLIT, $120-8
	MOVQ    a+0(FP), AX
	MOVQ    tile_x(AX), SI
	MOVQ    tile_ldx(AX), R8
	MOVQ    tile_w(AX), DI
	MOVQ    tile_ldw(AX), R11
	MOVQ    tile_dst(AX), DX
	MOVQ    tile_ldd(AX), R13
	MOVQ    tile_cols(AX), BX
	MOVQ    tile_add(AX), CX
	KMOVW   CX, K2
	MOVQ    tile_ahead(AX), R15
	MOVQ    tile_part(AX), CX
	MOVQ    CX, 48(SP)
	MOVQ    tile_sums(AX), CX
	MOVQ    CX, 56(SP)
	MOVQ    tile_far(AX), CX
	MOVQ    CX, 64(SP)
	MOVQ    tile_apart(AX), CX
	MOVQ    CX, 72(SP)
	MOVQ    tile_run(AX), R14
	MOVQ    tile_step(AX), CX
	LEAQ    (R8)(R8*2), R9
	LEAQ    (R8)(R8*4), R10
	LEAQ    (R11)(R11*2), R12
	MOVQ    CX, 0(SP)
	IMUL3Q  $XSTEP, CX, CX
	MOVQ    CX, 8(SP)
	MOVQ    0(SP), CX
	IMUL3Q  $WSTEP, CX, CX
	MOVQ    CX, 16(SP)
	MOVQ    0(SP), CX
	ADDQ    $3, CX
	SHRQ    $2, CX
	MOVQ    CX, 32(SP)
	IMUL3Q  $(4*WSTEP), CX, CX
	NEGQ    CX
	ADDQ    R11, CX
	MOVQ    CX, 40(SP)
	STMXCSR 28(SP)
	MOVL    28(SP), CX
	ORL     $0x8040, CX        // flush to zero, denormals are zero
	MOVL    CX, 24(SP)
	TREEMASKS
	CONSTANT
	TESTQ   R14, R14
	JNZ     runs
	MOVQ    tile_rows(AX), AX
	CMPQ    AX, $2
	JLT     one
	JEQ     two
	CMPQ    AX, $4
	JLT     three
	JEQ     four
	CMPQ    AX, $6
	JLT     five

	AHEAD(six, sixtake, sixbegin, sixplain, six4, sixpair, sixdone, sixput, sixnext, G64, sixone, six1, CLEAR61, G61, STORE61)
five:
	TESTQ   R15, R15
	JNZ     fivelist
	STREAM(five0, fivepart, five4, fivefar, fivesummed, CLEAR54, G54, STORE54, fiveone, five1, CLEAR51, G51, STORE51)
fivelist:
	LISTED(fivelist0, fivepair, fiveplain, fivedone, CLEAR54, G54, STORE54, fiveone)
four:
	TESTQ   R15, R15
	JNZ     fourlist
	STREAM(four0, fourpart, four4, fourfar, foursummed, CLEAR44, G44, STORE44, fourone, four1, CLEAR41, G41, STORE41)
fourlist:
	LISTED(fourlist0, fourpair, fourplain, fourdone, CLEAR44, G44, STORE44, fourone)
three:
	TESTQ   R15, R15
	JNZ     threelist
	STREAM(three0, threepart, three4, threefar, threesummed, CLEAR34, G34, STORE34, threeone, three1, CLEAR31, G31, STORE31)
threelist:
	LISTED(threelist0, threepair, threeplain, threedone, CLEAR34, G34, STORE34, threeone)
two:
	STREAM(two0, twopart, two4, twofar, twosummed, CLEAR24, G24, STORE24, twoone, two1, CLEAR21, G21, STORE21)
one:
	ONE

done:
	VZEROUPPER
	RET

runs:
	MOVBQZX tile_near(AX), CX
	MOVQ    CX, 112(SP)
	MOVQ    tile_more(AX), CX
	MOVQ    CX, 80(SP)
	MOVQ    tile_add(AX), R15
	MOVQ    R15, 104(SP)
	MOVQ    tile_full(AX), R15
	MOVQ    R15, 88(SP)
	IMULQ   R15, CX
	ADDQ    0(SP), CX          // groups of a row
	IMUL3Q  $XSTEP, CX, R15
	MOVQ    R15, 8(SP)
	IMUL3Q  $WSTEP, CX, CX
	NEGQ    CX
	ADDQ    R11, CX
	MOVQ    CX, 40(SP)
	IMULQ   R14, R11
	LEAQ    (R11)(R11*2), R12
	SHLQ    $2, R14
	LEAQ    (R14)(R14*2), R15
	SHRQ    $2, BX
	MOVQ    tile_rows(AX), AX
	CMPQ    AX, $2
	JLT     run1
	JEQ     run2
	CMPQ    AX, $4
	JLT     run3
	JEQ     run4
	CMPQ    AX, $6
	JLT     run5
	RUNS(run6, run6block, run6group, run6lines, run6product, NEARLINE, CLEAR64, G64, PUTRUNS6)
	RUNS(run5, run5block, run5group, run5lines, run5product, NEARLINE, CLEAR54, G54, PUTRUNS5)
	RUNS(run4, run4block, run4group, run4lines, run4product, NEARLINE, CLEAR44, G44, PUTRUNS4)
	RUNS(run3, run3block, run3group, run3lines, run3product, NEARLINE, CLEAR34, G34, PUTRUNS3)
	RUNS(run2, run2block, run2group, run2lines, run2product, NEARLINE, CLEAR24, G24, PUTRUNS2)
	RUNS(run1, run1block, run1group, run1lines, run1product, NEARPAIR, CLEAR14, G14, PUTRUNS1)
