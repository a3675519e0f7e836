package model

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
)

// TestHugePages: large pages change no bits in a session, its fork and one that was
// loaded, nor with compression, where they are not used.
func TestHugePages(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	tokens := randomTokens(300, 97, 1)
	for _, policy := range []*lukv.Policy{nil, {Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.7}} {
		var want []float32
		for _, huge := range []bool{false, true} {
			o := SessionOptions{Compression: policy, HugePages: huge}
			s := newTestSession(t, m, o)
			require.Equal(t, huge && policy == nil, s.cacheOptions().HugePages)
			require.NoError(t, s.Prefill(ctx, tokens))
			path := filepath.Join(t.TempDir(), "session")
			require.NoError(t, s.Save(t.Context(), path))
			fork, err := s.Fork()
			require.NoError(t, err)
			defer fork.Close()
			o.Compression = nil
			loaded, err := m.LoadSession(t.Context(), path, o)
			require.NoError(t, err)
			defer loaded.Close()
			require.Equal(t, huge, loaded.cache.Options().HugePages)
			for _, x := range []*Session{s, fork, loaded} {
				require.NoError(t, x.Prefill(ctx, tokens[:40]))
				if want == nil {
					want = x.Logits()
				}
				testnum.SameBits(t, "logits", want, x.Logits())
			}
		}
	}
}
