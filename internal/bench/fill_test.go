package bench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// A filled session is shaped like a prefilled one and continues like one.
func TestFill(t *testing.T) {
	ctx := context.Background()
	for _, window := range []int{0, 100} {
		cfg := tiny(window)
		m, err := Random("tiny", cfg, tensor.BF16).open(ctx, model.WithThreads(2))
		require.NoError(t, err)
		defer m.Close()
		for _, comp := range []Compression{
			{}, compression("snapkv", "uniform", 0.5), compression("snapkv", "pyramidkv", 0.5),
			compression("keydiff", "adakv", 0.7), compression("keydiff", "global", 0.7), compression("snapkv", "lukv", 0.8),
		} {
			policy, err := comp.policy(m)
			require.NoError(t, err)
			open := func() *model.Session {
				s, err := m.NewSession(model.SessionOptions{Compression: policy})
				require.NoError(t, err)
				t.Cleanup(func() { s.Close() })
				return s
			}
			const n = 700
			tokens := make([]int32, n)
			real, filled := open(), open()
			require.NoError(t, real.Prefill(ctx, tokens))
			require.NoError(t, filled.FillRandom(n, 3))
			require.NoError(t, filled.Cache().Check())
			require.Nil(t, filled.Logits())
			assert.Equal(t, n, filled.Len())
			assert.Equal(t, tokens, filled.Tokens())
			a, b := real.Stats(), filled.Stats()
			assert.InDelta(t, float64(a.Entries), float64(b.Entries), 8, comp)
			assert.Equal(t, a.ContextTokens, b.ContextTokens)
			plan := lukv.AllocatorConfig{Name: comp.Allocator.Name}.Name
			if plan == "" || plan == "uniform" || plan == "lukv" || plan == "pyramidkv" {
				assert.Equal(t, a.Layers, b.Layers, comp) // budgets that do not depend on scores
			}
			if plan == "adakv" || plan == "global" || plan == "lukv" {
				assert.NotEqual(t, b.Layers[0].Entries[0], b.Layers[0].Entries[1], comp)
			}
			for h := range cfg.KVHeads {
				assert.Equal(t, real.Cache().Base(1, h), filled.Cache().Base(1, h))
			}

			// Equal seeds give equal entries, and the session can compute.
			again, other := open(), open()
			require.NoError(t, again.FillRandom(n, 3))
			require.NoError(t, other.FillRandom(n, 4))
			for _, s := range []*model.Session{filled, again, other} {
				require.NoError(t, s.Append(ctx, 5))
			}
			assert.Equal(t, filled.Logits(), again.Logits())
			assert.NotEqual(t, filled.Logits(), other.Logits())
			require.NoError(t, filled.Truncate(n))
			require.NoError(t, filled.Append(ctx, 5))
			assert.Equal(t, again.Logits(), filled.Logits())

			// Further positions are filled without compression.
			before := filled.Stats().Entries
			require.NoError(t, filled.FillRandom(10, 1))
			assert.Equal(t, n+11, filled.Len())
			if window == 0 {
				assert.Equal(t, before+int64(10*cfg.Layers*cfg.KVHeads), filled.Stats().Entries)
			}
		}
	}
}

func TestFillRefuses(t *testing.T) {
	ctx := context.Background()
	m, err := Random("tiny", tiny(0), tensor.BF16).open(ctx)
	require.NoError(t, err)
	defer m.Close()
	fill := func(o model.SessionOptions, n int) (*model.Session, error) {
		s, err := m.NewSession(o)
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s, s.FillRandom(n, 1)
	}
	_, err = fill(model.SessionOptions{}, 0)
	require.EqualError(t, err, "fill 0 positions: expected at least 1")
	_, err = fill(model.SessionOptions{MaxTokens: 10}, 11)
	require.ErrorIs(t, err, model.ErrContextFull)
	s, err := fill(model.SessionOptions{MaxCacheBytes: 1 << 16}, 4000)
	require.ErrorIs(t, err, kvcache.ErrFull)
	assert.Zero(t, s.Len())
	assert.Zero(t, s.Cache().Bytes())
	require.NoError(t, s.Prefill(ctx, []int32{1}))

	policy := &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 512}}
	_, err = fill(model.SessionOptions{Compression: policy}, 10)
	require.ErrorContains(t, err, "compresses while decoding")

	s, err = fill(model.SessionOptions{}, 10)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.FillRandom(1, 1), model.ErrClosed)
}
