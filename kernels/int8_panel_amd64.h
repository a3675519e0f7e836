// A routine that multiplies tiles of rows of activations by a panel. The including file defines
// NAME; TILEROWS, 2, 4 or 6; NEXTROW, which sets DX to the bytes of that many rows; and ROWS23
// and ROWS45.

// func NAME(a *int8PanelTile)
TEXT NAME(SB), NOSPLIT, $0-8
	ROWS
tile:
	TILE
	ZEROSUMS
	MOVQ int8PanelTile_groups(R14), AX
	MOVQ int8PanelTile_kind(R14), CX
	CMPQ CX, $const_int8Narrow8
	JEQ narrow8
	CMPQ CX, $const_int8Wide32
	JEQ wide32
	CMPQ CX, $const_int8Chain
	JEQ chains
	LIFT(lift, flat)
	CMPQ CX, $const_int8Narrow16
	JEQ narrow16
	GROUPS(narrow32, narrower32, QUADS32, 32, NARROW)
	JMP results
	GROUPS(narrow16, narrower16, QUADS16, 16, NARROW)
	JMP results
	GROUPS(wide32, wider32, QUADS32, 32, WIDE)
	JMP results
	EIGHTS(narrow8, narrower8)
results:
	MOVQ R11, int8PanelTile_ahead(R14)
	RESULTS
	MINIMA(pair, none)
next:
	NEXTROW
	ADDQ DX, R15
	ADDQ $(128*TILEROWS), R13
	SUBQ $TILEROWS, int8PanelTile_rows(R14)
	JG tile
	VZEROUPPER
	RET

chains:
	MOVQ int8PanelTile_ahead(R14), R11
	AFTER(BX)
chain:
	START
	ROWS45(NEXTROWS)
	QUADS32
	ADDQ $1024, DI
	ADDQ $32, BX
	ADDQ $32, CX
	TERMS
	CMPQ int8PanelTile_pairs(R14), $0
	JEQ simple
	VPBROADCASTD int8Seventh<>(SB), Z31
	LEASTS
simple:
	ADDQ int8PanelTile_each(R14), R11
	ADDQ $128, DX
	ADDQ $4, R12
	DECQ AX
	JNZ chain
	MOVQ R11, int8PanelTile_ahead(R14)
	CHAINENDS
	JMP next
