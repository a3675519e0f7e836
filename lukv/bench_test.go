package lukv

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/lukv/lukv/kernels"
)

// randomAttention returns a layer of T positions with everything any metric
// needs, from a fixed seed.
func randomAttention(T, heads, kvHeads, D int) *Layer {
	rng := rand.New(rand.NewPCG(1, uint64(T)))
	fill := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		return x
	}
	keys, values := make([][]float32, kvHeads), make([][]float32, kvHeads)
	for h := range kvHeads {
		keys[h], values[h] = fill(T*D), fill(T*D)
	}
	l := &Layer{
		T: T, Heads: heads, KVHeads: kvHeads, HeadDim: D, NextPosition: T,
		Keys:    func(h, lo, hi int, _ []float32) []float32 { return keys[h][lo*D : hi*D] },
		Values:  func(h, lo, hi int, _ []float32) []float32 { return values[h][lo*D : hi*D] },
		Queries: NewQueryWindow(heads, D, T),
		Stats:   NewQueryStats(heads, D, 4, true, kernels.Detect()).KeepChannelNorms(),
		Share:   T / 5, OutputDim: 3*D + 1,
	}
	l.Repeats = NewRepeatScores(slices.Repeat([]int{T}, kvHeads))
	for h := range kvHeads {
		for t := range T {
			l.Repeats.best[h][t] = float32(t*7%T) / float32(T)
		}
	}
	output := fill(l.OutputDim * heads * D)
	l.Output = func(q, lo, hi int, dst []float32) []float32 {
		dst = dst[:0]
		for m := lo; m < hi; m++ {
			dst = append(dst, output[(m*heads+q)*D:(m*heads+q+1)*D]...)
		}
		return dst
	}
	for p := range T {
		l.Queries.Append(p, fill(heads*D))
	}
	few := fill(min(T, 4*D) * heads * D)
	for q := range heads {
		l.Stats.Add(q, 0, few[q*D:], min(T, 4*D), heads*D)
	}
	for i := range D / 2 {
		l.InvFreq = append(l.InvFreq, math.Pow(10000, -2*float64(i)/float64(D)))
	}
	return l
}

func BenchmarkScore(b *testing.B) {
	const T = 8192
	l := randomAttention(T, 32, 8, 64)
	l.CPU = kernels.Detect()
	l.Sums = NewColumnSums(32, 8, 1)
	for h := range 8 {
		l.Sums.Grow(h, T)
	}
	for _, name := range Metrics() {
		m, err := NewMetric(MetricConfig{Name: name})
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Score(context.Background(), m, l); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkKeep(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 2))
	scores := make([]float32, 131072)
	for i := range scores {
		scores[i] = rng.Float32()
	}
	dst := make([]int32, 0, len(scores))
	b.SetBytes(int64(4 * len(scores)))
	b.ReportAllocs()
	for b.Loop() {
		dst = Keep(dst, scores, len(scores)/5, Protection{Sinks: 4, Window: 32})
	}
}

func BenchmarkQueryStats(b *testing.B) {
	const D, n = 128, 512
	x := make([]float32, n*D)
	for i := range x {
		x[i] = float32(i%17) - 8
	}
	s := NewQueryStats(1, D, 0, true, kernels.Detect())
	b.ReportAllocs()
	for b.Loop() {
		s.Add(0, 0, x, n, D)
	}
}

func BenchmarkColumnSums(b *testing.B) {
	const T, D, rows = 8192, 128, 64
	l := randomAttention(T, 4, 1, D)
	q := make([]float32, rows*4*D)
	for i := range q {
		q[i] = float32(i%13) - 6
	}
	b.ReportAllocs()
	for b.Loop() {
		s := NewColumnSums(4, 1, 1)
		if err := s.Attend(context.Background(), l, 0, T-rows, q, rows, 4*D); err != nil {
			b.Fatal(err)
		}
	}
}
