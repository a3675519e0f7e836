package model

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

var (
	exactShape  = flag.String("exact.shape", "150m", "BenchmarkExact: shape of the model")
	exactDepth  = flag.Int("exact.depth", 8192, "BenchmarkExact: entries in the cache")
	exactRounds = flag.Int("exact.rounds", 5, "BenchmarkExact: rounds for each setting")
)

// BenchmarkExact decodes with random weights at a depth, with a compressed cache that drafts
// and a given share of drafts that are right, chosen at random. It alternates with decoding
// without drafts, and reports the median of the rounds' relative speeds (x-plain) and the
// drafts that the session found to pay.
//
//	go test ./model -run '^$' -bench Exact -benchtime 1x -exact.shape llama-3.2-1b -exact.depth 32768
func BenchmarkExact(b *testing.B) {
	cfg, err := ShapeConfig(*exactShape)
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
	if err := s.Fill(*exactDepth, 1); err != nil {
		b.Fatal(err)
	}
	for _, ratio := range []float64{0.8, 0.9} {
		policy := &lukv.Policy{Ratio: ratio, Metric: lukv.MetricConfig{Name: "streaming_llm"}}
		if err := s.DraftCompressed(b.Context(), Span{0, *exactDepth}, policy, 0); err != nil {
			b.Fatal(err)
		}
		for _, right := range []float64{0.8, 0.9, 0.95, 1} {
			b.Run(fmt.Sprintf("removed=%g/right=%g", ratio, right), func(b *testing.B) {
				for b.Loop() {
					before := s.Stats()
					s.draftCache.gain.share = right
					rng := rand.New(rand.NewPCG(1, 2))
					var gain, plain []float64
					for range *exactRounds {
						without := decodePlain(b, s, 8)
						plain, gain = append(plain, 1000/without), append(gain, decodeExact(b, s, 20, right, rng)/without)
					}
					after := s.Stats()
					slices.Sort(gain)
					b.ReportMetric(gain[len(gain)/2], "x-plain")
					b.ReportMetric(slices.Min(plain), "plain-ms/token")
					b.ReportMetric(float64(after.Drafted-before.Drafted)/float64(max(1, after.Verified-before.Verified)), "drafts/pass")
				}
			})
		}
	}
}

// decodePlain returns the tokens per second without drafts.
func decodePlain(b *testing.B, s *Session, n int) float64 {
	start := time.Now()
	for range n {
		if err := s.Append(b.Context(), 7); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(start).Seconds()
}

// decodeExact returns the tokens per second with drafts, a share of which is right.
func decodeExact(b *testing.B, s *Session, n int, right float64, rng *rand.Rand) float64 {
	decode := func(n int) {
		token := int32(7)
		for end := s.Len() + n; s.Len() < end; {
			if err := s.m.Pass(b.Context(), []Part{{Session: s, Token: token, Drafts: mostDrafts}}); err != nil {
				b.Fatal(err)
			}
			token = 7
			for len(s.ahead.tokens) > 0 {
				if draft := s.ahead.tokens[0]; rng.Float64() < right {
					s.Follow(draft)
				} else {
					token = (draft + 1) % int32(s.m.cfg.Vocab)
					s.Follow(token)
				}
			}
		}
	}
	decode(1) // the copy catches up
	start := time.Now()
	decode(n)
	return float64(n) / time.Since(start).Seconds()
}
