//go:build !purego

#include "textflag.h"

// func floatState() uint32
TEXT ·floatState(SB), NOSPLIT, $0-4
	STMXCSR ret+0(FP)
	RET

// func setFloatState(state uint32)
TEXT ·setFloatState(SB), NOSPLIT, $0-4
	LDMXCSR state+0(FP)
	RET
