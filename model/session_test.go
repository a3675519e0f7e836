package model

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

func generate(t testing.TB, s *Session, o Sampling) []int32 {
	var out []int32
	for tok, err := range s.Generate(context.Background(), o) {
		require.NoError(t, err)
		require.LessOrEqual(t, tok.LogProb, 1e-6)
		out = append(out, tok.ID)
	}
	return out
}

func TestForkTruncateAndSave(t *testing.T) {
	ctx := context.Background()
	for _, shape := range testShapes {
		t.Run(shape.name, func(t *testing.T) {
			m := shape.open(t, WithThreads(2))
			for _, p := range []*lukv.Policy{nil, {Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.7}} {
				s := newTestSession(t, m, SessionOptions{Compression: p, MaxTokens: 2000})
				require.NoError(t, s.Prefill(ctx, randomTokens(90, 97, 1)))
				question := randomTokens(9, 97, 2)
				free := Sampling{MaxTokens: 12, IgnoreEOS: true}

				fork := func() *Session {
					f, err := s.Fork()
					require.NoError(t, err)
					t.Cleanup(func() { f.Close() })
					return f
				}
				a := fork()
				require.NoError(t, a.Prefill(ctx, question))
				want := generate(t, a, free)
				require.Len(t, want, 12)
				require.Equal(t, 90, s.Len(), "the parent does not move")

				b := fork()
				require.NoError(t, b.Prefill(ctx, question))
				require.Equal(t, want, generate(t, b, free))

				// A conversation that goes on: the last generated token is fed first.
				whole := fork()
				require.NoError(t, whole.Prefill(ctx, append(append(append([]int32(nil), question...), want...), 3, 4)))
				require.NoError(t, b.Prefill(ctx, []int32{3, 4}))
				require.Equal(t, whole.Len(), b.Len())
				require.Equal(t, whole.Tokens(), b.Tokens())
				testnum.SameBits(t, "continued conversation", whole.Logits(), b.Logits())

				// Back to the context, and once more.
				if shape.window == 0 {
					require.NoError(t, a.Truncate(90))
					require.Nil(t, a.Logits())
					require.NoError(t, a.Prefill(ctx, question))
					require.Equal(t, want, generate(t, a, free))
				}
				require.Error(t, a.Truncate(-1))
				require.Error(t, a.Truncate(a.Len()+1))

				path := filepath.Join(t.TempDir(), "session.lukv")
				require.NoError(t, s.Save(t.Context(), path))
				loaded, err := m.LoadSession(t.Context(), path, SessionOptions{MaxTokens: 2000})
				require.NoError(t, err)
				defer loaded.Close()
				testnum.SameBits(t, "saved logits", s.Logits(), loaded.Logits())
				require.Equal(t, s.Tokens(), loaded.Tokens())
				require.NoError(t, loaded.Prefill(ctx, question))
				require.Equal(t, want, generate(t, loaded, free))

				other := testShape{layers: shape.layers, hidden: shape.hidden, ffn: shape.ffn + 16, heads: shape.heads, kv: shape.kv, dim: shape.dim, weights: shape.weights}
				_, err = other.open(t).LoadSession(t.Context(), path, SessionOptions{})
				require.ErrorIs(t, err, ErrWrongModel)
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				text[len(text)/2] ^= 1
				require.NoError(t, os.WriteFile(path, text, 0o600))
				_, err = m.LoadSession(t.Context(), path, SessionOptions{})
				require.Error(t, err)
			}
		})
	}
}

func TestDecodeCompression(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	lens := func(s *Session) (lo, hi int) {
		lo = math.MaxInt
		for _, l := range s.Stats().Layers {
			for _, n := range l.Entries {
				lo, hi = min(lo, n), max(hi, n)
			}
		}
		return lo, hi
	}
	for _, metric := range []string{"snapkv", "keydiff", "expected_attention", "knorm", "tova", "observed", "streaming_llm"} {
		s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{
			Metric: lukv.MetricConfig{Name: metric},
			Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 30, Interval: 8, Buffer: 4},
		}})
		require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 1)))
		for i := 1; i <= 32; i++ {
			require.NoError(t, s.Append(ctx, int32(i)))
			lo, hi := lens(s)
			require.Equal(t, lo, hi, metric)
			switch {
			case i < 8:
				require.Equal(t, 40+i, hi, metric)
			default:
				require.Equal(t, 30+i%8, hi, "%s after step %d", metric, i)
			}
		}
		require.Equal(t, 72, s.Len())
	}
	for _, d := range []lukv.DecodeConfig{
		{Mode: "tova", TargetSize: 25}, {Mode: "h2o", TargetSize: 25, Metric: &lukv.MetricConfig{Name: "h2o", Params: `{"window":13}`}}, {Mode: "streaming", TargetSize: 25},
	} {
		s := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: d}})
		require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 1)))
		for i := range 5 {
			lo, hi := lens(s)
			require.Equal(t, 25, lo, d.Mode)
			require.Equal(t, 25, hi, d.Mode)
			require.NoError(t, s.Append(ctx, int32(i)))
		}
		// The newest entries are there, in order, at their own positions.
		pos := s.cache.Positions(0, 0, nil)
		if d.Mode != "tova" {
			require.EqualValues(t, 44, pos[len(pos)-1])
		}
		// The state is the same however the prefill is cut.
		o := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: d}, ChunkTokens: 7})
		require.NoError(t, o.Prefill(ctx, randomTokens(40, 97, 1)))
		for i := range 5 {
			require.NoError(t, o.Append(ctx, int32(i)))
		}
		testnum.SameBits(t, d.Mode, s.Logits(), o.Logits())
	}
}

