package model

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// TestCacheEstimate compares what CacheEstimate predicts with what sessions take.
func TestCacheEstimate(t *testing.T) {
	ctx := context.Background()
	for _, shape := range testShapes {
		m := shape.open(t, WithThreads(2))
		for _, p := range []*lukv.Policy{
			nil, {Ratio: 0},
			{Ratio: 0.7, Metric: lukv.MetricConfig{Name: "knorm"}},
			{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "knorm"}, Allocator: lukv.AllocatorConfig{Name: "pyramidkv"}},
			{BudgetTokens: 50, Metric: lukv.MetricConfig{Name: "keydiff"}},
			{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}},
			{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "global"}},
			{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "cake"}, Allocator: lukv.AllocatorConfig{Name: "cake"}},
			{Ratio: 0.9, Metric: lukv.MetricConfig{Name: "lagkv"}, Allocator: lukv.AllocatorConfig{Name: "cake"}}, // protects more than it may keep
		} {
			for _, n := range []Lengths{{0, 0, 5}, {0, 1, 0}, {0, 200, 0}, {0, 333, 40}, {37, 200, 20}, {33, 7, 1}} {
				name := fmt.Sprintf("%s %+v %v", shape.name, p, n)
				o := SessionOptions{Compression: p, ChunkTokens: 50, PageEntries: 16}
				need, err := m.CacheEstimate(o, n)
				require.NoError(t, err)
				if n.Before > 0 {
					o.Compression = nil
				}
				s := newTestSession(t, m, o)
				require.NoError(t, s.Prefill(ctx, randomTokens(n.Before, 97, 3)))
				if context := randomTokens(n.Context, 97, 1); n.Before > 0 && p != nil {
					require.NoError(t, s.PrefillCompressed(ctx, context, p))
				} else {
					require.NoError(t, s.Prefill(ctx, context))
				}
				require.NoError(t, s.Prefill(ctx, randomTokens(n.Rest, 97, 2)))
				st := s.Stats()
				require.LessOrEqual(t, st.PeakBytes, need.Peak, name)
				require.LessOrEqual(t, st.CacheBytes, need.Held, name)
				require.GreaterOrEqual(t, need.Peak, need.Held, name)
				exact := p == nil || p.Allocator.Name == "" || p.Allocator.Name == "pyramidkv"
				if exact && shape.window == 0 {
					require.Equal(t, need.Held, st.CacheBytes, name)
					require.Equal(t, need.Peak, st.PeakBytes, name)
				}
				slack := int64(m.cfg.Layers*m.cfg.KVHeads*2) * s.cache.Stats().PageBytes
				if shape.window == 0 && (p == nil || p.Allocator.Name != "global" && p.Allocator.Name != "cake") {
					require.LessOrEqual(t, need.Held, st.CacheBytes+slack, name)
				}
				require.NoError(t, s.Close())
			}
		}
	}
}

func TestCacheEstimateRefuses(t *testing.T) {
	m := testShapes[0].open(t)
	_, err := m.CacheEstimate(SessionOptions{}, Lengths{Context: m.cfg.MaxPositions, Rest: 1})
	require.ErrorContains(t, err, "in all")
	_, err = m.CacheEstimate(SessionOptions{Compression: &lukv.Policy{Ratio: 2}}, Lengths{0, 10, 1})
	require.Error(t, err)
	for _, l := range []Lengths{{-1, 5, 5}, {math.MaxInt/2 + 1, math.MaxInt/2 + 1, 5}} {
		_, err = m.CacheEstimate(SessionOptions{}, l)
		require.ErrorContains(t, err, "in all")
	}
	_, err = m.CacheEstimate(SessionOptions{Compression: &lukv.Policy{Ratio: 0.5, Decode: lukv.DecodeConfig{Mode: "tova"}}}, Lengths{1, 10, 1})
	require.ErrorContains(t, err, "while decoding")
}
