package forward

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/workers"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// TestPassMemory bounds what a forward pass takes besides weights and cache, for
// the shape of Llama-3.2-1B with 2 threads.
func TestPassMemory(t *testing.T) {
	net := &Network{
		Config: &arch.Config{Layers: 16, Hidden: 2048, Intermediate: 8192, Heads: 32, KVHeads: 8, HeadDim: 64, Vocab: 128256},
		Pool:   workers.New(2),
	}
	defer net.Pool.Close()
	const mib = 1 << 20
	for _, c := range []struct {
		weights tensor.Type
		rows    int
		limit   int
	}{
		{tensor.BF16, 512, 16 * mib},
		{tensor.F32, 512, 26 * mib},
		{tensor.BF16, 1, mib / 2},
		{tensor.F32, 1, mib / 2},
	} {
		net.narrowForms = kernels.FormFor(c.weights, kernels.FormF32|kernels.FormBF16)
		net.innerForms = net.narrowForms
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r, err := NewPass(net, Shape{Rows: c.rows})
		require.NoError(t, err)
		r.host.useOwn()
		runtime.ReadMemStats(&after)
		got, allocated := r.host.bytes(), int(after.TotalAlloc-before.TotalAlloc)
		t.Logf("%d rows, %v weights: %.1f MiB", c.rows, c.weights, float64(got)/mib)
		require.Less(t, got, c.limit, "%d rows, %v weights", c.rows, c.weights)
		// Size classes, and the parts that are not numbers.
		require.InDelta(t, got, allocated, 0.1*float64(got)+16<<10)
		runtime.KeepAlive(r)
	}
}