func TestRenumberedPositions(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithPrecision(PrecisionF32))
	s := newTestSession(t, m, SessionOptions{CacheType: tensor.F32, Compression: &lukv.Policy{
		Metric: lukv.MetricConfig{Name: "streaming_llm", Params: `{"rerotate":true}`}, BudgetTokens: 60}})
	require.NoError(t, s.Prefill(ctx, randomTokens(200, 97, 1)))
	require.Equal(t, 60, s.Len())
	pos := s.cache.Positions(1, 1, nil)
	require.EqualValues(t, 59, pos[59])
	// In the first layer a key depends only on its token and position: the
	// renumbered keys are those of a text of just the kept tokens.
	tokens := randomTokens(200, 97, 1)
	kept := append(append([]int32(nil), tokens[:4]...), tokens[144:]...)
	plain := newTestSession(t, m, SessionOptions{CacheType: tensor.F32})
	require.NoError(t, plain.Prefill(ctx, kept))
	require.Less(t, testnum.Deviation(s.cache.Keys(0, 0, 0, 60, nil), plain.cache.Keys(0, 0, 0, 60, nil)), 1e-5)
	require.NoError(t, s.Append(ctx, 5))
	require.Error(t, s.Truncate(10))

	_, err := m.NewSession(SessionOptions{Compression: &lukv.Policy{
		Metric: lukv.MetricConfig{Name: "streaming_llm", Params: `{"rerotate":true}`}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.5}})
	require.ErrorContains(t, err, "renumbering")
}

func TestGenerateStops(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t)
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, randomTokens(30, 97, 8)))
	f, err := s.Fork()
	require.NoError(t, err)
	defer f.Close()
	ids := generate(t, f, Sampling{MaxTokens: 8, IgnoreEOS: true})
	require.Equal(t, FinishLength, f.FinishReason())
	g, err := s.Fork()
	require.NoError(t, err)
	defer g.Close()
	stop := ids[5]
	got := generate(t, g, Sampling{MaxTokens: 8, IgnoreEOS: true, Stop: []int32{stop}})
	require.NotContains(t, got, stop)
	require.Equal(t, FinishStop, g.FinishReason())
	require.Equal(t, ids[:len(got)], got)

	h, err := s.Fork()
	require.NoError(t, err)
	defer h.Close()
	for tok, err := range h.Generate(ctx, Sampling{TopLogProbs: 3, IgnoreEOS: true}) {
		require.NoError(t, err)
		require.Len(t, tok.Top, 3)
		require.Equal(t, tok.ID, tok.Top[0].ID)
		break
	}
	require.Equal(t, FinishBreak, h.FinishReason())
}

// TestCacheUsesTheModelsCPU: the instruction set that a model is opened with is that of
// its caches, new and loaded.
func TestCacheUsesTheModelsCPU(t *testing.T) {
	for _, cpu := range []kernels.CPU{{}, kernels.Detect()} {
		m := testShapes[0].open(t, WithCPU(cpu))
		s := newTestSession(t, m, SessionOptions{CacheType: tensor.BF16})
		require.NoError(t, s.Prefill(t.Context(), randomTokens(20, 97, 1)))
		require.Equal(t, cpu, *s.Cache().Options().CPU)
		path := filepath.Join(t.TempDir(), "session")
		require.NoError(t, s.Save(t.Context(), path))
		loaded, err := m.LoadSession(t.Context(), path, SessionOptions{})
		require.NoError(t, err)
		require.Equal(t, cpu, *loaded.Cache().Options().CPU)
		require.NoError(t, loaded.Close())
	}
}
