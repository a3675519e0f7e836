package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// TestPrefixCacheCountsEverything: what is kept counts with its logits and tokens, and the bound
// holds for all of it.
func TestPrefixCacheCountsEverything(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	const n, fit = 20, 3
	one, err := m.CacheNeed(model.SessionOptions{PageEntries: 16}, model.Lengths{Rest: n})
	require.NoError(t, err)
	// Logits are 4 bytes each, and so are tokens, which the session and the index hold.
	each := one.Held + 4*int64(m.Config().Vocab) + 2*4*n
	kept := 0
	e := newEngine(t, m, Options{MaxBytes: 64 << 20, PrefixCacheBytes: (fit+1)*each - 1, PageEntries: 16, OnPrefix: func(p PrefixEvent) {
		if p.Cached {
			kept++
		} else {
			kept--
		}
	}})
	for i := range 2 * fit {
		s, err := e.Submit(within(t), Request{Prompt: tokens[0][i : i+n], PromptOnly: true})
		require.NoError(t, err)
		collect(t, s, 1)
		require.Equal(t, min(1+i, fit), kept)
		require.Equal(t, int64(kept)*each, e.Stats().PrefixCacheBytes)
	}
}

// TestOldestKeptIsContinued: a request for which something must be dropped does not drop
// what it continues, however long ago that was used, and the bound holds all the while.
func TestOldestKeptIsContinued(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 2)
	const all = 450
	need, err := m.CacheNeed(model.SessionOptions{}, model.Lengths{Rest: all})
	require.NoError(t, err)
	for _, store := range []string{"", t.TempDir()} {
		e := newEngine(t, m, Options{MaxBytes: need.Peak, Store: store})
		ask := func(prompt []int32, answer int) int {
			r := Request{Prompt: prompt, Sampling: model.Sampling{MaxTokens: answer, LogProbs: true, IgnoreEOS: true}}
			want := alone(t, m, r)
			r.Inspect = func(*model.Session) {
				require.LessOrEqual(t, e.reserved+e.cache.bytes, need.Peak)
				require.LessOrEqual(t, arena.Live(), e.reserved+e.cache.bytes)
			}
			s, err := e.Submit(within(t), r)
			require.NoError(t, err)
			require.True(t, equal(collect(t, s, 1), want))
			return s.Usage().Cached
		}
		for i, p := range tokens {
			p[0] = int32(10 + i) // nothing in common
			require.Zero(t, ask(p[:100], 1))
		}
		before := e.Stats().PrefixCacheBytes
		more := slices.Concat(tokens[0][:100], []int32{5, 6, 7})
		require.Equal(t, 100, ask(more, all-len(more)))
		require.Less(t, e.Stats().PrefixCacheBytes, before, "the other went")
		require.NoError(t, e.Close())
		require.Zero(t, e.Stats().ReservedBytes)
	}
}

// TestPrefixEvents: what is kept is reported once, before what it replaces is dropped, and
// in the end all of it is dropped.
func TestPrefixEvents(t *testing.T) {
	m := openModel(t)
	prompts, contexts := prompts(t, m, 3)
	one, err := m.CacheNeed(model.SessionOptions{}, model.Lengths{Rest: 400})
	require.NoError(t, err)
	var log []string
	held := map[string]int{}
	names := map[string]string{}
	for i, p := range prompts {
		names[fmt.Sprint(p)], names[fmt.Sprint(p[:100])] = fmt.Sprint(i), fmt.Sprint(i, " begun")
	}
	labels := map[string]bool{}
	e := newEngine(t, m, Options{MaxBytes: 3 * one.Peak, PrefixCacheBytes: one.Peak * 3 / 2, OnPrefix: func(p PrefixEvent) {
		name := names[fmt.Sprint(p.Tokens)]
		require.NotEmpty(t, name)
		labels[p.Label] = true
		if p.Context > 0 {
			name += fmt.Sprint(" compressed ", p.Context == contexts[2])
		}
		if p.Cached {
			held[name]++
			log = append(log, "+"+name)
		} else {
			held[name]--
			log = append(log, "-"+name)
		}
	}})
	ask := func(r Request) {
		r.Sampling.MaxTokens = 1
		s, err := e.Submit(within(t), r)
		require.NoError(t, err)
		collect(t, s, 1)
	}
	ask(Request{Prompt: prompts[0][:100]})
	ask(Request{Prompt: prompts[0]})
	ask(Request{Prompt: prompts[0]}) // nothing new
	ask(Request{Prompt: slices.Clone(prompts[1])})
	ask(Request{Prompt: prompts[2], Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}, Context: contexts[2]})
	require.NoError(t, e.Close())
	require.Equal(t, []string{"+0 begun", "+0", "-0 begun", "+1"}, log[:4])
	require.Contains(t, log, "+2 compressed true")
	require.Len(t, labels, 2)
	for name, n := range held {
		require.Zero(t, n, "%s: %v", name, log)
	}
}
