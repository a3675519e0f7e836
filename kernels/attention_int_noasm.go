//go:build !(amd64 || arm64) || purego

package kernels

type intRowsScratch struct{}

func (s *intRowsScratch) bytes() int { return 0 }

func (c CPU) roundInt16(n []int16, x, s []float32, magnitude float32) float32 {
	return roundInt16Portable(n, x, s, magnitude)
}

func (c CPU) scoresIntAsm(dst []float32, q *query, kv *KV, from int) bool { return false }

func (c CPU) rotateAsm(x []float32, factor float32) bool       { return false }
func (c CPU) nibblesAsm(q []byte, x []float32, s float32) bool { return false }
