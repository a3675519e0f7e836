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
	MOVQ p+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ k+16(FP), R12
	MOVQ d+24(FP), CX
	MOVQ groups+32(FP), R8
	MOVQ nextK+40(FP), BX
	MOVQ nextV+48(FP), R13
	MOVQ pace+56(FP), R14
	SUBQ BX, R13
group:
	CLEAR_ROW(Z0, Z1, Z2, Z3)
	CLEAR_ROW(Z4, Z5, Z6, Z7)
	CLEAR_ROW(Z8, Z9, Z10, Z11)
	CLEAR_ROW(Z12, Z13, Z14, Z15)
	CLEAR_ROW(Z16, Z17, Z18, Z19)
	CLEAR_ROW(Z20, Z21, Z22, Z23)
	MOVQ R12, DX
	MOVQ SI, R9
	MOVQ CX, R10
component:
	FETCH
	STEP64
	DECQ R10
	JNZ component
	VBROADCASTSS scale+64(FP), Z31
	SCALE_ROW(Z0, Z1, Z2, Z3)
	STORE_ROW(0, Z0, Z1, Z2, Z3)
	SCALE_ROW(Z4, Z5, Z6, Z7)
	STORE_ROW(ROW, Z4, Z5, Z6, Z7)
	SCALE_ROW(Z8, Z9, Z10, Z11)
	STORE_ROW(2*ROW, Z8, Z9, Z10, Z11)
	SCALE_ROW(Z12, Z13, Z14, Z15)
	STORE_ROW(3*ROW, Z12, Z13, Z14, Z15)
	SCALE_ROW(Z16, Z17, Z18, Z19)
	STORE_ROW(4*ROW, Z16, Z17, Z18, Z19)
	SCALE_ROW(Z20, Z21, Z22, Z23)
	STORE_ROW(5*ROW, Z20, Z21, Z22, Z23)
	ADDQ $(6*ROW), SI
	ADDQ $(6*ROW), DI
	DECQ R8
	JNZ group
	VZEROUPPER
	RET

// Weighted values of n slots for groups of 6 rows, columns c < cols of a panel,
// cols a multiple of 16.
//
//	for j < n, r < 6·groups, c < cols: acc[r][c] = fma(p[r][j], v[j][c], acc[r][c])
//
// func values6AVX512(acc, p, v *float32, n, groups, cols int)
TEXT ·values6AVX512(SB), NOSPLIT, $0-48
	MOVQ acc+0(FP), R13
	MOVQ p+8(FP), SI
	MOVQ v+16(FP), BX
	MOVQ n+24(FP), CX
	MOVQ groups+32(FP), R8
group:
	MOVQ R13, DI
	MOVQ BX, R12
	MOVQ cols+40(FP), R11
	CMPQ R11, $64
	JLT columns16
	LOAD_ROW(0, Z0, Z1, Z2, Z3)
	LOAD_ROW(ROW, Z4, Z5, Z6, Z7)
	LOAD_ROW(2*ROW, Z8, Z9, Z10, Z11)
	LOAD_ROW(3*ROW, Z12, Z13, Z14, Z15)
	LOAD_ROW(4*ROW, Z16, Z17, Z18, Z19)
	LOAD_ROW(5*ROW, Z20, Z21, Z22, Z23)
	MOVQ R12, DX
	MOVQ SI, R9
	MOVQ CX, R10
slot64:
	STEP64
	DECQ R10
	JNZ slot64
	STORE_ROW(0, Z0, Z1, Z2, Z3)
	STORE_ROW(ROW, Z4, Z5, Z6, Z7)
	STORE_ROW(2*ROW, Z8, Z9, Z10, Z11)
	STORE_ROW(3*ROW, Z12, Z13, Z14, Z15)
	STORE_ROW(4*ROW, Z16, Z17, Z18, Z19)
	STORE_ROW(5*ROW, Z20, Z21, Z22, Z23)
	JMP next
columns16:
	VMOVUPS (DI), Z0
	VMOVUPS ROW(DI), Z1
	VMOVUPS (2*ROW)(DI), Z2
	VMOVUPS (3*ROW)(DI), Z3
	VMOVUPS (4*ROW)(DI), Z4
	VMOVUPS (5*ROW)(DI), Z5
	MOVQ R12, DX
	MOVQ SI, R9
	MOVQ CX, R10
slot16:
	STEP16
	DECQ R10
	JNZ slot16
	VMOVUPS Z0, (DI)
	VMOVUPS Z1, ROW(DI)
	VMOVUPS Z2, (2*ROW)(DI)
	VMOVUPS Z3, (3*ROW)(DI)
	VMOVUPS Z4, (4*ROW)(DI)
	VMOVUPS Z5, (5*ROW)(DI)
	ADDQ $64, DI
	ADDQ $64, R12
	SUBQ $16, R11
	JNZ columns16
