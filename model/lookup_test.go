package model

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
)

// quoting returns a prompt that a random model with little to say continues in circles.
func quoting(n int, vocab int, seed uint64) []int32 {
	piece := randomTokens(7, vocab, seed)
	var out []int32
	for len(out) < n {
		out = append(out, piece...)
	}
	return out[:n]
}

// sameAsWithout compares everything that two sessions hold.
func sameAsWithout(t *testing.T, what string, want, got *Session) {
	t.Helper()
	require.Equal(t, want.Tokens(), got.Tokens(), what)
	require.Equal(t, want.pending, got.pending, what)
	testnum.SameBits(t, what, want.Logits(), got.Logits())
	ws, gs := want.Stats(), got.Stats()
	require.Equal(t, ws.CacheBytes, gs.CacheBytes, what)
	require.Equal(t, ws.Layers, gs.Layers, what)
	require.Equal(t, []int{ws.Tokens, ws.Decoded}, []int{gs.Tokens, gs.Decoded}, what)
	for at := range want.m.cfg.Layers {
		for h := range want.m.cfg.KVHeads {
			n := want.cache.Len(at, h)
			require.Equal(t, want.cache.Positions(at, h, nil), got.cache.Positions(at, h, nil), what)
			testnum.SameBits(t, what, want.cache.Keys(at, h, 0, n, nil), got.cache.Keys(at, h, 0, n, nil))
			testnum.SameBits(t, what, want.cache.Values(at, h, 0, n, nil), got.cache.Values(at, h, 0, n, nil))
		}
	}
}

// TestLookupChangesNothing: greedy and sampled answers over full and compressed
// caches are those without lookup, to the bit of every log-probability, and so is
// what the session holds, wherever the answer ends or its reader stops.
func TestLookupChangesNothing(t *testing.T) {
	ctx := context.Background()
	policies := []*lukv.Policy{
		nil,
		{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "keydiff"}},
		{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}},
		{Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 40}}, // off
	}
	rng := rand.New(rand.NewPCG(3, 4))
	drafted, accepted := 0, 0
	for _, shape := range testShapes {
		m := shape.open(t, WithThreads(2))
		for i := range 16 {
			policy := policies[i%len(policies)]
			o := Sampling{MaxTokens: 1 + rng.IntN(40), IgnoreEOS: i%3 > 0, LogProbs: true, Seed: uint64(i)}
			if i%2 == 1 {
				o.Temperature, o.TopK = 0.1+rng.Float64(), rng.IntN(4)
			}
			if i%5 == 0 {
				o.RepetitionPenalty, o.RepetitionWindow = 1.1, 8
			}
			leave := 1 + rng.IntN(60) // tokens after which the reader stops
			prompt := quoting(45+rng.IntN(40), m.cfg.Vocab, uint64(i))
			options := SessionOptions{Compression: policy, PageEntries: 16}
			if i%6 == 0 {
				options.MaxTokens = len(prompt) + 20
			}
			run := func(lookup bool) (*Session, []Token) {
				options.Lookup = lookup
				s := newTestSession(t, m, options)
				require.NoError(t, s.Prefill(ctx, prompt))
				var out []Token
				for tok, err := range s.Generate(ctx, o) {
					require.NoError(t, err)
					tok.Top = nil
					if out = append(out, tok); len(out) == leave {
						break
					}
				}
				return s, out
			}
			want, tokens := run(false)
			got, same := run(true)
			what := fmt.Sprintf("%s, request %d", shape, i)
			require.Equal(t, tokens, same, what)
			require.Equal(t, want.FinishReason(), got.FinishReason(), what)
			sameAsWithout(t, what, want, got)
			st := got.Stats()
			drafted, accepted = drafted+st.Drafted, accepted+st.Accepted
			if policy != nil && policy.Decode.Enabled() {
				require.Zero(t, st.Drafted)
				require.Contains(t, got.Notes()[len(got.Notes())-1], "lookup decoding is off")
				require.Empty(t, want.Notes())
			}
			require.NoError(t, got.Close())
			require.NoError(t, want.Close())
		}
	}
	require.Greater(t, accepted, 40)
	require.Greater(t, drafted, accepted, "some drafts must fail, too")
}

