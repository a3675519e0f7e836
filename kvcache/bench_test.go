package kvcache

import (
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

const benchDim = 128

func benchTypes(b *testing.B, run func(b *testing.B, c *Cache)) {
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		b.Run(typ.String(), func(b *testing.B) {
			checking = func() bool { return false }
			defer func() { checking = func() bool { return true } }()
			run(b, open(b, Options{Layers: 1, KVHeads: 1, HeadDim: benchDim, Type: typ}))
		})
	}
}

// bytesPer returns the bytes of n entries' keys and values.
func bytesPer(c *Cache, n int) int64 { return int64(n * 2 * benchDim * c.Options().Type.Bytes(1)) }

func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 512} {
		b.Run(fmt.Sprintf("entries=%d", n), func(b *testing.B) {
			benchTypes(b, func(b *testing.B, c *Cache) {
				pos := span(0, int32(n))
				k, v := rows(pos, benchDim, benchDim)
				b.SetBytes(bytesPer(c, n))
				b.ReportAllocs()
				for b.Loop() {
					if c.Len(0, 0) >= 16384 {
						b.StopTimer()
						require.NoError(b, c.Truncate(0))
						for i := range pos {
							pos[i] = int32(i)
						}
						b.StartTimer()
					}
					if err := c.Append(0, 0, pos, k, v, benchDim); err != nil {
						b.Fatal(err)
					}
					for i := range pos {
						pos[i] += int32(n)
					}
				}
			})
		})
	}
}

// BenchmarkHugePages computes attention of one query alternately over the heads of two
// caches too large for any processor's cache, one of them in huge pages, and reports the
// bytes per second of each and the median ratio of neighbouring turns.
func BenchmarkHugePages(b *testing.B) {
	checking = func() bool { return false }
	defer func() { checking = func() bool { return true } }()
	const tokens, group, chunk = 4096, 4, 512
	cpu := kernels.Detect()
	for _, dim := range []int{64, 128} {
		heads := (512 << 20) / (4 * dim * tokens)
		b.Run(fmt.Sprintf("dim=%d", dim), func(b *testing.B) {
			var caches [2]*Cache
			for i := range caches {
				c := open(b, Options{Layers: 1, KVHeads: heads, HeadDim: dim, Type: tensor.BF16, HugePages: i == 1})
				for from := int32(0); from < tokens; from += chunk {
					pos := span(from, from+chunk)
					k, v := rows(pos, dim, dim)
					for h := range heads { // as in a prefill, which interleaves heads in memory
						require.NoError(b, c.Append(0, h, pos, k, v, dim))
					}
				}
				caches[i] = c
			}
			q, out := make([]float32, group*dim), make([]float32, group*dim)
			var scratch kernels.AttentionScratch
			var ratios []float64
			var rates [2][]float64
			for i := 0; b.Loop(); i++ {
				var took [2]float64
				for turn := range 2 {
					at := (i + turn) % 2
					begin := time.Now()
					cpu.Attention(&kernels.AttentionArgs{Out: out, Q: q, Stride: group * dim, N: 1, Group: group, End: tokens,
						Scale: kernels.AttentionScale(dim), KV: caches[at].View(0, i%heads), BF16: true}, &scratch)
					took[at] = time.Since(begin).Seconds()
					rates[at] = append(rates[at], float64(4*dim*tokens)/took[at])
				}
				ratios = append(ratios, took[0]/took[1])
			}
			for _, x := range [][]float64{ratios, rates[0], rates[1]} {
				slices.Sort(x)
			}
			b.ReportMetric(rates[0][len(rates[0])/2]/1e9, "GB/s")
			b.ReportMetric(rates[1][len(rates[1])/2]/1e9, "huge-GB/s")
			b.ReportMetric(ratios[len(ratios)/2], "faster")
		})
	}
}

