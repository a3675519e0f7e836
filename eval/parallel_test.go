package eval

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tensor"
)

// Answers do not depend on how many contexts are worked on at once, and every
// answer comes once, even if some were given before.
func TestParallel(t *testing.T) {
	m := open(t)
	items := append(few("niah_single_2", 256, 3), few("qa_1", 256, 3)...)
	items = append(items, items[0])
	methods := []Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	order := func(as []Answer) []Answer {
		slices.SortFunc(as, func(a, b Answer) int {
			return cmp.Or(cmp.Compare(a.Item, b.Item), cmp.Compare(a.Method, b.Method))
		})
		return as
	}
	o := Options{Framing: builtinFraming, MaxNewTokens: 8}
	want := order(collect(t, m, items, methods, o))
	one, err := builtin.Open(t.Context(), model.WithThreads(1))
	require.NoError(t, err)
	defer one.Close()
	assert.Equal(t, want, order(collect(t, one, items, methods, o)), "whatever the number of threads")
	for _, memory := range []int64{0, 1} {
		o.Parallel, o.Memory = 3, memory
		var progress []int
		var mu sync.Mutex
		o.Progress = func(done, total int) {
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, len(items)*2, total)
			progress = append(progress, done)
		}
		assert.Equal(t, want, order(collect(t, m, items, methods, o)))
		assert.True(t, slices.IsSorted(progress))
		assert.Equal(t, len(items)*2, progress[len(progress)-1])
	}
	o.Done = func(item int, method string) bool { return item != 4 || method == "full" }
	got := collect(t, m, items, methods, o)
	require.Len(t, got, 1)
	assert.Equal(t, 4, got[0].Item)

	o.Done = nil
	stop := errors.New("enough")
	n := 0
	err = Run(t.Context(), m, items, methods, o, func(Answer) error {
		if n++; n == 2 {
			return stop
		}
		return nil
	})
	require.ErrorIs(t, err, stop)
	assert.Equal(t, 2, n)

	// An error names the item in the caller's list.
	bad := slices.Clone(items[3:4])
	err = Run(t.Context(), m, append(few("niah_single_2", 256, 1), bad...), methods[:1], Options{Framing: builtinFraming, MaxNewTokens: 1, Parallel: 2}, func(a Answer) error {
		if a.Item == 1 {
			return stop
		}
		return nil
	})
	require.ErrorContains(t, err, "evaluate item 1 (qa_1): ")
}

// Where memory is limited, a context is counted as twice its full cache.
func TestParallelMemory(t *testing.T) {
	m := open(t)
	items := few("niah_single_2", 256, 1)
	o := Options{Framing: builtinFraming, Session: model.SessionOptions{CacheType: tensor.F32, PageEntries: 16}}
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	p := &parallel{runner: &runner{m: m, tok: tok, o: o, items: items}}
	weight := p.weight([]int{0})
	s, err := m.NewSession(o.Session)
	require.NoError(t, err)
	defer s.Close()
	head, _ := p.parts(0)
	require.NoError(t, s.Prefill(t.Context(), head))
	full := s.Stats().FullBytes // with positions and up to 15 entries of slack
	assert.LessOrEqual(t, weight, 2*full)
	assert.Greater(t, float64(weight), 1.8*float64(full))

	// With room for only one, a context begins after all answers about the previous one
	// are given.
	items = few("niah_single_2", 256, 4)
	o.MaxNewTokens, o.Parallel, o.Memory = 1, 3, weight
	begun := -1
	o.Done = func(item int, _ string) bool {
		assert.True(t, begun == -1 || begun == item, "context %d begins beside context %d", item, begun)
		begun = item
		return false
	}
	answered := 0
	require.NoError(t, Run(t.Context(), m, items, []Method{{Name: "full"}}, o, func(a Answer) error {
		assert.Equal(t, begun, a.Item)
		begun = -1
		answered++
		return nil
	}))
	assert.Equal(t, len(items), answered)
}

// A context that is too long is cut as requested, and the answer says by how much.
func TestTruncate(t *testing.T) {
	tokens := []int32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}
	assert.Equal(t, tokens, TruncateError.cut(tokens, 3))
	assert.Equal(t, tokens, TruncateMiddle.cut(tokens, 10))
	assert.Equal(t, []int32{0, 1, 2, 3, 4}, TruncateHead.cut(tokens, 5))
	assert.Equal(t, []int32{0, 1, 7, 8, 9}, TruncateMiddle.cut(tokens, 5))
	assert.Equal(t, []int32{9}, TruncateMiddle.cut(tokens, 1))
	assert.Equal(t, tokens, TruncateMiddle.cut(tokens, 0))

	m := open(t)
	items := few("niah_single_2", 256, 1)
	o := Options{Framing: builtinFraming, MaxNewTokens: 8, Session: model.SessionOptions{MaxTokens: 200}}
	whole := collect(t, m, items, []Method{{Name: "full"}}, o)[0]
	assert.NotEmpty(t, whole.Error)
	o.Truncate, o.Session.MaxTokens = TruncateHead, 1
	least := collect(t, m, items, []Method{{Name: "full"}}, o)[0]
	assert.Contains(t, least.Error, "context full")
	assert.Equal(t, [2]int{whole.ContextTokens, 0}, [2]int{least.ContextTokens, least.Truncated}, "nothing would be left")
	o.Session.MaxTokens = 200
	items[0].MaxNewTokens = 1000 // as in InfiniteBench, for models of short contexts
	least = collect(t, m, items, []Method{{Name: "full"}}, o)[0]
	assert.Contains(t, least.Error, "context full")
	o.Session.MaxTokens = 900
	fits := collect(t, m, items, []Method{{Name: "full"}}, o)[0]
	assert.Empty(t, fits.Error)
	assert.Equal(t, [2]int{whole.ContextTokens, 0}, [2]int{fits.ContextTokens, fits.Truncated}, "beside an answer of fewer tokens")
	o.Session.MaxTokens = 200
	items[0].MaxNewTokens = 30
	for _, how := range []Truncate{TruncateHead, TruncateMiddle} {
		o.Truncate = how
		a := collect(t, m, items, []Method{{Name: "full"}}, o)[0]
		assert.Empty(t, a.Error)
		assert.Positive(t, a.Truncated)
		assert.Equal(t, whole.ContextTokens, a.ContextTokens+a.Truncated)
		assert.Less(t, a.ContextTokens, 170)
	}
}

// How a context is cut does not depend on what else is asked about it.
func TestTruncatedAlone(t *testing.T) {
	m := open(t)
	items := few("niah_single_2", 256, 1)
	for _, tokens := range []int{30, 8} { // a longer answer, and a longer question
		it := items[0]
		it.MaxNewTokens, it.Question = tokens, it.Question+strings.Repeat(" again", 30/tokens)
		items = append(items, it)
	}
	items[0].MaxNewTokens = 8
	o := Options{Framing: builtinFraming, Session: model.SessionOptions{MaxTokens: 200}, Truncate: TruncateMiddle}
	methods := []Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	all := collect(t, m, items, methods, o)
	require.Len(t, all, 6)
	for i := range items {
		for _, want := range collect(t, m, items[i:i+1], methods, o) {
			at := slices.IndexFunc(all, func(a Answer) bool { return a.Item == i && a.Method == want.Method })
			got := all[at]
			assert.Equal(t, [3]any{want.Prediction, want.ContextTokens, want.Truncated}, [3]any{got.Prediction, got.ContextTokens, got.Truncated})
		}
	}
	assert.NotEqual(t, all[0].ContextTokens, all[len(all)-1].ContextTokens)
}
