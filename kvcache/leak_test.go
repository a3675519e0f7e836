package kvcache

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/arena"
)

// TestNothingLeaks opens, forks and closes 10,000 caches, some of them alive at
// the same time, forks outliving their parents.
func TestNothingLeaks(t *testing.T) { everywhere(t, testNothingLeaks) }

func testNothingLeaks(t *testing.T, at place) {
	live, mapped, goroutines := arena.Live(), arena.Mapped(), runtime.NumGoroutine()
	pos := span(0, 40)
	k, v := rows(pos, 4, 4)
	var alive []*Cache
	for i := range 5000 {
		c, err := New(at.options(Options{Layers: 2, KVHeads: 2, HeadDim: 4, PageEntries: 16}))
		require.NoError(t, err)
		require.NoError(t, c.Append(i%2, i/2%2, pos, k, v, 4))
		f, err := c.Fork()
		require.NoError(t, err)
		require.NoError(t, f.Keep(i%2, i/2%2, []int32{1, 2, 39}))
		require.NoError(t, c.Close())
		if alive = append(alive, f); len(alive) == 100 {
			if at.device == nil {
				require.Equal(t, live+100*f.Bytes(), arena.Live())
			} else {
				require.Equal(t, 100, at.device.Counts().Pools)
			}
			for _, f := range alive {
				require.NoError(t, f.Close())
			}
			alive = alive[:0]
		}
	}
	require.Equal(t, live, arena.Live(), "bytes of pages")
	require.Equal(t, mapped, arena.Mapped(), "bytes mapped")
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), goroutines)
}