// BenchmarkKeep keeps every fifth of 16384 entries.
func BenchmarkKeep(b *testing.B) {
	const n = 16384
	for _, shared := range []bool{false, true} {
		b.Run(fmt.Sprintf("shared=%t", shared), func(b *testing.B) {
			benchTypes(b, func(b *testing.B, c *Cache) {
				pos := span(0, n)
				k, v := rows(pos, benchDim, benchDim)
				var slots []int32
				for i := int32(0); i < n; i += 5 {
					slots = append(slots, i)
				}
				b.SetBytes(bytesPer(c, len(slots)))
				for b.Loop() {
					b.StopTimer()
					require.NoError(b, c.Truncate(0))
					require.NoError(b, c.Append(0, 0, pos, k, v, benchDim))
					cut, err := c.Fork()
					require.NoError(b, err)
					if !shared {
						require.NoError(b, c.Truncate(0))
					}
					b.StartTimer()
					if err := cut.Keep(0, 0, slots); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					require.NoError(b, cut.Close())
					b.StartTimer()
				}
			})
		})
	}
}

func BenchmarkKeys(b *testing.B) {
	const n = 4096
	benchTypes(b, func(b *testing.B, c *Cache) {
		pos := span(0, n)
		k, v := rows(pos, benchDim, benchDim)
		require.NoError(b, c.Append(0, 0, pos, k, v, benchDim))
		dst := make([]float32, n*benchDim)
		b.SetBytes(n * benchDim * 4)
		b.ReportAllocs()
		for b.Loop() {
			c.Keys(0, 0, 0, n, dst)
		}
	})
}

func BenchmarkSave(b *testing.B) {
	const n = 16384
	benchTypes(b, func(b *testing.B, c *Cache) {
		pos := span(0, n)
		k, v := rows(pos, benchDim, benchDim)
		require.NoError(b, c.Append(0, 0, pos, k, v, benchDim))
		b.SetBytes(bytesPer(c, n))
		for b.Loop() {
			require.NoError(b, c.Save(b.Context(), io.Discard, nil))
		}
	})
}

// BenchmarkCacheTypes computes attention of four queries alternately over the heads of caches of
// several types, each too large for a processor's cache, and reports nanoseconds per slot and how
// much faster than bf16 each type is, the median of neighbouring turns.
func BenchmarkCacheTypes(b *testing.B) {
	checking = func() bool { return false }
	defer func() { checking = func() bool { return true } }()
	const group = 4
	cpu := kernels.Detect()
	for _, dim := range []int{64, 128} {
		for _, tokens := range []int32{8192, 32768} {
			heads := (256 << 20) / (4 * dim * int(tokens))
			b.Run(fmt.Sprintf("dim=%d/%d", dim, tokens), func(b *testing.B) {
				names := []string{"bf16", "int8", "k8v4", "int4"}
				caches := make([]*Cache, len(names))
				for i, name := range names {
					keys, values, err := ParseType(name)
					require.NoError(b, err)
					c := open(b, Options{Layers: 1, KVHeads: heads, HeadDim: dim, Type: keys, Values: values})
					for from := int32(0); from < tokens; from += 512 {
						pos := span(from, from+512)
						k, v := rows(pos, dim, dim)
						for h := range heads {
							require.NoError(b, c.Append(0, h, pos, k, v, dim))
						}
					}
					caches[i] = c
				}
				q, out := make([]float32, group*dim), make([]float32, group*dim)
				for i := range q {
					q[i] = float32(i%7) / 7
				}
				var scratch kernels.AttentionScratch
				took, faster := make([][]float64, len(names)), make([][]float64, len(names))
				for i := 0; b.Loop(); i++ {
					for at, c := range caches {
						begin := time.Now()
						cpu.Attention(&kernels.AttentionArgs{Out: out, Q: q, Stride: group * dim, N: 1, Group: group, End: int(tokens),
							Scale: kernels.AttentionScale(dim), KV: c.View(0, i%heads), BF16: at == 0}, &scratch)
						ns := float64(time.Since(begin).Nanoseconds()) / float64(tokens)
						took[at] = append(took[at], ns)
						faster[at] = append(faster[at], took[0][len(took[0])-1]/ns)
					}
				}
				for at, name := range names {
					slices.Sort(took[at])
					slices.Sort(faster[at])
					b.ReportMetric(took[at][len(took[at])/2], name+"-ns/slot")
					if at > 0 {
						b.ReportMetric(faster[at][len(faster[at])/2], name+"-faster")
					}
				}
			})
		}
	}
}
