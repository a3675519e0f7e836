package lukv

// Plain vector arithmetic of this package. Every product is converted before
// it is added, so that no compiler may fuse the two and the bits are the same
// on every CPU.

// sumSquares returns the sum of the squares of a, in float64, ascending.
func sumSquares(a []float32) float64 {
	var s float64
	for _, v := range a {
		s += float64(float64(v) * float64(v))
	}
	return s
}

// dotWide returns the inner product of a and b in float64, ascending.
func dotWide(a []float32, b []float64) float64 {
	var s float64
	for i, v := range a {
		s += float64(float64(v) * b[i])
	}
	return s
}

// dotNarrow returns the inner product of a and b in float64, ascending.
func dotNarrow(a, b []float32) float64 {
	var s float64
	for i, v := range a {
		s += float64(float64(v) * float64(b[i]))
	}
	return s
}

// resize returns x with length n; its contents are arbitrary.
func resize[E any](x []E, n int) []E {
	if cap(x) < n {
		x = make([]E, n+n/4)
	}
	return x[:n]
}

// sumOf returns the sum of x in float64, ascending.
func sumOf(x []float32) float64 {
	s := 0.0
	for _, v := range x {
		s += float64(v)
	}
	return s
}
