package model

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// BenchmarkFewHeads decodes after 16,384 tokens with fewer key/value heads than threads,
// and with numbers of heads that do not divide evenly among the threads: two layers of the
// shape of 150 million parameters with a small vocabulary, so that attention takes most of
// the time.
//
//	go test ./model -run '^$' -bench FewHeads -benchtime 1000x
func BenchmarkFewHeads(b *testing.B) {
	const depth = 16384
	for _, heads := range []int{1, 2, 3, 4, 6} {
		cfg, err := arch.ShapeConfig("150m")
		if err != nil {
			b.Fatal(err)
		}
		cfg.Layers, cfg.Windows, cfg.KVHeads, cfg.Vocab = 2, make([]int, 2), heads, 1000
		m, err := New(cfg, randomWeights(b, cfg, tensor.BF16, 7))
		if err != nil {
			b.Fatal(err)
		}
		tokens := make([]int32, depth)
		for i := range tokens {
			tokens[i] = int32(i * 7919 % cfg.Vocab)
		}
		s, err := m.NewSession(SessionOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Prefill(context.Background(), tokens); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("%d heads, %d threads", heads, runtime.GOMAXPROCS(0)), func(b *testing.B) {
			for b.Loop() {
				if err := s.Truncate(depth - 1); err != nil {
					b.Fatal(err)
				}
				if err := m.Step(context.Background(), []*Session{s}, tokens[:1]); err != nil {
					b.Fatal(err)
				}
			}
		})
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		if err := m.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
