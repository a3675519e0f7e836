package lukv

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/lukv/lukv/kernels"
)

// TestQueryWindow checks a window against a plain list of rows.
func TestQueryWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(0, 6).Draw(t, "capacity")
		w := NewQueryWindow(2, 1, limit)
		var rows []int
		next := 0
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			default:
				w.Append(next, []float32{float32(next), float32(-next)})
				rows = append(rows, next)
				next++
			case 3:
				n := rapid.IntRange(-1, 8).Draw(t, "trim")
				w.Trim(n)
				rows = rows[max(len(rows)-max(n, 0), 0):]
			case 4:
				from := next - rapid.IntRange(0, 3).Draw(t, "back")
				w.DropFrom(from)
				for len(rows) > 0 && rows[len(rows)-1] >= from {
					rows = rows[:len(rows)-1]
				}
			case 5:
				n := rapid.IntRange(0, 9).Draw(t, "reserve")
				w.Reserve(n)
				limit = max(limit, n)
			}
			if over := len(rows) - limit; over > 0 {
				rows = rows[over:]
			}
			c := w.Clone()
			w.Append(next+100, []float32{-1, -1})
			w, c = c, w // continue with the copy: changes to the original do not show
			if w.Len() != len(rows) || w.Cap() != limit {
				t.Fatalf("%d rows of %d, want %d of %d", w.Len(), w.Cap(), len(rows), limit)
			}
			for i, p := range rows {
				if w.Position(i) != p || w.Row(i, 0)[0] != float32(p) || w.Row(i, 1)[0] != float32(-p) {
					t.Fatalf("row %d at position %d, want %d", i, w.Position(i), p)
				}
			}
		}
	})
}

func TestQueryStats(t *testing.T) {
	const D, n, skip = 5, 61, 4
	rng := rand.New(rand.NewPCG(9, 9))
	x := make([]float32, n*2*D)
	for i := range x {
		x[i] = float32(rng.NormFloat64() + 1000) // a large mean must not eat the covariance
	}
	mean, cov := make([]float64, D), make([]float64, D*D)
	whole := NewQueryStats(2, D, skip, true, kernels.Detect()).KeepChannelNorms()
	for q := range 2 {
		whole.Add(q, 0, x[q*D:], n, 2*D)
	}
	for _, chunk := range []int{1, 2, 3, 7, 8, 9, 64} {
		s := NewQueryStats(2, D, skip, true, kernels.Detect()).KeepChannelNorms()
		for lo := 0; lo < n; lo += chunk {
			for q := range 2 {
				s.Add(q, lo, x[lo*2*D+q*D:], min(chunk, n-lo), 2*D)
			}
		}
		for q := range 2 {
			require.Equal(t, whole.heads[q].sum, s.heads[q].sum, "chunk %d", chunk)
			require.Equal(t, whole.heads[q].outer, s.heads[q].outer, "chunk %d", chunk)
			require.Equal(t, whole.heads[q].length, s.heads[q].length, "chunk %d", chunk)
		}
	}
	for q := range 2 {
		require.Equal(t, n-skip, whole.Count(q))
		whole.Mean(q, mean)
		require.NoError(t, whole.Cov(q, cov))
		at := func(r, a int) float64 { return float64(x[r*2*D+q*D+a]) }
		want := make([]float64, D)
		for a := range D {
			for r := skip; r < n; r++ {
				want[a] += at(r, a) / (n - skip)
			}
			require.InDelta(t, want[a], mean[a], 1e-9)
		}
		for a := range D {
			for b := range D {
				var c float64
				for r := skip; r < n; r++ {
					c += (at(r, a) - want[a]) * (at(r, b) - want[b]) / (n - skip)
				}
				require.InDelta(t, c, cov[a*D+b], 1e-6)
			}
		}
	}
	c := whole.Clone()
	lengths, before := make([]float64, D/2), make([]float64, D/2)
	whole.ChannelNorms(0, before)
	whole.Reset()
	require.Zero(t, whole.Count(0))
	require.Equal(t, n-skip, c.Count(0))
	c.ChannelNorms(0, lengths)
	require.Equal(t, before, lengths)
	whole.ChannelNorms(0, lengths)
	require.Zero(t, slices.Max(lengths), "no rows")
	whole.Add(0, 100, x, 1, D)
	require.NoError(t, whole.Cov(0, cov))
	require.Equal(t, make([]float64, D*D), cov, "one row has no spread")
	require.Error(t, NewQueryStats(1, D, 0, false, kernels.Detect()).Cov(0, cov))
}

