package model

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
)

// TestLaterPrefillCompressesWhileDecoding: the second turn of a chat is one
// decoding pass, however it is cut into chunks: it counts as a pass, its queries
// are observed, and with as many tokens as the target it cuts at once.
func TestLaterPrefillCompressesWhileDecoding(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	for _, metric := range []string{"snapkv", "expected_attention", "keydiff"} {
		var logits []float32
		for _, chunk := range []int{0, 7} {
			s := newTestSession(t, m, SessionOptions{ChunkTokens: chunk, Compression: &lukv.Policy{
				Metric: lukv.MetricConfig{Name: metric},
				Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 40, Interval: 3, Buffer: 16},
			}})
			length := func() int { return s.cache.Len(1, 1) }
			require.NoError(t, s.Prefill(ctx, randomTokens(60, 97, 1)))
			require.Equal(t, 60, length(), "the first prefill is left alone")
			require.NoError(t, s.Append(ctx, 5))
			require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 2)))
			require.Equal(t, 81, length())
			require.NoError(t, s.Append(ctx, 6))
			require.Equal(t, 40, length(), "the third pass")
			require.NoError(t, s.Prefill(ctx, randomTokens(41, 97, 3)))
			require.Equal(t, 40, length(), "as many tokens as the target")
			require.Equal(t, 123, s.Len())
			require.NoError(t, s.Append(ctx, 7))
			if logits == nil {
				logits = append(logits, s.Logits()...)
			} else {
				testnum.SameBits(t, metric, logits, s.Logits())
			}
		}
	}
}
