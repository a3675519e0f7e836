//go:build !purego

package kernels

//go:noescape
func scoresIntNEON(a *intScores)

//go:noescape
func valuesIntNEON(a *intValues)

func (c CPU) runScores(a *intScores) { scoresIntNEON(a) }
func (c CPU) runValues(a *intValues) { valuesIntNEON(a) }

// roundInt16 is roundInt16Portable.
func (c CPU) roundInt16(n []int16, x, s []float32, magnitude float32) float32 {
	if !c.NEON || len(x)%16 != 0 || len(x) == 0 {
		return roundInt16Portable(n, x, s, magnitude)
	}
	return roundInt16s(&n[0], &x[0], &s[0], len(x), magnitude)
}
