package model

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lukv/lukv/model/drafting"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/sampling"
	"github.com/lukv/lukv/tensor"
)

// exactRequest is a request whose answer must not depend on drafts.
type exactRequest struct {
	context, question []int32
	policy            *lukv.Policy
	sampling          Sampling
	options           SessionOptions
	drafts            int
	leave             int // tokens after which its reader stops
}

// exactRequests returns n requests to a model: greedy and sampled, with and without
// penalties, under several policies, with different caches. Where layers slide, queries
// that have passed by cannot be computed again, so metrics look at keys.
func exactRequests(n int, m *Model, seed uint64) []exactRequest {
	vocab := m.cfg.Vocab
	rng := rand.New(rand.NewPCG(seed, 4))
	policies := []*lukv.Policy{
		{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "key_distance"}},
		{Ratio: 0.9, Metric: lukv.MetricConfig{Name: "keydiff"}},
		{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}},
		{Ratio: 0.3, Metric: lukv.MetricConfig{Name: "h2o"}, Allocator: lukv.AllocatorConfig{Name: "global"}},
	}
	if slices.Max(m.cfg.Windows) > 0 {
		policies = policies[:2]
	}
	out := make([]exactRequest, n)
	for i := range out {
		r := &out[i]
		r.context, r.question = quoting(50+rng.IntN(60), vocab, seed+uint64(i)), randomTokens(1+rng.IntN(9), vocab, seed+uint64(i)+99)
		r.policy, r.drafts, r.leave = policies[i%len(policies)], 1+rng.IntN(5), 1+rng.IntN(40)
		r.sampling = Sampling{MaxTokens: 1 + rng.IntN(30), IgnoreEOS: i%3 > 0, LogProbs: true, Seed: uint64(i)}
		if i%2 == 1 {
			r.sampling.Temperature, r.sampling.TopK = 0.05+0.5*rng.Float64(), rng.IntN(4)
		}
		if i%5 == 0 {
			r.sampling.RepetitionPenalty, r.sampling.RepetitionWindow = 1.1, 8
		}
		r.options.PageEntries = 16
		if i%6 == 0 {
			r.options.MaxTokens = len(r.context) + len(r.question) + 20
		}
		r.options.Lookup = i%7 == 0
		if i%4 == 3 {
			r.options.CacheType = tensor.I8
		}
	}
	return out
}

// session returns a session that has read the request and, if drafting, has a cache that
// drafts.
func (r *exactRequest) session(t *testing.T, m *Model, drafting bool) *Session {
	o := r.options
	o.Lookup = o.Lookup && drafting
	s := newTestSession(t, m, o)
	require.NoError(t, s.Prefill(t.Context(), r.context))
	if drafting {
		require.NoError(t, s.DraftCompressed(t.Context(), Span{3, len(r.context)}, r.policy, r.drafts))
		if r.policy.Ratio > 0 {
			require.Equal(t, r.policy.Ratio, s.DraftPolicy().Ratio)
		}
		require.Nil(t, s.Policy(), "the session's own cache is whole")
	}
	require.NoError(t, s.Prefill(t.Context(), r.question))
	return s
}

// answer generates the request's answer.
func (r *exactRequest) answer(t *testing.T, m *Model, drafting bool) (*Session, []Token) {
	s := r.session(t, m, drafting)
	var out []Token
	for tok, err := range s.Generate(t.Context(), r.sampling) {
		require.NoError(t, err)
		tok.Top = nil
		if out = append(out, tok); len(out) == r.leave {
			break
		}
	}
	return s, out
}

