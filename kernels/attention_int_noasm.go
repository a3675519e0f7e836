//go:build !amd64 || purego

package kernels

type intRowsScratch struct{}

func (c CPU) roundInt16(n []int16, x, s []float32, magnitude float32) float32 {
	return roundInt16Portable(n, x, s, magnitude)
}

func (c CPU) scoresIntAsm(dst []float32, q *query, kv *KV, from int) bool { return false }
