package model

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
)

// heldPositions returns the positions that every head holds, [L][K].
func heldPositions(s *Session) [][][]int32 {
	out := make([][][]int32, s.m.cfg.Layers)
	for at := range out {
		for h := range s.m.cfg.KVHeads {
			out[at] = append(out[at], s.cache.Positions(at, h, nil))
		}
	}
	return out
}

// sameSession compares what two sessions hold, and the logits of a few steps.
func sameSession(t *testing.T, what string, want, got *Session) {
	t.Helper()
	require.Equal(t, want.Len(), got.Len(), what)
	require.Equal(t, heldPositions(want), heldPositions(got), what)
	testnum.SameBits(t, what, want.Logits(), got.Logits())
	for _, id := range []int32{5, 50, 90} {
		require.NoError(t, want.Append(context.Background(), id))
		require.NoError(t, got.Append(context.Background(), id))
		testnum.SameBits(t, what, want.Logits(), got.Logits())
	}
}

// TestCompressAfterIsCompressWithin: for every metric with every allocator, a span
// compressed after its prefill is the same as one compressed by its prefill, be it the
// whole prompt, a document after a system prompt, or a second document after both.
func TestCompressAfterIsCompressWithin(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	system, doc, second, tail := randomTokens(13, 97, 1), randomTokens(80, 97, 2), randomTokens(50, 97, 3), randomTokens(9, 97, 4)
	all := append(append(append(append([]int32{}, system...), doc...), second...), tail...)
	docs := Span{len(system), len(system) + len(doc)}
	seconds := Span{docs.To, docs.To + len(second)}
	whole := newTestSession(t, m, SessionOptions{})
	require.NoError(t, whole.Prefill(ctx, all[:docs.To]))
	longer := newTestSession(t, m, SessionOptions{ChunkTokens: 11})
	require.NoError(t, longer.Prefill(ctx, all))

	for _, p := range policies(t, m, 0.6) {
		t.Run(policyName(p), func(t *testing.T) {
			fork := func(s *Session) *Session {
				f, err := s.Fork()
				require.NoError(t, err)
				t.Cleanup(func() { f.Close() })
				return f
			}
			within := newTestSession(t, m, SessionOptions{Compression: p, ChunkTokens: 30})
			require.NoError(t, within.Prefill(ctx, all[:docs.To]))
			after := fork(whole)
			require.NoError(t, after.Compress(ctx, Span{0, docs.To}, p))
			require.Equal(t, within.Notes(), after.Notes())
			require.Equal(t, within.Policy(), after.Policy())
			require.Equal(t, within.Stats().ContextTokens, after.Stats().ContextTokens)
			sameSession(t, "the whole prompt", within, after)
			held := after.Stats().Entries
			if p.Metric.Name == "compactor" { // looks at all queries, of all entries
				require.ErrorIs(t, after.Compress(ctx, Span{0, docs.To}, p), ErrNotObserved)
				require.ErrorIs(t, after.Compress(ctx, docs, p), ErrNotObserved)
				require.ErrorIs(t, after.PrefillCompressed(ctx, second, p), ErrNotObserved)
				require.Equal(t, held, after.Stats().Entries)
				return
			}
			require.NoError(t, after.Compress(ctx, Span{0, docs.To}, p))
			require.LessOrEqual(t, after.Stats().Entries, held)
			if p.Allocator.Name == "uniform" {
				require.Equal(t, held, after.Stats().Entries, "what was evicted before counts")
			}

			within = newTestSession(t, m, SessionOptions{ChunkTokens: 30})
			require.NoError(t, within.Prefill(ctx, system))
			require.NoError(t, within.PrefillCompressed(ctx, doc, p))
			after = fork(whole)
			require.NoError(t, after.Compress(ctx, docs, p))
			for at, layer := range heldPositions(after) {
				for h, pos := range layer {
					require.Equal(t, int32(len(system)-1), pos[len(system)-1], "layer %d head %d: the system prompt stays", at, h)
				}
			}
			if p.Allocator.Name == "uniform" {
				require.InDelta(t, 0.6*float64(len(doc))/float64(docs.To), after.Stats().Ratio, 0.05)
			}
			later := fork(longer)
			require.NoError(t, later.Compress(ctx, docs, p))
			for at, layer := range heldPositions(later) {
				for h, pos := range layer {
					n := after.cache.Len(at, h)
					require.Equal(t, heldPositions(after)[at][h], pos[:n], "with more behind the span")
					require.Equal(t, int32(docs.To), pos[n])
					require.Len(t, pos, n+len(second)+len(tail))
				}
			}
			ragged := fork(within)
			sameSession(t, "a document behind a system prompt", within, after)

			within = fork(ragged)
			require.NoError(t, within.PrefillCompressed(ctx, second, p))
			require.NoError(t, ragged.Prefill(ctx, second))
			require.NoError(t, ragged.Compress(ctx, seconds, p))
			sameSession(t, "a second document", within, ragged)
		})
	}
}

