//go:build unix

package engine

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/lukv/lukv/model/sampling"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
)

// cpuTime returns the CPU time the process has used so far, in seconds.
func cpuTime() float64 {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)*1e-6
}

// BenchmarkDecode compares answers through the engine with a bare loop over Step: CPU
// time per token.
func BenchmarkDecode(b *testing.B) {
	var err error
	m := benchmarkModel(b, "150m")
	prompt := make([]int32, 64)
	for i := range prompt {
		prompt[i] = int32(7*i + 1)
	}
	const tokens = 64
	o := model.Sampling{MaxTokens: tokens, IgnoreEOS: true}
	for _, n := range []int{1, 8, 32} {
		b.Run(fmt.Sprintf("step/%d", n), func(b *testing.B) {
			ctx := context.Background()
			for b.Loop() {
				b.StopTimer()
				sessions, next := make([]*model.Session, n), make([]int32, n)
				samplers := make([]*sampling.Sampler, n)
				for i := range sessions {
					sessions[i], err = m.NewSession(model.SessionOptions{})
					require.NoError(b, err)
					require.NoError(b, sessions[i].Prefill(ctx, prompt))
					samplers[i], err = m.NewSampler(o, 0)
					require.NoError(b, err)
				}
				b.StartTimer()
				from := cpuTime()
				for k := range tokens {
					for i, s := range sessions {
						next[i], err = samplers[i].Next(s.Logits(), nil)
						require.NoError(b, err)
					}
					if k < tokens-1 {
						require.NoError(b, m.Step(ctx, sessions, next))
					}
				}
				b.ReportMetric(1e3*(cpuTime()-from)/float64(n*(tokens-1)), "cpu-ms/token")
				for _, s := range sessions {
					s.Close()
				}
			}
		})
		b.Run(fmt.Sprintf("engine/%d", n), func(b *testing.B) {
			e, err := New(m, Options{})
			require.NoError(b, err)
			defer e.Close()
			for b.Loop() {
				b.StopTimer()
				streams := make([]*Stream, n)
				for i := range streams {
					streams[i], err = e.Submit(within(b), Request{Prompt: prompt, Sampling: o})
					require.NoError(b, err)
				}
				for _, s := range streams { // all prompts are read
					_, err := s.Next(context.Background())
					require.NoError(b, err)
				}
				b.StartTimer()
				from, done := cpuTime(), 0
				for _, s := range streams {
					done += tokens - 1 - len(s.events)
				}
				var wg sync.WaitGroup
				for _, s := range streams {
					wg.Go(func() {
						for range s.Events() {
						}
					})
				}
				wg.Wait()
				b.ReportMetric(1e3*(cpuTime()-from)/float64(done), "cpu-ms/token")
			}
		})
	}
}
