//go:build !(amd64 || arm64) || purego

package kernels

import "github.com/lukv/lukv/tensor"

// The functions in this file return how many elements they have processed.

func (c CPU) roundBF16Asm(dst []uint16, src []float32) int           { return 0 }
func (c CPU) widenAsm(dst []float32, src []byte, t tensor.Type) int  { return 0 }
func (c CPU) narrowAsm(dst []byte, src []float32, t tensor.Type) int { return 0 }
