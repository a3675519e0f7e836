package drafting

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDraftsThatPay: more drafts where the cache is long, much of it was removed, and drafts
// were right; none where reading the weights is all that a pass costs, or where passes turn
// out to take longer than expected.
func TestDraftsThatPay(t *testing.T) {
	const weights, page = 1e6, 4096
	open := func() *Gain {
		g := &Gain{share: shareStart, draft: 1, row: 1}
		for k := range g.reads {
			g.reads[k] = weights
		}
		require.Zero(t, g.Best(8, Reads{1, 1e9, 1e6}), "the time of a pass is not known yet")
		g.Passed(0, time.Second, Reads{1, 1e9, 1e6})
		return g
	}
	long, short := Reads{1, 20 * weights, weights}, Reads{1, page, page}
	g := open()
	require.Zero(t, g.Best(8, short))
	require.Greater(t, g.Best(8, long), 3)
	require.Equal(t, 2, g.Best(2, long))
	require.Less(t, g.Best(8, Reads{1, 20 * weights, 16 * weights}), 2)
	require.Greater(t, g.Best(8, Reads{0.2, weights, weights / 10}), g.Best(8, Reads{1, weights, weights / 10}), "sessions share the weights")

	last := g.Best(8, long)
	for range 60 {
		g.Seen(0)
		require.LessOrEqual(t, g.Best(8, long), last)
		last = g.Best(8, long)
	}
	require.Zero(t, last)
	for range 500 { // without drafts, it comes to try again
		g.Passed(0, time.Second, long)
	}
	require.Positive(t, g.Best(8, long))

	slow, fast := open(), open()
	for range 30 {
		slow.Drafted(time.Second, long)
		slow.Passed(4, 5*time.Second, long)
		fast.Drafted(10*time.Millisecond, long)
		fast.Passed(4, 1010*time.Millisecond, long)
	}
	require.Zero(t, slow.Best(8, long))
	require.Equal(t, MostDrafts, fast.Best(8, long))
	for range 2 {
		fast.Passed(4, 1010*time.Millisecond, long)
	}
	require.Zero(t, fast.Best(8, long), "a pass without drafts says what that takes")
	fast.Passed(0, time.Second, long)
	require.Equal(t, MostDrafts, fast.Best(8, long))
	before := fast.plain
	fast.Passed(0, time.Hour, long) // the machine slept
	require.LessOrEqual(t, fast.plain, 1.3*before)
}