// TestCompressWhereWindowsSlide: a span can always be ranked by what is in the cache,
// but by queries only if no window has moved on.
func TestCompressWhereWindowsSlide(t *testing.T) {
	ctx := context.Background()
	m := testShapes[2].open(t, WithThreads(2)) // odd layers have windows
	prompt := randomTokens(200, 97, 1)
	for metric, possible := range map[string]bool{"keydiff": true, "knorm": true, "expected_attention": false, "h2o": false} {
		p := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.5}
		s := newTestSession(t, m, SessionOptions{})
		require.NoError(t, s.Prefill(ctx, prompt))
		before := heldPositions(s)
		err := s.Compress(ctx, Span{20, 200}, p)
		if possible {
			require.NoError(t, err)
			require.NoError(t, s.Compress(ctx, Span{20, 120}, p), "a span that windows have left behind")
			require.NoError(t, s.Append(ctx, 1))
			require.NoError(t, s.Truncate(0))
			require.NoError(t, s.Prefill(ctx, prompt))
		} else {
			require.ErrorIs(t, err, ErrNotObserved)
			require.ErrorContains(t, err, metric)
			require.Equal(t, before, heldPositions(s))
		}
		require.NoError(t, s.Compress(ctx, Span{0, 200}, p), "from the very start it is always possible")
		within := newTestSession(t, m, SessionOptions{Compression: p})
		require.NoError(t, within.Prefill(ctx, prompt))
		sameSession(t, metric, within, s)
	}
	p := &lukv.Policy{Ratio: 0.5}
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, prompt[:90]))
	require.NoError(t, s.PrefillCompressed(ctx, prompt[90:], p), "while it passes by")
	want := newTestSession(t, m, SessionOptions{ChunkTokens: 17})
	require.NoError(t, want.Prefill(ctx, prompt[:90]))
	require.NoError(t, want.PrefillCompressed(ctx, prompt[90:], p))
	sameSession(t, "chunks", want, s)
}

// TestSmallestWindow: a layer that looks at a single token has a sliding window, too,
// and is left alone.
func TestSmallestWindow(t *testing.T) {
	ctx := context.Background()
	shape := testShapes[2]
	shape.window = 1
	m := shape.open(t, WithThreads(2))
	half := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "knorm"}}
	whole := newTestSession(t, m, SessionOptions{})
	require.NoError(t, whole.Prefill(ctx, randomTokens(60, 97, 1)))
	within := newTestSession(t, m, SessionOptions{Compression: half})
	require.NoError(t, within.Prefill(ctx, randomTokens(60, 97, 1)))
	after, err := whole.Fork()
	require.NoError(t, err)
	defer after.Close()
	require.NoError(t, after.Compress(ctx, Span{0, 60}, half))
	for at, window := range m.cfg.Windows {
		for h := range m.cfg.KVHeads {
			if window > 0 {
				require.Equal(t, whole.cache.Positions(at, h, nil), within.cache.Positions(at, h, nil))
			} else {
				require.Equal(t, 30, within.cache.Len(at, h))
			}
			require.Equal(t, within.cache.Positions(at, h, nil), after.cache.Positions(at, h, nil))
		}
	}
}

// TestRefinedSpans: a metric that ranks in two steps looks only at the entries of the
// span the second time, be it the whole prompt, a span that passes by or one that was
// there already; what comes before it stays.
func TestRefinedSpans(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	tokens := randomTokens(70, 97, 1)
	p := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "criticalkv"}}
	for _, from := range []int{0, 30} {
		within, after := newTestSession(t, m, SessionOptions{}), newTestSession(t, m, SessionOptions{})
		require.NoError(t, within.Prefill(ctx, tokens[:from]))
		require.NoError(t, within.PrefillCompressed(ctx, tokens[from:], p))
		require.NoError(t, after.Prefill(ctx, tokens))
		require.NoError(t, after.Compress(ctx, Span{from, 70}, p))
		for _, heads := range heldPositions(within) {
			for _, positions := range heads {
				require.Len(t, positions, from+(70-from)/2)
				for i := range from {
					require.EqualValues(t, i, positions[i])
				}
			}
		}
		sameSession(t, "criticalkv", within, after)
	}
}

