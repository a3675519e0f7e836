package kvcache

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAccount(t *testing.T) {
	a := NewAccount(10)
	require.NoError(t, a.Fits(10))
	require.ErrorIs(t, a.Fits(11), ErrFull)
	require.NoError(t, a.Take(9))
	require.NoError(t, a.Take(1), "up to the limit")
	require.ErrorIs(t, a.Take(1), ErrFull, "a byte beyond it")
	require.NoError(t, a.Take(0), "nothing fits a full account")
	require.Equal(t, int64(10), a.Used(), "what is refused does not count")
	a.Give(4)
	require.Equal(t, int64(6), a.Used())
	require.ErrorContains(t, a.Fits(5), "6 bytes are in use, 5 more are needed, the limit for all is 10")
}

// TestAccountIsExact takes from many goroutines: never more than the limit, and
// every success counts.
func TestAccountIsExact(t *testing.T) {
	const limit, goroutines = 50, 8
	a := NewAccount(limit)
	var taken [goroutines]int
	var all sync.WaitGroup
	for i := range goroutines {
		all.Go(func() {
			for range 100 {
				if a.Take(1) == nil {
					taken[i]++
				}
				if used := a.Used(); used > limit {
					t.Errorf("%d in use, the limit is %d", used, limit)
				}
			}
		})
	}
	all.Wait()
	sum := 0
	for _, n := range taken {
		sum += n
	}
	require.Equal(t, limit, sum)
	require.Equal(t, int64(limit), a.Used())
}

// TestCachesOfAnAccount counts two families together, and shared pages once.
func TestCachesOfAnAccount(t *testing.T) { everywhere(t, testCachesOfAnAccount) }

func testCachesOfAnAccount(t *testing.T, at place) {
	page := int64(2*16*4*4 + 16*4)
	a := NewAccount(3 * page)
	o := Options{Layers: 1, KVHeads: 1, HeadDim: 4, PageEntries: 16, Account: a}
	c, other := at.open(t, o), at.open(t, o)
	add(t, c, 0, 0, 0, 20)
	require.Equal(t, 2*page, a.Used())
	f, err := c.Fork()
	require.NoError(t, err)
	require.Equal(t, 2*page, a.Used(), "a fork shares its pages")
	add(t, f, 0, 0, 20, 21) // into a copy of the last page
	require.Equal(t, 3*page, a.Used())
	require.ErrorIs(t, addErr(other, 0, 0, 0, 1), ErrFull)
	wantHead(t, other, 0, 0, 0, nil)
	require.Zero(t, other.Stats().HighWater, "what was refused was never held")
	require.NoError(t, f.Close())
	require.Equal(t, 2*page, a.Used(), "what only the fork had")
	add(t, other, 0, 0, 0, 1)
	require.NoError(t, c.Truncate(0))
	require.Equal(t, page, a.Used())
	require.NoError(t, other.Close())
	require.Zero(t, a.Used())
}

func TestSetMaxBytes(t *testing.T) {
	page := int64(2*16*4*4 + 16*4)
	c := open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 4, PageEntries: 16})
	add(t, c, 0, 0, 0, 32)
	require.ErrorContains(t, c.SetMaxBytes(-1), "-1 bytes, expected 0 or more")
	require.ErrorIs(t, c.SetMaxBytes(2*page-1), ErrFull, "less than it holds")
	require.Zero(t, c.Options().MaxBytes, "what is refused changes nothing")
	add(t, c, 0, 0, 32, 48)
	require.NoError(t, c.SetMaxBytes(3*page), "just what it holds")
	require.Equal(t, 3*page, c.Options().MaxBytes)
	require.ErrorIs(t, addErr(c, 0, 0, 48, 49), ErrFull)
	require.NoError(t, c.SetMaxBytes(0), "no limit")
	add(t, c, 0, 0, 48, 200)
	f, err := c.Fork()
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.ErrorIs(t, f.SetMaxBytes(0), ErrClosed)
}
