package model

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
)

// TestHeadRows: a model whose rows of queries and keys are stored in another order has the
// bits, the ID and the digest of one whose rows are in order, on the processor, on a device
// and split between them, also where a metric looks at queries and keys.
func TestHeadRows(t *testing.T) {
	ctx := t.Context()
	prompt, steps := randomTokens(60, 97, 1), randomTokens(4, 97, 2)
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "uniform"}, Ratio: 0.5}
	for _, shape := range testShapes {
		cfg := shape.config()
		open := func(ordered bool, opts ...Option) *Model {
			w := randomWeights(t, cfg, shape.weights, 7)
			for i := range cfg.HeadDim { // halves that rotate together, as pairs
				w.Rows = append(w.Rows, int32(2*(i%(cfg.HeadDim/2))+i/(cfg.HeadDim/2)))
			}
			if ordered {
				for at := range w.Layers {
					w.Layers[at] = *w.Ordered(at, nil)
				}
				w.Rows = nil
			}
			m, err := New(cfg, w, append(opts, WithThreads(2))...)
			require.NoError(t, err)
			t.Cleanup(func() { m.Close() })
			return m
		}
		want, plain := open(true), shape.open(t)
		digest, err := want.Digest(ctx)
		require.NoError(t, err)
		require.NotEqual(t, plain.ID(), want.ID(), "the order counts")
		for name, m := range map[string]*Model{
			"processor": open(false),
			"device":    open(false, WithOpenDevice(newFakeDevice())),
			"split":     open(false, WithOpenDevice(newFakeDevice()), WithDeviceLayers(1)),
		} {
			require.Equal(t, want.ID(), m.ID(), name)
			d, err := m.Digest(ctx)
			require.NoError(t, err)
			require.Equal(t, digest, d, name)
			for _, p := range []*lukv.Policy{nil, policy} {
				o := SessionOptions{Compression: p, ChunkTokens: 25}
				testnum.SameBits(t, shape.name+" "+name, traceOf(t, newTestSession(t, want, o), prompt, steps),
					traceOf(t, newTestSession(t, m, o), prompt, steps))
			}
		}
	}
}
