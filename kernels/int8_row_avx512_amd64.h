// What the routines for one row of activations share. Those that take four rows of weights at a time
// have in AX, BX, CX and DX the places in them, in R12 that of the first result in dst, in R15 the
// look-ahead and in X24 the results so far; R13 and R14 are scratch.

#define START \
	MOVQ a+0(FP), DI; \
	MOVQ int8Tile_dst(DI), R12; \
	MOVQ int8Tile_ahead(DI), R15

#define FOUR \
	MOVQ int8Tile_w(DI), AX; \
	MOVQ int8Tile_apartW(DI), R13; \
	LEAQ (AX)(R13*1), BX; \
	LEAQ (BX)(R13*1), CX; \
	LEAQ (CX)(R13*1), DX; \
	VPXORD X24, X24, X24

#define ADVANCE(w) \
	ADDQ $w, AX; \
	ADDQ $w, BX; \
	ADDQ $w, CX; \
	ADDQ $w, DX

// STORE stores the results and goes on to the next four rows.
#define STORE(row) \
	MOVQ int8Tile_apartDst(DI), R13; \
	LEAQ (R12)(R13*2), R14; \
	VMOVSS X24, (R12); \
	VEXTRACTPS $1, X24, (R12)(R13*1); \
	VEXTRACTPS $2, X24, (R14); \
	VEXTRACTPS $3, X24, (R14)(R13*1); \
	ADDQ $4, R12; \
	MOVQ int8Tile_ldw(DI), R14; \
	ADDQ R14, int8Tile_w(DI); \
	DECQ int8Tile_rows(DI); \
	JNZ row

// AHEAD prefetches a line of a row twice: into the second-level cache long before it is used, and
// into the first shortly before. One without the other takes a fifth off the bytes a second.
#define AHEAD(at, base) \
	PREFETCHT1 at(base)(R15*4); \
	PREFETCHT0 at(base)(R15*1)

// JOIN4 adds the elements of every lane of a, b, c and d; lane l of a becomes those of their
// lanes l. t is overwritten.
#define JOIN4(a, b, c, d, t) \
	VPUNPCKHDQ b, a, t; \
	VPUNPCKLDQ b, a, a; \
	VPADDD t, a, a; \
	VPUNPCKHDQ d, c, t; \
	VPUNPCKLDQ d, c, c; \
	VPADDD t, c, c; \
	VPUNPCKHQDQ c, a, t; \
	VPUNPCKLQDQ c, a, a; \
	VPADDD t, a, a

// BYTES sets Z to 16 bytes of a block of each of four chains of eight blocks of w bytes. X and Y are
// the low parts of Z.
#define BYTES(at, w, base, X, Y, Z) \
	VMOVDQU at(base), X; \
	VINSERTI128 $1, (8*w+at)(base), Y, Y; \
	VINSERTI32X4 $2, (16*w+at)(base), Z, Z; \
	VINSERTI32X4 $3, (24*w+at)(base), Z, Z
