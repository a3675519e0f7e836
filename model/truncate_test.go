package model

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/lukv"
)

// TestTruncateWithLookup: after going back, drafts come from the tokens that are left; the
// index of those that are gone, which may name positions beyond the end, is forgotten.
func TestTruncateWithLookup(t *testing.T) {
	ctx := t.Context()
	for _, keep := range []int{0, 1, 5, 60} {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			m := testShapes[0].open(t, WithThreads(2))
			s := newTestSession(t, m, SessionOptions{Lookup: true})
			fresh := newTestSession(t, m, SessionOptions{})
			answer := func(s *Session) (ids []int32) {
				for tok, err := range s.Generate(ctx, Sampling{IgnoreEOS: true, MaxTokens: 24}) {
					require.NoError(t, err)
					ids = append(ids, tok.ID)
				}
				return ids
			}
			prompt := quoting(200, 97, 8)
			require.NoError(t, s.Prefill(ctx, prompt))
			answer(s)
			require.NotZero(t, s.lookup.Bytes(), "nothing was indexed, so nothing is tested")
			require.NoError(t, s.Truncate(keep))
			next := quoting(30, 97, 8) // the same pairs of tokens, at other places
			require.NoError(t, s.Prefill(ctx, next))
			require.NoError(t, fresh.Prefill(ctx, append(prompt[:keep:keep], next...)))
			require.Equal(t, answer(fresh), answer(s))
			testnum.SameBits(t, "logits", fresh.Logits(), s.Logits())
		})
	}
}

// TestTruncateWithDecodeStatistics: a session that compresses while decoding and goes back
// to before anything was cut goes on as one that never went further: its running sums are
// of the entries that are left.
func TestTruncateWithDecodeStatistics(t *testing.T) {
	ctx := t.Context()
	m := testShapes[0].open(t, WithThreads(2))
	for _, name := range []string{"tova", "h2o", "streaming", "periodic"} {
		policy := &lukv.Policy{Decode: lukv.DecodeConfig{Mode: name, TargetSize: 60}}
		prompt, steps := randomTokens(40, 97, 4), randomTokens(40, 97, 5)
		run := func(s *Session, tokens []int32) (logits []float32) {
			for _, token := range tokens {
				require.NoError(t, s.Append(ctx, token))
				logits = append(logits, s.Logits()...)
			}
			return logits
		}
		want, s := newTestSession(t, m, SessionOptions{Compression: policy}), newTestSession(t, m, SessionOptions{Compression: policy})
		require.NoError(t, want.Prefill(ctx, prompt))
		run(want, steps[:4])
		require.NoError(t, s.Prefill(ctx, prompt))
		run(s, steps[:4])
		run(s, []int32{9, 8}) // not cut yet
		require.NoError(t, s.Truncate(44))
		a, b := run(want, steps[4:]), run(s, steps[4:])
		if name != "h2o" { // whose sums keep the attention that tokens now gone have paid
			testnum.SameBits(t, name, a, b)
		}
		require.Equal(t, want.Stats().Layers, s.Stats().Layers, name)
	}
}

// seenRotation is a metric that keeps what it is shown of rotation.
type seenRotation struct {
	mu   *sync.Mutex
	seen map[int]lukv.Layer
}

func (seenRotation) Needs(T, n int) lukv.Needs { return lukv.Needs{Keys: true} }

func (seenRotation) Protection(T, n int) lukv.Protection { return lukv.Protection{} }

func (m seenRotation) Score(ctx context.Context, l *lukv.Layer) (lukv.Scores, error) {
	m.mu.Lock()
	m.seen[l.Index] = lukv.Layer{InvFreq: append([]float64(nil), l.InvFreq...), RopeScale: l.RopeScale, NextPosition: l.NextPosition, ScoreScale: l.ScoreScale, ScoreCap: l.ScoreCap}
	m.mu.Unlock()
	s := make(lukv.Scores, l.KVHeads)
	for h := range s {
		s[h] = make([]float32, l.Len(h))
	}
	return s, nil
}

// TestMetricsSeeTheRotation: frequencies, factor and next position are those by which the
// layer's keys were turned, in families with a factor of attention, with rotations that
// differ between layers, and without one.
func TestMetricsSeeTheRotation(t *testing.T) {
	for _, c := range []struct {
		dir, name string
		window    bool // some layers slide and are not shown
	}{
		{"models", "qwen2-yarn-bf16", false},
		{"models", "llama31-gqa-bf16", false},
		{"families", "smollm3-list-f16", false},
		{"families", "phi3-longcross-f16", false},
		{"families", "granite-bf16", false},
		{"families", "gemma2-bf16", true},
		{"families", "gemma3-v5-f16", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := Open(t.Context(), "testdata/"+c.dir+"/"+c.name, WithThreads(1))
			require.NoError(t, err)
			defer m.Close()
			metric := seenRotation{&sync.Mutex{}, map[int]lukv.Layer{}}
			tokens := randomTokens(150, m.cfg.Vocab, 2)
			ob, err := m.Observe(t.Context(), tokens, SessionOptions{}, metric)
			require.NoError(t, err)
			defer ob.Close()
			for at, p := range m.net.Plan {
				if p.Window > 0 {
					require.True(t, c.window)
					continue
				}
				_, err := ob.Scores(t.Context(), metric, at, 10)
				require.NoError(t, err)
				l := metric.seen[at]
				require.Equal(t, len(tokens), l.NextPosition)
				require.Equal(t, p.ScoreCap, l.ScoreCap)
				if l.ScoreScale != 0 {
					require.Equal(t, p.ScoreScale, l.ScoreScale)
				}
				if p.Rope == arch.NoRope {
					require.Equal(t, make([]float64, m.cfg.HeadDim/2), l.InvFreq)
					require.Equal(t, 1.0, l.RopeScale)
					continue
				}
				// By what is shown, a row of cosines and sines can be made again.
				cos, sin := make([]float32, m.cfg.HeadDim/2), make([]float32, m.cfg.HeadDim/2)
				m.net.Ropes[p.Rope].Row(77, len(tokens), cos, sin)
				for i, f := range l.InvFreq {
					wantCos, wantSin := rotationOf(77, f, l.RopeScale)
					require.InDelta(t, wantCos, float64(cos[i]), 1e-6)
					require.InDelta(t, wantSin, float64(sin[i]), 1e-6)
				}
			}
			require.NotEmpty(t, metric.seen)
		})
	}
}

func rotationOf(pos int, f, factor float64) (cos, sin float64) {
	s, c := math.Sincos(float64(pos) * f)
	return c * factor, s * factor
}
