package engine

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
)

// TestDefaultBounds are those that Options state.
func TestDefaultBounds(t *testing.T) {
	o, err := Options{}.withDefaults(1000)
	require.NoError(t, err)
	require.Equal(t, []int{1000, 64, 256, 4 << 20}, []int{o.MaxTokens, o.MaxRunning, o.MaxQueue, o.MaxQueueTokens})
}

// TestDraftsOfSeveralChoices: what the copies of several choices hold while they run is
// reserved, too.
func TestDraftsOfSeveralChoices(t *testing.T) {
	verifyWith(t, verifyHeld)
	m := openModel(t)
	r := wholeRequests(t, m, 1)[0]
	r.Mask, r.Stop, r.Choices = nil, nil, 6
	r.Sampling = model.Sampling{Temperature: 1, Seed: 3, MaxTokens: 120, IgnoreEOS: true, LogProbs: true}
	want := alone(t, m, r)
	r.Draft = draftedBy(&r, "key_distance", 0.9, 3)
	e := newEngine(t, m, Options{PageEntries: 16, PrefixCacheBytes: -1, MaxBytes: 256 << 20})
	got, usage := answersOf(t, e, []Request{r})
	require.True(t, equal(want, got[0]))
	require.Positive(t, usage[0].Drafted)
	require.NoError(t, e.Close())
	require.Zero(t, e.Stats().ReservedBytes)
}

// TestStoreRemembersItsUse: a file that was used is the more recent one after a restart.
func TestStoreRemembersItsUse(t *testing.T) {
	m, dir := openModel(t), t.TempDir()
	tokens, _ := prompts(t, m, 2)
	o := Options{MaxBytes: 64 << 20, Store: dir}
	ask := func(e *Engine, prompt []int32, only bool) Usage {
		s, err := e.Submit(within(t), Request{Prompt: prompt, PromptOnly: only, Sampling: model.Sampling{MaxTokens: 1}})
		require.NoError(t, err)
		collect(t, s, 1)
		return s.Usage()
	}
	e := newEngine(t, m, o)
	ask(e, tokens[0], true)
	first := stores(t, dir)[0]
	ask(e, tokens[1], true)
	require.NoError(t, e.Close())
	old := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, name := range stores(t, dir) {
		at := old
		if name == first {
			at = old.Add(-time.Minute)
		}
		require.NoError(t, os.Chtimes(name, at, at))
	}
	e = newEngine(t, m, o)
	require.Positive(t, ask(e, tokens[0], false).Cached)
	require.NoError(t, e.Close())
	for _, name := range stores(t, dir) {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Equal(t, name == first, info.ModTime().After(old), "%s", name)
	}
}
