package serve

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
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

// TestLargeBodiesTakeTurns: while others have all turns, a large body waits and a small one
// does not.
func TestLargeBodiesTakeTurns(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	all := &ts.s.account.turns
	for range all.most() {
		require.NoError(t, all.take(t.Context(), "others"))
	}
	large := fmt.Sprintf(`{"prompt":%q}`, strings.Repeat("a ", heavyBody/2))
	answered := make(chan int)
	go func() {
		status, _, _ := ts.do(t, "POST", "/tokenize", large)
		answered <- status
	}()
	for waits := false; !waits; {
		all.mu.Lock()
		waits = len(all.waiting) == 1
		all.mu.Unlock()
		runtime.Gosched()
	}
	status, _, _ := ts.do(t, "POST", "/tokenize", `{"prompt":"a"}`)
	require.Equal(t, 200, status)
	require.Empty(t, answered)
	all.give()
	require.Equal(t, 200, <-answered)
	for range all.most() - 1 {
		all.give()
	}
	require.Zero(t, all.busy)
}
