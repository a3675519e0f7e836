package builtin

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// lossDocument returns the tokens of a context of about n tokens with many facts.
func lossDocument(t testing.TB, m *model.Model, n int) []int32 {
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	for _, s := range Samples() {
		if s.Length == n && s.Task == "niah_multikey_3" {
			head, _ := Prompt(s.Context, s.Question, s.AnswerPrefix)
			return head.Encode(tok)
		}
	}
	t.Fatalf("no sample of %d tokens", n)
	return nil
}

func openForLoss(t testing.TB, opts ...model.Option) *model.Model {
	m, err := Open(t.Context(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

// readFor returns a session with tokens in its cache.
func readFor(t testing.TB, m *model.Model, tokens []int32, o model.SessionOptions) *model.Session {
	s, err := m.NewSession(o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	require.NoError(t, s.Prefill(t.Context(), tokens))
	return s
}

func lossPolicy(metric, allocator string, ratio float64) *lukv.Policy {
	return &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: ratio}
}

// facts returns the ranges without what happened to them.
func facts(l model.Loss) (out []model.LostRange) {
	for _, r := range l.Ranges {
		r.Lost = false
		out = append(out, r)
	}
	return out
}

// positionsOf returns the positions that all heads hold.
func positionsOf(s *model.Session) (out [][]int32) {
	c := s.Model().Config()
	for at := range c.Layers {
		for h := range c.KVHeads {
			out = append(out, s.Cache().Positions(at, h, nil))
		}
	}
	return out
}

// TestLossOfFullCache: the full cache loses nothing, probing changes nothing, and the facts
// are those of model, tokens and probes alone, whether first readings were kept or are made
// again, also with a system prompt before and a question after the span.
func TestLossOfFullCache(t *testing.T) {
	ctx := t.Context()
	m := openForLoss(t, model.WithThreads(2))
	tokens := lossDocument(t, m, 1024)
	T := len(tokens)
	s := readFor(t, m, tokens, model.SessionOptions{ProbeLoss: &model.LossOptions{}, ChunkTokens: 100})
	plain := readFor(t, m, tokens, model.SessionOptions{})
	before := s.Stats()
	for _, o := range []model.LossOptions{{}, {Sweep: true}} {
		p, err := s.ProbeLoss(ctx, model.Span{To: T}, o)
		require.NoError(t, err)
		l, err := p.Measure(ctx, s)
		require.NoError(t, err)
		require.True(t, l.Measured(), "%d facts", l.Facts)
		require.Zero(t, l.Lost)
		require.Zero(t, l.Nats)
		require.Len(t, l.Ranges, l.Facts)
		t.Logf("%d facts in %d rows", l.Facts, l.Rows)
		p, err = plain.ProbeLoss(ctx, model.Span{To: T}, o)
		require.NoError(t, err)
		again, err := p.Measure(ctx, plain)
		require.NoError(t, err)
		require.Equal(t, l, again, "first readings made again")
		require.NoError(t, plain.Prefill(ctx, tokens[:50]))
		again, err = p.Measure(ctx, plain)
		require.NoError(t, err)
		require.Equal(t, l, again, "with more after the span")
		require.NoError(t, plain.Truncate(T))
	}
	require.Equal(t, before, s.Stats())
	require.NoError(t, s.Append(ctx, 5))
	fresh := readFor(t, m, tokens, model.SessionOptions{})
	require.NoError(t, fresh.Append(ctx, 5))
	testnum.SameBits(t, "after probing", fresh.Logits(), s.Logits())
}

// TestLossIsOfTheCacheAlone: same result for any number of threads, chunks, instruction
// set, and for a session that was stored and loaded.
func TestLossIsOfTheCacheAlone(t *testing.T) {
	ctx := t.Context()
	var want model.Loss
	var other kernels.CPU
	for i := range 2 {
		opts := []model.Option{model.WithThreads(1)}
		if i > 0 {
			opts = []model.Option{model.WithThreads(3), model.WithCPU(other)}
		}
		m := openForLoss(t, opts...)
		other = m.CPU()
		other.AVX512, other.AVX512VNNI, other.AVX512BF16 = false, false, false
		tokens := lossDocument(t, m, 512)
		s := readFor(t, m, tokens, model.SessionOptions{ChunkTokens: 512 - 301*i, ProbeLoss: &model.LossOptions{}})
		span := model.Span{From: 20, To: len(tokens)}
		p, err := s.ProbeLoss(ctx, span, model.LossOptions{})
		require.NoError(t, err)
		require.NoError(t, s.Compress(ctx, span, lossPolicy("knorm", "adakv", .7)))
		l, err := p.Measure(ctx, s)
		require.NoError(t, err)
		if i == 0 {
			want = l
			require.True(t, l.Measured())
			require.Positive(t, l.Lost)
			path := filepath.Join(t.TempDir(), "session")
			require.NoError(t, s.Save(ctx, path))
			loaded, err := m.LoadSession(ctx, path, model.SessionOptions{})
			require.NoError(t, err)
			defer loaded.Close()
			l, err = p.Measure(ctx, loaded)
			require.NoError(t, err)
		}
		require.Equal(t, want, l)
		_, err = s.ProbeLoss(ctx, span, model.LossOptions{})
		require.ErrorIs(t, err, model.ErrNotObserved, "a compressed cache is no reference")
	}
}

// TestLossInsidePrefill: the sweep inside a prefill that compresses finds the facts and the
// losses that the full cache and the cut made of it later have, for allocators that cut at
// once and at the end, with metrics that repeat the context, and after a system prompt.
func TestLossInsidePrefill(t *testing.T) {
	ctx := t.Context()
	m := openForLoss(t, model.WithThreads(2))
	tokens := lossDocument(t, m, 512)
	for _, start := range []int{0, 30} {
		span := model.Span{From: start, To: len(tokens)}
		full := readFor(t, m, tokens, model.SessionOptions{})
		reference, err := full.ProbeLoss(ctx, span, model.LossOptions{Sweep: true})
		require.NoError(t, err)
		for _, p := range []*lukv.Policy{lossPolicy("knorm", "uniform", .8), lossPolicy("keydiff", "global", .5), lossPolicy("kvzip", "cake", .6), lossPolicy("h2o", "adakv", .7)} {
			o := model.SessionOptions{ProbeLoss: &model.LossOptions{}, ChunkTokens: 200}
			s, err := m.NewSession(o)
			require.NoError(t, err)
			defer s.Close()
			require.NoError(t, s.Prefill(ctx, tokens[:start]))
			require.NoError(t, s.PrefillCompressed(ctx, tokens[start:], p))
			plain, err := m.NewSession(model.SessionOptions{ChunkTokens: 200})
			require.NoError(t, err)
			defer plain.Close()
			require.NoError(t, plain.Prefill(ctx, tokens[:start]))
			require.NoError(t, plain.PrefillCompressed(ctx, tokens[start:], p))
			require.Equal(t, positionsOf(plain), positionsOf(s))
			testnum.SameBits(t, p.Metric.Name, plain.Logits(), s.Logits())
			require.LessOrEqual(t, s.Stats().PeakBytes, plain.Stats().PeakBytes*102/100+int64(m.Config().KVHeads)*16<<10)
			want, err := reference.Measure(ctx, plain)
			require.NoError(t, err)
			got, err := s.LossProbe().Measure(ctx, s)
			require.NoError(t, err)
			require.Equal(t, want, got, "%s %s", p.Metric.Name, p.Allocator.Name)
			require.Positive(t, got.Facts)
		}
		require.Nil(t, full.LossProbe())
	}
}

// TestCompressWithin: the choice is the cut at its ratio, to the bit; a bound of 1 gives the
// largest candidate, a bound of 0 a cut that loses nothing, and what cannot be measured
// stays whole.
func TestCompressWithin(t *testing.T) {
	ctx := t.Context()
	m := openForLoss(t, model.WithThreads(2))
	tokens := lossDocument(t, m, 512)
	span := model.Span{From: 5, To: len(tokens)}
	whole := readFor(t, m, tokens, model.SessionOptions{ProbeLoss: &model.LossOptions{}})
	for _, c := range []struct {
		bound     float64
		confident bool
	}{{0, false}, {.1, false}, {1, false}, {.3, true}} {
		policy := lossPolicy("snapkv", "adakv", .33)
		s, err := whole.Fork()
		require.NoError(t, err)
		defer s.Close()
		l, ratio, err := s.CompressWithin(ctx, span, policy, c.bound, model.LossOptions{Confident: c.confident})
		require.NoError(t, err)
		require.True(t, l.Measured())
		require.NotEmpty(t, l.Tried)
		require.LessOrEqual(t, l.Share(), c.bound)
		if c.confident {
			require.LessOrEqual(t, l.Upper, c.bound)
		}
		if c.bound == 1 {
			require.Equal(t, .95, ratio)
		}
		t.Logf("bound %g: ratio %g, %v, tried %v", c.bound, ratio, l, l.Tried)
		given, err := whole.Fork()
		require.NoError(t, err)
		defer given.Close()
		if ratio > 0 {
			require.NoError(t, given.Compress(ctx, span, lossPolicy("snapkv", "adakv", ratio)))
		}
		require.Equal(t, positionsOf(given), positionsOf(s))
		require.Equal(t, given.Policy(), s.Policy())
		require.Equal(t, given.Notes(), s.Notes())
		require.NoError(t, given.Append(ctx, 7))
		require.NoError(t, s.Append(ctx, 7))
		testnum.SameBits(t, "the choice", given.Logits(), s.Logits())
		p, err := whole.ProbeLoss(ctx, span, model.LossOptions{})
		require.NoError(t, err)
		again, err := p.Measure(ctx, s)
		require.NoError(t, err)
		again.Tried = l.Tried
		require.Equal(t, l, again)
	}

	same := make([]int32, 400)
	for i := range same {
		same[i] = tokens[30]
	}
	s := readFor(t, m, same, model.SessionOptions{})
	l, ratio, err := s.CompressWithin(ctx, model.Span{To: 400}, lossPolicy("knorm", "uniform", 0), .1, model.LossOptions{})
	require.NoError(t, err)
	require.False(t, l.Measured())
	require.Zero(t, ratio)
	require.Zero(t, s.Stats().Ratio)
	_, _, err = s.CompressWithin(ctx, model.Span{To: 400}, lossPolicy("learned", "uniform", 0), .1, model.LossOptions{})
	require.ErrorContains(t, err, "found no profile", "also where nothing can be measured")
	_, _, err = s.CompressWithin(ctx, model.Span{To: 400}, lossPolicy("knorm", "uniform", 0), math.NaN(), model.LossOptions{})
	require.Error(t, err)
	_, _, err = s.CompressWithin(ctx, model.Span{To: 401}, lossPolicy("knorm", "uniform", 0), .1, model.LossOptions{})
	require.Error(t, err)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = whole.CompressWithin(cancelled, span, lossPolicy("knorm", "uniform", 0), .1, model.LossOptions{})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, whole.Stats().Ratio)
}

// TestLossCountsWithinFacts: for all policies the facts are equal, and 0 ≤ lost ≤ facts.
func TestLossCountsWithinFacts(t *testing.T) {
	ctx := t.Context()
	m := openForLoss(t, model.WithThreads(2))
	tokens := lossDocument(t, m, 512)
	span := model.Span{To: len(tokens)}
	whole := readFor(t, m, tokens, model.SessionOptions{})
	p, err := whole.ProbeLoss(ctx, span, model.LossOptions{})
	require.NoError(t, err)
	var ranges []model.LostRange
	for _, metric := range []string{"knorm", "keydiff", "snapkv", "tova"} {
		for _, ratio := range []float64{.3, .95} {
			s, err := whole.Fork()
			require.NoError(t, err)
			require.NoError(t, s.Compress(ctx, span, lossPolicy(metric, "uniform", ratio)))
			l, err := p.Measure(ctx, s)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			if ranges == nil {
				ranges = facts(l)
			}
			require.Equal(t, ranges, facts(l))
			require.Len(t, ranges, l.Facts)
			require.True(t, l.Lost >= 0 && l.Lost <= l.Facts)
			require.True(t, l.Upper > l.Share() || l.Share() == 1)
			t.Logf("%s %g: %v, %.3f nats", metric, ratio, l, l.Nats)
		}
	}
}
