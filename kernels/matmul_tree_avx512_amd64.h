// The fixed tree that joins the lanes of sums, for AVX-512.
//
// Registers
//	AX  where the next row of dst is   R13 row distance of dst
//	K1  lanes 0, 4, 8, 12; K3 lanes 8–15; K4 odd lanes; Z28, Z29, Z31 scratch
//	K2  ones where sums are added to dst, zeros where they replace it

#define ZERO(z) VPXORQ z, z, z
#define ZERO4(a, b, c, d) ZERO(a); ZERO(b); ZERO(c); ZERO(d)

// TREEMASKS sets K1, K3 and K4 by way of CX.
#define TREEMASKS \
	MOVL    $0x1111, CX; \
	KMOVW   CX, K1;      \
	MOVL    $0xFF00, CX; \
	KMOVW   CX, K3;      \
	MOVL    $0xAAAA, CX; \
	KMOVW   CX, K4

// The fixed tree for four sums, to X28.
#define SUM4(a, b, c, d) \
	VSHUFF64X2  $0x44, b, a, Z28;   \
	VSHUFF64X2  $0xEE, b, a, Z29;   \
	VADDPS      Z29, Z28, Z28;      \ // eight lanes of a, of b
	VSHUFF64X2  $0x44, d, c, Z29;   \
	VSHUFF64X2  $0xEE, d, c, Z31;   \
	VADDPS      Z31, Z29, Z29;      \ // eight lanes of c, of d
	VSHUFF32X4  $0x88, Z29, Z28, Z31; \
	VSHUFF32X4  $0xDD, Z29, Z28, Z28; \
	VADDPS      Z31, Z28, Z28;      \ // four lanes each of a, b, c, d
	VPERMILPS   $0x4E, Z28, Z29;    \
	VADDPS      Z29, Z28, Z28;      \
	VPERMILPS   $0xB1, Z28, Z29;    \
	VADDPS      Z29, Z28, Z28;      \ // the sums, each four times
	VCOMPRESSPS Z28, K1, Z28

// The same for four sums of one row, added to dst at AX.
#define REDUCE4(a, b, c, d) \
	SUM4(a, b, c, d);               \
	VADDPS      (AX), X28, K2, X28; \
	VMOVUPS     X28, (AX);          \
	ADDQ        R13, AX

// FOLD joins the halves of a and b: eight lanes of a, of b, in a.
#define FOLD(a, b, t) \
	VSHUFF64X2  $0x4E, b, a, t;     \
	VMOVAPS     b, K3, a;           \
	VADDPS      t, a, a

// FOLD4 joins the eight lanes of the two sums in a and in b: four lanes each, in a.
#define FOLD4(a, b, t) \
	VSHUFF32X4  $0x88, b, a, t;     \
	VSHUFF32X4  $0xDD, b, a, a;     \
	VADDPS      t, a, a

// FOLD2 joins the four lanes of sums in a and in b: two lanes of a, two of b, in a.
#define FOLD2(a, b, t) \
	VUNPCKLPD   b, a, t;            \
	VUNPCKHPD   b, a, a;            \
	VADDPS      t, a, a

// The tree for a column of four rows, whose results come row by row.
#define COLUMN4(a, b, c, d) FOLD(a, b, Z28); FOLD(c, d, Z29); FOLD4(a, c, Z28)
#define PUTROW(x) \
	VADDPS      (AX), x, K2, x;     \
	VMOVUPS     x, (AX);            \
	ADDQ        R13, AX

// The tree for four rows of four sums, register 4r+c.
#define REDUCE16 \
	COLUMN4(Z0, Z4, Z8, Z12);       \
	COLUMN4(Z1, Z5, Z9, Z13);       \
	COLUMN4(Z2, Z6, Z10, Z14);      \
	COLUMN4(Z3, Z7, Z11, Z15);      \
	FOLD2(Z0, Z1, Z28);             \
	FOLD2(Z2, Z3, Z29);             \
	VSHUFPS     $0x88, Z2, Z0, Z28; \
	VSHUFPS     $0xDD, Z2, Z0, Z0;  \
	VADDPS      Z28, Z0, Z0;        \ // a row in each quarter
	VEXTRACTF32X4 $1, Z0, X1;       \
	VEXTRACTF32X4 $2, Z0, X2;       \
	VEXTRACTF32X4 $3, Z0, X3;       \
	PUTROW(X0);                     \
	PUTROW(X1);                     \
	PUTROW(X2);                     \
	PUTROW(X3)

// The tree for two rows of four sums.
#define REDUCE8(a, b, c, d, e, f, g, h) \
	FOLD(a, e, Z28);                \
	FOLD(b, f, Z29);                \
	FOLD(c, g, Z28);                \
	FOLD(d, h, Z29);                \
	FOLD4(a, b, Z28);               \
	FOLD4(c, d, Z29);               \
	FOLD2(a, c, Z28);               \ // quarters: columns 0 and 2 of either row, 1 and 3 of either row
	VPERMILPS   $0xB1, a, Z28;      \
	VADDPS      a, Z28, Z28;        \
	VEXTRACTF64X4 $1, Z28, Y29;     \
	VBLENDMPS   Y29, Y28, K4, Y28;  \
	VEXTRACTF32X4 $1, Y28, X29;     \
	PUTROW(X28);                    \
	PUTROW(X29)