// TestCompressRefusesAndLeavesAlone: errors, cancellation and no-ops change nothing.
func TestCompressRefusesAndLeavesAlone(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, randomTokens(60, 97, 1)))
	before := heldPositions(s)
	half := &lukv.Policy{Allocator: lukv.AllocatorConfig{Name: "uniform"}, Ratio: 0.5}
	done, cancel := context.WithCancel(ctx)
	cancel()
	for want, run := range map[string]func() error{
		"tokens 0 to 61: expected a span of the 60": func() error { return s.Compress(ctx, Span{0, 61}, half) },
		"tokens -1 to 5":  func() error { return s.Compress(ctx, Span{-1, 5}, half) },
		"tokens 9 to 8":   func() error { return s.Compress(ctx, Span{9, 8}, half) },
		"found no policy": func() error { return s.Compress(ctx, Span{0, 60}, nil) },
		"compresses while decoding": func() error {
			return s.Compress(ctx, Span{0, 60}, &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "tova"}})
		},
		"renumbers positions":                        func() error { return s.Compress(ctx, Span{0, 60}, rerotating()) },
		"context canceled":                           func() error { return s.Compress(done, Span{0, 60}, half) },
		"compressed prefill: found no policy":        func() error { return s.PrefillCompressed(ctx, []int32{1, 2}, nil) },
		"prefill: context canceled":                  func() error { return s.PrefillCompressed(done, randomTokens(60, 97, 2), half) },
		"compressed prefill: found a policy that re": func() error { return s.PrefillCompressed(ctx, []int32{1, 2}, rerotating()) },
	} {
		require.ErrorContains(t, run(), want)
		require.Equal(t, before, heldPositions(s), want)
	}
	require.NoError(t, s.Compress(ctx, Span{7, 7}, half))
	require.NoError(t, s.Compress(ctx, Span{0, 60}, &lukv.Policy{}))
	require.NoError(t, s.Compress(ctx, Span{20, 40}, &lukv.Policy{BudgetTokens: 20}))
	require.Equal(t, before, heldPositions(s))
	require.Nil(t, s.Policy())

	decoding := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 60}}})
	require.NoError(t, decoding.Prefill(ctx, randomTokens(50, 97, 1)))
	require.ErrorContains(t, decoding.PrefillCompressed(ctx, randomTokens(60, 97, 2), half), "expected Prefill and then Compress")
	require.NoError(t, decoding.Compress(ctx, Span{10, 50}, half))
	require.Equal(t, 30, decoding.cache.Len(1, 1))
	for i := range int32(40) {
		require.NoError(t, decoding.Append(ctx, i))
	}
	require.Equal(t, 60, decoding.cache.Len(1, 1), "the streaming form goes on")
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.Compress(ctx, Span{0, 1}, half), ErrClosed)
}

func rerotating() *lukv.Policy {
	return &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "streaming_llm", Params: `{"rerotate":true}`}}
}

// TestCompressedPrefillIsBounded: the peak of a second document is what is already
// there, its compressed layers, and one whole layer.
func TestCompressedPrefillIsBounded(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{PageEntries: 16})
	require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 1)))
	require.NoError(t, s.PrefillCompressed(ctx, randomTokens(320, 97, 2), &lukv.Policy{Ratio: 0.8}))
	st := s.Stats()
	layer := int64(m.cfg.KVHeads*((340+15)/16)) * s.cache.Stats().PageBytes
	require.LessOrEqual(t, st.PeakBytes, st.CacheBytes+layer)

	limited := newTestSession(t, m, SessionOptions{PageEntries: 16, MaxCacheBytes: st.PeakBytes + 8*s.cache.Stats().PageBytes})
	require.NoError(t, limited.Prefill(ctx, randomTokens(20, 97, 1)))
	require.ErrorIs(t, limited.Prefill(ctx, randomTokens(320, 97, 2)), kvcache.ErrFull)
	require.NoError(t, limited.PrefillCompressed(ctx, randomTokens(320, 97, 2), &lukv.Policy{Ratio: 0.8}))
	sameSession(t, "under a limit", s, limited)
}

