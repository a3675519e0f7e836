package model

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// TestForksKeepTheirOwnStatistics: what a fork or its parent observes while
// decoding is not seen by the other: each goes on as if it were alone.
func TestForksKeepTheirOwnStatistics(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	for _, d := range []lukv.DecodeConfig{
		{Mode: "h2o", TargetSize: 40},
		{Mode: "h2o", TargetSize: 40, Decay: 0.5},
		{Mode: "tova", TargetSize: 40},
		{Mode: "periodic", TargetSize: 40, Interval: 5, Buffer: 8, Metric: &lukv.MetricConfig{Name: "expected_attention"}},
		{Mode: "periodic", TargetSize: 40, Interval: 5, Buffer: 8, Metric: &lukv.MetricConfig{Name: "snapkv"}},
	} {
		open := func() *Session {
			s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: d}})
			require.NoError(t, s.Prefill(ctx, randomTokens(60, 97, 1)))
			for i := range int32(3) {
				require.NoError(t, s.Append(ctx, i))
			}
			return s
		}
		// The two go on with different tokens, in turns.
		parent := open()
		child, err := parent.Fork()
		require.NoError(t, err)
		defer child.Close()
		alone := []*Session{open(), open()}
		for i := range int32(14) {
			for k, s := range []*Session{parent, child} {
				token := i + 40*int32(k)
				require.NoError(t, s.Append(ctx, token))
				require.NoError(t, alone[k].Append(ctx, token))
				what := fmt.Sprintf("%v, step %d of %d", d, i, k)
				testnum.SameBits(t, what, alone[k].Logits(), s.Logits())
				require.Equal(t, alone[k].Tokens(), s.Tokens(), what)
				for l := range m.cfg.Layers {
					for h := range m.cfg.KVHeads {
						require.Equal(t, alone[k].cache.Positions(l, h, nil), s.cache.Positions(l, h, nil), what)
						if got, want := s.comp.decode[l].Sums(), alone[k].comp.decode[l].Sums(); got != nil {
							for e := range s.cache.Len(l, h) {
								require.Equal(t, want.Mean(h, e), got.Mean(h, e), what)
								require.Equal(t, want.Seen(h, e), got.Seen(h, e), what)
							}
						}
					}
				}
			}
		}
	}
}

// TestTruncateKeepsStatisticsInStep: after a truncation the statistics cover exactly
// the entries that are left, so that the session can go on; rows of tokens that are
// gone are no longer among the observed queries.
func TestTruncateKeepsStatisticsInStep(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 100}}})
	require.NoError(t, s.Prefill(ctx, randomTokens(60, 97, 1)))
	require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 2)))
	require.NoError(t, s.Truncate(70))
	require.Len(t, s.Tokens(), 70)
	for l := range m.cfg.Layers {
		sums := s.comp.decode[l].Sums()
		for h := range m.cfg.KVHeads {
			require.Equal(t, 70, sums.Len(h))
			require.Equal(t, 70, s.cache.Len(l, h))
			// The first entry was seen by every row so far, including those that are gone:
			// what they gave stays, as the specification of the accumulators says.
			require.EqualValues(t, 80, sums.Seen(h, 0))
			require.EqualValues(t, 11, sums.Seen(h, 69))
		}
	}
	for i := range int32(60) { // across the target
		require.NoError(t, s.Append(ctx, i))
	}
	require.Equal(t, 100, s.cache.Len(0, 0))

	// Expected attention ranks with the queries of tokens that are there: a session
	// that was truncated equals one that never went further.
	periodic := &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 40, Interval: 12, Buffer: 30, Metric: &lukv.MetricConfig{Name: "expected_attention"}}}
	open := func() *Session {
		s := newTestSession(t, m, SessionOptions{Compression: periodic})
		require.NoError(t, s.Prefill(ctx, randomTokens(60, 97, 1)))
		for i := range int32(4) {
			require.NoError(t, s.Append(ctx, i))
		}
		return s
	}
	got, want := open(), open()
	require.NoError(t, got.Append(ctx, 50))
	require.NoError(t, got.Append(ctx, 51))
	require.NoError(t, got.Truncate(64))
	// Truncated passes are counted, too: two more bring them level.
	require.NoError(t, want.Append(ctx, 52))
	require.NoError(t, want.Append(ctx, 53))
	require.NoError(t, want.Truncate(64))
	for i := range int32(10) {
		require.NoError(t, got.Append(ctx, i))
		require.NoError(t, want.Append(ctx, i))
		testnum.SameBits(t, fmt.Sprint("step ", i), want.Logits(), got.Logits())
	}
	require.Equal(t, want.cache.Positions(1, 1, nil), got.cache.Positions(1, 1, nil))
	require.Less(t, got.cache.Len(1, 1), 64, "it was cut meanwhile")
}

// TestRopeOverSeveralCalls: with dynamic scaling the rotation of a call's tokens
// is that for the length at the end of the call, and with YaRN every call has the
// same frequencies and the same factor on sines and cosines.
func TestRopeOverSeveralCalls(t *testing.T) {
	ctx := context.Background()
	for name, rc := range map[string]arch.RopeConfig{
		"dynamic": {Type: "dynamic", Theta: 10000, Factor: 3},
		"yarn":    {Type: "yarn", Theta: 10000, Factor: 4, OriginalMax: 32},
		"linear":  {Type: "linear", Theta: 10000, Factor: 2},
	} {
		cfg := testShapes[0].config()
		cfg.Rope, cfg.MaxPositions = rc, 48
		m, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithThreads(2), WithPrecision(PrecisionF32))
		require.NoError(t, err)
		defer m.Close()
		tokens := randomTokens(120, 97, 1)
		e := &exactModel{cfg: cfg, rope: m.net.Ropes[0], w: m.weights, mats: map[*byte][]float64{}}
		e.reset()
		s := newTestSession(t, m, SessionOptions{MaxTokens: 200, ChunkTokens: 9})
		var want []float64
		for _, to := range []int{30, 31, 47, 60, 61, 62, 100, 120} {
			call := tokens[s.Len():to]
			for _, token := range call {
				want = e.next(token, to)
			}
			if len(call) == 1 {
				require.NoError(t, s.Append(ctx, call[0]))
			} else {
				require.NoError(t, s.Prefill(ctx, call))
			}
			got := slices.Clone(s.Logits())
			ref := make([]float32, len(want))
			for i, v := range want {
				ref[i] = float32(v)
			}
			require.LessOrEqual(t, testnum.Deviation(got, ref), 1e-4, "%s, %d tokens", name, to)
		}
	}
}
