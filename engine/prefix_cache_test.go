package engine

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// TestPrefixCacheCountsEverything: what is kept counts with its logits and tokens, and the bound
// holds for all of it.
func TestPrefixCacheCountsEverything(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	const n, fit = 20, 3
	one, err := m.CacheEstimate(model.SessionOptions{PageEntries: 16}, model.Lengths{Rest: n})
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
	need, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: all})
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
	one, err := m.CacheEstimate(model.SessionOptions{}, model.Lengths{Rest: 400})
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

// TestLeastRecentlyUsedGoes: what was used stays, also if it is the oldest, in memory and on
// disk, and however it was used.
func TestLeastRecentlyUsedGoes(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	const n = 40
	prompt := func(i int) []int32 { return slices.Concat([]int32{int32(10 + i)}, tokens[0][:n-1]) }
	one, err := m.CacheEstimate(model.SessionOptions{PageEntries: 16}, model.Lengths{Rest: n + 8})
	require.NoError(t, err)
	each := one.Held + 4*int64(m.Config().Vocab) + 2*4*(n+8)
	size := func() int64 {
		s, err := m.NewSession(model.SessionOptions{PageEntries: 16})
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, s.Prefill(t.Context(), prompt(0)))
		bytes, err := s.SavedSize(strings.Repeat("x", len(prefixFormat)+64))
		require.NoError(t, err)
		return bytes
	}()
	for name, test := range map[string]struct {
		o   Options
		use func(r Request) Request
	}{
		"memory, the same prompt":     {Options{PrefixCacheBytes: 2*each + each/2, MaxBytes: 1 << 30}, func(r Request) Request { return r }},
		"memory, a part of it":        {Options{PrefixCacheBytes: 2*each + each/2, MaxBytes: 1 << 30}, func(r Request) Request { r.Prompt = r.Prompt[:n-4]; return r }},
		"memory, a longer prompt":     {Options{PrefixCacheBytes: 2*each + each/2, MaxBytes: 1 << 30}, func(r Request) Request { r.Prompt = append(r.Prompt, 5, 6, 7); return r }},
		"disk, the same prompt":       {Options{PrefixCacheBytes: -1, Store: t.TempDir(), StoreBytes: 2*size + size/2}, func(r Request) Request { return r }},
		"disk, with an answer behind": {Options{PrefixCacheBytes: -1, Store: t.TempDir(), StoreBytes: 2*size + size/2}, func(r Request) Request { r.PromptOnly = false; return r }},
	} {
		t.Run(name, func(t *testing.T) {
			test.o.PageEntries = 16
			e := newEngine(t, m, test.o)
			ask := func(r Request) int {
				r.Sampling = model.Sampling{MaxTokens: 1, IgnoreEOS: true}
				s, err := e.Submit(within(t), r)
				require.NoError(t, err)
				collect(t, s, 1)
				return s.Usage().Cached
			}
			require.Zero(t, ask(Request{Prompt: prompt(0), PromptOnly: true}))
			require.Zero(t, ask(Request{Prompt: prompt(1), PromptOnly: true}))
			require.Positive(t, ask(test.use(Request{Prompt: prompt(0), PromptOnly: true})), "the oldest is used")
			require.Zero(t, ask(Request{Prompt: prompt(2), PromptOnly: true}), "one has to go")
			require.Positive(t, ask(Request{Prompt: prompt(0)}), "not the one that was used")
			require.Zero(t, ask(Request{Prompt: prompt(1)}), "but the one that was not")
		})
	}
}

// TestWithoutLogitsAPromptIsNotWhole: an answer needs the logits after the prompt. An entry
// that has none serves all tokens but the last.
func TestWithoutLogitsAPromptIsNotWhole(t *testing.T) {
	m := openModel(t)
	tokens, _ := prompts(t, m, 1)
	const n = 60
	for name, test := range map[string]struct {
		r      Request
		logits bool
		cached int
	}{
		"the prompt":             {Request{Prompt: tokens[0][:n]}, false, n - 1},
		"the prompt with logits": {Request{Prompt: tokens[0][:n]}, true, n},
		"a part of it":           {Request{Prompt: tokens[0][:n-10]}, true, n - 11},
		"more":                   {Request{Prompt: tokens[0][:n+10]}, false, n},
		"without an answer":      {Request{Prompt: tokens[0][:n], PromptOnly: true}, false, n},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, m, Options{MaxBytes: 64 << 20})
			s, err := m.NewSession(model.SessionOptions{})
			require.NoError(t, err)
			require.NoError(t, s.Prefill(t.Context(), tokens[0][:n]))
			if !test.logits {
				require.NoError(t, s.Append(t.Context(), 5))
				require.NoError(t, s.Truncate(n))
				require.Nil(t, s.Logits())
			}
			j, err := e.named(Request{Prompt: tokens[0][:n]})
			require.NoError(t, err)
			added := make(chan struct{})
			e.post(func() {
				e.cache.add(j.label, 0, tokens[0][:n], s, e.room())
				close(added)
			})
			<-added
			require.NoError(t, s.Close())
			r := test.r
			r.Sampling = model.Sampling{MaxTokens: 8, IgnoreEOS: true, LogProbs: true}
			stream, err := e.Submit(within(t), r)
			require.NoError(t, err)
			got := collect(t, stream, 1)
			require.Equal(t, test.cached, stream.Usage().Cached)
			if !r.PromptOnly {
				require.True(t, equal(got, alone(t, m, r)))
			}
		})
	}
}

// FuzzAccount: however bytes are taken and given back, the account knows how many are in use,
// never more than its limit, and refusals change nothing.
func FuzzAccount(f *testing.F) {
	f.Add(int64(100), []byte{10, 200, 0, 90, 1, 20})
	f.Add(int64(0), []byte{0, 0, 1})
	f.Add(int64(math.MaxInt64), []byte{255, 255, 254})
	f.Fuzz(func(t *testing.T, limit int64, ops []byte) {
		defer testfuzz.Bound(t, len(ops))()
		a := NewAccount(limit)
		var held []int64
		sum := int64(0)
		for i, op := range ops {
			if op%2 == 1 && len(held) > 0 {
				at := i % len(held)
				a.Give(held[at])
				sum -= held[at]
				held = slices.Delete(held, at, at+1)
				continue
			}
			n := int64(op) << (i % 40)
			err := a.Take(n)
			var full *MemoryError
			if fits := n <= a.limit-sum; fits != (err == nil) {
				t.Fatalf("take %d with %d of %d in use: %v", n, sum, a.limit, err)
			}
			if err == nil {
				sum, held = sum+n, append(held, n)
			} else if !errors.As(err, &full) || full.Needed != n || full.Limit != a.limit || full.InUse > 0 != (n <= a.limit) {
				t.Fatalf("take %d with %d of %d in use: %+v", n, sum, a.limit, full)
			}
			if a.used.Load() != sum || sum > a.limit {
				t.Fatalf("%d of %d in use, the account says %d", sum, a.limit, a.used.Load())
			}
		}
		for _, n := range held {
			a.Give(n)
		}
		if a.used.Load() != 0 {
			t.Fatalf("%d bytes are left", a.used.Load())
		}
	})
}
