package turns

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// clocked is a queue with a clock of the test.
type clocked struct {
	*queue
	time   time.Duration
	alarms []time.Duration // when it is to look again
}

func newClocked(places int) *clocked {
	c := &clocked{queue: newQueue(2 * places)}
	c.now = func() time.Duration { return c.time }
	c.alarm = func(after time.Duration) { c.alarms = append(c.alarms, c.time+after) }
	return c
}

// wait begins to wait for a turn on a goroutine of its own, and returns when it waits or
// has one. The turn comes on the channel.
func (c *clocked) wait(ctx context.Context, t *Turn, got chan<- *Turn) {
	c.mu.Lock()
	n, busy := c.waiting.n, c.busy
	c.mu.Unlock()
	go func() {
		if t.Take(ctx) == nil {
			got <- t
		}
	}()
	for {
		c.mu.Lock()
		begun := c.waiting.n != n || c.busy != busy
		c.mu.Unlock()
		if begun {
			return
		}
		runtime.Gosched()
	}
}

// TestOwnersTakeTurns: owners have turns one after the other, and the work of each in its
// order.
func TestOwnersTakeTurns(t *testing.T) {
	c := newClocked(1)
	first := c.claim("a")
	require.NoError(t, first.Take(t.Context()))
	got := make(chan *Turn)
	names := map[*Turn]string{}
	for i, owner := range []string{"a", "a", "a", "b", "b", "c"} {
		x := c.claim(owner)
		names[x] = fmt.Sprint(owner, i)
		c.wait(t.Context(), x, got)
	}
	var order []string
	for now := first; len(order) < 6; {
		require.True(t, now.Give())
		require.False(t, now.Give())
		now = <-got
		order = append(order, names[now])
		if len(order) == 6 {
			now.Give()
		}
	}
	require.Equal(t, []string{"a0", "b3", "c5", "a1", "b4", "a2"}, order)
	require.Zero(t, c.busy)
}

// TestQuantum: work that lasts goes behind what waits when a quantum is over, and not
// before.
func TestQuantum(t *testing.T) {
	c := newClocked(1)
	long, short := c.claim("a"), c.claim("b")
	require.NoError(t, long.Take(t.Context()))
	got := make(chan *Turn)
	c.wait(t.Context(), short, got)
	c.time += quantum - 1
	require.NoError(t, long.Check(t.Context()))
	require.Empty(t, got)
	require.Equal(t, 1, c.waiting.n)
	c.time++
	again := make(chan error)
	go func() { again <- long.Check(t.Context()) }()
	require.Equal(t, short, <-got)
	short.Give()
	require.NoError(t, <-again)
	long.Give()
	require.Zero(t, c.busy)
}

// TestRest: while an engine computes, turns take a quarter of the time in the long run, whatever
// their length, and work that is rare does not wait; without an engine nothing waits.
func TestRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(1, 4).Draw(t, "places")
		c := newClocked(places)
		c.engine(1)
		x := c.claim("a")
		worked, rested := time.Duration(0), time.Duration(0)
		got := make(chan *Turn, 1)
		for range 200 {
			n := len(c.alarms)
			c.wait(context.Background(), x, got)
			if len(c.alarms) > n { // it has to rest
				rested += c.alarms[n] - c.time
				c.time = c.alarms[n]
				c.look()
			}
			<-got
			took := time.Duration(rapid.Int64Range(0, int64(3*quantum)).Draw(t, "took"))
			c.time += took
			worked += took
			x.Give()
		}
		// A quarter of four places is one.
		want := float64(worked) * (4/float64(places) - 1)
		require.InDelta(t, want, float64(rested), float64(unrested+12*quantum))
		if places == 4 {
			require.Zero(t, rested)
		}
		for range 100 { // rare
			c.time += 4 * quantum
			n := len(c.alarms)
			c.wait(context.Background(), x, got)
			if c.rested < c.time+unrested {
				require.Len(t, c.alarms, n)
			} else {
				c.time = c.alarms[n]
				c.look()
			}
			<-got
			c.time += quantum / 2
			x.Give()
		}
		require.LessOrEqual(t, c.rested, c.time+2*quantum)
		c.time, c.rested = 0, time.Hour
		c.wait(context.Background(), x, got)
		require.Empty(t, got)
		c.engine(-1)
		<-got
		x.Give()
		require.Zero(t, c.busy)
	})
}

// TestMost: whatever the owners do, no more have a turn than may, each that waits gets one
// or is cancelled, and nothing is left in the end.
func TestMost(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		places, owners := rapid.IntRange(1, 3).Draw(rt, "places"), rapid.IntRange(1, 4).Draw(rt, "owners")
		leaves := rapid.SliceOfN(rapid.IntRange(0, 3), 60, 60).Draw(rt, "leaves")
		q := newQueue(2 * places)
		gone := errors.New("gone")
		var running, most atomic.Int64
		var lock Lock
		var locked atomic.Int64
		var wg sync.WaitGroup
		for i, leave := range leaves {
			wg.Go(func() {
				ctx, cancel := context.WithCancelCause(context.Background())
				defer cancel(nil)
				if leave == 0 {
					go cancel(gone)
				}
				x := q.claim(string(rune('a' + i%owners)))
				defer x.Give()
				work := func() {
					n := running.Add(1)
					for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
					}
					runtime.Gosched()
					running.Add(-1)
				}
				for range 4 {
					if err := x.Take(ctx); err != nil {
						require.ErrorIs(t, err, gone)
						return
					}
					work()
					x.Give()
				}
				if leave == 1 {
					if err := lock.take(ctx, x); err != nil {
						require.ErrorIs(t, err, gone)
						return
					}
					require.EqualValues(t, 1, locked.Add(1))
					if x.Take(ctx) == nil {
						work()
					}
					locked.Add(-1)
					lock.give(x)
				}
			})
		}
		wg.Wait()
		require.LessOrEqual(rt, most.Load(), int64(places))
		require.Zero(rt, q.busy)
		require.Zero(rt, q.waiting.n)
		require.Empty(rt, q.waiting.lines)
		require.Nil(rt, lock.holder)
	})
}

