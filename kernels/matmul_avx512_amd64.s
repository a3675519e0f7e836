//go:build !purego

#include "go_asm.h"
#include "textflag.h"
#include "matmul_runs_amd64.h"
#include "matmul_tree_avx512_amd64.h"

// Tiles of matrix products for AVX-512 (F, BW, DQ, VL; one of them also BF16).
// The skeleton is in matmul_avx512_amd64.h; here are the inner steps and, per
// weight type, how a group is loaded and multiplied.

#define CLEAR14 ZERO4(Z0, Z1, Z2, Z3)
#define CLEAR24 CLEAR14; ZERO4(Z4, Z5, Z6, Z7)
#define CLEAR34 CLEAR24; ZERO4(Z8, Z9, Z10, Z11)
#define CLEAR44 CLEAR34; ZERO4(Z12, Z13, Z14, Z15)
#define CLEAR54 CLEAR44; ZERO4(Z16, Z17, Z18, Z19)
#define CLEAR64 CLEAR54; ZERO4(Z20, Z21, Z22, Z23)
#define CLEAR11 ZERO(Z0)
#define CLEAR21 CLEAR11; ZERO(Z4)
#define CLEAR31 CLEAR21; ZERO(Z8)
#define CLEAR41 CLEAR31; ZERO(Z12)
#define CLEAR51 CLEAR41; ZERO(Z16)
#define CLEAR61 CLEAR51; ZERO(Z20)

// G<R><C> is one group of R rows of x times C rows of w: LW loads the rows of w
// to Z24–Z27, LX a row of x to Z28, ROW<r><C> multiplies it with those of w.
#define W4(LW) \
	LW((DI), Z24);         \
	LW((DI)(R11*1), Z25);  \
	LW((DI)(R11*2), Z26);  \
	LW((DI)(R12*1), Z27)
#define G14(LX, LW) W4(LW); LX((SI), Z28); ROW14
#define G24(LX, LW) G14(LX, LW); LX((SI)(R8*1), Z28); ROW24
#define G34(LX, LW) G24(LX, LW); LX((SI)(R8*2), Z28); ROW34
#define G44(LX, LW) G34(LX, LW); LX((SI)(R9*1), Z28); ROW44
#define G54(LX, LW) G44(LX, LW); LX((SI)(R8*4), Z28); ROW54
#define G64(LX, LW) G54(LX, LW); LX((SI)(R10*1), Z28); ROW64
#define G11(LX, LW) LW((DI), Z24); LX((SI), Z28); ROW11
#define G21(LX, LW) G11(LX, LW); LX((SI)(R8*1), Z28); ROW21
#define G31(LX, LW) G21(LX, LW); LX((SI)(R8*2), Z28); ROW31
#define G41(LX, LW) G31(LX, LW); LX((SI)(R9*1), Z28); ROW41
#define G51(LX, LW) G41(LX, LW); LX((SI)(R8*4), Z28); ROW51
#define G61(LX, LW) G51(LX, LW); LX((SI)(R10*1), Z28); ROW61

// The tree for one sum, added to dst at AX.
#define REDUCE1(a) \
	VSHUFF64X2  $0xEE, a, a, Z28;   \
	VADDPS      a, Z28, Z28;        \
	VSHUFF32X4  $0x55, Z28, Z28, Z29; \
	VADDPS      Z29, Z28, Z28;      \
	VPERMILPS   $0x4E, Z28, Z29;    \
	VADDPS      Z29, Z28, Z28;      \
	VPERMILPS   $0xB1, Z28, Z29;    \
	VADDPS      Z29, Z28, Z28;      \
	VADDSS      (AX), X28, K2, X28; \
	VMOVSS      X28, (AX);          \
	ADDQ        R13, AX

#define STORE14 REDUCE4(Z0, Z1, Z2, Z3)
#define STORE24 REDUCE8(Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7)
#define STORE34 STORE24; REDUCE4(Z8, Z9, Z10, Z11)
#define STORE44 REDUCE16
#define STORE54 REDUCE16; REDUCE4(Z16, Z17, Z18, Z19)
#define STORE64 REDUCE16; REDUCE8(Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23)
#define STORE11 REDUCE1(Z0)
#define STORE21 STORE11; REDUCE1(Z4)
#define STORE31 STORE21; REDUCE1(Z8)
#define STORE41 STORE31; REDUCE1(Z12)
#define STORE51 STORE41; REDUCE1(Z16)
#define STORE61 STORE51; REDUCE1(Z20)

