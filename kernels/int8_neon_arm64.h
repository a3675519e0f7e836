// Instructions on integers that Go's assembler lacks, as in neon_arm64.h. Suffixes name the
// widths of a result's and an operand's elements where they are not 32 bits.

#define SDOT(m, n, d)      WORD $(0x4E809400 | (m)<<16 | (n)<<5 | (d)) // d += sums of four products of bytes
#define SDOTE(m, i, n, d)  WORD $(0x4F80E000 | ((i)&1)<<21 | (m)<<16 | ((i)>>1)<<11 | (n)<<5 | (d)) // by four bytes, element i of m
#define MLAE(m, i, n, d)   WORD $(0x6F800000 | ((i)&1)<<21 | (m)<<16 | ((i)>>1)<<11 | (n)<<5 | (d)) // d += n · element i of m
#define MLA(m, n, d)       WORD $(0x4EA09400 | (m)<<16 | (n)<<5 | (d))
#define ADDP(m, n, d)      WORD $(0x4EA0BC00 | (m)<<16 | (n)<<5 | (d)) // sums of neighbours of n, then of m
#define ADDP16(m, n, d)    WORD $(0x4E60BC00 | (m)<<16 | (n)<<5 | (d))
#define SMULL16(m, n, d)   WORD $(0x0E20C000 | (m)<<16 | (n)<<5 | (d)) // lower eight bytes
#define SMLAL216(m, n, d)  WORD $(0x4E208000 | (m)<<16 | (n)<<5 | (d)) // upper eight bytes
#define SADDLP16(n, d)     WORD $(0x4E202800 | (n)<<5 | (d)) // sums of neighbouring bytes
#define SADDLP(n, d)       WORD $(0x4E602800 | (n)<<5 | (d)) // of int16
#define SADALP(n, d)       WORD $(0x4E606800 | (n)<<5 | (d)) // added to d
#define SMULL(m, n, d)     WORD $(0x0E60C000 | (m)<<16 | (n)<<5 | (d)) // lower four int16
#define SMLAL(m, n, d)     WORD $(0x0E608000 | (m)<<16 | (n)<<5 | (d))
#define SMLAL2(m, n, d)    WORD $(0x4E608000 | (m)<<16 | (n)<<5 | (d)) // upper four int16
#define SMULLE(m, i, n, d) WORD $(0x0F40A000 | ELEMENT(m, i) | (n)<<5 | (d)) // lower four int16 by element i of m < 16
#define SMLALE(m, i, n, d) WORD $(0x0F402000 | ELEMENT(m, i) | (n)<<5 | (d))
#define SMLAL2E(m, i, n, d) WORD $(0x4F402000 | ELEMENT(m, i) | (n)<<5 | (d))
#define ELEMENT(m, i)      (((i)>>1&1)<<21 | ((i)&1)<<20 | (m)<<16 | ((i)>>2)<<11)
#define SXTL16(n, d)       WORD $(0x0F08A400 | (n)<<5 | (d)) // lower eight bytes
#define SXTL216(n, d)      WORD $(0x4F08A400 | (n)<<5 | (d))
#define SXTL(n, d)         WORD $(0x0F10A400 | (n)<<5 | (d)) // lower four int16
#define SXTL2(n, d)        WORD $(0x4F10A400 | (n)<<5 | (d))
#define SSHLL(s, n, d)     WORD $(0x0F10A400 | (s)<<16 | (n)<<5 | (d)) // SXTL, then a shift to the left
#define SSHLL2(s, n, d)    WORD $(0x4F10A400 | (s)<<16 | (n)<<5 | (d))
#define NEG(n, d)          WORD $(0x6EA0B800 | (n)<<5 | (d))
#define SCVTF(n, d)        WORD $(0x4E21D800 | (n)<<5 | (d)) // to f32
#define SCVTF7(n, d)       WORD $(0x4F39E400 | (n)<<5 | (d)) // to f32, times 2^-7
#define FABS(n, d)         WORD $(0x4EA0F800 | (n)<<5 | (d))
#define UMAX(m, n, d)      WORD $(0x6EA06400 | (m)<<16 | (n)<<5 | (d))
#define UMAXV(n, d)        WORD $(0x6EB0A800 | (n)<<5 | (d)) // scalar: the largest of four
#define FCVTSH(n, d)       WORD $(0x1EE24000 | (n)<<5 | (d)) // scalar: from f16

#define BYTES(v, V) \
	MOVD $(v), R8; \
	VDUP R8, V.B16
