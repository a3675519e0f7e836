package kvcache

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// TestAttentionSeesEntriesOnly runs an attention kernel on the same entries laid
// out differently: other page sizes, copied on write, moved together after an
// eviction, with and without the entries that a window has passed. The result must
// not change by a bit.
func TestAttentionSeesEntriesOnly(t *testing.T) { everywhere(t, testAttentionSeesEntriesOnly) }

func testAttentionSeesEntriesOnly(t *testing.T, at place) {
	const dim, n, window = 32, 700, 300
	q := make([]float32, dim)
	for d := range q {
		q[d] = float32(d%5) / 64
	}
	attend := func(c *Cache, window int) []float32 {
		out := make([]float32, dim)
		var scratch kernels.AttentionScratch
		kernels.CPU{}.Attention(&kernels.AttentionArgs{
			Out: out, Q: q, Stride: dim, N: 1, Group: 1, End: c.Base(0, 0) + c.Len(0, 0),
			Window: window, Scale: kernels.AttentionScale(dim), KV: c.View(0, 0),
		}, &scratch)
		return out
	}
	for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
		var full, windowed []float32
		for _, pages := range []int{16, 64, 1024} {
			o := Options{Layers: 1, KVHeads: 1, HeadDim: dim, Type: typ, PageEntries: pages, Windows: []int{window}}
			name := fmt.Sprintf("%v, %d entries per page", typ, pages)
			c := at.open(t, o)
			add(t, c, 0, 0, 0, 333)
			f, err := c.Fork()
			require.NoError(t, err)
			add(t, f, 0, 0, 333, n)
			if full == nil {
				full, windowed = attend(f, 0), attend(f, window)
				require.NotEqual(t, full, windowed)
			}
			require.Equal(t, full, attend(f, 0), name)
			require.Equal(t, windowed, attend(f, window), name)

			// The same entries, with others between them that are evicted.
			e := at.open(t, o)
			for x := range int32(n) {
				k, v := rows([]int32{x}, dim, dim)
				require.NoError(t, e.Append(0, 0, []int32{2 * x}, k, v, dim))
				add(t, e, 0, 0, 2*x+1, 2*x+2)
			}
			slots := span(0, n)
			for i := range slots {
				slots[i] *= 2
			}
			require.NoError(t, e.Keep(0, 0, slots))
			require.Equal(t, full, attend(e, 0), name)

			f.DropBefore(0, n-window)
			require.Equal(t, (n-window)/pages*pages, f.Base(0, 0))
			require.Equal(t, windowed, attend(f, window), name)
			require.NoError(t, f.Close())
		}
	}
}
