package model

import (
	"bytes"
	"context"
	"crypto/sha256"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// FuzzSession: a session file is refused or gives a session that can be used in every
// way: it goes on, compresses, is forked, saved, read again and emptied; what fails on the
// way gives an error after which it can still be used.
func FuzzSession(f *testing.F) {
	ctx := context.Background()
	m := testShape{layers: 2, hidden: 16, ffn: 16, heads: 2, kv: 1, dim: 8, window: 12, weights: tensor.F32}.open(f, WithThreads(1))
	for _, policy := range []*lukv.Policy{
		nil,
		{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.5},
		{Metric: lukv.MetricConfig{Name: "streaming_llm"}, Ratio: 0.5, Decode: lukv.DecodeConfig{Mode: "tova", TargetSize: 12}},
		{Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 12}},
		{Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 12, Interval: 3, Metric: &lukv.MetricConfig{Name: "expected_attention"}}},
	} {
		s := newTestSession(f, m, SessionOptions{Compression: policy, PageEntries: 16})
		require.NoError(f, s.Prefill(ctx, randomTokens(20, 97, 1)))
		require.NoError(f, s.Append(ctx, 3))
		f.Add(save(f, s, "label"))
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		defer testfuzz.Bound(t, len(file))()
		if len(file) > sha256.Size {
			// Sign what the fuzzer made, or nothing beyond the checksum is reached.
			file = bytes.Clone(file)
			sum := sha256.Sum256(file[:len(file)-sha256.Size])
			copy(file[len(file)-sha256.Size:], sum[:])
		}
		s, err := m.LoadSessionFrom(t.Context(), "fuzz", bytes.NewReader(file), int64(len(file)), SessionOptions{MaxTokens: 1 << 12, MaxCacheBytes: 1 << 22})
		if err != nil {
			require.Nil(t, s)
			return
		}
		defer s.Close()
		again := load(t, m, save(t, s, ""), SessionOptions{})
		require.Equal(t, s.Tokens(), again.Tokens())
		fork, err := s.Fork()
		require.NoError(t, err)
		defer fork.Close()
		for i := range int32(5) {
			if before := fork.Len(); fork.Append(ctx, i) != nil {
				require.Equal(t, before, fork.Len())
			}
		}
		if before := s.Len(); s.Prefill(ctx, randomTokens(9, 97, 2)) != nil {
			require.GreaterOrEqual(t, s.Len(), before)
		}
		require.NoError(t, s.Truncate(0))
		require.NoError(t, s.Prefill(ctx, randomTokens(9, 97, 2)))
	})
}
