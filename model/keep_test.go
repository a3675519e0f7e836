package model

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
)

// TestKeepAppliesAChoiceMadeElsewhere: the positions that a policy kept, applied
// to a session with the full cache, give the same session.
func TestKeepAppliesAChoiceMadeElsewhere(t *testing.T) {
	ctx := context.Background()
	m := testShapes[2].open(t, WithThreads(2)) // odd layers have windows
	prompt := randomTokens(150, 97, 1)
	cut := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{
		Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.6}})
	require.NoError(t, cut.Prefill(ctx, prompt))
	kept := make([][][]int32, m.cfg.Layers)
	for at := range kept {
		for h := 0; h < m.cfg.KVHeads && m.cfg.Windows[at] == 0; h++ {
			kept[at] = append(kept[at], cut.cache.Positions(at, h, nil))
		}
	}
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, prompt))
	require.NoError(t, s.Keep(kept))
	require.Equal(t, cut.cache.Stats().Bytes, s.cache.Stats().Bytes)
	require.NoError(t, s.Keep(kept), "all of it is held")
	for i := range 5 {
		require.NoError(t, cut.Append(ctx, int32(i)))
		require.NoError(t, s.Append(ctx, int32(i)))
		testnum.SameBits(t, "logits", cut.Logits(), s.Logits())
	}

	before := s.cache.Len(0, 0)
	for want, bad := range map[string][][][]int32{
		"found 1 layers, expected 4":                             {nil},
		"found 1 kv heads, expected 2":                           {{{1}}, nil, nil, nil},
		"found a choice for a layer with a sliding window":       {nil, {{1}, {1}}, nil, nil},
		"layer 0, kv head 0: found position 5000 at place 0":     {{{5000}, {0}}, nil, nil, nil},
		"kv head 1: found position 151 at place 1, expected":     {{{150}, {152, 151}}, nil, nil, nil},
		"layer 2, kv head 0: found position -1":                  {{{150}, {150}}, nil, {{-1}, {150}}, nil},
		"layer 0, kv head 0: found position 150 at place 1, exp": {{{150, 150}, {150}}, nil, nil, nil},
	} {
		require.ErrorContains(t, s.Keep(bad), want)
	}
	require.Equal(t, before, s.cache.Len(0, 0), "an error evicts nothing")
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Keep(kept), ErrClosed)
}
