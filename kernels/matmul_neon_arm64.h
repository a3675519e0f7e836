// Matrix-product tiles for NEON, included once per weight type by
// matmul_neon_arm64.s. The including file defines
//
//	NAME           the symbol
//	XQ, WQ         bytes of a quarter group (4 lanes) in a row of x, of w
//	STEP(G, …)     one quarter group, by G = G<R><C>, of R rows of x times C rows of w
//	CONSTANT       sets V28
//	FLUSH, KEEP    switch the treatment of subnormal numbers around the loops;
//	               KEEP leaves for done where the processor's flushing may differ
//	               from the contract's, before anything of the quad is stored
//
// A tile has up to 3 × 4 outputs. Lanes 0–7 of all of them are summed in a first
// pass over the block, put aside in the frame, then lanes 8–15 in a second pass.
// A single row of x has registers for all lanes at once.
//
// Registers
//	R23 x, row 0      R8  row distance of x     R1–R3 running rows of x
//	R24 w, row 0      R9  row distance of w     R4–R7 running rows of w
//	R10 dst           R11 row distance of dst   R17 dst of the row being stored
//	R12 rows of w left    R13 groups of the block    R14 groups left
//	R19 FPCR flushing, R20 as found    R21 the frame
//	V0–V11 sums of one quarter, row r of x and row c of w in 4r+c; V12–V23 of the
//	next; V24–V26 x; V27 w; V28 constant; V29–V31 scratch

TEXT NAME, NOSPLIT, $424-16
	MOVD a+0(FP), R0
	MOVD tile_x(R0), R23
	MOVD tile_ldx(R0), R8
	MOVD tile_w(R0), R24
	MOVD tile_ldw(R0), R9
	MOVD tile_dst(R0), R10
	MOVD tile_ldd(R0), R11
	MOVD tile_cols(R0), R12
	MOVD tile_step(R0), R13
	MOVD tile_rows(R0), R25
	ADD  $16, RSP, R21
	MRS  FPCR, R20
	ORR  $(1<<24), R20, R19   // flush to zero, inputs too
	CONSTANT
	CMP  $2, R25
	BEQ  two
	BGT  three

one:
	CMP  $4, R12
	BLT  one1
	CLEAR4(V0, V1, V2, V3)
	CLEAR4(V4, V5, V6, V7)
	CLEAR4(V8, V9, V10, V11)
	CLEAR4(V12, V13, V14, V15)
	START(0)
	FLUSH
onequad:
	STEP(G14, 0, V0, V1, V2, V3, , , , , , , , )
	STEP(G14, 1, V4, V5, V6, V7, , , , , , , , )
	STEP(G14, 2, V8, V9, V10, V11, , , , , , , , )
	STEP(G14, 3, V12, V13, V14, V15, , , , , , , , )
	NEXT
	CBNZ R14, onequad
	KEEP
	MOVD R10, R17
	ADD4(V0, V1, V2, V3, V8, V9, V10, V11)
	ADD4(V4, V5, V6, V7, V12, V13, V14, V15)
	REDUCE4(V0, V1, V2, V3, V4, V5, V6, V7)
	QUADDONE
	B    one
one1:
	CBZ  R12, done
	BOTH(one1lo, one1hi, G11)
	STORE1(0, V0, V12)
	ONEDONE
	B    one1

two:
	CMP  $4, R12
	BLT  two1
	BOTH(twolo, twohi, G24)
	STORE4(0, V0, V1, V2, V3, V12, V13, V14, V15)
	STORE4(128, V4, V5, V6, V7, V16, V17, V18, V19)
	QUADDONE
	B    two
two1:
	CBZ  R12, done
	BOTH(two1lo, two1hi, G21)
	STORE1(0, V0, V12)
	STORE1(128, V4, V16)
	ONEDONE
	B    two1

three:
	CMP  $4, R12
	BLT  three1
	BOTH(threelo, threehi, G34)
	STORE4(0, V0, V1, V2, V3, V12, V13, V14, V15)
	STORE4(128, V4, V5, V6, V7, V16, V17, V18, V19)
	STORE4(256, V8, V9, V10, V11, V20, V21, V22, V23)
	QUADDONE
	B    three
three1:
	CBZ  R12, done
	BOTH(three1lo, three1hi, G31)
	STORE1(0, V0, V12)
	STORE1(128, V4, V16)
	STORE1(256, V8, V20)
	ONEDONE
	B    three1

done:
	MOVD tile_cols(R0), R1
	SUB  R12, R1, R1
	MOVD R1, done+8(FP)
	RET
