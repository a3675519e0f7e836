package model

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// TestRatioWhileDecodingIsOfWhatWasSeen: a ratio counts the positions seen, not the entries
// that are left, which would be cut again and again.
func TestRatioWhileDecodingIsOfWhatWasSeen(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	for _, ratio := range []float64{0.5, 0.7} {
		s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "tova", Ratio: ratio}}})
		require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 4)))
		for i, id := range randomTokens(25, 97, 5) {
			require.NoError(t, s.Append(ctx, id))
			s.Logits()
			p := 40 + i // of the newest token
			for at := range m.cfg.Layers {
				for h := range m.cfg.KVHeads {
					// The cut of the newest pass may wait for the next one.
					most := max(1, int(float64(p+1)*(1-ratio)))
					require.Contains(t, []int{most, most + 1}, s.Cache().Len(at, h), "position %d", p)
				}
			}
		}
	}
}

// TestSinksAreOfTheSequence: the sinks of a policy are the first positions of the sequence; a
// later span has none, and one that begins among them has the rest.
func TestSinksAreOfTheSequence(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	tokens := randomTokens(90, 97, 4)
	kept := func(span Span, sinks int) [][][]int32 {
		s := newTestSession(t, m, SessionOptions{})
		require.NoError(t, s.Prefill(ctx, tokens))
		require.NoError(t, s.Compress(ctx, span, &lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "keydiff"}, Protection: &lukv.Protection{Sinks: sinks}}))
		return heldPositions(s)
	}
	for _, span := range []Span{{12, 90}, {40, 80}} {
		require.Equal(t, kept(span, 0), kept(span, 12), "%v", span)
	}
	require.NotEqual(t, kept(Span{0, 80}, 0), kept(Span{0, 80}, 12), "these are sinks")
	for _, heads := range kept(Span{8, 80}, 12) {
		for _, held := range heads {
			require.Equal(t, []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, held[:12])
		}
	}
}

// TestSinksOfAShortSpan: of a span that is shorter than the sinks and begins among them, the
// rest of the sinks is protected as well.
func TestSinksOfAShortSpan(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	for _, metric := range []string{"expected_attention", "lagkv", "cur", "triattention"} {
		for _, c := range []struct {
			span Span
			want []int32
		}{
			{Span{2, 4}, []int32{0, 1, 2, 3}}, // nothing but sinks
			{Span{2, 5}, []int32{0, 1, 2, 3}},
			{Span{3, 6}, []int32{0, 1, 2, 3}},
		} {
			s := newTestSession(t, m, SessionOptions{})
			require.NoError(t, s.Prefill(ctx, randomTokens(c.span.From, 97, 4)))
			p := &lukv.Policy{BudgetTokens: 4 - c.span.From, Metric: lukv.MetricConfig{Name: metric}}
			if c.span.To == 4 {
				p = &lukv.Policy{Ratio: 0.5, Metric: p.Metric}
			}
			require.NoError(t, s.PrefillCompressed(ctx, randomTokens(c.span.To-c.span.From, 97, 5), p))
			for _, heads := range heldPositions(s) {
				for _, held := range heads {
					require.Equal(t, c.want, held, "%s, %v", metric, c.span)
				}
			}
		}
	}
}

// TestTraceOfALaterPrefill: a trace names positions of the sequence, wherever its span begins.
func TestTraceOfALaterPrefill(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	tokens := randomTokens(90, 97, 4)
	for _, from := range []int{0, 1, 25} {
		o, traces := traced(SessionOptions{})
		s := newTestSession(t, m, o)
		require.NoError(t, s.Prefill(ctx, tokens[:from]))
		require.NoError(t, s.PrefillCompressed(ctx, tokens[from:], &lukv.Policy{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "snapkv"}}))
		require.Len(t, *traces, 1)
		x := (*traces)[0]
		require.Equal(t, Span{from, 90}, x.Span)
		for at, heads := range heldPositions(s) {
			for h, held := range heads {
				require.Equal(t, slices.DeleteFunc(held, func(p int32) bool { return int(p) < from }), x.Positions[at][h])
				require.Len(t, x.Scores[at][h], 90-from)
			}
		}
	}
}

// TestRotationSeenWhileDecoding: frequencies that depend on the length are those of each pass,
// also for a metric that has seen the layer before.
func TestRotationSeenWhileDecoding(t *testing.T) {
	for _, rc := range []arch.RopeConfig{{Type: "dynamic", Theta: 10000, Factor: 3}, {Type: "yarn", Theta: 10000, Factor: 4, OriginalMax: 32}} {
		cfg := testShapes[0].config()
		cfg.Rope, cfg.MaxPositions = rc, 48
		m, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithThreads(1))
		require.NoError(t, err)
		defer m.Close()
		s := newTestSession(t, m, SessionOptions{MaxTokens: 200, Compression: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "tova", TargetSize: 100}}})
		require.NoError(t, s.Prefill(t.Context(), randomTokens(30, 97, 1)))
		for _, next := range []int{30, 60, 90} {
			l := s.comp.decodeView(s, 0, next)
			require.Equal(t, m.net.Ropes[0].InvFreq(next), l.InvFreq, "%s, %d", rc.Type, next)
			require.Equal(t, m.net.Ropes[0].AttentionFactor(), l.RopeScale)
			require.Equal(t, next, l.NextPosition)
		}
	}
}
