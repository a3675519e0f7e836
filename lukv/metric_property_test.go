package lukv

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestMetricsOnAnyLayer: for every metric and any shape, with gaps between
// positions: a finite score for every entry, or +Inf if it is protected, and
// kept sets that grow with the budget.
func TestMetricsOnAnyLayer(t *testing.T) {
	all := everyMetric(t)
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	rapid.Check(t, func(t *rapid.T) {
		K, G, D := rapid.IntRange(1, 3).Draw(t, "K"), rapid.IntRange(1, 3).Draw(t, "G"), 2*rapid.IntRange(1, 4).Draw(t, "D/2")
		T := rapid.IntRange(1, 60).Draw(t, "T")
		name := rapid.SampledFrom(names).Draw(t, "metric")
		m := all[name]
		l := randomAttention(T, K*G, K, D)
		l.Sums = NewColumnSums(K*G, K, 1)
		for h := range K {
			probs := make([]float32, G*T)
			for i := range probs {
				probs[i] = float32(i%7) / 7
			}
			l.Sums.AddRow(h, probs, T)
		}
		if m.Needs(T, 0).Window < T || T == 1 { // metrics that read whole prefills get one
			gap := rapid.IntRange(0, 3).Draw(t, "gap")
			pos := make([]int32, T)
			for i := range pos {
				pos[i] = int32(i + i*gap/4)
			}
			l.Positions = func(int) []int32 { return pos }
			l.NextPosition = int(pos[T-1]) + 1
		}
		n := rapid.IntRange(1, T).Draw(t, "n")
		l.Share = n
		s, err := Score(context.Background(), m, l)
		if err == nil {
			s, err = Refine(context.Background(), m, l, s, slices.Repeat([]int{n}, K))
		}
		if err != nil {
			t.Fatal(err)
		}
		_, refines := m.(Refiner) // its first stage has +Inf
		_, blocks := m.(keyDiff)  // it gives entries dropped along the way -Inf
		p := m.Protection(T, n)
		for h, row := range s {
			for i, v := range row {
				if v != v || math.IsInf(float64(v), -1) && !blocks || math.IsInf(float64(v), 1) && !refines && T > 1 && !p.Has(i, T) {
					t.Fatalf("%s: head %d slot %d of %d: %v under %+v", name, h, i, T, v, p)
				}
			}
			more := Keep(nil, row, n+1, p)
			for _, i := range Keep(nil, row, n, p) {
				if !slices.Contains(more, i) {
					t.Fatalf("%s: slot %d is kept of %d entries and not of %d", name, i, n, n+1)
				}
			}
		}
	})
}

// TestMetricsOfEqualHeads: heads with equal keys, values and queries get equal
// scores, however many there are.
func TestMetricsOfEqualHeads(t *testing.T) {
	const T, D = 50, 6
	one := withSums(t, randomAttention(T, 2, 1, D), 1)
	for name, m := range everyMetric(t) {
		want, err := Score(context.Background(), m, one)
		require.NoError(t, err)
		two := *one
		two.Heads, two.KVHeads = 4, 2
		two.Keys = func(_, lo, hi int, dst []float32) []float32 { return one.Keys(0, lo, hi, dst) }
		two.Values = func(_, lo, hi int, dst []float32) []float32 { return one.Values(0, lo, hi, dst) }
		two.Output = func(q, lo, hi int, dst []float32) []float32 { return one.Output(q%2, lo, hi, dst) }
		two.Queries, two.Stats = NewQueryWindow(4, D, T), NewQueryStats(4, D, 4, true, one.CPU).KeepChannelNorms()
		for i := range T {
			two.Queries.Append(i, slices.Concat(one.Queries.Row(i, 0), one.Queries.Row(i, 1), one.Queries.Row(i, 0), one.Queries.Row(i, 1)))
		}
		two.Stats.heads = append(slices.Clone(one.Stats.heads), one.Stats.heads...)
		two.Sums = &ColumnSums{group: 2, decay: 1, sum: [][]float64{one.Sums.sum[0], one.Sums.sum[0]}, seen: [][]int64{one.Sums.seen[0], one.Sums.seen[0]}}
		two.Repeats = &RepeatScores{best: [][]float32{one.Repeats.best[0], one.Repeats.best[0]}}
		got, err := Score(context.Background(), m, &two)
		require.NoError(t, err, name)
		require.Equal(t, got[0], got[1], name)
		if name == "leverage" || len(name) > 8 && name[:9] == "compactor" || name == "defensivekv" {
			continue // over all heads of the layer: the number of heads is in the deviation, or shares
		}
		for i, v := range want[0] {
			if finite(v) {
				require.InDelta(t, v, got[0][i], 1e-4*(1+math.Abs(float64(v))), "%s slot %d", name, i)
			}
		}
	}
}

// TestMetricsCopyPositionsRarely: every call copies the positions out of the
// cache, so calling for each entry would take time quadratic in the length.
func TestMetricsCopyPositionsRarely(t *testing.T) {
	const T = 100
	l := withSums(t, randomAttention(T, 4, 2, 6), 1)
	pos := make([]int32, T)
	for i := range pos {
		pos[i] = int32(i)
	}
	calls := 0
	l.Positions = func(int) []int32 { calls++; return pos }
	for name, m := range everyMetric(t) {
		calls = 0
		s, err := Score(context.Background(), m, l)
		require.NoError(t, err)
		_, err = Refine(context.Background(), m, l, s, []int{20, 20})
		require.NoError(t, err)
		require.Less(t, calls, 2*20, name)
	}
}
