package model

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
)

// passSession is a session driven by passes, with a twin that does the same on its own.
type passSession struct {
	s, twin *Session
	p       *PartialPrefill
	tokens  []int32 // of p
	vocab   int
	rng     *rand.Rand
}

// start begins a prefill, compressed if there is a policy, which the twin does at once.
func (ps *passSession) start(t *testing.T, n int, policy *lukv.Policy) {
	ps.tokens = randomTokens(n, ps.vocab, ps.rng.Uint64())
	var err error
	if policy != nil {
		ps.p, err = ps.s.StartPrefillCompressed(ps.tokens, policy)
		require.NoError(t, err)
		require.NoError(t, ps.twin.PrefillCompressed(context.Background(), ps.tokens, policy))
	} else {
		ps.p, err = ps.s.StartPrefill(ps.tokens, nil)
		require.NoError(t, err)
		require.NoError(t, ps.twin.Prefill(context.Background(), ps.tokens))
	}
	require.Equal(t, n, ps.p.Remaining())
}

// same compares what both hold.
func (ps *passSession) same(t *testing.T, what string) {
	require.Equal(t, ps.twin.Len(), ps.s.Len(), what)
	require.Equal(t, ps.twin.Tokens(), ps.s.Tokens(), what)
	testnum.SameBits(t, what, ps.twin.Logits(), ps.s.Logits())
	for at := range ps.s.m.cfg.Layers {
		for h := range ps.s.m.cfg.KVHeads {
			require.Equal(t, ps.twin.cache.Positions(at, h, nil), ps.s.cache.Positions(at, h, nil), what)
		}
	}
}

// TestPass: any mixture of decode steps and pieces of prompts in one pass, and of
// pieces of compressed prompts between passes, be they a session's first or later ones,
// gives the bits of each session alone.
func TestPass(t *testing.T) {
	ctx := context.Background()
	policies := []*lukv.Policy{
		nil, nil,
		{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "keydiff"}},
		{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}},
		{Ratio: 0.5, Allocator: lukv.AllocatorConfig{Name: "global"}, Metric: lukv.MetricConfig{Name: "expected_attention"}},
		{Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 30, Interval: 5}},
		{Decode: lukv.DecodeConfig{Mode: "h2o", TargetSize: 40}},
	}
	for _, shape := range testShapes {
		t.Run(shape.name, func(t *testing.T) {
			m := shape.open(t, WithThreads(2))
			var all []*passSession
			for i, p := range policies {
				o := SessionOptions{Compression: p, ChunkTokens: 32}
				ps := &passSession{s: newTestSession(t, m, o), twin: newTestSession(t, m, o), vocab: m.cfg.Vocab, rng: rand.New(rand.NewPCG(uint64(i), 3))}
				ps.start(t, 60+30*i, nil)
				all = append(all, ps)
			}
			rng := rand.New(rand.NewPCG(4, 5))
			for round := range 40 {
				var parts []Part
				var took []*passSession
				for _, ps := range all {
					switch {
					case rng.IntN(4) == 0: // not in this pass
					case ps.p == nil && rng.IntN(8) == 0:
						later := policies[rng.IntN(5)]
						if ps.s.comp != nil && ps.s.comp.decode != nil {
							later = nil
						}
						ps.start(t, 1+rng.IntN(50), later)
					case ps.p == nil:
						token := int32(rng.IntN(ps.vocab))
						parts = append(parts, Part{Session: ps.s, Token: token})
						require.NoError(t, ps.twin.Append(ctx, token))
						took = append(took, ps)
					case ps.p.Layered():
						require.NoError(t, ps.p.Advance(ctx, 1+rng.IntN(40)))
					default:
						parts = append(parts, Part{Session: ps.s, Prefill: ps.p, N: min(1+rng.IntN(40), ps.p.Remaining())})
					}
				}
				require.NoError(t, m.Pass(ctx, parts))
				for _, ps := range all {
					if ps.p != nil && ps.p.Done() {
						ps.p, took = nil, append(took, ps)
					} else if ps.p != nil {
						_, err := ps.s.Fork()
						require.ErrorIs(t, err, ErrPrefilling)
					}
				}
				for i, ps := range took {
					ps.same(t, fmt.Sprintf("round %d, part %d", round, i))
				}
			}
		})
	}
}

