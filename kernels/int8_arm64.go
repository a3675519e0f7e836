//go:build !purego

package kernels

// matMulInt8Asm computes as many rows of w as it can and returns the first that is left.
func (c CPU) matMulInt8Asm(dst []float32, ldd int, x *int8Rows, n int, w *Matrix, lo, hi int) int {
	if !c.NEON || !unpacked(w.Type) {
		return lo
	}
	c.int8Quads(dst, ldd, x, n, w, lo, hi)
	return hi
}
