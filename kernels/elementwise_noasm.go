//go:build !(amd64 || arm64) || purego

package kernels

// The functions in this file return how many elements they have processed.

func (c CPU) dotAsm(s *[lanes]float32, x, y []float32) int   { return 0 }
func (c CPU) addAsm(dst, x []float32) int                    { return 0 }
func (c CPU) scaleMulAsm(dst, x, w []float32, s float32) int { return 0 }
func (c CPU) ropeAsm(a, b, cos, sin []float32) int           { return 0 }
func (c CPU) swigluAsm(dst, gate, up []float32) int          { return 0 }
func (c CPU) maxAsm(x []float32) (largest float32, n int)    { return minusInf, 0 }
func (c CPU) indexAsm(x []float32, v float32) int            { return 0 }
