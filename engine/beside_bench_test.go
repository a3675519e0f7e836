package engine

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/turns"
	"github.com/lukv/lukv/model"
)

// BenchmarkBeside reports the time of a token of an answer, alone and beside requests whose
// work never ends: in turns, and without, on half of the processors. %work is what the work
// gets of one processor's time. It needs an otherwise idle machine.
func BenchmarkBeside(b *testing.B) {
	m := benchmarkModel(b, "150m")
	for _, how := range []string{"alone", "turns", "unbounded"} {
		b.Run(how, func(b *testing.B) {
			e, err := New(m, Options{})
			require.NoError(b, err)
			defer e.Close()
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			var worked atomic.Int64
			for range 2 * runtime.GOMAXPROCS(0) {
				if how != "alone" {
					wg.Go(func() { besides(ctx, how == "turns", &worked) })
				}
			}
			s, err := e.Submit(ctx, Request{Prompt: []int32{1, 2, 3}, Sampling: model.Sampling{IgnoreEOS: true}})
			require.NoError(b, err)
			for b.Loop() {
				_, err := s.Next(ctx)
				require.NoError(b, err)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/1000/float64(b.N), "ms/token")
			b.ReportMetric(100*float64(worked.Load())/float64(b.Elapsed()), "%work")
			cancel()
			wg.Wait()
		})
	}
}

// unbounded bounds the work of besides that is not in turns.
var unbounded = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// besides works until ctx is done, and counts the time.
func besides(ctx context.Context, inTurns bool, worked *atomic.Int64) {
	turn := turns.New("")
	defer turn.Give()
	for x := uint64(1); ctx.Err() == nil; {
		if inTurns {
			_ = turn.Take(ctx)
		} else {
			unbounded <- struct{}{}
		}
		begin := time.Now()
		for time.Since(begin) < time.Millisecond {
			for range 10000 {
				x = x*6364136223846793005 + 1
			}
		}
		worked.Add(int64(time.Since(begin)))
		if inTurns {
			turn.Give()
		} else {
			<-unbounded
		}
		runtime.Gosched()
	}
}