// TestExact: with a compressed cache that drafts, answers are the whole cache's, to the bit
// of every log-probability, and so is what sessions hold: of 200 requests, greedy and
// sampled, wherever the answer ends or its reader stops.
func TestExact(t *testing.T) {
	drafted, accepted, verified := 0, 0, 0
	for _, shape := range testShapes {
		m := shape.open(t, WithThreads(1))
		for i, r := range exactRequests(50, m, 7) {
			want, tokens := r.answer(t, m, false)
			got, same := r.answer(t, m, true)
			what := fmt.Sprintf("%s, request %d", shape, i)
			require.Equal(t, tokens, same, what)
			require.Equal(t, want.FinishReason(), got.FinishReason(), what)
			sameAsWithout(t, what, want, got)
			st := got.Stats()
			require.LessOrEqual(t, st.Accepted, st.Drafted, what)
			require.NotContains(t, fmt.Sprint(got.Notes()), "ended", what)
			require.Positive(t, st.DraftBytes, what)
			drafted, accepted, verified = drafted+st.Drafted, accepted+st.Accepted, verified+st.Verified
			require.NoError(t, got.Close())
			require.NoError(t, want.Close())
		}
	}
	t.Logf("%d tokens drafted, %d right, in %d passes", drafted, accepted, verified)
	require.Greater(t, accepted, 300)
	require.Greater(t, drafted, accepted+300, "some drafts must fail, too")
	require.Greater(t, drafted, verified)
}

// TestExactBatched: the same for answers that share passes, some of them with drafts.
func TestExactBatched(t *testing.T) {
	for _, shape := range testShapes {
		m := shape.open(t, WithThreads(2))
		requests := exactRequests(25, m, 3)
		accepted := 0
		for first := 0; first < len(requests); first += 5 {
			accepted += exactBatch(t, m, requests[first:first+5], fmt.Sprintf("%s, from request %d", shape, first))
		}
		require.Greater(t, accepted, 20, shape.name)
	}
}

// batched is an answer in a batch.
type batched struct {
	s      *Session
	draw   *sampling.Sampler
	tokens []int32
}

// exactBatch answers requests together and returns how many drafts were right.
func exactBatch(t *testing.T, m *Model, requests []exactRequest, what string) (accepted int) {
	run := func(drafting bool) (all []*batched) {
		for i, r := range requests {
			x := &batched{s: r.session(t, m, drafting && i != 1)}
			var err error
			x.draw, err = m.NewSampler(r.sampling, 0)
			require.NoError(t, err)
			x.draw.Start(x.s.Tokens())
			all = append(all, x)
		}
		for {
			var parts []Part
			for i, x := range all {
				for n := min(18, requests[i].leave); len(x.tokens) < n; {
					id, err := x.draw.Next(x.s.Logits(), nil)
					require.NoError(t, err)
					x.draw.Accept(id)
					if x.tokens = append(x.tokens, id); x.s.Follow(id) {
						continue
					}
					parts = append(parts, Part{Session: x.s, Token: id, Drafts: i + 1, Sampler: x.draw})
					break
				}
			}
			if len(parts) == 0 {
				return all
			}
			require.NoError(t, m.Pass(t.Context(), parts))
		}
	}
	want, got := run(false), run(true)
	for i := range requests {
		what := fmt.Sprintf("%s + %d", what, i)
		require.Equal(t, want[i].tokens, got[i].tokens, what)
		sameAsWithout(t, what, want[i].s, got[i].s)
		require.NotContains(t, fmt.Sprint(got[i].s.Notes()), "ended", what)
		accepted += got[i].s.Stats().Accepted
		require.NoError(t, want[i].s.Close())
		require.NoError(t, got[i].s.Close())
	}
	return accepted
}

// TestExactOnDevice: the same where all layers, or the first, are on a device.
func TestExactOnDevice(t *testing.T) {
	for layers := range 2 {
		m, _ := testShapes[0].onDevice(t, layers, WithThreads(2))
		verified := 0
		for i, r := range exactRequests(8, m, 21) {
			r.options.CacheType = tensor.BF16
			want, tokens := r.answer(t, m, false)
			got, same := r.answer(t, m, true)
			require.Equal(t, tokens, same, i)
			sameAsWithout(t, fmt.Sprintf("%d layers, request %d", layers, i), want, got)
			verified += got.Stats().Verified
			require.NoError(t, got.Close())
			require.NoError(t, want.Close())
		}
		require.Positive(t, verified)
	}
}

// TestDraftsOfTheWholeCache: a copy that keeps everything is always right, with the random
// numbers of the session, and the session needs a pass for nine tokens.
func TestDraftsOfTheWholeCache(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	r := exactRequests(1, m, 1)[0]
	r.policy, r.drafts, r.leave = &lukv.Policy{Metric: lukv.MetricConfig{Name: "knorm"}}, drafting.MostDrafts, 100
	r.options = SessionOptions{}
	r.sampling = Sampling{MaxTokens: 91, IgnoreEOS: true, Temperature: 1, Seed: 5}
	s, tokens := r.answer(t, m, true)
	require.Len(t, tokens, 91)
	st := s.Stats()
	require.Equal(t, []int{80, 80, 10}, []int{st.Drafted, st.Accepted, st.Verified})
}

