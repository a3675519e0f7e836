//go:build !(amd64 || arm64) || purego

package kernels

import "github.com/lukv/lukv/tensor"

func (c CPU) matMulInt8Asm(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) int {
	return lo
}

func (c CPU) roundInt8(q []int8, x []float32) float32 { return roundInt8Portable(q, x) }
func (c CPU) sumInt8(w *int8Row)                      { sumInt8Portable(w) }

func (c CPU) widenBlocks(dst []float32, src []byte, t tensor.Type) { t.Widen(dst, src) }
