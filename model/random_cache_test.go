package model

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// TestFill: a filled session has the lengths, positions and bytes that a prefill of the
// same number of tokens leaves, and goes on from there.
func TestFill(t *testing.T) {
	ctx := context.Background()
	const n = 300 // more than fillRows
	metric := lukv.MetricConfig{Name: "knorm"}
	smallest := testShapes[2]
	smallest.name, smallest.window = "window of one token", 1
	for _, shape := range []testShape{testShapes[0], testShapes[2], smallest} {
		m := shape.open(t, WithThreads(2))
		for _, p := range []*lukv.Policy{
			nil, {Ratio: 0},
			{Ratio: 0.6, Metric: metric},
			{Ratio: 0.6, Metric: metric, Allocator: lukv.AllocatorConfig{Name: "pyramidkv"}},
			{Ratio: 0.6, Metric: metric, Allocator: lukv.AllocatorConfig{Name: "adakv"}},
			{Ratio: 0.6, Metric: metric, Allocator: lukv.AllocatorConfig{Name: "global"}},
		} {
			what, byScore := shape.name, p != nil && (p.Allocator.Name == "adakv" || p.Allocator.Name == "global")
			if p != nil {
				what += " " + policyName(p)
			}
			o := SessionOptions{Compression: p, PageEntries: 16}
			want := newTestSession(t, m, o)
			require.NoError(t, want.Prefill(ctx, randomTokens(n, 97, 1)))
			open := func(seed uint64) *Session {
				s := newTestSession(t, m, o)
				require.NoError(t, s.FillRandom(n, seed), what)
				return s
			}
			got, same, other := open(7), open(7), open(8)
			require.Equal(t, n, got.Len(), what)
			require.Equal(t, make([]int32, n), got.Tokens(), what)
			require.Nil(t, got.Logits(), what)
			require.Equal(t, want.Stats().ContextTokens, got.Stats().ContextTokens, what)
			total := 0
			for at, window := range m.cfg.Windows {
				layer, uneven := 0, false
				for h := range m.cfg.KVHeads {
					is, was := got.cache.Positions(at, h, nil), want.cache.Positions(at, h, nil)
					layer, total = layer+len(is)-len(was), total+len(is)-len(was)
					uneven = uneven || len(is) != len(was)
					for i, pos := range is {
						switch {
						case window > 0 || p == nil || p.Ratio == 0:
							require.Equal(t, was[i], pos, "%s, layer %d", what, at)
						default:
							require.EqualValues(t, i*n/len(is), pos, "%s, layer %d: evenly spread", what, at)
						}
					}
					k := len(is)
					keys, values := got.cache.Keys(at, h, 0, k, nil), got.cache.Values(at, h, 0, k, nil)
					require.Equal(t, keys, same.cache.Keys(at, h, 0, k, nil), what)
					require.Equal(t, values, same.cache.Values(at, h, 0, k, nil), what)
					require.NotEqual(t, keys, values, what)
					require.NotEqual(t, keys[0], other.cache.Keys(at, h, 0, 1, nil)[0], what)
					mean, square := 0.0, 0.0
					for _, v := range keys {
						mean += float64(v) / float64(len(keys))
						square += float64(v) * float64(v) / float64(len(keys))
					}
					require.InDelta(t, 0, mean, 0.2, what)
					require.InDelta(t, 1, square, 0.2, what)
				}
				if window > 0 || !byScore {
					require.False(t, uneven, "%s, layer %d", what, at)
				}
				if byScore && p.Allocator.Name == "adakv" {
					require.Zero(t, layer, "%s: what the heads of layer %d hold together", what, at)
				}
			}
			require.Zero(t, total, "%s: what all heads hold together", what)
			if !byScore {
				require.Equal(t, want.cache.Bytes(), got.cache.Bytes(), what)
			}
			for i := range int32(2) {
				require.NoError(t, got.Append(ctx, i), what)
				require.NoError(t, want.Append(ctx, i), what)
			}
			// After other tokens everything stays.
			before := got.cache.Positions(0, 0, nil)
			require.NoError(t, got.FillRandom(40, 9), what)
			require.Equal(t, n+42, got.Len(), what)
			for i := range int32(40) {
				before = append(before, n+2+i)
			}
			require.Equal(t, before, got.cache.Positions(0, 0, nil), what)
		}
	}
}

func TestFillRefuses(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	for want, s := range map[string]*Session{
		"fill 0 positions: expected": newTestSession(t, m, SessionOptions{}),
		"while decoding":             newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "tova"}}}),
		"renumbers positions":        newTestSession(t, m, SessionOptions{Compression: rerotating()}),
	} {
		n := 10
		if s.comp == nil {
			n = 0
		}
		require.ErrorContains(t, s.FillRandom(n, 1), want)
	}
	s := newTestSession(t, m, SessionOptions{MaxTokens: 20})
	require.ErrorIs(t, s.FillRandom(21, 1), ErrContextFull)
	require.NoError(t, s.FillRandom(10, 1))
	require.NoError(t, s.Prefill(t.Context(), []int32{1}))
	for _, err := range s.Generate(t.Context(), Sampling{IgnoreEOS: true}) {
		require.NoError(t, err)
		break
	}
	require.ErrorContains(t, s.FillRandom(1, 1), "not fed")
	require.Equal(t, 11, s.Len())

	// If the cache has no room, the session is left as it was.
	small := newTestSession(t, m, SessionOptions{PageEntries: 16, MaxCacheBytes: 2 * int64(m.cfg.Layers*m.cfg.KVHeads) * s.cache.Stats().PageBytes / 4})
	require.NoError(t, small.FillRandom(16, 1))
	held := small.cache.Bytes()
	require.Error(t, small.FillRandom(100, 1), fmt.Sprint(held))
	require.Equal(t, 16, small.Len())
	require.Equal(t, held, small.cache.Bytes())
}
