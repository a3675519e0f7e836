package model

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// TestPolicyOfASession: a session reports in full the policy that its cache was
// compressed under, also as a fork, derived from an observation, and loaded from a
// file, whatever the options are then.
func TestPolicyOfASession(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	prompt := randomTokens(120, 97, 1)
	metric := lukv.MetricConfig{Name: "keydiff"}
	profile := testProfile(t, m, metric, prompt)
	digest, err := profile.Digest()
	require.NoError(t, err)
	given := &lukv.Policy{Metric: metric, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Ratio: 0.6, Profile: profile}

	s := newTestSession(t, m, SessionOptions{Compression: given})
	require.NoError(t, s.Prefill(ctx, prompt))
	want := s.Policy()
	require.Equal(t, digest, want.ProfileDigest)
	require.Equal(t, 0.6, want.Ratio)
	require.NotEqual(t, metric, want.Metric, "defaults are written out")

	f, err := s.Fork()
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, want, f.Policy())
	resolved, err := lukv.NewMetric(metric)
	require.NoError(t, err)
	ob, err := m.Observe(ctx, prompt, SessionOptions{}, resolved)
	require.NoError(t, err)
	defer ob.Close()
	require.Nil(t, ob.Session().Policy())
	derived, err := ob.Compress(ctx, given)
	require.NoError(t, err)
	defer derived.Close()
	require.Equal(t, want, derived.Policy())
	require.Equal(t, s.Notes(), derived.Notes())

	path := filepath.Join(t.TempDir(), "session")
	for i, s := range []*Session{s, derived} {
		require.NoError(t, s.Save(t.Context(), path), i)
		for _, o := range []SessionOptions{
			{},
			{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "snapkv"}, Ratio: 0.1}},
		} {
			loaded, err := m.LoadSession(t.Context(), path, o)
			require.NoError(t, err)
			got := *loaded.Policy()
			require.Equal(t, digest, got.ProfileDigest)
			require.Equal(t, want.Metric, got.Metric)
			require.Equal(t, want.Allocator, got.Allocator)
			require.Equal(t, 0.6, got.Ratio)
			// This remains so, however often it is saved.
			require.NoError(t, loaded.Save(t.Context(), path))
			require.NoError(t, loaded.Close())
		}
	}
	decode := lukv.DecodeConfig{Mode: "streaming", TargetSize: 30}
	loaded, err := m.LoadSession(t.Context(), path, SessionOptions{Compression: &lukv.Policy{Decode: decode}})
	require.NoError(t, err)
	defer loaded.Close()
	full, err := lukv.NewDecoding(decode, nil)
	require.NoError(t, err)
	require.Equal(t, full.Config(), loaded.Policy().Decode, "compression while decoding goes on as asked for now")
	require.Equal(t, 0.6, loaded.Policy().Ratio)
	require.Nil(t, newTestSession(t, m, SessionOptions{}).Policy())
}

// TestNotes: what users of a policy should know reaches users of the library.
func TestNotes(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "knorm"}, Ratio: 0.9}})
	require.Empty(t, s.Notes())
	require.NoError(t, s.Prefill(ctx, randomTokens(100, 97, 1)))
	require.Len(t, s.Notes(), 1)
	require.Contains(t, s.Notes()[0], "keeps only 9 of 100")
	f, err := s.Fork()
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, s.Notes(), f.Notes())
	roomy := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "knorm"}, Ratio: 0.2}})
	require.NoError(t, roomy.Prefill(ctx, randomTokens(100, 97, 1)))
	require.Empty(t, roomy.Notes())
}