// columnSumsBySlot adds up attention row by row, from its definition.
func columnSumsBySlot(l *Layer, q []float32, n int, decay float64) ([][]float64, [][]int64) {
	G, D := l.Group(), l.HeadDim
	sum, seen := make([][]float64, l.KVHeads), make([][]int64, l.KVHeads)
	for h := range sum {
		sum[h], seen[h] = make([]float64, l.T), make([]int64, l.T)
		for r := range n {
			for t := range l.T {
				sum[h][t] *= decay
			}
			for t := range r + 1 {
				seen[h][t]++
			}
			for g := range G {
				for t, a := range attentionOf(l, h, q[(r*l.Heads+h*G+g)*D:][:D], r) {
					sum[h][t] += a
				}
			}
		}
	}
	return sum, seen
}

func TestColumnSums(t *testing.T) {
	const T = 37
	l := randomAttention(T, 6, 2, 8)
	rng := rand.New(rand.NewPCG(2, 2))
	q := make([]float32, T*6*8)
	for i := range q {
		q[i] = float32(rng.NormFloat64())
	}
	for _, decay := range []float64{1, 0.9} {
		want, seen := columnSumsBySlot(l, q, T, decay)
		var first *ColumnSums
		for _, chunk := range []int{1, 3, 4, 5, T} {
			c := NewColumnSums(6, 2, decay)
			for lo := 0; lo < T; lo += chunk {
				part := *l
				part.T = min(lo+chunk, T) // what the cache holds by then
				for h := range 2 {
					require.NoError(t, c.Attend(context.Background(), &part, h, lo, q[lo*48:], part.T-lo, 48))
				}
			}
			if first == nil {
				first = c
			}
			require.Equal(t, first.sum, c.sum, "chunk %d", chunk)
			require.Equal(t, seen, c.seen, "chunk %d", chunk)
			for h := range want {
				for i := range want[h] {
					require.InDelta(t, want[h][i]/3, c.Mean(h, i), 1e-5, "head %d, slot %d", h, i)
				}
			}
		}
		d := first.Clone()
		d.Compact(0, []int32{1, 5, 36})
		require.Equal(t, 3, d.Len(0))
		require.Equal(t, []float64{first.sum[0][1], first.sum[0][5], first.sum[0][36]}, d.sum[0])
		require.EqualValues(t, []int64{36, 32, 1}, d.seen[0])
		require.Equal(t, T, first.Len(0))
	}
	require.Error(t, NewColumnSums(4, 4, 1).Attend(context.Background(), l, 0, 0, q, 1, 48), "another grouping")
}

// TestColumnSumsReserve: with room reserved, sums grow without new memory.
func TestColumnSumsReserve(t *testing.T) {
	c := NewColumnSums(2, 1, 1)
	c.Reserve(500)
	c.Grow(0, 1)
	first := &c.sum[0][0]
	c.Grow(0, 400)
	require.Same(t, first, &c.sum[0][0])
	c.Reserve(500)
	require.Same(t, first, &c.sum[0][0], "there was room already")
	require.Equal(t, 400, c.Len(0))
}

// TestQueryStatsOfOneRow: its mean is the row.
func TestQueryStatsOfOneRow(t *testing.T) {
	s := NewQueryStats(1, 4, 2, true, kernels.Detect()).KeepChannelNorms()
	mean, lengths, cov := make([]float64, 4), make([]float64, 2), make([]float64, 16)
	read := func() {
		s.Mean(0, mean)
		s.ChannelNorms(0, lengths)
		require.NoError(t, s.Cov(0, cov))
		require.Equal(t, make([]float64, 16), cov)
	}
	s.Add(0, 0, []float32{9, 9, 9, 9, 8, 8, 8, 8}, 2, 4)
	read()
	require.Zero(t, s.Count(0), "two rows are left out")
	require.Equal(t, make([]float64, 4), mean)
	require.Equal(t, make([]float64, 2), lengths)
	s.Add(0, 2, []float32{3, 5, 4, 12}, 1, 4)
	read()
	require.Equal(t, 1, s.Count(0))
	require.Equal(t, []float64{3, 5, 4, 12}, mean)
	require.Equal(t, []float64{5, 13}, lengths)
}

// TestQueryWindowRows: contiguous, oldest first, wherever the ring starts.
func TestQueryWindowRows(t *testing.T) {
	var s Scratch
	defer s.Close()
	require.Zero(t, NewQueryWindow(2, 1, -1).Cap())
	for _, w := range []*QueryWindow{NewQueryWindow(2, 1, 5), s.QueryWindow(2, 1, 5), (*Scratch)(nil).QueryWindow(2, 1, 5)} {
		require.Empty(t, w.Rows())
		for p := range 13 {
			w.Append(p, []float32{float32(p), float32(-p)})
			var want []float32
			for i := range w.Len() {
				want = append(want, w.Row(i, 0)[0], w.Row(i, 1)[0])
			}
			require.Equal(t, want, w.Rows())
		}
		w.Trim(0)
		require.Empty(t, w.Rows())
		w.Append(20, []float32{1, 2})
		require.Equal(t, []float32{1, 2}, w.Rows())
	}
}
