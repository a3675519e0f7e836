package turns

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDebts: prompts of an owner wait until as much time was left to others as its prompts and
// its turns have taken, a turn in its share of the processors.
func TestDebts(t *testing.T) {
	c := newClocked(2) // of four processors
	owes := func(owner string, from, to time.Duration) {
		t.Helper()
		c.time = from
		require.True(t, c.owes(owner))
		c.time = to - 1
		require.True(t, c.owes(owner))
		c.time = to
		require.False(t, c.owes(owner))
	}
	c.time = time.Second
	require.False(t, c.owes("a"))
	c.charge("a", 3*time.Second)
	c.charge("a", time.Second)
	require.False(t, c.owes("b"))
	owes("a", time.Second, 5*time.Second)

	turn := c.claim("b")
	require.NoError(t, turn.Take(t.Context()))
	c.time = 7 * time.Second
	require.False(t, c.owes("b"), "it goes on")
	turn.End()
	owes("b", 7*time.Second, 7500*time.Millisecond)

	c.time = time.Hour // what was long ago does not count
	c.charge("b", time.Millisecond)
	owes("b", time.Hour, time.Hour+time.Millisecond)
}

// TestLentDebts: who waits for a lock owes what the holder's turns take meanwhile.
func TestLentDebts(t *testing.T) {
	c := newClocked(1)
	holder, other := c.claim("a"), c.claim("b")
	var l Lock
	require.NoError(t, l.take(t.Context(), holder))
	require.NoError(t, holder.Take(t.Context()))
	waits := make(chan error)
	go func() { waits <- l.take(t.Context(), other) }()
	for lent := false; !lent; {
		c.mu.Lock()
		lent = holder.pays == "b"
		c.mu.Unlock()
	}
	c.time = time.Second
	require.True(t, holder.Give())
	require.False(t, c.owes("a"))
	require.True(t, c.owes("b"))
	l.End(holder)
	require.NoError(t, <-waits)
}

// TestDebtsAreForgotten: owners that owe nothing are not remembered for long.
func TestDebtsAreForgotten(t *testing.T) {
	c := newClocked(1)
	c.charge("long", time.Hour)
	for i := range 10000 {
		c.time += 10 * time.Millisecond
		c.charge(fmt.Sprint(i), time.Millisecond)
		require.Less(t, len(c.debts.until), 110)
	}
	require.True(t, c.owes("long"))
}
