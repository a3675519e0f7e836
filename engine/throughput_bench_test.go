package engine

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// benchmarkModel returns a model of a named shape with random weights, closed at the end.
func benchmarkModel(b *testing.B, shape string) *model.Model {
	cfg, err := arch.ShapeConfig(shape)
	require.NoError(b, err)
	w, err := weights.Random(b.Context(), cfg, tensor.BF16, 1)
	require.NoError(b, err)
	m, err := model.New(cfg, w)
	require.NoError(b, err)
	b.Cleanup(func() { m.Close() })
	return m
}

// BenchmarkThroughput answers requests that arrive together, with the default latency and
// with one of 2 s, in turn, and reports both speeds and the first as a fraction of the second.
// It needs an otherwise idle machine.
func BenchmarkThroughput(b *testing.B) {
	m := benchmarkModel(b, "llama-3.2-1b")
	const prompt, answer = 128, 64
	round := func(streams int, latency time.Duration) time.Duration {
		e, err := New(m, Options{Latency: latency})
		require.NoError(b, err)
		defer e.Close()
		start := time.Now()
		var wg sync.WaitGroup
		for i := range streams {
			r := Request{Prompt: make([]int32, prompt), Sampling: model.Sampling{IgnoreEOS: true, MaxTokens: answer}}
			for k := range r.Prompt {
				r.Prompt[k] = int32((i*prompt+k)*7919%(m.Config().Vocab-1) + 1)
			}
			s, err := e.Submit(b.Context(), r)
			require.NoError(b, err)
			wg.Go(func() {
				for range s.Events() {
				}
			})
		}
		wg.Wait()
		return time.Since(start)
	}
	for _, streams := range []int{8, 32} {
		b.Run(fmt.Sprint(streams), func(b *testing.B) {
			var normal, patient time.Duration
			for b.Loop() {
				normal += round(streams, 0)
				patient += round(streams, 2*time.Second)
			}
			all := float64(b.N * streams * answer)
			b.ReportMetric(all/normal.Seconds(), "tokens/s")
			b.ReportMetric(all/patient.Seconds(), "2s-tokens/s")
			b.ReportMetric(patient.Seconds()/normal.Seconds(), "of-2s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
