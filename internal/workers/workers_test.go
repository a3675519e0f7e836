package workers

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type taskFunc func(lo, hi, worker int)

func (f taskFunc) Run(lo, hi, worker int) { f(lo, hi, worker) }

func newPool(t testing.TB, n int) *Pool {
	p := New(n)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// Every item is computed exactly once, in pieces within the limits, and no two
// concurrent calls have the same worker number.
func TestRunCoversItemsOnce(t *testing.T) {
	pools := map[int]*Pool{}
	rapid.Check(t, func(rt *rapid.T) {
		threads := rapid.SampledFrom([]int{1, 2, 3, 8}).Draw(rt, "threads")
		n := rapid.IntRange(0, 3000).Draw(rt, "n")
		grain := rapid.IntRange(-1, 70).Draw(rt, "grain")
		most := rapid.IntRange(-1, 300).Draw(rt, "most")
		if pools[threads] == nil {
			pools[threads] = newPool(t, threads)
		}
		count := make([]int32, n)
		busy := make([]atomic.Bool, threads)
		var faults atomic.Int32
		pools[threads].RunPieces(n, grain, most, taskFunc(func(lo, hi, worker int) {
			if worker < 0 || worker >= threads || !busy[worker].CompareAndSwap(false, true) {
				faults.Add(1)
				return
			}
			if hi-lo > max(1, grain, most) || lo >= hi || lo%max(1, grain) != 0 {
				faults.Add(1)
			}
			for i := lo; i < hi; i++ {
				count[i]++
			}
			busy[worker].Store(false)
		}))
		assert.Zero(rt, faults.Load())
		for i, c := range count {
			require.EqualValues(rt, 1, c, "item %d of %d", i, n)
		}
	})
}

// Pieces shrink towards the end of a worker's share.
func TestPiecesShrink(t *testing.T) {
	p := newPool(t, 2)
	var mu sync.Mutex
	sizes := map[int]int{}
	p.RunPieces(2048, 32, 128, taskFunc(func(lo, hi, _ int) {
		mu.Lock()
		defer mu.Unlock()
		sizes[hi-lo]++
	}))
	require.Greater(t, sizes[128], 4, "%v", sizes)
	require.GreaterOrEqual(t, sizes[64], 2, "%v", sizes)
	require.GreaterOrEqual(t, sizes[32], 4, "%v", sizes)
	require.Zero(t, sizes[256], "%v", sizes)
}

// A worker that is delayed keeps only the piece it has begun.
func TestOthersTakeOver(t *testing.T) {
	p := newPool(t, 3)
	release := make(chan struct{})
	const n = 300
	var first atomic.Bool
	var done atomic.Int32
	p.Run(n, 1, taskFunc(func(lo, hi, worker int) {
		if first.CompareAndSwap(false, true) {
			<-release
		}
		if done.Add(1) == n-1 {
			close(release)
		}
	}))
	assert.EqualValues(t, n, done.Load())
}

func TestHelpersTakePart(t *testing.T) { takeTwo(newPool(t, 2)) }

// takeTwo returns when two workers have run a piece each at the same time.
func takeTwo(p *Pool) {
	var inside atomic.Int32
	p.Run(2, 1, taskFunc(func(_, _, _ int) {
		inside.Add(1)
		for inside.Load() < 2 {
			runtime.Gosched()
		}
	}))
}

// A lent thread takes no part until it is given back.
func TestLend(t *testing.T) {
	p := newPool(t, 2)
	takeTwo(p)
	back := p.Lend()
	p.Run(1000, 1, taskFunc(func(_, _, worker int) {
		assert.Zero(t, worker)
		runtime.Gosched()
	}))
	back()
	back()
	takeTwo(p)
	require.Zero(t, p.calls.Load())
}

func TestConcurrentRuns(t *testing.T) {
	p := newPool(t, 3)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for r := range 200 {
				var sum atomic.Int64
				p.Run(100+r, 7, taskFunc(func(lo, hi, _ int) {
					for i := lo; i < hi; i++ {
						sum.Add(int64(i))
					}
				}))
				n := int64(100 + r)
				assert.Equal(t, n*(n-1)/2, sum.Load())
			}
		})
	}
	wg.Wait()
}

func TestNestedRun(t *testing.T) {
	p := newPool(t, 3)
	var sum atomic.Int32
	p.Run(10, 1, taskFunc(func(lo, hi, _ int) {
		p.Run(10, 1, taskFunc(func(lo, hi, _ int) { sum.Add(int32(hi - lo)) }))
	}))
	assert.EqualValues(t, 100, sum.Load())
}