#define LOAD(mem, z) VMOVUPS mem, z
#define WIDENBF16(mem, z) VPMOVZXWD mem, z; VPSLLD $16, z, z
#define WIDENF16(mem, z) VCVTPH2PS mem, z
// The odd elements of 32 bf16 (upper halves), the even ones.
#define ODD(mem, z) VPANDD mem, Z30, z
#define EVEN(mem, z) VPSLLD $16, mem, z

// ROWS emits the loops for one number of rows: quads of rows of w, then single
// ones. STREAM is the same with prefetching, for tiles whose weights come from
// memory: each quarter of the steps fetches one row of the next quad, so that
// the memory sees long runs and not four interleaved streams. Into which cache,
// tile.far says. The quickest kernel on one row of x is better off without
// hints into the first: it waits for nothing but the memory.
#define ROWS(quad, loop4, ZERO4, G4, STORE4, single, loop1, ZERO1, G1, STORE1) \
quad:                      \
	CMPQ BX, $4;           \
	JLT  single;           \
	ZERO4;                 \
	MOVQ 0(SP), CX;        \
	FLUSH;                 \
loop4:                     \
	STEP(G4);              \
	ADDQ $XSTEP, SI;       \
	ADDQ $WSTEP, DI;       \
	DECQ CX;               \
	JNZ  loop4;            \
	QUADDONE(STORE4);      \
	JMP  quad;             \
	SINGLES(single, loop1, ZERO1, G1, STORE1)

// AHEAD is the same for six rows: it fetches what the list says, and dst before
// it is needed, and can be one of two parts.
#define AHEAD(quad, take, begin, plain, loop4, pair, done4, put, next, G4, single, loop1, ZERO1, G1, STORE1) \
quad:                      \
	CMPQ BX, $4;           \
	JLT  single;           \
	CMPQ 48(SP), $2;       \
	JEQ  take;             \
	CLEAR64;               \
begin:                     \
	MOVQ 0(SP), CX;        \
	MOVQ (R15), R14;       \
	ADDQ $8, R15;          \
	LEAQ (R13)(R13*2), AX; \
	PREFETCHT0 (DX);       \
	PREFETCHT0 (DX)(R13*1); \
	PREFETCHT0 (DX)(R13*2); \
	PREFETCHT0 (DX)(R13*4); \
	PREFETCHT0 (DX)(AX*1); \
	LEAQ (AX)(R13*2), AX;  \
	PREFETCHT0 (DX)(AX*1); \
	MOVQ 72(SP), AX;       \
	FLUSH;                 \
	TESTQ R14, R14;        \
	JZ   plain;            \
	TESTQ AX, AX;          \
	JNZ  pair;             \
loop4:                     \
	PREFETCHT1 (R14);      \
	ADDQ $64, R14;         \
	STEP(G4);              \
	ADDQ $XSTEP, SI;       \
	ADDQ $WSTEP, DI;       \
	DECQ CX;               \
	JNZ  loop4;            \
	JMP  done4;            \
	ONEQUAD(pair, plain, done4, G4); \
	KEEP;                  \
	SUBQ 8(SP), SI;        \
	SUBQ 16(SP), DI;       \
	LEAQ (DI)(R11*4), DI;  \
	CMPQ 48(SP), $1;       \
	JEQ  put;              \
	MOVQ DX, AX;           \
	STORE64;               \
next:                      \
	ADDQ $16, DX;          \
	SUBQ $4, BX;           \
	JMP  quad;             \
take:                      \
	SUMS(TAKE);            \
	JMP  begin;            \
put:                       \
	SUMS(PUT);             \
	JMP  next;             \
	SINGLES(single, loop1, ZERO1, G1, STORE1)

