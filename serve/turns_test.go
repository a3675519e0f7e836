package serve

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTurns: no more than half of the processors prepare requests, and owners take turns.
func TestTurns(t *testing.T) {
	var ts turns
	require.Equal(t, max(1, runtime.GOMAXPROCS(0)/2), ts.most())
	for range ts.most() {
		require.NoError(t, ts.take(t.Context(), "a"))
	}
	order := make(chan string)
	wait := func(owner string) {
		n := len(ts.waiting)
		go func() {
			if ts.take(context.Background(), owner) == nil {
				order <- owner
			}
		}()
		for waits := false; !waits; {
			ts.mu.Lock()
			waits = len(ts.waiting) == n+1
			ts.mu.Unlock()
			runtime.Gosched()
		}
	}
	for _, owner := range []string{"a", "a", "a", "b", "b"} {
		wait(owner)
	}
	var got []string
	for range 5 {
		ts.give()
		got = append(got, <-order)
	}
	require.Equal(t, []string{"b", "a", "b", "a", "a"}, got)
	for range ts.most() {
		ts.give()
	}
	require.Zero(t, ts.busy)
}

// TestTurnsCancelled: who leaves while waiting, or at the moment of its turn, keeps none.
func TestTurnsCancelled(t *testing.T) {
	var ts turns
	var running, most atomic.Int64
	gone := errors.New("gone")
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithCancelCause(t.Context())
			if i%3 == 0 {
				go cancel(gone)
			}
			defer cancel(nil)
			if err := ts.take(ctx, string(rune('a'+i%4))); err != nil {
				require.ErrorIs(t, err, gone)
				return
			}
			n := running.Add(1)
			for {
				if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
					break
				}
			}
			runtime.Gosched()
			running.Add(-1)
			ts.give()
		})
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int64(ts.most()))
	require.Zero(t, ts.busy)
	require.Empty(t, ts.waiting)
}