func TestPanic(t *testing.T) {
	p := newPool(t, 2)
	cause := errors.New("cause")
	for round := range 20 {
		// The two pieces wait for each other, then worker round%2 panics.
		var inside atomic.Int32
		got := func() (v any) {
			defer func() { v = recover() }()
			p.Run(2, 1, taskFunc(func(_, _, worker int) {
				inside.Add(1)
				for inside.Load() < 2 {
					runtime.Gosched()
				}
				if worker == round%2 {
					panic(cause)
				}
			}))
			return nil
		}()
		err, ok := got.(error)
		require.True(t, ok, "panicked with %v", got)
		assert.ErrorIs(t, err, cause)
		if round%2 == 1 {
			var w *Panic
			require.ErrorAs(t, err, &w)
			assert.Contains(t, w.Error(), "TestPanic")
		}
		// The pool still works.
		var n atomic.Int32
		p.Run(50, 1, taskFunc(func(lo, hi, _ int) { n.Add(int32(hi - lo)) }))
		require.EqualValues(t, 50, n.Load())
	}
}

func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	for i := range 10_000 {
		p := New(4)
		if i%10 == 0 {
			p.Run(8, 1, taskFunc(func(int, int, int) {}))
		}
		require.NoError(t, p.Close())
		require.NoError(t, p.Close())
	}
	// An ended goroutine is counted until it has been descheduled.
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	assert.LessOrEqual(t, runtime.NumGoroutine(), before)

	p := New(4)
	require.NoError(t, p.Close())
	n := 0
	p.Run(10, 3, taskFunc(func(lo, hi, worker int) {
		n += hi - lo
		assert.Zero(t, worker)
	}))
	assert.Equal(t, 10, n)
}

func TestCloseDuringRuns(t *testing.T) {
	for range 100 {
		p := New(3)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for range 20 {
					var n atomic.Int32
					p.Run(30, 1, taskFunc(func(lo, hi, _ int) { n.Add(int32(hi - lo)) }))
					assert.EqualValues(t, 30, n.Load())
				}
			})
		}
		require.NoError(t, p.Close())
		wg.Wait()
	}
}

// Regions after a pause find the helpers asleep.
func TestSleepAndWake(t *testing.T) {
	p := newPool(t, 4)
	for range 20 {
		var n atomic.Int32
		p.Run(64, 1, taskFunc(func(lo, hi, _ int) { n.Add(int32(hi - lo)) }))
		require.EqualValues(t, 64, n.Load())
		time.Sleep(3 * time.Millisecond)
	}
	assert.Eventually(t, func() bool { return p.asleep.Load() == 3 }, 5*time.Second, time.Millisecond)
}

func TestNoAllocation(t *testing.T) {
	p := newPool(t, 3)
	task := &work{}
	p.Run(100, 1, task)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { p.Run(100, 1, task) }))
}

// A garbage collection must not have to wait for spinning helpers or callers.
func TestCollectionIsNotDelayed(t *testing.T) {
	p := newPool(t, 2)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		task := &work{rounds: 10}
		for !stop.Load() {
			p.Run(20, 1, task)
		}
	})
	var worst time.Duration
	for range 10 {
		start := time.Now()
		runtime.GC()
		worst = max(worst, time.Since(start))
	}
	stop.Store(true)
	wg.Wait()
	t.Logf("longest collection %v", worst)
	assert.Less(t, worst, 2*time.Second)
}

type work struct {
	rounds int
	sink   [8]struct {
		x float64
		_ [cacheLine - 8]byte
	}
}

func (w *work) Run(lo, hi, worker int) {
	x := 1.0
	for range (hi - lo) * w.rounds {
		x = x*0.999 + 0.1
	}
	w.sink[worker].x = x
}

func BenchmarkRun(b *testing.B) {
	for _, rounds := range []int{0, 30, 300, 3000} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("rounds=%d/threads=%d", rounds, threads), func(b *testing.B) {
				p := newPool(b, threads)
				task := &work{rounds: rounds}
				b.ReportAllocs()
				for b.Loop() {
					p.Run(8, 1, task)
				}
			})
		}
	}
}

// A pool of its caller alone calls its function after each piece, and works nowhere else.
func TestAlone(t *testing.T) {
	pieces, calls := 0, 0
	p := Alone(func() {
		calls++
		assert.Equal(t, pieces, calls)
	})
	next := 0
	p.RunPieces(100, 8, 16, taskFunc(func(lo, hi, worker int) {
		assert.Zero(t, worker)
		assert.Equal(t, next, lo)
		pieces, next = pieces+1, hi
	}))
	assert.Equal(t, 100, next)
	assert.Equal(t, 7, calls)
	assert.Equal(t, 1, p.Threads())
}
