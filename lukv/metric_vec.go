package lukv

// Plain vector arithmetic of this package. Every product is converted before
// it is added, so that no compiler may fuse the two and the bits are the same
// on every CPU.

// dot returns the inner product of a and b, len(b) >= len(a): four float32
// lanes over the elements (lane i sums elements i mod 4 in ascending order),
// the tail into lane 0, then (l0+l2)+(l1+l3).
func dot(a, b []float32) float32 {
	var l0, l1, l2, l3 float32
	b = b[:len(a)]
	for len(a) >= 4 && len(b) >= 4 {
		l0 += float32(a[0] * b[0])
		l1 += float32(a[1] * b[1])
		l2 += float32(a[2] * b[2])
		l3 += float32(a[3] * b[3])
		a, b = a[4:], b[4:]
	}
	for i, v := range a {
		l0 += float32(v * b[i])
	}
	return (l0 + l2) + (l1 + l3)
}

// dot2 returns dot(a, k) and dot(b, k) and loads k once. Same bits.
func dot2(a, b, k []float32) (x, y float32) {
	var a0, a1, a2, a3, b0, b1, b2, b3 float32
	a, b = a[:len(k)], b[:len(k)]
	for len(k) >= 4 && len(a) >= 4 && len(b) >= 4 {
		k0, k1, k2, k3 := k[0], k[1], k[2], k[3]
		a0 += float32(a[0] * k0)
		b0 += float32(b[0] * k0)
		a1 += float32(a[1] * k1)
		b1 += float32(b[1] * k1)
		a2 += float32(a[2] * k2)
		b2 += float32(b[2] * k2)
		a3 += float32(a[3] * k3)
		b3 += float32(b[3] * k3)
		a, b, k = a[4:], b[4:], k[4:]
	}
	for i, v := range k {
		a0 += float32(a[i] * v)
		b0 += float32(b[i] * v)
	}
	return (a0 + a2) + (a1 + a3), (b0 + b2) + (b1 + b3)
}

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