// TestDraftsFollow: the copy follows its session back, into forks and into a next turn, and
// ends when the session goes back to before the end of the span.
func TestDraftsFollow(t *testing.T) {
	ctx := t.Context()
	for _, shape := range testShapes[:3] {
		m, back := shape.open(t, WithThreads(2)), 5
		if shape.window > 0 { // which lets nothing go back
			back = 0
		}
		open := func(drafting bool) *Session {
			s := newTestSession(t, m, SessionOptions{PageEntries: 16})
			require.NoError(t, s.Prefill(ctx, quoting(100, 97, 5)))
			if drafting {
				require.NoError(t, s.DraftCompressed(ctx, Span{0, 60}, &lukv.Policy{Ratio: 0.4, Metric: lukv.MetricConfig{Name: "keydiff"}}, 4))
			}
			return s
		}
		generate := func(s *Session, n int) {
			for _, err := range s.Generate(ctx, Sampling{IgnoreEOS: true, MaxTokens: n, Temperature: 0.1, Seed: uint64(n)}) {
				require.NoError(t, err)
			}
		}
		want, got := open(false), open(true)
		var forks []*Session
		for _, s := range []*Session{want, got} {
			generate(s, 21)
			require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 1))) // another turn
			generate(s, 13)
			require.NoError(t, s.Truncate(s.Len()-back))
			require.NoError(t, s.Prefill(ctx, randomTokens(3, 97, 2)))
			f, err := s.Fork()
			require.NoError(t, err)
			forks = append(forks, f)
			generate(s, 11)
			full, err := s.Fork(ForkMaxTokens(s.Len()))
			require.NoError(t, err)
			require.NoError(t, full.Close())
			generate(s, 17)
			require.NoError(t, s.Prefill(ctx, []int32{9}))
			generate(s, 8)
			generate(f, 30)
		}
		sameAsWithout(t, shape.name, want, got)
		sameAsWithout(t, shape.name+", fork", forks[0], forks[1])
		require.Positive(t, forks[1].Stats().Verified-got.Stats().Verified+forks[1].Stats().Verified)
		require.NotNil(t, forks[1].DraftPolicy())
		if back > 0 {
			require.NoError(t, got.Truncate(60))
			require.NotNil(t, got.DraftPolicy())
			require.NoError(t, got.Truncate(59))
			require.Nil(t, got.DraftPolicy())
			require.Zero(t, got.Stats().DraftBytes)
		}
		require.NoError(t, forks[1].Close())
		require.NoError(t, got.Close())
	}
}

// TestDraftsWithinLimits: the limit of a session's cache counts both caches, and a session
// whose copy has no room any more goes on without it.
func TestDraftsWithinLimits(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	policy := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}
	page := newTestSession(t, m, SessionOptions{PageEntries: 16}).cache.Stats().PageBytes
	// 64 tokens take 4 pages in each of 6 heads, half of them 2.
	open := func(pages int64, drafting bool) (*Session, error) {
		o := SessionOptions{PageEntries: 16, MaxCacheBytes: pages * 6 * page}
		if !drafting {
			o.MaxCacheBytes = 0
		}
		s := newTestSession(t, m, o)
		require.NoError(t, s.Prefill(ctx, randomTokens(64, 97, 5)))
		if !drafting {
			return s, nil
		}
		return s, s.DraftCompressed(ctx, Span{0, 64}, policy, 4)
	}
	_, err := open(5, true)
	require.ErrorIs(t, err, kvcache.ErrFull)
	got, err := open(9, true)
	require.NoError(t, err)
	require.Equal(t, 6*6*page, got.Stats().CacheBytes+got.Stats().DraftBytes)
	want, _ := open(9, false)
	for _, s := range []*Session{want, got} {
		for _, err := range s.Generate(ctx, Sampling{IgnoreEOS: true, MaxTokens: 60}) {
			require.NoError(t, err)
			st := s.Stats()
			require.True(t, s == want || st.CacheBytes+st.DraftBytes <= 9*6*page)
		}
	}
	sameAsWithout(t, "limited", want, got)
	require.Positive(t, got.Stats().Verified)
	require.Len(t, got.Notes(), 1)
	require.Contains(t, got.Notes()[0], "drafts with a compressed cache ended")
	require.Nil(t, got.DraftPolicy())
}

