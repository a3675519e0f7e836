package engine

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLookup: 140 requests of all kinds, in batches, get the same answers to the bit
// with lookup decoding as without, and some of their tokens come from lookup.
func TestLookup(t *testing.T) {
	m := openModel(t)
	n := 140
	if testing.Short() {
		n = 40
	}
	requests := mixedRequests(t, m, n)
	for i := range requests {
		r := &requests[i]
		r.Prompt = r.Prompt[len(r.Prompt)-100:] // short: there are many
		r.Context = min(r.Context, 80)
	}
	answers := func(lookup bool) ([]*outcome, Stats) {
		e := newEngine(t, m, Options{MaxRunning: 5, Lookup: lookup})
		out := make([]*outcome, n)
		var wg sync.WaitGroup
		for i, r := range requests {
			s, err := e.Submit(within(t), r)
			require.NoError(t, err)
			wg.Go(func() { out[i] = collect(t, s, max(1, r.Choices)) })
		}
		wg.Wait()
		require.NoError(t, e.Close())
		return out, e.Stats()
	}
	want, plain := answers(false)
	got, st := answers(true)
	for i := range requests {
		require.True(t, equal(want[i], got[i]), "%s: found %v, expected %v", requests[i].ID, got[i], want[i])
	}
	require.Equal(t, plain.GeneratedTokens, st.GeneratedTokens)
	require.Zero(t, plain.Drafted)
	require.Greater(t, st.Accepted, int64(n))
	require.Greater(t, st.Drafted, st.Accepted)
	require.Less(t, st.Steps, plain.Steps)
}
