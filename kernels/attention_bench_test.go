package kernels

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/lukv/lukv/internal/probe"
	"github.com/lukv/lukv/tensor"
)

// benchCache returns heads KV heads of n entries each.
func benchCache(t tensor.Type, heads, dim, n int) []KV {
	const page = 64
	kvs := make([]KV, heads)
	for h := range kvs {
		k, v := newMem(n*dim*t.Bytes(1)), newMem(n*dim*t.Bytes(1))
		r := rand.New(rand.NewPCG(1, uint64(h)))
		for _, m := range []mem{k, v} {
			fillRandom(r, m[:64<<10], operand{elem: t, n: 64 << 10 / t.Bytes(1), role: in}, plain)
			for i := 64 << 10; i < len(m); i *= 2 {
				copy(m[i:], m[:i])
			}
		}
		kvs[h] = cacheView(t, k, v, dim, page, 0)
	}
	return kvs
}

// modes returns the ways to compute attention over a cache of type t: in bf16 or not.
func modes(t tensor.Type) []bool {
	if t == tensor.BF16 {
		return []bool{false, true}
	}
	return []bool{false}
}

var modeNames = map[bool]string{true: "/in-bf16"}

// BenchmarkAttentionDecode reads a cache of 256 MB per round: one token, group 4.
func BenchmarkAttentionDecode(b *testing.B) {
	for _, dim := range []int{64, 128} {
		for _, t := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
			const n, group = 8192, 4
			heads := 256 << 20 / (2 * n * dim * t.Bytes(1))
			kvs := benchCache(t, heads, dim, n)
			for _, c := range Variants()[1:] {
				for _, inBF16 := range modes(t) {
					b.Run(fmt.Sprintf("dim=%d/%v%s/%v", dim, t, modeNames[inBF16], c), func(b *testing.B) {
						q, out := make([]float32, group*dim), make([]float32, group*dim)
						for i := range q {
							q[i] = float32(i%7) / 7
						}
						var s AttentionScratch
						b.SetBytes(int64(heads) * 2 * n * int64(dim*t.Bytes(1)))
						b.ReportAllocs()
						for b.Loop() {
							for h := range kvs {
								c.Attention(&AttentionArgs{Out: out, Q: q, Stride: group * dim, N: 1, Group: group,
									End: n, Scale: AttentionScale(dim), KV: kvs[h], BF16: inBF16}, &s)
							}
						}
					})
				}
			}
		}
	}
}

// BenchmarkAttentionPrefill computes attention the way prefill asks for it: each
// call takes some tokens of one KV head, somewhere in a chunk of 512 tokens after 4096
// others. Other programs slow it down, so it alternates with a probe of the
// multiply-add peak; peak% compares the best rates of both.
func BenchmarkAttentionPrefill(b *testing.B) {
	const depth, chunk, heads, group = 4096, 512, 8, 4
	tokens := AttentionTokens(group)
	for _, dim := range []int{64, 128} {
		for _, t := range []tensor.Type{tensor.BF16, tensor.F16, tensor.F32} {
			kvs := benchCache(t, heads, dim, depth+chunk)
			for _, c := range Variants()[1:] {
				for _, inBF16 := range modes(t) {
					if c.AVX512BF16 && !inBF16 {
						continue // the same code as without AVX512BF16
					}
					b.Run(fmt.Sprintf("dim=%d/%v%s/%v", dim, t, modeNames[inBF16], c), func(b *testing.B) {
						set := c.String()
						if c.SlowDot {
							set = "avx512"
						}
						peak := probe.UnitOf(set)
						q, out := make([]float32, tokens*group*dim), make([]float32, tokens*group*dim)
						for i := range q {
							q[i] = float32(i%7) / 7
						}
						var s AttentionScratch
						best, top, at := 0.0, 0.0, 0
						for b.Loop() {
							end := depth + 1 + at
							flop := 4 * float64(dim) * group * float64(tokens*end+tokens*(tokens-1)/2)
							for h := range kvs {
								begin := time.Now()
								c.Attention(&AttentionArgs{Out: out, Q: q, Stride: group * dim, N: tokens, Group: group,
									End: end, Scale: AttentionScale(dim), KV: kvs[h], BF16: inBF16}, &s)
								best = max(best, flop/time.Since(begin).Seconds())
							}
							top = max(top, peak.Rate(1, 200*time.Microsecond))
							at = (at + tokens) % (chunk - tokens)
						}
						b.ReportMetric(best/1e9, "GFLOP/s")
						b.ReportMetric(100*best/top, "peak%")
					})
				}
			}
		}
	}
}
