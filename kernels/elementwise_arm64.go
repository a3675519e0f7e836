//go:build !purego

package kernels

func (c CPU) dotAsm(s *[lanes]float32, x, y []float32) int {
	n := len(x) &^ 15
	if !c.NEON || n == 0 {
		return 0
	}
	dotNEON(&x[0], &y[:n][0], n, s)
	return n
}

func (c CPU) scaleMulAsm(dst, x, w []float32, s float32) int {
	n := len(x) &^ 3
	if !c.NEON || n == 0 {
		return 0
	}
	scaleMulNEON(&dst[:n][0], &x[0], &w[:n][0], n, s)
	return n
}

func (c CPU) ropeAsm(a, b, cos, sin []float32) int {
	n := len(cos) &^ 3
	if !c.NEON || n == 0 {
		return 0
	}
	ropeNEON(&a[:n][0], &b[:n][0], &cos[0], &sin[:n][0], n)
	return n
}

func (c CPU) swigluAsm(dst, gate, up []float32) int {
	n := len(dst) &^ 3
	if !c.NEON || n == 0 {
		return 0
	}
	swigluNEON(&dst[0], &gate[:n][0], &up[:n][0], n)
	return n
}

// The compiler's code is good enough for these loops over memory.

func (c CPU) addAsm(dst, x []float32) int                 { return 0 }
func (c CPU) maxAsm(x []float32) (largest float32, n int) { return minusInf, 0 }
func (c CPU) indexAsm(x []float32, v float32) int         { return 0 }

// Below, n is a positive multiple of 4 (dot: 16).

// dotNEON sets the lanes to those of Dot.
//
//go:noescape
func dotNEON(x, y *float32, n int, lanes *[16]float32)

//go:noescape
func scaleMulNEON(dst, x, w *float32, n int, s float32)

//go:noescape
func ropeNEON(a, b, cos, sin *float32, n int)

//go:noescape
func swigluNEON(dst, gate, up *float32, n int)
