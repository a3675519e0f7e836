// Packed tiles of matrix products for AVX-512, included once per weight type by
// matmul_packed_avx512_amd64.s. The including file defines
//
//	NAME           the symbol
//	XSTEP, WSTEP   bytes of a group in a row of x, of w
//	VECTORS        vectors of a group
//	MXCSR          bits set in the loops
//	CONSTANT       sets Z30
//	GROUP(…)       one group, by how x and w are loaded, odd and even elements
//	NEWODDX, …     loads what is not packed yet, and packs it
//
// A call computes a part of the block: as many groups as leave packed x room in the
// first-level cache. What the lanes hold at its end waits in memory, since the next
// four rows of w come first; after the last part they are joined. x is packed by the
// first four rows of w, w by the first tile of a panel, so that the multiplications
// hide it. What is left of a step is loads from two streams and multiplications.
//
// Registers
//	SI  packed x    R8  x, row 0     R9  row distance of x, R10 three, R11 five times that
//	DI  packed w    R12 w, row 0     R13 row distance of w, R15 three times that
//	CX  groups left of the part      R14 what to prefetch, BX from one group to the next
//	Z0–Z23 sums; Z24–Z27 w; Z28, Z29 x; Z30 constant
//	AX, DX scratch; between the loops R13 is the row distance of dst
//	K1–K4, Z28, Z29, Z31 as the tree wants them
//	0(SP), 4(SP) MXCSR in the loops, as found; 8(SP) rows of w left; 16(SP) dst; 24(SP) sums;
//	32(SP) list of what to prefetch; 40(SP) packed w; 48(SP) w; 56(SP) 1 as long as x is not packed

TEXT NAME, NOSPLIT, $64-8
	MOVQ    a+0(FP), AX
	MOVQ    packedTile_cols(AX), CX
	MOVQ    CX, 8(SP)
	MOVQ    packedTile_dst(AX), CX
	MOVQ    CX, 16(SP)
	MOVQ    packedTile_sums(AX), CX
	MOVQ    CX, 24(SP)
	MOVQ    packedTile_ahead(AX), CX
	MOVQ    CX, 32(SP)
	MOVQ    packedTile_packedW(AX), CX
	MOVQ    CX, 40(SP)
	MOVQ    packedTile_w(AX), CX
	MOVQ    CX, 48(SP)
	MOVQ    $1, 56(SP)
	MOVQ    packedTile_add(AX), CX
	KMOVW   CX, K2
	TREEMASKS
	STMXCSR 4(SP)
	MOVL    4(SP), CX
	ORL     $MXCSR, CX
	MOVL    CX, 0(SP)
	CONSTANT

quad:
	MOVQ    a+0(FP), DX
	MOVQ    packedTile_groups(DX), CX
	MOVQ    packedTile_packedX(DX), SI
	MOVQ    40(SP), DI
	MOVQ    32(SP), AX
	MOVQ    (AX), R14
	ADDQ    $8, 32(SP)
	MOVQ    packedTile_before(DX), AX
	SHLQ    $6, AX
	ADDQ    R14, AX
	MOVQ    $64, BX
	TESTQ   R14, R14
	CMOVQNE AX, R14
	CMOVQEQ DI, R14            // nothing: a line that is there
	CMPQ    packedTile_before(DX), $0
	JNE     take
	ZERO4(Z0, Z1, Z2, Z3)
	ZERO4(Z4, Z5, Z6, Z7)
	ZERO4(Z8, Z9, Z10, Z11)
	ZERO4(Z12, Z13, Z14, Z15)
	ZERO4(Z16, Z17, Z18, Z19)
	ZERO4(Z20, Z21, Z22, Z23)
	JMP     begin
take:
	MOVQ    24(SP), AX
	ALL(TAKE)
begin:
	LDMXCSR 0(SP)
	CMPQ    packedTile_fresh(DX), $0
	JNE     neww
	CMPQ    56(SP), $0
	JNE     newx
	LOOP(OLDX, OLDX, AHEADW, AHEADW, NONE, NONE, plain)
end:
	LDMXCSR 4(SP)
	MOVQ    a+0(FP), DX
	MOVQ    $0, 56(SP)
	MOVQ    packedTile_stepW(DX), AX
	ADDQ    AX, 40(SP)
	CMPQ    packedTile_last(DX), $0
	JEQ     put
	MOVQ    packedTile_ldd(DX), R13
	MOVQ    16(SP), AX
	REDUCE16
	REDUCE8(Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23)
	ADDQ    $16, 16(SP)
	JMP     next
put:
	MOVQ    24(SP), AX
	ALL(PUT)
next:
	ADDQ    $(24*64), 24(SP)
	SUBQ    $4, 8(SP)
	JNZ     quad
	VZEROUPPER
	RET

newx:
	NEWX
	LOOP(NEWODDX, NEWEVENX, AHEADW, AHEADW, STEPX, NONE, xloop)
	JMP     end
neww:
	MOVQ    48(SP), R12
	MOVQ    packedTile_ldw(DX), R13
	LEAQ    (R13)(R13*2), R15
	LEAQ    (R12)(R13*4), AX
	MOVQ    AX, 48(SP)
	CMPQ    56(SP), $0
	JNE     newxw
	LOOP(OLDX, OLDX, NEWODDW, NEWEVENW, NONE, STEPW, wloop)
	JMP     end
newxw:
	NEWX
	LOOP(NEWODDX, NEWEVENX, NEWODDW, NEWEVENW, STEPX, STEPW, xwloop)
	JMP     end