next:
	ADDQ $(6*ROW), R13
	ADDQ $(6*ROW), SI
	DECQ R8
	JNZ group
	VZEROUPPER
	RET

// func scores6AVX2(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
TEXT ·scores6AVX2(SB), NOSPLIT, $0-68
	MOVQ p+0(FP), DI
	MOVQ q+8(FP), SI
	MOVQ d+24(FP), CX
	MOVQ groups+32(FP), R8
	MOVQ nextK+40(FP), BX
	MOVQ nextV+48(FP), R13
	MOVQ pace+56(FP), R14
	SUBQ BX, R13
	SHRQ $1, R14
group:
	MOVQ k+16(FP), R12
	MOVQ $4, R11
columns:
	VXORPS Y0, Y0, Y0
	VXORPS Y1, Y1, Y1
	VXORPS Y2, Y2, Y2
	VXORPS Y3, Y3, Y3
	VXORPS Y4, Y4, Y4
	VXORPS Y5, Y5, Y5
	VXORPS Y6, Y6, Y6
	VXORPS Y7, Y7, Y7
	VXORPS Y8, Y8, Y8
	VXORPS Y9, Y9, Y9
	VXORPS Y10, Y10, Y10
	VXORPS Y11, Y11, Y11
	MOVQ R12, DX
	MOVQ SI, R9
	MOVQ CX, R10
component:
	FETCH
	STEP16_AVX2(0)          // d is a multiple of 16
	STEP16_AVX2(1)
	ADDQ $(2*PANEL), DX
	ADDQ $8, R9
	SUBQ $2, R10
	JNZ component
	VBROADCASTSS scale+64(FP), Y15
	VMULPS Y15, Y0, Y0
	VMULPS Y15, Y1, Y1
	VMULPS Y15, Y2, Y2
	VMULPS Y15, Y3, Y3
	VMULPS Y15, Y4, Y4
	VMULPS Y15, Y5, Y5
	VMULPS Y15, Y6, Y6
	VMULPS Y15, Y7, Y7
	VMULPS Y15, Y8, Y8
	VMULPS Y15, Y9, Y9
	VMULPS Y15, Y10, Y10
	VMULPS Y15, Y11, Y11
	STORE_PAIR(0, Y0, Y1)
	STORE_PAIR(ROW, Y2, Y3)
	STORE_PAIR(2*ROW, Y4, Y5)
	STORE_PAIR(3*ROW, Y6, Y7)
	STORE_PAIR(4*ROW, Y8, Y9)
	STORE_PAIR(5*ROW, Y10, Y11)
	ADDQ $64, R12
	ADDQ $64, DI
	DECQ R11
	JNZ columns
	ADDQ $(6*ROW), SI
	ADDQ $(6*ROW-PANEL), DI
	DECQ R8
	JNZ group
	VZEROUPPER
	RET

// func values6AVX2(acc, p, v *float32, n, groups, cols int)
TEXT ·values6AVX2(SB), NOSPLIT, $0-48
	MOVQ acc+0(FP), R13
	MOVQ p+8(FP), SI
	MOVQ n+24(FP), CX
	MOVQ groups+32(FP), R8
group:
	MOVQ R13, DI
	MOVQ v+16(FP), R12
	MOVQ cols+40(FP), R11
columns:
	LOAD_PAIR(0, Y0, Y1)
	LOAD_PAIR(ROW, Y2, Y3)
	LOAD_PAIR(2*ROW, Y4, Y5)
	LOAD_PAIR(3*ROW, Y6, Y7)
	LOAD_PAIR(4*ROW, Y8, Y9)
	LOAD_PAIR(5*ROW, Y10, Y11)
	MOVQ R12, DX
	MOVQ SI, R9
	MOVQ CX, R10
	SUBQ $2, R10
	JLT odd
slots:
	STEP16_AVX2(0)
	STEP16_AVX2(1)
	ADDQ $(2*PANEL), DX
	ADDQ $8, R9
	SUBQ $2, R10
	JGE slots
odd:
	ADDQ $2, R10
	JZ store
	STEP16_AVX2(0)
store:
	STORE_PAIR(0, Y0, Y1)
	STORE_PAIR(ROW, Y2, Y3)
	STORE_PAIR(2*ROW, Y4, Y5)
	STORE_PAIR(3*ROW, Y6, Y7)
	STORE_PAIR(4*ROW, Y8, Y9)
	STORE_PAIR(5*ROW, Y10, Y11)
	ADDQ $64, R12
	ADDQ $64, DI
	SUBQ $16, R11
	JNZ columns
	ADDQ $(6*ROW), R13
	ADDQ $(6*ROW), SI
	DECQ R8
	JNZ group
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
