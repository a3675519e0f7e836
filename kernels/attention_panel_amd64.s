//go:build !purego

#include "textflag.h"
#include "exp_amd64.h"
#include "attention_amd64.h"
#include "attention_panel_amd64.h"

// Scores of groups of 6 queries with the 64 keys of a panel.
//
//	for r < 6·groups, j < 64:
//		t = fma chain over c < d of q[r][c]·k[c][j] from +0
//		p[r][j] = t·scale
//
// It asks for what lies at nextK and nextV, pace bytes per component and group.
//
// func scores6AVX512(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6AVX512(SB), NOSPLIT, $0-68
	SCORES6_AVX512(STEP64, 1, 1, NOTHING, NOTHING)

// Weighted values of n slots for groups of 6 rows, columns c < cols of a panel,
// cols a multiple of 16.
//
//	for j < n, r < 6·groups, c < cols: acc[r][c] = fma(p[r][j], v[j][c], acc[r][c])
//
// func values6AVX512(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6AVX512(SB), NOSPLIT, $0-56
	VALUES6_AVX512(STEP64, STEP16, 1)
	VZEROUPPER
	RET

// func scores6AVX2(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6AVX2(SB), NOSPLIT, $0-68
	SCORES6_AVX2(0, 1, NOTHING, NOTHING)

// func values6AVX2(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
TEXT ·values6AVX2(SB), NOSPLIT, $0-56
	VALUES6_AVX2(0, 1)
	VZEROUPPER
	RET

// func panelF32AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF32AVX2(SB), NOSPLIT, $0-48
	WIDEN(MOVE_F32_AVX2)

// func panelF16AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF16AVX2(SB), NOSPLIT, $0-48
	WIDEN(MOVE_F16_AVX2)

// func panelBF16AVX2(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelBF16AVX2(SB), NOSPLIT, $0-48
	WIDEN(MOVE_BF16_AVX2)

// func panelF32AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF32AVX512(SB), NOSPLIT, $0-48
	WIDEN(MOVE_F32_AVX512)

// func panelF16AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelF16AVX512(SB), NOSPLIT, $0-48
	WIDEN(MOVE_F16_AVX512)

// func panelBF16AVX512(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
TEXT ·panelBF16AVX512(SB), NOSPLIT, $0-48
	WIDEN(MOVE_BF16_AVX512)
