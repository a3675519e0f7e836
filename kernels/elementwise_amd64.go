//go:build !purego

package kernels

func (c CPU) dotAsm(s *[lanes]float32, x, y []float32) int {
	n := len(x) &^ 15
	if !c.AVX2 || n == 0 {
		return 0
	}
	dotAVX2(&x[0], &y[:n][0], n, s)
	return n
}

func (c CPU) addAsm(dst, x []float32) int {
	n := len(x) &^ 15
	if !c.AVX2 || n == 0 {
		return 0
	}
	addAVX2(&dst[:n][0], &x[0], n)
	return n
}

func (c CPU) scaleMulAsm(dst, x, w []float32, s float32) int {
	n := len(x) &^ 15
	if !c.AVX2 || n == 0 {
		return 0
	}
	scaleMulAVX2(&dst[:n][0], &x[0], &w[:n][0], n, s)
	return n
}

func (c CPU) ropeAsm(a, b, cos, sin []float32) int {
	n := len(cos) &^ 7
	if !c.AVX2 || n == 0 {
		return 0
	}
	ropeAVX2(&a[:n][0], &b[:n][0], &cos[0], &sin[:n][0], n)
	return n
}

func (c CPU) swigluAsm(dst, gate, up []float32) int {
	n := len(dst)
	switch {
	case c.AVX512 && n >= 16:
		n &^= 15
		swigluAVX512(&dst[0], &gate[:n][0], &up[:n][0], n)
	case c.AVX2 && n >= 8:
		n &^= 7
		swigluAVX2(&dst[0], &gate[:n][0], &up[:n][0], n)
	default:
		n = 0
	}
	return n
}

// maxAsm returns the largest of the first n elements, as portable Argmax finds it.
func (c CPU) maxAsm(x []float32) (largest float32, n int) {
	n = len(x) &^ 31
	if !c.AVX2 || n == 0 {
		return minusInf, 0
	}
	return maxAVX2(&x[0], n), n
}

// indexAsm returns the index of the first element equal to v among the first n,
// or n if there is none; n is the most the assembly handles.
func (c CPU) indexAsm(x []float32, v float32) int {
	n := len(x) &^ 7
	if !c.AVX2 || n == 0 {
		return 0
	}
	return indexAVX2(&x[0], n, v)
}

// Below, n is a positive multiple of 16 unless noted.

// dotAVX2 sets the lanes to those of Dot.
//
//go:noescape
func dotAVX2(x, y *float32, n int, lanes *[16]float32)

//go:noescape
func addAVX2(dst, x *float32, n int)

//go:noescape
func scaleMulAVX2(dst, x, w *float32, n int, s float32)

// ropeAVX2: n is a multiple of 8.
//
//go:noescape
func ropeAVX2(a, b, cos, sin *float32, n int)

// swigluAVX2: n is a multiple of 8.
//
//go:noescape
func swigluAVX2(dst, gate, up *float32, n int)

//go:noescape
func swigluAVX512(dst, gate, up *float32, n int)

// maxAVX2: n is a multiple of 32.
//
//go:noescape
func maxAVX2(x *float32, n int) float32

// indexAVX2: n is a multiple of 8.
//
//go:noescape
func indexAVX2(x *float32, n int, v float32) int
