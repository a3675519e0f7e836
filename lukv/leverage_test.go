package lukv

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// zScores returns x scaled to mean 0 and deviation 1 over everything.
func zScores(x [][]float64) [][]float64 {
	var all []float64
	for _, row := range x {
		all = append(all, row...)
	}
	mean, square := 0.0, 0.0
	for _, v := range all {
		mean += v / float64(len(all))
	}
	for _, v := range all {
		square += (v - mean) * (v - mean) / float64(len(all)-1)
	}
	out := make([][]float64, len(x))
	for h, row := range x {
		for _, v := range row {
			out[h] = append(out[h], (v-mean)/math.Sqrt(square))
		}
	}
	return out
}

// leverages solves the normal equations of every row by elimination.
func leverages(rows [][]float64, ridge float64) []float64 {
	D, n := len(rows[0]), float64(len(rows))
	mean := make([]float64, D)
	for _, r := range rows {
		for i, v := range r {
			mean[i] += v / n
		}
	}
	out := make([]float64, len(rows))
	for t, r := range rows {
		a := make([][]float64, D) // [Gram | x]
		for i := range a {
			a[i] = make([]float64, D+1)
			a[i][i] = ridge
			a[i][D] = r[i] - mean[i]
			for j := range D {
				for _, x := range rows {
					a[i][j] += (x[i] - mean[i]) * (x[j] - mean[j])
				}
			}
		}
		for i := range D {
			for j := range D {
				if j != i {
					f := a[j][i] / a[i][i]
					for k := range a[j] {
						a[j][k] -= f * a[i][k]
					}
				}
			}
		}
		for i := range D {
			out[t] += (r[i] - mean[i]) * a[i][D] / a[i][i]
		}
	}
	return out
}

// unrotatedKeys returns the keys of a head with the rotation undone, by rotating
// back.
func unrotatedKeys(l *Layer, h, lo, hi int) [][]float64 {
	D := l.HeadDim
	var out [][]float64
	for i := lo; i < hi; i++ {
		key := l.Keys(h, i, i+1, make([]float32, D))
		x := make([]float64, D)
		for f, w := range l.InvFreq {
			s, c := math.Sincos(-float64(i) * w)
			a, b := float64(key[f]), float64(key[D/2+f])
			x[f], x[D/2+f] = c*a-s*b, s*a+c*b
		}
		out = append(out, x)
	}
	return out
}

func TestLeverageMatchesDefinition(t *testing.T) {
	for _, T := range []int{3, 40} { // fewer keys than channels, too
		l := randomAttention(T, 4, 2, 6)
		s, err := Score(context.Background(), mustMetric(t, configured("leverage", "ridge", 0.5)), l)
		require.NoError(t, err)
		x := [][]float64{leverages(unrotatedKeys(l, 0, 0, T), 0.5), leverages(unrotatedKeys(l, 1, 0, T), 0.5)}
		for h, row := range zScores(x) {
			for i, want := range row {
				require.InDelta(t, want, s[h][i], 2e-4, "T=%d head %d slot %d", T, h, i)
			}
		}
	}
}

// TestLeverageFindsTheOutlier: among many keys in one direction and one in
// another, that one is worth the most, and equal keys do not break the
// factorisation.
func TestLeverageFindsTheOutlier(t *testing.T) {
	l := randomAttention(300, 1, 1, 4)
	keys := make([]float32, 300*4)
	for i := range 300 {
		keys[i*4] = 100
	}
	keys[17*4+1] = 3
	l.InvFreq = []float64{0, 0}
	l.Keys = func(_, lo, hi int, _ []float32) []float32 { return keys[lo*4 : hi*4] }
	s, err := Score(context.Background(), mustMetric(t, MetricConfig{Name: "leverage"}), l)
	require.NoError(t, err)
	require.Equal(t, []int32{17}, Keep(nil, s[0], 1, Protection{}))
	clear(keys)
	s, err = Score(context.Background(), mustMetric(t, MetricConfig{Name: "leverage"}), l)
	require.NoError(t, err)
	require.Zero(t, s.NaNs())
}

// TestCompactorMatchesDefinition adds up the attention within chunks in both
// directions, unscaled.
func TestCompactorMatchesDefinition(t *testing.T) {
	const T, D, G, sinks, window, chunk = 30, 6, 2, 3, 2, 8
	l := randomAttention(T, 2*G, 2, D)
	m := mustMetric(t, configured("compactor", "sinks", sinks, "window", window, "chunk", chunk, "blending", 0.7, "ridge", 0.5))
	got, err := Score(context.Background(), m, l)
	require.NoError(t, err)
	geometry, attention := make([][]float64, 2), make([][]float64, 2)
	n := T - sinks - window
	for h := range 2 {
		geometry[h] = leverages(unrotatedKeys(l, h, sinks, T-window), 0.5)
		raw := make([]float64, n)
		for q := h * G; q < (h+1)*G; q++ {
			for i := range n {
				from := i / chunk * chunk
				e, sum := make([]float64, n), 0.0
				for j := from; j < min(from+chunk, n); j++ {
					z := 0.0
					for c, k := range l.Keys(h, sinks+j, sinks+j+1, nil) {
						z += float64(k) * float64(l.Queries.Row(sinks+i, q)[c])
					}
					e[j] = math.Exp(z)
					sum += e[j]
				}
				for j := range raw {
					raw[j] += e[j] / sum / G
				}
			}
		}
		for j := range raw {
			raw[j] *= math.Sqrt(sumSquares(l.Values(h, sinks+j, sinks+j+1, nil)))
		}
		attention[h] = make([]float64, n)
		for j := range raw {
			for _, o := range []int{j - 1, j, j + 1} {
				if o >= 0 && o < n {
					attention[h][j] += raw[o] / 3
				}
			}
		}
	}
	geometry, attention = zScores(geometry), zScores(attention)
	for h := range 2 {
		for i := range T {
			if i < sinks || i >= T-window {
				require.True(t, math.IsInf(float64(got[h][i]), 1))
				continue
			}
			require.InDelta(t, attention[h][i-sinks]+0.7*geometry[h][i-sinks], got[h][i], 1e-3, "head %d slot %d", h, i)
		}
	}
	l.Queries.Trim(T - 1)
	_, err = Score(context.Background(), m, l)
	require.ErrorContains(t, err, "found 29 queries of 30 entries, expected those of a whole prefill")
	_, err = (&Policy{Metric: MetricConfigOf(m), Decode: DecodeConfig{Mode: "periodic"}}).Compile("m", CacheShape{Layers: 1, KVHeads: 2})
	require.ErrorContains(t, err, "found compactor, which reads a whole context at once")
}

// TestCompactorMemory: a chunk of the whole text takes memory in proportion to it.
func TestCompactorMemory(t *testing.T) {
	const T = 2000
	l := randomAttention(T, 1, 1, 4)
	l.Scratch = new(Scratch)
	defer l.Scratch.Close()
	_, err := Score(context.Background(), mustMetric(t, configured("compactor", "chunk", 1<<16)), l)
	require.NoError(t, err)
	most := 0
	for _, w := range l.Scratch.idle {
		for _, b := range w.blocks {
			most = max(most, len(b.mem))
		}
	}
	require.Less(t, most, 100*T)
}