// TestFairness: between two turns of an owner that waits for one, every other has at most
// one for each place.
func TestFairness(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClocked(1)
		at := c.claim("")
		require.NoError(t, at.Take(context.Background()))
		got := make(chan *Turn, 1)
		waiting := map[string]int{}
		since := map[string][]string{} // turns of others since an owner waits
		for range 60 {
			if owner := rapid.SampledFrom([]string{"a", "a", "a", "b", "c", "-", "-"}).Draw(t, "event"); owner != "-" {
				c.wait(context.Background(), c.claim(owner), got)
				if waiting[owner]++; waiting[owner] == 1 {
					since[owner] = nil
				}
				continue
			}
			at.Give()
			if c.busy == 0 {
				require.NoError(t, at.Take(context.Background()))
				continue
			}
			at = <-got
			for owner, n := range waiting {
				if owner != at.owner && n > 0 {
					require.False(t, slices.Contains(since[owner], at.owner), "%s waits while %s has a second turn", owner, at.owner)
					since[owner] = append(since[owner], at.owner)
				}
			}
			waiting[at.owner]--
			since[at.owner] = nil
		}
	})
}

// TestLent: the work of one who has a lock goes on in turns of the owner that waits for it.
func TestLent(t *testing.T) {
	c := newClocked(1)
	var lock Lock
	slow, other, first := c.claim("flood"), c.claim("other"), c.claim("x")
	require.NoError(t, lock.take(t.Context(), slow))
	require.NoError(t, first.Take(t.Context()))
	got := make(chan *Turn, 10)
	for range 3 {
		c.wait(t.Context(), c.claim("flood"), got)
	}
	c.wait(t.Context(), slow, got)
	has := make(chan error)
	go func() { has <- lock.take(t.Context(), other) }()
	for lent := false; !lent; runtime.Gosched() {
		c.mu.Lock()
		lent = slow.pays == "other"
		c.mu.Unlock()
	}
	first.Give()
	flood := <-got
	require.NotEqual(t, slow, flood)
	flood.Give()
	require.Equal(t, slow, <-got, "the second turn is of the other owner")
	lock.give(slow)
	require.NoError(t, <-has)
	require.Equal(t, "flood", slow.pays)
	slow.Give()
	for range 2 {
		(<-got).Give()
	}
	lock.give(other)
	require.Zero(t, c.busy)
}

// TestContexts: work within work has its turn, work on another goroutine has one of its
// own, and a panic gives the turn back.
func TestContexts(t *testing.T) {
	mine := New("a")
	ctx := mine.Use(t.Context())
	require.Nil(t, Of(ctx))
	require.NoError(t, Check(ctx))
	require.NoError(t, mine.Take(ctx))
	require.Equal(t, mine, Of(ctx))
	inner, err := Begin(ctx)
	require.NoError(t, err)
	require.Equal(t, mine, inner)
	inner.End()
	require.Equal(t, mine, Of(ctx), "it was there before")
	mine.Give()

	require.Nil(t, Of(Apart(ctx)))
	for range 2 * process.places {
		require.Panics(t, func() {
			x, err := Begin(Apart(ctx))
			require.NoError(t, err)
			require.Equal(t, "a", x.owner)
			require.NotEqual(t, mine, x)
			defer x.End()
			panic("work")
		})
	}
	over, cancel := context.WithCancelCause(ctx)
	gone := errors.New("gone")
	cancel(gone)
	_, err = Begin(over)
	require.ErrorIs(t, err, gone)
	require.ErrorIs(t, Check(over), gone)
	require.Zero(t, process.busy)
	require.Zero(t, Waiting())
}

// TestLockWithinATurn: who has a turn and waits for a lock does not keep the turn.
func TestLockWithinATurn(t *testing.T) {
	var lock Lock
	var all []*Turn
	holder, err := lock.Begin(New("a").Use(t.Context()))
	require.NoError(t, err)
	holder.Give()
	for range process.places - 1 {
		x := New("b")
		require.NoError(t, x.Take(t.Context()))
		all = append(all, x)
	}
	waits := New("c")
	ctx := waits.Use(t.Context())
	require.NoError(t, waits.Take(ctx))
	done := make(chan error)
	go func() {
		x, err := lock.Begin(ctx)
		if err == nil {
			lock.End(x)
		}
		done <- err
	}()
	require.NoError(t, holder.Take(t.Context())) // only after waits gave its turn
	lock.End(holder)
	require.NoError(t, <-done)
	require.Equal(t, waits, Of(ctx))
	for _, x := range append(all, waits) {
		require.True(t, x.Give())
	}
	require.Zero(t, process.busy)
}
