package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/lukv/lukv/tensor"
)

// benchCache returns KV heads of n entries each, so many that together they
// exceed the caches of the processor.
func benchCache(t tensor.Type, heads, dim, n int) []KV {
	const page = 128
	kvs := make([]KV, heads)
	for h := range kvs {
		k, v := newMem(n*dim*t.Size()), newMem(n*dim*t.Size())
		r := rand.New(rand.NewPCG(1, uint64(h)))
		for _, m := range []mem{k, v} {
			fillRandom(r, m[:64<<10], operand{elem: t, n: 64 << 10 / t.Size(), role: in}, plain)
			for i := 64 << 10; i < len(m); i *= 2 {
				copy(m[i:], m[:i])
			}
		}
		kvs[h] = cacheView(t, k, v, dim, page, 0)
	}
	return kvs
}

// BenchmarkAttentionDecode reads a cache of 256 MB per round: one token, group 4.
func BenchmarkAttentionDecode(b *testing.B) {
	for _, dim := range []int{64, 128} {
		for _, t := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
			const n, group = 8192, 4
			heads := 256 << 20 / (2 * n * dim * t.Size())
			kvs := benchCache(t, heads, dim, n)
			for _, c := range Variants()[1:] {
				b.Run(fmt.Sprintf("dim=%d/%v/%v", dim, t, c), func(b *testing.B) {
					q, out := make([]float32, group*dim), make([]float32, group*dim)
					for i := range q {
						q[i] = float32(i%7) / 7
					}
					var s AttentionScratch
					b.SetBytes(int64(heads) * 2 * n * int64(dim*t.Size()))
					b.ReportAllocs()
					for b.Loop() {
						for h := range kvs {
							c.Attention(&AttentionArgs{Out: out, Q: q, Stride: group * dim, N: 1, Group: group,
								End: n, Scale: AttentionScale(dim), KV: kvs[h]}, &s)
						}
					}
				})
			}
		}
	}
}

// BenchmarkAttentionPrefill computes 128 tokens after 2048 others.
func BenchmarkAttentionPrefill(b *testing.B) {
	for _, dim := range []int{64, 128} {
		for _, t := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
			const n, end, group = 128, 2049, 4
			kv := benchCache(t, 1, dim, 2304)[0]
			for _, c := range Variants()[1:] {
				b.Run(fmt.Sprintf("dim=%d/%v/%v", dim, t, c), func(b *testing.B) {
					q, out := make([]float32, n*group*dim), make([]float32, n*group*dim)
					for i := range q {
						q[i] = float32(i%7) / 7
					}
					var s AttentionScratch
					for b.Loop() {
						c.Attention(&AttentionArgs{Out: out, Q: q, Stride: group * dim, N: n, Group: group,
							End: end, Scale: AttentionScale(dim), KV: kv}, &s)
					}
					flop := 4 * float64(dim) * group * (n*end + n*(n-1)/2)
					b.ReportMetric(flop*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			}
		}
	}
}