// ONEQUAD multiplies a quad of rows of w, and at pair asks for what the list says and for
// what lies AX bytes further, at plain for nothing.
#define ONEQUAD(pair, plain, done4, G4) \
pair:                      \
	PREFETCHT1 (R14);      \
	PREFETCHT1 (R14)(AX*1); \
	ADDQ $64, R14;         \
	STEP(G4);              \
	ADDQ $XSTEP, SI;       \
	ADDQ $WSTEP, DI;       \
	DECQ CX;               \
	JNZ  pair;             \
	JMP  done4;            \
plain:                     \
	STEP(G4);              \
	ADDQ $XSTEP, SI;       \
	ADDQ $WSTEP, DI;       \
	DECQ CX;               \
	JNZ  plain;            \
done4:

// LISTED emits the loops for four or five rows that fetch what the list says.
#define LISTED(quad, pair, plain, done4, ZERO4, G4, STORE4, single) \
quad:                      \
	CMPQ BX, $4;           \
	JLT  single;           \
	ZERO4;                 \
	MOVQ 0(SP), CX;        \
	MOVQ (R15), R14;       \
	ADDQ $8, R15;          \
	MOVQ 72(SP), AX;       \
	FLUSH;                 \
	TESTQ R14, R14;        \
	JZ   plain;            \
	ONEQUAD(pair, plain, done4, G4); \
	QUADDONE(STORE4);      \
	JMP  quad

// SUMS loads or stores all sums and moves on.
#define TAKE(n, z) VMOVUPS (64*(n))(AX), z
#define PUT(n, z) VMOVUPS z, (64*(n))(AX)
#define SUMS4(DO, n, a, b, c, d) DO(n, a); DO(n+1, b); DO(n+2, c); DO(n+3, d)
#define SUMS(DO) \
	MOVQ 56(SP), AX;       \
	SUMS4(DO, 0, Z0, Z1, Z2, Z3); \
	SUMS4(DO, 4, Z4, Z5, Z6, Z7); \
	SUMS4(DO, 8, Z8, Z9, Z10, Z11); \
	SUMS4(DO, 12, Z12, Z13, Z14, Z15); \
	SUMS4(DO, 16, Z16, Z17, Z18, Z19); \
	SUMS4(DO, 20, Z20, Z21, Z22, Z23); \
	ADDQ $(24*64), 56(SP)

#define STREAM(quad, part, near, far, summed, ZERO4, G4, STORE4, single, loop1, ZERO1, G1, STORE1) \
	QUADS(quad, part, near, far, summed, ZERO4, G4, STORE4, single); \
	SINGLES(single, loop1, ZERO1, G1, STORE1)

#define QUADS(quad, part, near, far, summed, ZERO4, G4, STORE4, single) \
quad:                      \
	CMPQ BX, $4;           \
	JLT  single;           \
	ZERO4;                 \
	MOVQ 0(SP), CX;        \
	LEAQ (DI)(R11*4), R14; \
	FLUSH;                 \
part:                      \
	MOVQ 32(SP), AX;       \
	CMPQ CX, AX;           \
	CMOVQLT CX, AX;        \
	SUBQ AX, CX;           \
	CMPQ 64(SP), $0;       \
	JNE  far;              \
near:                      \
	STREAMSTEP(PREFETCHT0, G4); \
	JNZ  near;             \
	JMP  summed;           \
far:                       \
	STREAMSTEP(PREFETCHT1, G4); \
	JNZ  far;              \
summed:                    \
	ADDQ 40(SP), R14;      \
	TESTQ CX, CX;          \
	JNZ  part;             \
	QUADDONE(STORE4);      \
	JMP  quad
#define STREAMSTEP(OP, G4) \
	PREFETCH(OP);          \
	STEP(G4);              \
	ADDQ $XSTEP, SI;       \
	ADDQ $WSTEP, DI;       \
	ADDQ $(4*WSTEP), R14;  \
	DECQ AX