// TestDraftsThatFail: logits of the copy that are no numbers, and a cancelled call, cost
// drafts and nothing else.
func TestDraftsThatFail(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	r := exactRequests(1, m, 9)[0]
	r.options, r.drafts = SessionOptions{}, 4
	want, got := r.session(t, m, false), r.session(t, m, true)
	other := r.session(t, m, true)
	pass := func(ctx context.Context, token int32) error {
		return m.Pass(ctx, []Part{{Session: got, Token: token, Drafts: 4}, {Session: other, Token: token, Drafts: 4}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, pass(ctx, 5), context.Canceled)
	require.NotNil(t, got.DraftPolicy())
	require.Zero(t, got.Stats().Verified)
	require.NoError(t, pass(t.Context(), 5))
	require.Len(t, got.ahead.tokens, 4)

	// A key that is no number.
	nan := make([]float32, m.cfg.HeadDim)
	nan[0] = float32(math.NaN())
	f := got.draftCache.fork
	last := int32(got.Len() - 1)
	require.NoError(t, f.cache.Truncate(last))
	require.NoError(t, f.cache.Append(0, 0, []int32{last}, nan, nan, len(nan)))
	require.NoError(t, f.Truncate(got.Len()))
	require.NoError(t, pass(t.Context(), 6))
	require.Empty(t, got.ahead.tokens)
	require.Contains(t, got.Notes()[0], "drafts with a compressed cache ended")
	require.Empty(t, other.Notes(), "it is not to blame")
	require.NoError(t, pass(t.Context(), 7))
	require.Len(t, other.ahead.tokens, 4)
	for _, token := range []int32{5, 6, 7} {
		require.NoError(t, want.Append(t.Context(), token))
	}
	sameAsWithout(t, "failed", want, got)
	sameAsWithout(t, "beside", want, other)
}

// TestDraftsRefused: what cannot draft says why, and nothing changes.
func TestDraftsRefused(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	policy := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, randomTokens(40, 97, 5)))
	decodes := newTestSession(t, m, SessionOptions{Compression: &lukv.Policy{Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 40}}})
	require.NoError(t, decodes.Prefill(ctx, randomTokens(40, 97, 5)))
	for message, err := range map[string]error{
		"found 9 drafts":                 s.DraftCompressed(ctx, Span{0, 40}, policy, 9),
		"found no policy":                s.DraftCompressed(ctx, Span{0, 40}, nil, 0),
		"expected a span of the 40":      s.DraftCompressed(ctx, Span{0, 41}, policy, 0),
		"compresses while decoding":      s.DraftCompressed(ctx, Span{0, 40}, &lukv.Policy{Ratio: 0.5, Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 40}}, 0),
		"looks at every token":           decodes.DraftCompressed(ctx, Span{0, 40}, policy, 0),
		"draft with a compressed cache:": decodes.DraftCompressed(ctx, Span{0, 40}, policy, -1),
	} {
		require.ErrorContains(t, err, message)
	}
	require.Nil(t, s.DraftPolicy())
	require.Zero(t, s.Stats().DraftBytes)
}

// TestDraftsAllocateNothing: neither does decoding with them.
func TestDraftsAllocateNothing(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	r := exactRequests(1, m, 1)[0]
	r.options, r.drafts = SessionOptions{}, 3
	s := r.session(t, m, true)
	s.tokens = append(make([]int32, 0, 4096), s.tokens...)
	f := s.draftCache.fork
	f.tokens = append(make([]int32, 0, 4096), f.tokens...)
	least := math.Inf(1)
	for try := 0; least > 0 && try < 20; try++ {
		least = min(least, testing.AllocsPerRun(10, func() {
			if err := s.append(t.Context(), 7, 3); err != nil {
				t.Fatal(err)
			}
			for len(s.ahead.tokens) > 0 && s.Follow(s.ahead.tokens[0]) {
			}
		}))
	}
	require.Zero(t, least)
	require.Positive(t, s.Stats().Accepted)
}
