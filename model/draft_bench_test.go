package model

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/drafting"
	"github.com/lukv/lukv/tensor"
)

var (
	exactShape = flag.String("exact.shape", "150m", "BenchmarkExact: shape of the model")
	exactDepth = flag.Int("exact.depth", 8192, "BenchmarkExact: entries in the cache")
	exactReps  = flag.Int("exact.reps", 15, "BenchmarkExact: passes of each kind")
)

// BenchmarkExact takes the time of the passes of DraftCompressed, with random weights at a
// depth: the least of several of a pass without drafts (plain-ms), of a draft (draft-ms) and
// of a pass that verifies 2, 4 and 8 drafts (verify2-ms …). From these follows the speed
// relative to decoding without drafts, with the best of these numbers of drafts, for shares
// of drafts that are right: x-at-0.9 is that for 90 %.
//
//	go test ./model -run '^$' -bench Exact -benchtime 1x -exact.shape llama-3.2-1b -exact.depth 32768
func BenchmarkExact(b *testing.B) {
	cfg, err := arch.ShapeConfig(*exactShape)
	if err != nil {
		b.Fatal(err)
	}
	cfg.MaxPositions = max(cfg.MaxPositions, *exactDepth+1<<14)
	m, err := New(cfg, randomWeights(b, cfg, tensor.BF16, 7))
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	s := newTestSession(b, m, SessionOptions{})
	if err := s.FillRandom(*exactDepth, 1); err != nil {
		b.Fatal(err)
	}
	for _, ratio := range []float64{0.8, 0.9} {
		policy := &lukv.Policy{Ratio: ratio, Metric: lukv.MetricConfig{Name: "streaming_llm"}}
		if err := s.DraftCompressed(b.Context(), Span{0, *exactDepth}, policy, 0); err != nil {
			b.Fatal(err)
		}
		b.Run(fmt.Sprintf("removed=%g", ratio), func(b *testing.B) {
			for b.Loop() {
				reportExact(b, s)
			}
		})
	}
}

func reportExact(b *testing.B, s *Session) {
	plain, draft, verify := time.Hour, time.Hour, map[int]time.Duration{}
	timed := func(least time.Duration, fn func() error) time.Duration {
		start := time.Now()
		if err := fn(); err != nil {
			b.Fatal(err)
		}
		return min(least, time.Since(start))
	}
	drafts := []int{2, 4, 8}
	for range *exactReps {
		plain = timed(plain, func() error { return s.Append(b.Context(), 7) })
		draft = timed(draft, func() error { return s.draftCache.fork.Append(b.Context(), 7) })
		for _, k := range drafts {
			if verify[k] == 0 {
				verify[k] = time.Hour
			}
			s.wantsDrafts(7, 0, nil)
			s.ahead.found = append(s.ahead.found, make([]int32, k)...)
			s.takeDrafts(s.draftCache, drafting.MostDrafts)
			verify[k] = timed(verify[k], func() error {
				return s.m.runParts(b.Context(), 1, func(int) part { return decodes(s, 7) })
			})
			if err := s.dropAhead(); err != nil {
				b.Fatal(err)
			}
		}
	}
	ms := func(d time.Duration) float64 { return 1000 * d.Seconds() }
	b.ReportMetric(ms(plain), "plain-ms")
	b.ReportMetric(ms(draft), "draft-ms")
	for _, k := range drafts {
		b.ReportMetric(ms(verify[k]), fmt.Sprintf("verify%d-ms", k))
	}
	for _, right := range []float64{0.8, 0.9, 0.95, 1} {
		best := 0.0
		for _, k := range drafts {
			tokens, chance := 1.0, 1.0
			for range k {
				chance *= right
				tokens += chance
			}
			best = max(best, tokens*ms(plain)/(float64(k)*ms(draft)+ms(verify[k])))
		}
		b.ReportMetric(best, fmt.Sprintf("x-at-%g", right))
	}
}