func TestPassErrors(t *testing.T) {
	ctx := context.Background()
	m := testShapes[2].open(t, WithThreads(2)) // sliding windows
	a, b := newTestSession(t, m, SessionOptions{}), newTestSession(t, m, SessionOptions{MaxTokens: 20})
	require.NoError(t, a.Prefill(ctx, randomTokens(70, 97, 1)))
	require.NoError(t, b.Prefill(ctx, randomTokens(20, 97, 2)))
	before := append([]float32(nil), a.Logits()...)
	var at *PartError
	err := m.Pass(ctx, []Part{{Session: a, Token: 3}, {Session: b, Token: 4}})
	require.ErrorAs(t, err, &at)
	require.Equal(t, 1, at.Part)
	require.ErrorIs(t, err, ErrContextFull)

	// The callback for a prompt's logits refuses: every session is left as it was.
	refused := errors.New("refused")
	c := newTestSession(t, m, SessionOptions{})
	p, err := c.StartPrefill(randomTokens(90, 97, 3), func(i int, _ []float32) error {
		if i == 60 {
			return refused
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, m.Pass(ctx, []Part{{Session: a, Token: 3}, {Session: c, Prefill: p, N: 50}}))
	require.Equal(t, 50, c.Len())
	after := append([]float32(nil), a.Logits()...)
	require.NotEqual(t, before, after)
	err = m.Pass(ctx, []Part{{Session: c, Prefill: p, N: 40}, {Session: a, Token: 5}})
	require.ErrorIs(t, err, refused)
	require.ErrorAs(t, err, &at)
	require.Equal(t, 0, at.Part)
	require.True(t, p.Done())
	require.Equal(t, []int{50, 71}, []int{c.Len(), a.Len()})
	testnum.SameBits(t, "logits", after, a.Logits())
	require.NoError(t, a.Append(ctx, 5))
	require.NoError(t, c.Append(ctx, 6))

	for _, bad := range [][]Part{
		{{Session: c, Prefill: p, N: 1}},
		{{Session: a, Token: 97}},
	} {
		require.ErrorAs(t, m.Pass(ctx, bad), &at)
	}
	q, err := c.StartPrefill(randomTokens(5, 97, 3), nil)
	require.NoError(t, err)
	for _, n := range []int{0, 6} {
		require.ErrorContains(t, m.Pass(ctx, []Part{{Session: c, Prefill: q, N: n}}), "1 to 5")
	}
	require.NoError(t, m.Pass(ctx, []Part{{Session: c, Prefill: q, N: 2}}))
	require.ErrorContains(t, m.Pass(ctx, []Part{{Session: c, Prefill: q, N: 4}}), "1 to 3")
	require.ErrorIs(t, c.Append(ctx, 1), ErrPrefilling)
	require.NoError(t, q.Close())
	require.NoError(t, c.Append(ctx, 1))
}

// TestRemainingAfterAFailedPass: progress reported by a failed pass does not count: a
// prompt that shared it goes on to its end.
func TestRemainingAfterAFailedPass(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	ctx, cancel := context.WithCancel(t.Context())
	layers := 0
	a := newTestSession(t, m, SessionOptions{Progress: func(int, int) {
		if layers++; layers == 2 {
			cancel()
		}
	}})
	b := newTestSession(t, m, SessionOptions{})
	require.NoError(t, b.Prefill(t.Context(), []int32{1}))
	p, err := a.StartPrefill(randomTokens(100, 97, 1), nil)
	require.NoError(t, err)
	require.ErrorIs(t, m.Pass(ctx, []Part{{Session: a, Prefill: p, N: 50}, {Session: b, Token: 3}}), context.Canceled)
	require.False(t, p.Done())
	require.Equal(t, 100, p.Remaining())
	for !p.Done() {
		require.NoError(t, m.Pass(t.Context(), []Part{{Session: a, Prefill: p, N: min(40, p.Remaining())}}))
	}
	require.Equal(t, 100, a.Len())
}

// TestPrefillingClose: an abandoned prefill leaves nothing behind, and a session
// closed in the middle of one gives all memory back.
func TestPrefillingClose(t *testing.T) {
	ctx := context.Background()
	for _, shape := range testShapes {
		m := shape.open(t, WithThreads(2))
		tokens := randomTokens(120, m.cfg.Vocab, 9)
		for _, ratio := range []float64{0, 0.5} {
			for units := range 6 {
				o := SessionOptions{ChunkTokens: 16, Compression: &lukv.Policy{Ratio: ratio}}
				s, fresh := newTestSession(t, m, o), newTestSession(t, m, o)
				p, err := s.StartPrefill(tokens, nil)
				require.NoError(t, err)
				for range units {
					require.NoError(t, p.Advance(ctx, 16))
				}
				require.InDelta(t, 120-16*units, p.Remaining(), 8, "a chunk at the end is half as long")
				require.NoError(t, p.Close())
				if ratio > 0 {
					require.Zero(t, s.Len())
					require.Zero(t, s.Stats().Entries)
				} else {
					require.Equal(t, 16*units, s.Len())
					require.NoError(t, s.Truncate(0))
				}
				require.NoError(t, s.Prefill(ctx, tokens))
				require.NoError(t, fresh.Prefill(ctx, tokens))
				testnum.SameBits(t, shape.name, fresh.Logits(), s.Logits())
				q, err := fresh.StartPrefill(tokens, nil)
				require.NoError(t, err)
				require.NoError(t, q.Advance(ctx, 16))
				require.NoError(t, fresh.Close())
				require.Error(t, q.Advance(ctx, 16))
				require.NoError(t, q.Close())
			}
		}
	}
}

// TestStepWithoutASession is an error, as it is in a pass.
func TestStepWithoutASession(t *testing.T) {
	m := testShapes[0].open(t)
	s := newTestSession(t, m, SessionOptions{})
	require.ErrorContains(t, m.Step(t.Context(), []*Session{s, nil}, []int32{1, 2}), "session 1: no session")
	require.NoError(t, s.Append(t.Context(), 1), "nor is the other one busy")
}

// TestAdvanceThatDoesNotBegin: with a context that is done, nothing happens, and the prefill
// goes on. To go back to the last token changes nothing either.
func TestAdvanceThatDoesNotBegin(t *testing.T) {
	m := testShapes[0].open(t)
	s, want := newTestSession(t, m, SessionOptions{}), newTestSession(t, m, SessionOptions{})
	tokens := randomTokens(20, 97, 1)
	require.NoError(t, want.Prefill(t.Context(), tokens))
	p, err := s.StartPrefill(tokens, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Advance(ctx, 5), context.Canceled)
	require.False(t, p.Done())
	require.Equal(t, len(tokens), p.Remaining())
	require.NoError(t, p.Advance(t.Context(), len(tokens)))
	require.True(t, p.Done())
	require.NoError(t, s.Truncate(len(tokens)))
	testnum.SameBits(t, "logits", want.Logits(), s.Logits())
}

// TestPrefillCopiesTokens: the caller may reuse the memory of tokens that are fed later.
func TestPrefillCopiesTokens(t *testing.T) {
	m := testShapes[0].open(t)
	s, want := newTestSession(t, m, SessionOptions{}), newTestSession(t, m, SessionOptions{})
	tokens := randomTokens(20, 97, 1)
	require.NoError(t, want.Prefill(t.Context(), tokens))
	p, err := s.StartPrefill(tokens, nil)
	require.NoError(t, err)
	require.NoError(t, p.Advance(t.Context(), 5))
	tokens[10] = 1 << 30
	require.NoError(t, p.Advance(t.Context(), 15))
	require.True(t, p.Done())
	require.Equal(t, want.Tokens(), s.Tokens())
	testnum.SameBits(t, "logits", want.Logits(), s.Logits())
}
