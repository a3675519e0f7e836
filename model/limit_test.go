package model

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// TestRefusedBeforeWork: a prefill that the cache's limit leaves no room for is
// refused before the first layer, with the numbers, and one that it leaves just
// enough room for runs.
func TestRefusedBeforeWork(t *testing.T) {
	ctx := context.Background()
	for _, shape := range []testShape{testShapes[0], testShapes[2]} {
		m := shape.open(t, WithThreads(2))
		for name, policy := range map[string]*lukv.Policy{
			"whole":       nil,
			"uniform":     {Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.8},
			"at the end":  {Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "global"}, Ratio: 0.8},
			"by the pass": {Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}, Ratio: 0.8},
		} {
			what := shape.name + ", " + name
			const n = 400
			o := SessionOptions{Compression: policy, PageEntries: 16, ChunkTokens: 64}
			need, err := m.CacheEstimate(o, Lengths{Context: n})
			require.NoError(t, err)
			began := false
			o.Progress = func(int, int) { began = true }

			o.MaxCacheBytes = need.Peak - 1
			s := newTestSession(t, m, o)
			err = s.Prefill(ctx, randomTokens(n, 97, 1))
			require.ErrorIs(t, err, kvcache.ErrFull, what)
			require.ErrorContains(t, err, fmt.Sprintf("%d more are needed, the limit is %d", need.Peak, need.Peak-1))
			require.False(t, began, what)
			require.Zero(t, s.cache.Bytes())
			require.NoError(t, s.Prefill(ctx, randomTokens(20, 97, 1)), "usable")

			o.MaxCacheBytes = need.Peak
			s = newTestSession(t, m, o)
			require.NoError(t, s.Prefill(ctx, randomTokens(n, 97, 1)), what)
			require.LessOrEqual(t, s.Stats().PeakBytes, need.Peak, what)

			// A later prefill of a ragged cache: to the last page, and not beyond it.
			if shape.window == 0 {
				o.MaxCacheBytes = 0
				s = newTestSession(t, m, o)
				require.NoError(t, s.Prefill(ctx, randomTokens(n, 97, 1)))
				began = false
				grow, _, err := s.growth(100, nil)
				require.NoError(t, err)
				s.opts.MaxCacheBytes = s.cache.Bytes() + grow - 1
				require.ErrorIs(t, s.Prefill(ctx, randomTokens(100, 97, 2)), kvcache.ErrFull, what)
				require.False(t, began, what)
				before := s.cache.Bytes()
				s.opts.MaxCacheBytes++
				require.NoError(t, s.Prefill(ctx, randomTokens(100, 97, 2)), what)
				require.Equal(t, before+grow, s.cache.Bytes(), what)
			}
		}
	}
}

