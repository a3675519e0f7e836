//go:build !purego

#include "textflag.h"

// func floatState() uint32
TEXT ·floatState(SB), NOSPLIT, $0-4
	MRS  FPCR, R0
	MOVW R0, ret+0(FP)
	RET

// func setFloatState(state uint32)
TEXT ·setFloatState(SB), NOSPLIT, $0-4
	MOVWU state+0(FP), R0
	MSR   R0, FPCR
	RET
