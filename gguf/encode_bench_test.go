package gguf

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkEncode encodes normal numbers; its unit is a weight.
func BenchmarkEncode(b *testing.B) {
	random := rand.New(rand.NewPCG(9, 1))
	x, w := make([]float32, 1<<14), make([]float32, 1024)
	for i := range x {
		x[i] = float32(random.NormFloat64())
	}
	for i := range w {
		w[i] = float32(random.ExpFloat64())
	}
	for _, typ := range []Type{Q8_0, Q4_0, Q4_K, Q6_K} {
		for name, importance := range map[string][]float32{"alike": nil, "weighed": w} {
			b.Run(typ.String()+"/"+name, func(b *testing.B) {
				var dst []byte
				for b.Loop() {
					dst, _ = Encode(dst[:0], typ, x, 1024, importance)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(x)), "ns/weight")
			})
		}
	}
}
