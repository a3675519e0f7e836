package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// BenchmarkGap submits a prompt of 16k tokens next to eight answers and reports the
// longest time between two of their tokens, as a multiple of the median while the prompt
// is read and of the median before it arrived, and in ms; with the default latency, and
// with one of twice the median before. It needs an otherwise idle machine.
func BenchmarkGap(b *testing.B) {
	cfg, err := arch.ShapeConfig("150m")
	require.NoError(b, err)
	cfg.Layers, cfg.Windows, cfg.MaxPositions = 4, cfg.Windows[:min(len(cfg.Windows), 4)], 32768
	w, err := weights.Random(b.Context(), cfg, tensor.BF16, 1)
	require.NoError(b, err)
	m, err := model.New(cfg, w)
	require.NoError(b, err)
	defer m.Close()
	prompt := make([]int32, 16384)
	for i := range prompt {
		prompt[i] = int32(i*7919%(cfg.Vocab-1) + 1)
	}
	for name, policy := range map[string]*lukv.Policy{
		"plain":  nil,
		"snapkv": {Ratio: 0.8, Metric: lukv.MetricConfig{Name: "snapkv"}, Allocator: lukv.AllocatorConfig{Name: "adakv"}},
	} {
		for _, latency := range []time.Duration{0, 100 * time.Millisecond} {
			b.Run(fmt.Sprintf("%s/%s", name, map[bool]string{true: "2steps", false: "default"}[latency == 0]), func(b *testing.B) {
				for b.Loop() {
					gap(b, m, prompt, policy, latency)
				}
			})
		}
	}
}

// gap runs one round; latency 0 stands for twice the median step without the prompt.
func gap(b *testing.B, m *model.Model, prompt []int32, policy *lukv.Policy, latency time.Duration) {
	const streams, warm = 8, 40
	run := func(latency time.Duration, long bool) (before, during []time.Duration) {
		e, err := New(m, Options{Latency: latency})
		require.NoError(b, err)
		defer e.Close()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var mu sync.Mutex
		var reading, over bool
		var wg sync.WaitGroup
		ready := make(chan struct{}, streams)
		for i := range streams {
			s, err := e.Submit(ctx, Request{Prompt: prompt[i : i+16], Sampling: model.Sampling{IgnoreEOS: true}})
			require.NoError(b, err)
			wg.Go(func() {
				n, last := 0, time.Now()
				for range s.Events() {
					now := time.Now()
					mu.Lock()
					switch {
					case n < warm/2 || over:
					case reading:
						during = append(during, now.Sub(last))
					default:
						before = append(before, now.Sub(last))
					}
					mu.Unlock()
					if n++; n == warm {
						ready <- struct{}{}
					}
					last = now
				}
			})
		}
		for range streams {
			<-ready
		}
		if long {
			mu.Lock()
			reading = true
			mu.Unlock()
			r := Request{Prompt: prompt, Policy: policy, PromptOnly: true}
			if policy != nil {
				r.Context = len(prompt)
			}
			s, err := e.Submit(ctx, r)
			require.NoError(b, err)
			for _, err := range s.Events() {
				require.NoError(b, err)
			}
			mu.Lock()
			over = true
			mu.Unlock()
		}
		cancel()
		wg.Wait()
		return before, during
	}
	if latency == 0 {
		before, _ := run(100*time.Millisecond, false)
		latency = 2 * median(before)
	}
	before, during := run(latency, true)
	largest := slices.Max(during)
	b.ReportMetric(float64(largest)/float64(median(during)), "gap/step")
	b.ReportMetric(float64(largest)/float64(median(before)), "gap/before")
	b.ReportMetric(float64(largest.Microseconds())/1000, "gap-ms")
	b.ReportMetric(float64(median(during).Microseconds())/1000, "step-ms")
	b.ReportMetric(float64(median(before).Microseconds())/1000, "before-ms")
}

func median(x []time.Duration) time.Duration {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}
