// How tiles for AVX2 and AVX-512 prefetch four runs of rows of w, R11 apart; R12 is three
// times R11. The including file defines NEAR and, per weight type, WSTEP, the bytes of a
// group in a row of w.

// FOUR prefetches the same place in all runs.
#define FOUR(OP, off, at) \
	OP off(at);        \
	OP off(at)(R11*1); \
	OP off(at)(R11*2); \
	OP off(at)(R12*1)

// NEARPAIR prefetches two neighbouring lines NEAR bytes ahead of DI into the first-level
// cache, as the first to leave it. For the second of the two it goes to product: memory needs
// to be asked for the first alone, since the processor fetches both.
#define NEARPAIR(product) \
	TESTQ $(128-WSTEP), DI;        \
	JNE   product;                 \
	FOUR(PREFETCHNTA, NEAR, DI);   \
	FOUR(PREFETCHNTA, (NEAR+64), DI)