// RUNS emits the loops for rows of x and four runs of rows of w, tile.run rows each: the
// first rows of all runs, the second, and so on, every row block by block to its end.
// Memory then sees four long streams, each a page of its own. What a stream asks for
// ahead is less than a page, so that it is not forgotten before its turn.
//
// If tile.near is set, FETCH comes first: NEARPAIR for a single row, which computes little,
// otherwise NEARLINE.
//
// Registers: R11 distance of runs, R12 three times that, R14 distance of their results,
// R15 three times that, BX rows of a run left. 40(SP) from the end of a row to the next.
#define NEAR 128
#define NEARLINE(product) FOUR(PREFETCHNTA, 256, DI)
#define RUNS(row, block, group, lines, product, FETCH, ZERO, G, PUTS) \
row:                       \
	MOVQ 80(SP), AX;       \
	MOVQ AX, 96(SP);       \
	KMOVW 104(SP), K2;     \
block:                     \
	ZERO;                  \
	MOVQ 0(SP), CX;        \
	CMPQ 96(SP), $0;       \
	CMOVQNE 88(SP), CX;    \
	FLUSH;                 \
	MOVQ 64(SP), AX;       \
	ADDQ DI, AX;           \
group:                     \
	CMPQ 112(SP), $0;      \
	JEQ  lines;            \
	FETCH(product);        \
lines:                     \
	FOUR(PREFETCHT1, 0, AX); \
product:                   \
	STEP(G);               \
	ADDQ $XSTEP, SI;       \
	ADDQ $WSTEP, DI;       \
	ADDQ $WSTEP, AX;       \
	DECQ CX;               \
	JNZ  group;            \
	KEEP;                  \
	MOVQ DX, AX;           \
	PUTS;                  \
	KXNORW K2, K2, K2;     \ // to the first block's sums, the others are added
	DECQ 96(SP);           \
	JPL  block;            \
	SUBQ 8(SP), SI;        \
	ADDQ 40(SP), DI;       \
	ADDQ $4, DX;           \
	DECQ BX;               \
	JNZ  row;              \
	JMP  done

// PUTRUNS adds four sums of one row of x to the results of four runs, PUTRUNS<R> those of R rows.
#define PUTRUNS(a, b, c, d) \
	SUM4(a, b, c, d);      \
	VMOVSS (AX), X29;      \
	VINSERTPS $0x10, (AX)(R14*1), X29, X29; \
	VINSERTPS $0x20, (AX)(R14*2), X29, X29; \
	VINSERTPS $0x30, (AX)(R15*1), X29, X29; \
	VADDPS X29, X28, K2, X28;        \
	VMOVSS X28, (AX);      \
	VEXTRACTPS $1, X28, (AX)(R14*1); \
	VEXTRACTPS $2, X28, (AX)(R14*2); \
	VEXTRACTPS $3, X28, (AX)(R15*1); \
	ADDQ R13, AX
#define PUTRUNS1 PUTRUNS(Z0, Z1, Z2, Z3)
#define PUTRUNS2 PUTRUNS1; PUTRUNS(Z4, Z5, Z6, Z7)
#define PUTRUNS3 PUTRUNS2; PUTRUNS(Z8, Z9, Z10, Z11)
#define PUTRUNS4 PUTRUNS3; PUTRUNS(Z12, Z13, Z14, Z15)
#define PUTRUNS5 PUTRUNS4; PUTRUNS(Z16, Z17, Z18, Z19)
#define PUTRUNS6 PUTRUNS5; PUTRUNS(Z20, Z21, Z22, Z23)

#define QUADDONE(STORE) \
	KEEP;                  \
	SUBQ 8(SP), SI;        \
	SUBQ 16(SP), DI;       \
	LEAQ (DI)(R11*4), DI;  \
	MOVQ DX, AX;           \
	STORE;                 \
	ADDQ $16, DX;          \
	SUBQ $4, BX

#define SINGLES(single, loop1, ZERO, G, STORE) \
single:                    \
	TESTQ BX, BX;          \
	JZ   done;             \
	ZERO;                  \
	MOVQ 0(SP), CX;        \
	FLUSH;                 \
loop1:                     \
	STEP(G);               \
	ADDQ $XSTEP, SI;       \
	ADDQ $WSTEP, DI;       \
	DECQ CX;               \
	JNZ  loop1;            \
	KEEP;                  \
	SUBQ 8(SP), SI;        \
	SUBQ 16(SP), DI;       \
	ADDQ R11, DI;          \
	MOVQ DX, AX;           \
	STORE;                 \
	ADDQ $4, DX;           \
	DECQ BX;               \
	JMP  single

