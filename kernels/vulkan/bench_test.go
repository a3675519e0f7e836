//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"fmt"
	"testing"

	"github.com/lukv/lukv/tensor"
)

// BenchmarkDevice measures operations on the device, each submitted and waited for.
// Bytes per second count weights, keys and values, or the copy (read and written);
// products also report flop/s.
func BenchmarkDevice(b *testing.B) {
	d := device(b)
	ctx := context.Background()
	buffer := func(n int64) view {
		m, err := d.newLocalBuffer(n)
		ok(b, err)
		b.Cleanup(m.Free)
		ok(b, d.run(ctx, func(c *commands) { c.Zero(m.At(0, n&^3)) }))
		return m.All()
	}
	measure := func(b *testing.B, bytes int64, flops float64, record func(c *commands)) {
		c, err := d.newCommands()
		ok(b, err)
		defer c.Free()
		ok(b, c.Begin())
		record(c)
		ok(b, c.End())
		once := func() {
			t, err := d.submit(c)
			ok(b, err)
			ok(b, d.wait(ctx, t))
		}
		once()
		b.SetBytes(bytes)
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			once()
		}
		if flops > 0 {
			b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gflop/s")
		}
	}
	b.Run("copy/64MiB", func(b *testing.B) {
		x, y := buffer(32<<20), buffer(32<<20)
		measure(b, 64<<20, 0, func(c *commands) { c.Copy(y, x) })
	})
	b.Run("submit", func(b *testing.B) { measure(b, 0, 0, func(*commands) {}) })
	for _, n := range []int{1, 4, 64} {
		const k, m = 4096, 1024
		b.Run(fmt.Sprintf("matmul/%dx%dx%d", n, k, m), func(b *testing.B) {
			w := weights{buffer(weightBytes(tensor.BF16, m, k)), tensor.BF16, m, k}
			x, y := newRows2D(buffer(int64(n)*k*4), tensor.F32, n, k), newRows2D(buffer(int64(n)*m*4), tensor.F32, n, m)
			measure(b, m*k*2, 2*float64(n)*k*m, func(c *commands) { c.MatMul(x, false, product{W: w, Dst: y}) })
		})
		// With the device's matrix units, if it has any, from tiles of few rows to tiles of many.
		b.Run(fmt.Sprintf("matmul/bf16/%dx%dx%d", n*8, k, m), func(b *testing.B) {
			w := weights{buffer(weightBytes(tensor.BF16, m, k)), tensor.BF16, m, k}
			x, y := newRows2D(buffer(int64(8*n)*k*2), tensor.BF16, 8*n, k), newRows2D(buffer(int64(8*n)*m*4), tensor.F32, 8*n, m)
			measure(b, m*k*2, 16*float64(n)*k*m, func(c *commands) { c.MatMul(x, false, product{W: w, Dst: y}) })
		})
	}
	for _, typ := range []tensor.Type{tensor.BF16, tensor.I8} {
		b.Run(fmt.Sprintf("attention/decode/%v/2000x8", typ), func(b *testing.B) {
			s := shape{layout{Type: typ, HeadDim: 128, PageEntries: 64}, 32, 8, 0, 0, false}
			const slots = 2000
			pool, err := d.newPagePool(s.layout)
			ok(b, err)
			defer pool.Close()
			heads, err := d.newHeadTable(8)
			ok(b, err)
			defer heads.Free()
			ends := make([]int, 8)
			for h := range 8 {
				pages, err := pool.Alloc(nil, (slots+63)/64)
				ok(b, err)
				t, err := d.newHostBuffer(int64(8 * len(pages)))
				ok(b, err)
				b.Cleanup(t.Free)
				putPages(t.Bytes(), pages)
				heads.Set(h, t.All(), slots-1, 0)
				ends[h] = slots
			}
			w, err := d.newWorkList(s, 0, 1, 1)
			ok(b, err)
			defer w.Free()
			_, err = w.Fill([]rowSpan{{N: 1, End: ends}}, buffer(partialBytes(128, 64)))
			ok(b, err)
			q, y := newRows2D(buffer(32*128*4), tensor.F32, 1, 32*128), newRows2D(buffer(32*128*4), tensor.F32, 1, 32*128)
			op := attentionOp{shape: s, Q: q, Out: y, Heads: heads, Work: w, Split: true}
			measure(b, int64(8*slots*s.PageBytes()/64), 0, func(c *commands) { c.Attention(op) })
		})
	}
}
