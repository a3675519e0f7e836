package engine

import (
	"fmt"
	"io"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
)

// statesOf returns the hidden states of a prompt, computed by itself.
func statesOf(t *testing.T, m *model.Model, prompt []int32) (out [][]float32) {
	s, err := m.NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	p, err := s.StartPrefillHidden(prompt, func(_ int, state []float32) error {
		out = append(out, slices.Clone(state))
		return nil
	})
	require.NoError(t, err)
	for !p.Done() {
		require.NoError(t, p.Advance(t.Context(), 7))
	}
	require.Len(t, out, len(prompt))
	return out
}

// Embeddings are what their definition says of the hidden states, to the bit the same beside
// other requests, in memory for few requests, and after the same prompts were cached.
func TestEmbed(t *testing.T) {
	m := openModel(t)
	var prompts [][]int32
	for n := 1; n <= embedTogether+8; n++ {
		prompt := make([]int32, 1+3*n%50)
		for i := range prompt {
			prompt[i] = int32(1 + (7*n+i)%200)
		}
		prompts = append(prompts, prompt)
	}
	one, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: 50})
	require.NoError(t, err)
	for _, how := range []model.Embedding{{Pooling: model.PoolLast, Normalize: true}, {Pooling: model.PoolMean}, {Pooling: model.PoolMean, Normalize: true}} {
		for _, limit := range []int64{0, 2 * one.Peak} {
			t.Run(fmt.Sprint(how, limit), func(t *testing.T) {
				const dims = 9
				e := newEngine(t, m, Options{MaxBytes: limit, PrefixCacheBytes: max(limit, 1<<20)})
				s, err := e.Submit(within(t), Request{Prompt: prompts[20], Sampling: model.Sampling{MaxTokens: 20, IgnoreEOS: true}})
				require.NoError(t, err)
				got, err := e.Embed(within(t), Request{}, prompts, how, dims)
				require.NoError(t, err)
				require.Len(t, got, len(prompts))
				_, err = s.Next(within(t))
				require.NoError(t, err)
				for i, prompt := range prompts {
					require.Equal(t, embedded(statesOf(t, m, prompt), how, dims), got[i], "text %d", i)
				}
				s.Close()
				require.Zero(t, e.Stats().Failed)
			})
		}
	}
	e := newEngine(t, m, Options{})
	for _, dims := range []int{-1, m.Config().Hidden + 1} {
		_, err := e.Embed(within(t), Request{}, prompts, model.Embedding{}, dims)
		require.ErrorContains(t, err, "dimensions")
	}
	_, err = e.Embed(within(t), Request{}, [][]int32{{1}, {}}, model.Embedding{}, 0)
	require.ErrorContains(t, err, "text 1")
	_, err = e.Submit(within(t), Request{Prompt: []int32{1}, Hidden: func(int, []float32) {}})
	require.ErrorContains(t, err, "PromptOnly")
}

// embedded follows the definition: pool, cut, normalise, in float64.
func embedded(states [][]float32, how model.Embedding, dims int) []float32 {
	out := make([]float32, dims)
	x, square := make([]float64, dims), 0.0
	for d := range x {
		for i := range states {
			if how.Pooling == model.PoolMean || i == len(states)-1 {
				x[d] += float64(states[i][d])
			}
		}
		square += x[d] * x[d]
	}
	scale := 1.0
	if how.Pooling == model.PoolMean {
		scale = 1 / float64(len(states))
	}
	if how.Normalize {
		scale = 1 / math.Sqrt(square)
	}
	for d := range x {
		out[d] = float32(x[d] * scale)
	}
	return out
}

// A cached prompt is of no use to a request for hidden states, and such a request caches
// nothing.
func TestHiddenUsesNoCache(t *testing.T) {
	e := newEngine(t, openModel(t), Options{MaxBytes: 1 << 24})
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(i + 1)
	}
	for range 2 {
		calls := 0
		s, err := e.Submit(within(t), Request{Prompt: prompt, PromptOnly: true, Hidden: func(i int, _ []float32) { require.Equal(t, calls, i); calls++ }})
		require.NoError(t, err)
		_, err = s.Next(within(t))
		require.Equal(t, io.EOF, err)
		require.Equal(t, len(prompt), calls)
		require.Zero(t, s.Usage().Cached)
		require.Zero(t, e.Stats().PrefixCacheBytes)
	}
	s, err := e.Submit(within(t), Request{Prompt: prompt, PromptOnly: true})
	require.NoError(t, err)
	for range s.Events() {
	}
	require.NotZero(t, e.Stats().PrefixCacheBytes)
	n := 0
	s, err = e.Submit(within(t), Request{Prompt: prompt, PromptOnly: true, Hidden: func(int, []float32) { n++ }})
	require.NoError(t, err)
	for range s.Events() {
	}
	require.Equal(t, len(prompt), n)
}