// TestForkWithLimits: a fork has limits of its own; the session keeps its own.
func TestForkWithLimits(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{PageEntries: 16, MaxTokens: 40})
	require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 1)))
	require.ErrorIs(t, s.Append(ctx, 1), ErrContextFull)

	longer, err := s.Fork(ForkMaxTokens(41), ForkMaxCacheBytes(s.cache.Bytes()))
	require.NoError(t, err)
	defer longer.Close()
	require.NoError(t, longer.Append(ctx, 1))
	require.ErrorIs(t, longer.Append(ctx, 1), ErrContextFull)
	wider, err := longer.Fork(ForkMaxTokens(0))
	require.NoError(t, err)
	defer wider.Close()
	require.Equal(t, m.cfg.MaxPositions, wider.MaxTokens())
	require.ErrorIs(t, wider.Prefill(ctx, randomTokens(16, 97, 2)), kvcache.ErrFull)
	free, err := wider.Fork(ForkMaxCacheBytes(0))
	require.NoError(t, err)
	defer free.Close()
	require.NoError(t, free.Prefill(ctx, randomTokens(16, 97, 2)))

	for want, o := range map[string]ForkOption{
		"at most 39 tokens, the session has 40": ForkMaxTokens(39),
		"at most -1 tokens":                     ForkMaxTokens(-1),
		"a limit of -1 bytes":                   ForkMaxCacheBytes(-1),
		"bytes are held, the limit is 10":       ForkMaxCacheBytes(10),
	} {
		_, err := s.Fork(o)
		require.ErrorContains(t, err, want)
	}
	require.ErrorIs(t, s.Append(ctx, 1), ErrContextFull)
}

// TestNotesOfForks: what a fork notes after the fork is its own.
func TestNotesOfForks(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	p := &lukv.Policy{Ratio: 0.9, Metric: lukv.MetricConfig{Name: "knorm"}}
	s := newTestSession(t, m, SessionOptions{})
	for i := range 3 {
		require.NoError(t, s.PrefillCompressed(ctx, randomTokens(30, 97, uint64(i)), p))
	}
	f, err := s.Fork()
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, s.PrefillCompressed(ctx, randomTokens(40, 97, 5), p))
	require.NoError(t, f.PrefillCompressed(ctx, randomTokens(50, 97, 5), p))
	require.Len(t, s.Notes(), 4)
	require.Contains(t, s.Notes()[3], "of 40 entries")
	require.Contains(t, f.Notes()[3], "of 50 entries")
}

// TestCompressAnEmptySpan: if a head has lost a whole span at the end, what comes
// before it stays when the span is compressed again.
func TestCompressAnEmptySpan(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	p := &lukv.Policy{Ratio: 0.99, Metric: lukv.MetricConfig{Name: "knorm"}, Rounding: lukv.Rounding{AllowEmpty: true}}
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 1)))
	require.NoError(t, s.PrefillCompressed(ctx, randomTokens(40, 97, 2), p))
	require.Equal(t, 20, s.cache.Len(0, 0))
	require.NoError(t, s.Compress(ctx, Span{20, 60}, p))
	for at := range m.cfg.Layers {
		for h := range m.cfg.KVHeads {
			require.Equal(t, 20, s.cache.Len(at, h), "layer %d head %d", at, h)
		}
	}
}

// TestPrefillCompressedOfABusySession: it looks at the session only within its own call.
func TestPrefillCompressedOfABusySession(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	var within error
	var s *Session
	s = newTestSession(t, m, SessionOptions{Progress: func(_, _ int) { within = s.PrefillCompressed(ctx, []int32{1, 2}, nil) }})
	require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 1)))
	require.ErrorIs(t, within, ErrBusy)
	require.NoError(t, s.Close())
	require.ErrorIs(t, s.PrefillCompressed(ctx, []int32{1, 2}, nil), ErrClosed)
}

// TestCancelledAtTheEnd: a context that is done after the last layer is noticed, too: a
// prompt that is compressed is taken as a whole or not at all.
func TestCancelledAtTheEnd(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	p := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "knorm"}}
	ctx, cancel := context.WithCancel(context.Background())
	s := newTestSession(t, m, SessionOptions{Compression: p, Progress: func(done, total int) {
		if done == total {
			cancel()
		}
	}})
	require.ErrorIs(t, s.Prefill(ctx, randomTokens(20, 97, 1)), context.Canceled)
	require.Zero(t, s.Len())
	require.Zero(t, s.cache.Len(0, 0))
}
