//go:build !amd64_todo

package kernels

func (c CPU) sumSquares(x []float32) float32          { return sumSquaresPortable(x) }
func (c CPU) scaleMul(dst, x, w []float32, s float32) { scaleMulPortable(dst, x, w, s) }
func (c CPU) ropeAsm(x, cos, sin []float32) int       { return 0 }
func (c CPU) swigluAsm(dst, gate, up []float32) int   { return 0 }
func (c CPU) addAsm(dst, x []float32) int             { return 0 }
