// Attention in bf16 with AVX512_BF16: instructions that the assembler does not
// know, and steps made of them.

// DP<r><c> is VDPBF16PS Z(28+r%4), Z(24+c), Z(4r+c): both steps of the contract for
// row r and vector c of 16 pairs, flushing whatever MXCSR says. NARROW<z> is
// VCVTNEPS2BF16 Z<z>, Y<z>.
#define DP00 BYTE $0x62; LONG $0x52403E92; BYTE $0xC4 // Z28, Z24, Z0
#define DP01 BYTE $0x62; LONG $0x52403692; BYTE $0xCC // Z28, Z25, Z1
#define DP02 BYTE $0x62; LONG $0x52402E92; BYTE $0xD4 // Z28, Z26, Z2
#define DP03 BYTE $0x62; LONG $0x52402692; BYTE $0xDC // Z28, Z27, Z3
#define DP10 BYTE $0x62; LONG $0x52403E92; BYTE $0xE5 // Z29, Z24, Z4
#define DP11 BYTE $0x62; LONG $0x52403692; BYTE $0xED // Z29, Z25, Z5
#define DP12 BYTE $0x62; LONG $0x52402E92; BYTE $0xF5 // Z29, Z26, Z6
#define DP13 BYTE $0x62; LONG $0x52402692; BYTE $0xFD // Z29, Z27, Z7
#define DP20 BYTE $0x62; LONG $0x52403E12; BYTE $0xC6 // Z30, Z24, Z8
#define DP21 BYTE $0x62; LONG $0x52403612; BYTE $0xCE // Z30, Z25, Z9
#define DP22 BYTE $0x62; LONG $0x52402E12; BYTE $0xD6 // Z30, Z26, Z10
#define DP23 BYTE $0x62; LONG $0x52402612; BYTE $0xDE // Z30, Z27, Z11
#define DP30 BYTE $0x62; LONG $0x52403E12; BYTE $0xE7 // Z31, Z24, Z12
#define DP31 BYTE $0x62; LONG $0x52403612; BYTE $0xEF // Z31, Z25, Z13
#define DP32 BYTE $0x62; LONG $0x52402E12; BYTE $0xF7 // Z31, Z26, Z14
#define DP33 BYTE $0x62; LONG $0x52402612; BYTE $0xFF // Z31, Z27, Z15
#define DP40 BYTE $0x62; LONG $0x52403E82; BYTE $0xC4 // Z28, Z24, Z16
#define DP41 BYTE $0x62; LONG $0x52403682; BYTE $0xCC // Z28, Z25, Z17
#define DP42 BYTE $0x62; LONG $0x52402E82; BYTE $0xD4 // Z28, Z26, Z18
#define DP43 BYTE $0x62; LONG $0x52402682; BYTE $0xDC // Z28, Z27, Z19
#define DP50 BYTE $0x62; LONG $0x52403E82; BYTE $0xE5 // Z29, Z24, Z20
#define DP51 BYTE $0x62; LONG $0x52403682; BYTE $0xED // Z29, Z25, Z21
#define DP52 BYTE $0x62; LONG $0x52402E82; BYTE $0xF5 // Z29, Z26, Z22
#define DP53 BYTE $0x62; LONG $0x52402682; BYTE $0xFD // Z29, Z27, Z23
#define NARROW4 BYTE $0x62; LONG $0x72487EF2; BYTE $0xE4 // Z4, Y4
#define NARROW8 BYTE $0x62; LONG $0x72487E52; BYTE $0xC0 // Z8, Y8

// INTERLEAVE makes Z16 the index with which VPERMW pairs the 16 numbers of the
// lower half of a register with those of the upper half.
#define INTERLEAVE VMOVDQU16 ·interleave(SB), Z16

// Sixteen pairs of two rows of bf16; y is the lower half of z.
#define PAIR16(first, second, y, z) \
	VMOVDQU64 first, y; \
	VINSERTI64X4 $1, second, z, z; \
	VPERMW z, Z16, z

// A step of a tile of 6 rows and 64 columns, as STEP64 with pairs.
#define DOTSTEP64 \
	VMOVUPS (DX), Z24; \
	VMOVUPS 64(DX), Z25; \
	VMOVUPS 128(DX), Z26; \
	VMOVUPS 192(DX), Z27; \
	VBROADCASTSS (R9), Z28; \
	VBROADCASTSS ROW(R9), Z29; \
	DP00; DP01; DP02; DP03; \
	VBROADCASTSS (2*ROW)(R9), Z30; \
	DP10; DP11; DP12; DP13; \
	VBROADCASTSS (3*ROW)(R9), Z31; \
	DP20; DP21; DP22; DP23; \
	VBROADCASTSS (4*ROW)(R9), Z28; \
	DP30; DP31; DP32; DP33; \
	VBROADCASTSS (5*ROW)(R9), Z29; \
	DP40; DP41; DP42; DP43; \
	DP50; DP51; DP52; DP53

// The same for 16 columns: row r in Z(4r).
#define DOTSTEP16 \
	VMOVUPS (DX), Z24; \
	VBROADCASTSS (R9), Z28; \
	VBROADCASTSS ROW(R9), Z29; \
	VBROADCASTSS (2*ROW)(R9), Z30; \
	VBROADCASTSS (3*ROW)(R9), Z31; \
	DP00; DP10; DP20; DP30; \
	VBROADCASTSS (4*ROW)(R9), Z28; \
	VBROADCASTSS (5*ROW)(R9), Z29; \
	DP40; DP50; \
	ADDQ $PANEL, DX; \
	ADDQ $4, R9

// The next pair of each of four rows in all lanes of Z28 to Z31.
#define PAIRS4 \
	VBROADCASTSS (R9), Z28; \
	VBROADCASTSS ROW(R9), Z29; \
	VBROADCASTSS (2*ROW)(R9), Z30; \
	VBROADCASTSS (3*ROW)(R9), Z31

// 16 columns of a panel: of keys, whose components of a tile lie one behind the
// other, and of values, whose rows are R13 bytes apart.
#define MOVE_KEYS(at, to) \
	VMOVDQU64 (at), Z0; \
	VPERMW Z0, Z16, Z0; \
	VMOVUPS Z0, to(R9)

#define MOVE_VALUES(at, to) \
	PAIR16((at), (at)(R13*1), Y0, Z0); \
	VMOVUPS Z0, to(R9)
