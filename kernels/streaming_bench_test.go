package kernels

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lukv/lukv/tensor"
)

// BenchmarkStreaming reads weights and cache pages that no processor cache holds with
// every Streaming in turn, piece by piece, and reports the bytes per second of each:
// the 90th percentile of the pieces, since the best are lucky and the median is
// what other programs leave.
func BenchmarkStreaming(b *testing.B) {
	const size = 512 << 20
	data := make([]byte, size)
	copy(data, randomMatrix(tensor.BF16, 1, 1<<20).Data)
	for n := 2 << 20; n < size; n *= 2 {
		copy(data[n:], data[:n])
	}
	for _, c := range Variants()[1:] {
		for _, s := range []struct{ n, cols int }{{1, 768}, {1, 2048}, {1, 8192}, {2, 768}, {2, 2048}, {4, 768}, {4, 2048}, {4, 8192}, {6, 768}, {6, 2048}, {8, 768}, {8, 2048}, {12, 768}, {16, 768}, {16, 2048}, {16, 8192}, {32, 2048}} {
			b.Run(fmt.Sprintf("%v/dot/n=%d/cols=%d", c, s.n, s.cols), func(b *testing.B) {
				rows := (2 << 20) / (2 * s.cols) &^ 3
				x, dst := make([]uint16, s.n*s.cols), make([]float32, s.n*rows)
				piece := rows * 2 * s.cols
				benchStreaming(b, c, piece, size/piece, func(c CPU, i int) {
					// Strips, as the forward pass takes them: what follows them may be prefetched.
					w := Matrix{Type: tensor.BF16, Rows: size/(2*s.cols) - i*rows, Cols: s.cols, Data: data[i*piece:]}
					for lo := 0; lo < rows; lo += 64 {
						c.MatMulBF16(dst, rows, x, s.cols, s.n, &w, lo, min(rows, lo+64))
					}
				})
			})
		}
		for _, dim := range []int{64, 128} {
			b.Run(fmt.Sprintf("%v/attention/dim=%d", c, dim), func(b *testing.B) {
				const n, group = 4096, 4
				q, out := make([]float32, group*dim), make([]float32, group*dim)
				piece := 2 * n * dim * 2
				var scratch AttentionScratch
				benchStreaming(b, c, piece, size/piece, func(c CPU, i int) {
					kv := cacheView(tensor.BF16, data[i*piece:][:piece/2], data[i*piece+piece/2:][:piece/2], dim, 64, 0)
					c.Attention(&AttentionArgs{Out: out, Q: q, Stride: group * dim, N: 1, Group: group,
						End: n, Scale: AttentionScale(dim), KV: kv, BF16: true}, &scratch)
				})
			})
		}
	}
}

func benchStreaming(b *testing.B, c CPU, piece, pieces int, run func(c CPU, i int)) {
	var rates [len(streamingNames)][]float64
	at := 0
	for b.Loop() {
		for s := range rates {
			c.Streaming = Streaming(s)
			begin := time.Now()
			run(c, at%pieces)
			rates[s] = append(rates[s], float64(piece)/time.Since(begin).Seconds())
			at++
		}
	}
	for s, r := range rates {
		slices.Sort(r)
		b.ReportMetric(r[len(r)*9/10]/1e9, streamingNames[s]+"-GB/s")
	}
}
