package model

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
)

// TestObservationScoresOnce: a metric scores each layer once, however many sessions are
// derived, and these are as if they had been prefilled under the policy.
func TestObservationScoresOnce(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	tokens := randomTokens(60, 97, 1)
	metric := lukv.MetricConfig{Name: everythingName}
	looked, err := lukv.NewMetric(metric)
	require.NoError(t, err)
	ob, err := m.Observe(ctx, tokens, SessionOptions{}, looked)
	require.NoError(t, err)
	defer ob.Close()
	seenLayers.times = 0
	for _, p := range []*lukv.Policy{
		{Metric: metric, Ratio: 0.5}, {Metric: metric, Ratio: 0.8},
		{Metric: metric, Ratio: 0.5, Allocator: lukv.AllocatorConfig{Name: "global"}},
	} {
		s, err := ob.Compress(ctx, p)
		require.NoError(t, err)
		defer s.Close()
		require.Equal(t, m.cfg.Layers, seenLayers.times)
		want := newTestSession(t, m, SessionOptions{Compression: p})
		require.NoError(t, want.Prefill(ctx, tokens))
		require.Equal(t, 2*m.cfg.Layers, seenLayers.times)
		seenLayers.times = m.cfg.Layers
		require.Equal(t, heldPositions(want), heldPositions(s))
		testnum.SameBits(t, policyName(p), want.Logits(), s.Logits())
	}
}

// TestFailedObservations: observations that are refused or cancelled, or whose callback
// panics, leave nothing in memory.
func TestFailedObservations(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2), WithMaxMemory(1<<20))
	looked, err := lukv.NewMetric(lukv.MetricConfig{Name: everythingName})
	require.NoError(t, err)
	gone := errors.New("nobody waits")
	for name, tokens := range map[string][]int32{"cancelled": randomTokens(300, 97, 1), "none": nil, "no token": {97}, "too many": randomTokens(100_000, 97, 1)} {
		ctx, cancel := context.WithCancelCause(t.Context())
		if name == "cancelled" {
			cancel(gone)
		}
		_, err := m.Observe(ctx, tokens, SessionOptions{ChunkTokens: 16}, looked)
		require.Error(t, err, name)
		require.Equal(t, name == "cancelled", errors.Is(err, gone), "%s: %v", name, err)
		require.Zero(t, m.memory.Used(), name)
		cancel(nil)
	}
	require.PanicsWithValue(t, "a callback", func() {
		m.Observe(t.Context(), randomTokens(300, 97, 1), SessionOptions{Progress: func(int, int) { panic("a callback") }}, looked)
	})
	require.Zero(t, m.memory.Used())
	_, err = m.Observe(t.Context(), []int32{1}, SessionOptions{Compression: &lukv.Policy{}}, looked)
	require.ErrorContains(t, err, "carry a compression")
}