#define PREFETCH2(OP) OP (R14); OP 64(R14)
#define PREFETCH4(OP) PREFETCH2(OP); OP 128(R14); OP 192(R14)

#define XSTEP 64

#define FLUSH
#define KEEP
#define CONSTANT
#define ONE STREAM(one0, onepart, one4, onefar, onesummed, CLEAR14, G14, STORE14, oneone, one1, CLEAR11, G11, STORE11)
#define FMA4(a, b, c, d) \
	VFMADD231PS Z28, Z24, a; \
	VFMADD231PS Z28, Z25, b; \
	VFMADD231PS Z28, Z26, c; \
	VFMADD231PS Z28, Z27, d
#define ROW14 FMA4(Z0, Z1, Z2, Z3)
#define ROW24 FMA4(Z4, Z5, Z6, Z7)
#define ROW34 FMA4(Z8, Z9, Z10, Z11)
#define ROW44 FMA4(Z12, Z13, Z14, Z15)
#define ROW54 FMA4(Z16, Z17, Z18, Z19)
#define ROW64 FMA4(Z20, Z21, Z22, Z23)
#define ROW11 VFMADD231PS Z28, Z24, Z0
#define ROW21 VFMADD231PS Z28, Z24, Z4
#define ROW31 VFMADD231PS Z28, Z24, Z8
#define ROW41 VFMADD231PS Z28, Z24, Z12
#define ROW51 VFMADD231PS Z28, Z24, Z16
#define ROW61 VFMADD231PS Z28, Z24, Z20

// func tileF32AVX512(a *tile)
#define NAME ·tileF32AVX512(SB)
#define WSTEP 64
#define PREFETCH(OP) PREFETCH4(OP)
#define STEP(G) G(LOAD, LOAD)
#include "matmul_avx512_amd64.h"
#undef NAME
#undef WSTEP
#undef PREFETCH
#undef STEP

// func tileBF16AVX512(a *tile)
#define NAME ·tileBF16AVX512(SB)
#define WSTEP 32
#define PREFETCH(OP) PREFETCH2(OP)
#define STEP(G) G(LOAD, WIDENBF16)
#include "matmul_avx512_amd64.h"
#undef NAME
#undef WSTEP
#undef PREFETCH
#undef STEP

// func tileF16AVX512(a *tile)
#define NAME ·tileF16AVX512(SB)
#define WSTEP 32
#define PREFETCH(OP) PREFETCH2(OP)
#define STEP(G) G(LOAD, WIDENF16)
#include "matmul_avx512_amd64.h"
#undef NAME
#undef WSTEP
#undef PREFETCH
#undef STEP

#undef FLUSH
#undef KEEP
#undef CONSTANT
#define FLUSH LDMXCSR 24(SP)
#define KEEP LDMXCSR 28(SP)
#define CONSTANT MOVL $0xFFFF0000, CX; VPBROADCASTD CX, Z30

// func tileDotAVX512(a *tile)
#define NAME ·tileDotAVX512(SB)
#define WSTEP 64
#define PREFETCH(OP) PREFETCH4(OP)
#define STEP(G) G(ODD, ODD); G(EVEN, EVEN)
#include "matmul_avx512_amd64.h"
#undef NAME
#undef WSTEP
#undef PREFETCH
#undef STEP

#undef FLUSH
#undef KEEP
#undef CONSTANT
#undef ROW14
#undef ROW24
#undef ROW34
#undef ROW44
#undef ROW54
#undef ROW64
#undef ROW11
#undef ROW21
#undef ROW31
#undef ROW41
#undef ROW51
#undef ROW61
#define FLUSH
#define KEEP
#define CONSTANT
#undef ONE
#define ONE \
	CMPQ 64(SP), $0; \
	JNE  oneahead;   \
	ROWS(one0, one4, CLEAR14, G14, STORE14, oneone, one1, CLEAR11, G11, STORE11); \
	QUADS(oneahead, onepart, onenear, onefar, onesummed, CLEAR14, G14, STORE14, oneone)