// TestMemoryOfAllSessions: one limit holds for all sessions of a model, pages shared
// by forks count once, and nothing is left on the account at the end.
func TestMemoryOfAllSessions(t *testing.T) {
	ctx := context.Background()
	const limit = 1 << 20
	shape := testShapes[0]
	m := shape.open(t, WithThreads(2), WithMaxMemory(limit))
	tokens := randomTokens(1000, 97, 1)
	o := SessionOptions{PageEntries: 16}
	one, err := m.CacheEstimate(o, Lengths{Context: 1000})
	require.NoError(t, err)
	require.Less(t, one.Held, int64(limit))
	require.Greater(t, 3*one.Held, int64(limit), "the test's own arithmetic")

	a := newTestSession(t, m, o)
	require.NoError(t, a.Prefill(ctx, tokens))
	took := m.memory.Used()
	require.GreaterOrEqual(t, took, one.Held+4*1000+4*97)
	require.LessOrEqual(t, took, one.Held+4*1000+4*97+tokenBlock)

	var forks []*Session
	for range 10 {
		f, err := a.Fork()
		require.NoError(t, err)
		require.NoError(t, f.Append(ctx, 1))
		forks = append(forks, f)
	}
	page := a.cache.Stats().PageBytes
	heads := int64(m.cfg.Layers * m.cfg.KVHeads)
	require.LessOrEqual(t, m.memory.Used(), took+10*(heads*page+2*tokenBlock))
	for _, f := range forks {
		require.NoError(t, f.Close())
	}
	require.Equal(t, took, m.memory.Used())

	b := newTestSession(t, m, o)
	require.NoError(t, b.Prefill(ctx, tokens))
	c := newTestSession(t, m, o)
	err = c.Prefill(ctx, tokens)
	require.ErrorIs(t, err, kvcache.ErrFull)
	require.ErrorContains(t, err, fmt.Sprint("the limit for all is ", limit))
	require.Zero(t, c.Len())

	// Hidden states and scores count while a prefill runs.
	most := int64(0)
	d := newTestSession(t, m, SessionOptions{PageEntries: 16, Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: 0.9},
		Progress: func(int, int) { most = max(most, m.memory.Used()) }})
	require.NoError(t, b.Close())
	require.NoError(t, d.Prefill(ctx, tokens))
	require.GreaterOrEqual(t, most, took+4*1000*int64(m.cfg.Hidden))

	path := filepath.Join(t.TempDir(), "session")
	require.NoError(t, d.Save(t.Context(), path))
	held := m.memory.Used()
	loaded, err := m.LoadSession(t.Context(), path, SessionOptions{})
	require.NoError(t, err)
	require.Greater(t, m.memory.Used(), held)
	for _, s := range []*Session{a, c, d, loaded} {
		require.NoError(t, s.Close())
	}
	require.Zero(t, m.memory.Used())
	_, err = New(shape.config(), randomWeights(t, shape.config(), tensor.BF16, 1), WithMaxMemory(-1))
	require.ErrorContains(t, err, "memory of -1 bytes")
}

// TestTokensAreCountedInBlocks: logits and tokens, of 4 bytes each, are taken from the
// memory of all sessions in the least number of blocks.
func TestTokensAreCountedInBlocks(t *testing.T) {
	m := testShapes[0].open(t, WithMaxMemory(1<<30))
	s := newTestSession(t, m, SessionOptions{})
	tokens := 0
	for _, more := range []int{1024 - 97, 1024, 1, 1023, 1, 5000} {
		require.NoError(t, s.FillRandom(more, 1))
		tokens += more
		require.NoError(t, s.takeTokens(0))
		blocks := (4*(97+tokens) + tokenBlock - 1) / tokenBlock
		require.EqualValues(t, blocks*tokenBlock, s.charged, "%d tokens", tokens)
	}
}

// TestHiddenStatesLeave: the hidden states of a prefill are outside the Go heap and
// are gone when it ends, even if it fails.
func TestHiddenStatesLeave(t *testing.T) {
	shape := testShape{layers: 2, hidden: 512, ffn: 16, heads: 1, kv: 1, dim: 8, weights: tensor.BF16}
	m := shape.open(t, WithThreads(1))
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: "knorm"}, Ratio: 0.9}
	const n, hidden = 2000, 2000 * 512 * 4
	for _, cancelled := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		s := newTestSession(t, m, SessionOptions{Compression: policy, ChunkTokens: 64})
		before := arena.Mapped()
		within := int64(0)
		s.opts.Progress = func(int, int) {
			within = arena.Mapped()
			if cancelled {
				cancel()
			}
		}
		var start, end runtime.MemStats
		runtime.ReadMemStats(&start)
		err := s.Prefill(ctx, randomTokens(n, 97, 1))
		runtime.ReadMemStats(&end)
		require.Equal(t, cancelled, err != nil)
		require.GreaterOrEqual(t, within, before+hidden)
		require.Less(t, arena.Mapped(), before+hidden)
		require.Less(t, end.TotalAlloc-start.TotalAlloc, uint64(hidden/2))
	}
}
