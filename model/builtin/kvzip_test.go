package builtin

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// prefillInPieces feeds tokens in the smallest possible pieces: none does more than
// one chunk through one layer, whether of the tokens or of their repetition.
func prefillInPieces(t *testing.T, s *model.Session, tokens []int32, policy *lukv.Policy) {
	p, err := s.StartPrefillCompressed(tokens, policy)
	require.NoError(t, err)
	layers := s.Model().Config().Layers
	pieces, whole := 0, p.Remaining()
	require.Greater(t, whole, 2*len(tokens), "the repetition is work, too")
	for ; !p.Done(); pieces++ {
		before := p.Remaining()
		require.Positive(t, before)
		require.NoError(t, p.Advance(context.Background(), 1))
		require.LessOrEqual(t, before-p.Remaining(), 80/layers+2)
	}
	require.Zero(t, p.Remaining())
	require.Greater(t, pieces, whole/40)
}

// TestKVzip: the repetition leaves nothing behind but its scores. Sessions of
// any chunk size and thread number, and one derived from an observation, keep
// the same entries and continue with the same bits; the context's template
// prefix stays; the peak is the compressed total plus one layer and its
// repetition.
func TestKVzip(t *testing.T) {
	ctx := context.Background()
	m, err := Open(ctx, model.WithThreads(2))
	require.NoError(t, err)
	defer m.Close()
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	head, tail := shortSample(t, tok)
	for _, allocator := range []string{"uniform", "adakv", "global", "cake"} {
		policy := &lukv.Policy{
			Metric:    lukv.MetricConfig{Name: "kvzip", Params: `{"chunk":40,"prefix":6,"suffix":"<|assistant|>","plus":` + fmt.Sprint(allocator == "adakv") + `}`},
			Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: 0.6,
		}
		var want []float32
		var positions [][]int32
		for _, chunk := range []int{0, 7} {
			s, err := m.NewSession(model.SessionOptions{Compression: policy, ChunkTokens: chunk})
			require.NoError(t, err)
			require.NoError(t, s.Prefill(ctx, head))
			require.Equal(t, len(head), s.Len())
			require.InDelta(t, 0.6, s.Stats().Ratio, 0.05)
			var held [][]int32
			for at := range m.Config().Layers {
				for h := range m.Config().KVHeads {
					p := s.Cache().Positions(at, h, nil)
					require.Equal(t, []int32{0, 1, 2, 3, 4, 5}, p[:6], "the prefix")
					require.Less(t, int(p[len(p)-1]), len(head), "no entry of the repetition")
					held = append(held, p)
				}
			}
			require.NoError(t, s.Append(ctx, tail[0]))
			if want == nil {
				want, positions = append(want, s.Logits()...), held
			}
			require.Equal(t, positions, held, allocator)
			testnum.SameBits(t, allocator, want, s.Logits())
			require.NoError(t, s.Close())
		}
		metric, err := lukv.NewMetric(policy.Metric)
		require.NoError(t, err)
		snap, err := lukv.NewMetric(lukv.MetricConfig{Name: "snapkv"})
		require.NoError(t, err)
		ob, err := m.Observe(ctx, head, model.SessionOptions{}, metric, snap)
		require.NoError(t, err)
		require.Equal(t, len(head), ob.Session().Cache().Len(0, 0), "the repetition's entries are gone")
		s, err := ob.Compress(ctx, policy)
		require.NoError(t, err)
		require.NoError(t, s.Append(ctx, tail[0]))
		testnum.SameBits(t, allocator+" observed", want, s.Logits())
		require.NoError(t, s.Close())
		require.NoError(t, ob.Close())

		// A repetition needs no earlier queries: compressing later gives the same, and
		// so does a span that follows something else.
		var held [2][][]int32
		for i := range held {
			for _, from := range []int{0, 20} {
				s, err := m.NewSession(model.SessionOptions{})
				require.NoError(t, err)
				require.NoError(t, s.Prefill(ctx, head[:from]))
				if i == 0 {
					prefillInPieces(t, s, head[from:], policy)
				} else {
					require.NoError(t, s.Prefill(ctx, head[from:]))
					require.NoError(t, s.Compress(ctx, model.Span{From: from, To: len(head)}, policy))
				}
				for at := range m.Config().Layers {
					for h := range m.Config().KVHeads {
						held[i] = append(held[i], s.Cache().Positions(at, h, nil))
					}
				}
				require.NoError(t, s.Append(ctx, tail[0]))
				if from == 0 {
					testnum.SameBits(t, allocator+" later", want, s.Logits())
				}
				require.NoError(t, s.Close())
			}
		}
		require.Equal(t, held[0], held[1], allocator)
	}
	_, err = m.NewSession(model.SessionOptions{Compression: &lukv.Policy{
		Metric: lukv.MetricConfig{Name: "kvzip"}, Decode: lukv.DecodeConfig{Mode: "periodic"}}})
	require.ErrorContains(t, err, "metric: found kvzip, which reads a whole context at once")
}
