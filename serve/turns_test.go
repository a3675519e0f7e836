package serve

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/engine"
	"github.com/lukv/lukv/internal/turns"
)

// allTurns takes all turns of the process, which give gives back.
func allTurns(t *testing.T) (give func()) {
	var all []*turns.Turn
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		x := turns.New("others")
		require.NoError(t, x.Take(t.Context()))
		all = append(all, x)
	}
	return func() {
		for _, x := range all {
			x.Give()
		}
	}
}

// TestRequestsTakeTurns: while others have all turns, nothing is made of a request that has
// arrived, and the server still says that it is there; a request whose client leaves
// meanwhile keeps nothing.
func TestRequestsTakeTurns(t *testing.T) {
	ts := start(t, Options{}, engine.Options{})
	give := allTurns(t)
	var free atomic.Bool
	noteRead = func(context.Context, string) {
		if !free.Load() {
			t.Error("a request is read although others have all turns")
		}
	}
	t.Cleanup(func() { noteRead = nil })
	large := fmt.Sprintf(`{"prompt":%q}`, strings.Repeat("a ", 1<<17))
	answered := make(chan int, 2)
	for _, body := range []string{large, `{"prompt":"a"}`} {
		go func() {
			status, _, _ := ts.do(t, "POST", "/tokenize", body)
			answered <- status
		}()
	}
	for turns.Waiting() < 2 {
		runtime.Gosched()
	}
	status, _, _ := ts.do(t, "GET", "/health", "")
	require.Equal(t, 200, status)
	require.Empty(t, answered)
	free.Store(true)
	give()
	for range 2 {
		require.Equal(t, 200, <-answered)
	}
	require.Zero(t, turns.Waiting())
}