// TestLookupIsNotSeen: a session looks, in the middle of an answer, as it would without
// lookup, and what is done to it there acts on that.
func TestLookupIsNotSeen(t *testing.T) {
	ctx := context.Background()
	m := testShapes[2].open(t, WithThreads(2)) // sliding windows
	prompt := quoting(90, 97, 5)
	ahead := 0
	for stop := range 30 {
		run := func(lookup bool) (s, fork *Session) {
			s = newTestSession(t, m, SessionOptions{Lookup: lookup, PageEntries: 16})
			require.NoError(t, s.Prefill(ctx, prompt))
			n := 0
			for _, err := range s.Generate(ctx, Sampling{IgnoreEOS: true, MaxTokens: 40}) {
				require.NoError(t, err)
				if n++; n == 1+stop {
					ahead += len(s.ahead.tokens)
					entries := 0
					for h := range m.cfg.KVHeads {
						entries += s.Cache().Len(0, h)
					}
					require.Equal(t, (len(prompt)+stop)*m.cfg.KVHeads, entries)
					var err error
					fork, err = s.Fork()
					require.NoError(t, err)
				}
			}
			return s, fork
		}
		want, wantFork := run(false)
		got, gotFork := run(true)
		what := fmt.Sprint("after ", stop)
		sameAsWithout(t, what, want, got)
		sameAsWithout(t, what, wantFork, gotFork)
		for _, s := range []*Session{want, got, wantFork, gotFork} {
			require.NoError(t, s.Close())
		}
	}
	require.Positive(t, ahead, "the test looks where drafts are")
}

// TestFollow: passes leave drafts, which Follow takes or gives up.
func TestFollow(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	prompt := quoting(60, 97, 5)
	open := func(o SessionOptions) *Session {
		s := newTestSession(t, m, o)
		require.NoError(t, s.Prefill(ctx, prompt))
		return s
	}
	next := func(i int) int32 { return prompt[(len(prompt)+i)%7] }
	want := open(SessionOptions{})
	got, other := open(SessionOptions{Lookup: true}), open(SessionOptions{})
	require.False(t, got.Follow(next(0)), "there are none yet")
	pass := func() error {
		return m.Pass(ctx, []Part{{Session: other, Token: 3}, {Session: got, Token: next(0), Drafts: 3}})
	}
	require.NoError(t, pass())
	for i := range 4 {
		require.NoError(t, want.Append(ctx, next(i)))
	}
	for i := 1; i < 4; i++ {
		require.Equal(t, 60+i, got.Len())
		require.True(t, got.Follow(next(i)))
	}
	require.False(t, got.Follow(next(4)))
	sameAsWithout(t, "followed", want, got)

	// Another token, and any other call, gives them up.
	got, want = open(SessionOptions{Lookup: true}), open(SessionOptions{})
	require.NoError(t, pass())
	require.NoError(t, want.Append(ctx, next(0)))
	require.NotEmpty(t, got.ahead.tokens)
	require.False(t, got.Follow(next(1)+1))
	sameAsWithout(t, "not followed", want, got)
	require.False(t, got.Follow(next(1)))

	// If there is no room for drafts, the token is taken without them.
	// (60 tokens take four pages of 16 entries in each of six heads.)
	page := open(SessionOptions{PageEntries: 16}).cache.Stats().PageBytes
	full := open(SessionOptions{Lookup: true, PageEntries: 16, MaxCacheBytes: 4 * 6 * page})
	require.NoError(t, m.Pass(ctx, []Part{{Session: full, Token: next(0), Drafts: 4}}))
	require.Empty(t, full.ahead.tokens)
	require.Zero(t, full.Stats().Drafted)
	testnum.SameBits(t, "without room", want.Logits(), full.Logits())

	// Drafts are dropped from the first on whose logits are not finite.
	got, want = open(SessionOptions{Lookup: true}), open(SessionOptions{})
	require.NoError(t, pass())
	for i := range 2 {
		require.NoError(t, want.Append(ctx, next(i)))
	}
	require.Len(t, got.ahead.tokens, 3)
	logits := slices.Clone(got.ahead.logits)
	logits[len(logits)-3] = float32(math.NaN()) // of the third
	logits[97] = float32(math.Inf(1))           // of the second
	require.NoError(t, got.foresee([]int32{next(1), next(2), next(3)}, logits))
	require.Equal(t, 62, got.cache.Len(0, 0))
	require.True(t, got.Follow(next(1)))
	require.False(t, got.Follow(next(2)))
	sameAsWithout(t, "logits that are no numbers", want, got)
}

// TestLookupDrawsBack: if no draft is ever right, few rows are computed in vain.
func TestLookupDrawsBack(t *testing.T) {
	ctx := context.Background()
	m := testShapes[0].open(t, WithThreads(2))
	s := newTestSession(t, m, SessionOptions{Lookup: true})
	require.NoError(t, s.Prefill(ctx, []int32{1}))
	// The same pair occurs again and again, each time followed by another token.
	rng := rand.New(rand.NewPCG(7, 7))
	n := 600
	for range n {
		for _, token := range []int32{2, 3, int32(4 + rng.IntN(90))} {
			require.NoError(t, m.Pass(ctx, []Part{{Session: s, Token: token, Drafts: MaxDrafts}}))
			s.Follow(96) // never
		}
	}
	require.LessOrEqual(t, float64(s.Stats().Drafted), 4+0.08*float64(3*n), "what it starts with and earns by tokens")
	require.Greater(t, s.Stats().Drafted, 10, "it goes on trying")
	require.Zero(t, s.Stats().Accepted)
}