// VDPBF16PS Z28, w, sum, which the assembler does not know: both steps of the
// contract for 32 elements, flushing whatever MXCSR says.
#define DOT0 BYTE $0x62; LONG $0x52403E92; BYTE $0xC4 // Z28, Z24, Z0
#define DOT1 BYTE $0x62; LONG $0x52403692; BYTE $0xCC // Z28, Z25, Z1
#define DOT2 BYTE $0x62; LONG $0x52402E92; BYTE $0xD4 // Z28, Z26, Z2
#define DOT3 BYTE $0x62; LONG $0x52402692; BYTE $0xDC // Z28, Z27, Z3
#define DOT4 BYTE $0x62; LONG $0x52403E92; BYTE $0xE4 // Z28, Z24, Z4
#define DOT5 BYTE $0x62; LONG $0x52403692; BYTE $0xEC // Z28, Z25, Z5
#define DOT6 BYTE $0x62; LONG $0x52402E92; BYTE $0xF4 // Z28, Z26, Z6
#define DOT7 BYTE $0x62; LONG $0x52402692; BYTE $0xFC // Z28, Z27, Z7
#define DOT8 BYTE $0x62; LONG $0x52403E12; BYTE $0xC4 // Z28, Z24, Z8
#define DOT9 BYTE $0x62; LONG $0x52403612; BYTE $0xCC // Z28, Z25, Z9
#define DOT10 BYTE $0x62; LONG $0x52402E12; BYTE $0xD4 // Z28, Z26, Z10
#define DOT11 BYTE $0x62; LONG $0x52402612; BYTE $0xDC // Z28, Z27, Z11
#define DOT12 BYTE $0x62; LONG $0x52403E12; BYTE $0xE4 // Z28, Z24, Z12
#define DOT13 BYTE $0x62; LONG $0x52403612; BYTE $0xEC // Z28, Z25, Z13
#define DOT14 BYTE $0x62; LONG $0x52402E12; BYTE $0xF4 // Z28, Z26, Z14
#define DOT15 BYTE $0x62; LONG $0x52402612; BYTE $0xFC // Z28, Z27, Z15
#define DOT16 BYTE $0x62; LONG $0x52403E82; BYTE $0xC4 // Z28, Z24, Z16
#define DOT17 BYTE $0x62; LONG $0x52403682; BYTE $0xCC // Z28, Z25, Z17
#define DOT18 BYTE $0x62; LONG $0x52402E82; BYTE $0xD4 // Z28, Z26, Z18
#define DOT19 BYTE $0x62; LONG $0x52402682; BYTE $0xDC // Z28, Z27, Z19
#define DOT20 BYTE $0x62; LONG $0x52403E82; BYTE $0xE4 // Z28, Z24, Z20
#define DOT21 BYTE $0x62; LONG $0x52403682; BYTE $0xEC // Z28, Z25, Z21
#define DOT22 BYTE $0x62; LONG $0x52402E82; BYTE $0xF4 // Z28, Z26, Z22
#define DOT23 BYTE $0x62; LONG $0x52402682; BYTE $0xFC // Z28, Z27, Z23
#define ROW14 DOT0; DOT1; DOT2; DOT3
#define ROW24 DOT4; DOT5; DOT6; DOT7
#define ROW34 DOT8; DOT9; DOT10; DOT11
#define ROW44 DOT12; DOT13; DOT14; DOT15
#define ROW54 DOT16; DOT17; DOT18; DOT19
#define ROW64 DOT20; DOT21; DOT22; DOT23
#define ROW11 DOT0
#define ROW21 DOT4
#define ROW31 DOT8
#define ROW41 DOT12
#define ROW51 DOT16
#define ROW61 DOT20

// func tileDotAVX512BF16(a *tile)
#define NAME ·tileDotAVX512BF16(SB)
#define WSTEP 64
#define PREFETCH(OP) PREFETCH4(OP)
#define STEP(G) G(LOAD, LOAD)
#include "matmul_avx512_amd64.h"
#undef NAME
#undef WSTEP
#undef PREFETCH
#undef STEP
