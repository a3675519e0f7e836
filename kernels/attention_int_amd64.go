//go:build !purego

package kernels

//go:noescape
func scoresIntVNNI(a *intScores)

//go:noescape
func scoresIntAVX2(a *intScores)

//go:noescape
func valuesIntVNNI(a *intValues)

//go:noescape
func valuesIntAVX2(a *intValues)

//go:noescape
func roundInt16AVX512(n *int16, x, s *float32, count int, magnitude float32) (factor float32)

func (c CPU) runScores(a *intScores) {
	if c.AVX512VNNI {
		scoresIntVNNI(a)
	} else {
		scoresIntAVX2(a)
	}
}

func (c CPU) runValues(a *intValues) {
	if c.AVX512VNNI {
		valuesIntVNNI(a)
	} else {
		valuesIntAVX2(a)
	}
}

// roundInt16 is roundInt16Portable.
func (c CPU) roundInt16(n []int16, x, s []float32, magnitude float32) float32 {
	switch {
	case !c.AVX2 || len(x)%16 != 0 || len(x) == 0:
		return roundInt16Portable(n, x, s, magnitude)
	case c.AVX512:
		return roundInt16AVX512(&n[0], &x[0], &s[0], len(x), magnitude)
	}
	return roundInt16s(&n[0], &x[0], &s[0], len(x), magnitude)
}
