package lukv

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDefensiveKVMatchesDefinition follows the steps of the specification's section
// 3.11 one by one.
func TestDefensiveKVMatchesDefinition(t *testing.T) {
	const K, G, D, kernel = 2, 2, 6, 3
	for _, c := range []struct {
		T, window, effective, share int
		ratio, mass                 float64
	}{{24, 4, 4, 12, 0, 0.5}, {24, 4, 4, 12, 0, 1}, {24, 4, 4, 13, 0.45, 1}, {24, 4, 4, 5, 0, 0.9}, {24, 1, 1, 20, 0, 0.9}, {6, 6, 5, 3, 0, 0.9}, {5, 32, 4, 4, 0, 0.9}} {
		l := randomAttention(c.T, K*G, K, D)
		l.Share, l.Ratio = c.share, c.ratio
		keep := float64(c.share) / float64(c.T)
		if c.ratio > 0 {
			keep = 1 - c.ratio // before it was rounded
		}
		m := mustMetric(t, configured("defensivekv", "window", c.window, "kernel", kernel, "mass", c.mass))
		require.Equal(t, Protection{Window: c.effective}, m.Protection(c.T, 0))
		require.Equal(t, c.effective, m.Needs(c.T, 0).Window)
		got, err := Score(context.Background(), m, l)
		require.NoError(t, err)

		n, rows := c.T-c.effective, float64(c.effective*G)
		want, plain, own := make([][]float64, K), make([][]float64, K), 0.0
		for h := range K {
			want[h], plain[h] = make([]float64, n), make([]float64, n)
			for g := range G {
				for p := n; p < c.T; p++ {
					a := attentionOf(l, h, l.Queries.Row(p, h*G+g), p)[:n]
					pooled, sum, smooth := make([]float64, n), 0.0, 0.0
					for i := range a {
						for j := max(0, i-kernel/2); j <= min(n-1, i+kernel/2); j++ {
							pooled[i] += a[j] / kernel
						}
						sum += a[i]
						smooth += pooled[i]
						plain[h][i] += a[i] / rows
					}
					own += (1 - sum) / rows / K
					for i := range a {
						want[h][i] = max(want[h][i], pooled[i]*sum/smooth)
					}
				}
			}
			mean := 0.0
			for _, v := range want[h] {
				mean += v / float64(n)
			}
			for i, v := range want[h] {
				want[h][i] = max(v, mean)
			}
		}
		norms, top := [][]float64{normsOf(l, 0), normsOf(l, 1)}, 0.0
		for h := range K {
			for i := range n {
				want[h][i] *= norms[h][i] / (norms[0][i] + norms[1][i])
				top = max(top, want[h][i])
			}
		}
		first := 0
		for h := range K {
			total := 0.0
			for _, v := range plain[h] {
				total += v
			}
			order := make([]int, n)
			for i := range order {
				order[i] = i
			}
			slices.SortFunc(order, func(a, b int) int {
				if plain[h][a] > plain[h][b] {
					return -1
				}
				return 1
			})
			room, mass := max(0, int(float64(n)*keep-float64(c.effective))), 0.0
			for taken, i := range order {
				if mass += plain[h][i] / total; mass >= c.mass-own || taken >= room {
					break
				}
				want[h][i] = top
				first++
			}
		}
		require.Equal(t, c.share >= 12 && c.T == 24, first > 0, "%+v: %d are kept before the scores compete", c, first)
		for h := range K {
			for i, v := range got[h] {
				if i < n {
					require.InEpsilon(t, want[h][i], v, 1e-4, "%+v head %d entry %d", c, h, i)
				} else {
					require.True(t, math.IsInf(float64(v), 1), "%+v entry %d", c, i)
				}
			}
		}
	}
	for _, T := range []int{0, 1} {
		require.Zero(t, mustMetric(t, MetricConfig{Name: "defensivekv"}).Protection(T, 0))
	}
}

// TestDefensiveKVWithOneNaN: a NaN among the values costs only its own entry.
func TestDefensiveKVWithOneNaN(t *testing.T) {
	l := randomAttention(24, 4, 2, 6)
	l.Share = 12
	values := l.Values
	l.Values = func(h, lo, hi int, dst []float32) []float32 {
		x := slices.Clone(values(h, lo, hi, dst))
		if h == 0 && lo <= 5 && 5 < hi {
			x[(5-lo)*6] = float32(math.NaN())
		}
		return x
	}
	s, err := Score(context.Background(), mustMetric(t, configured("defensivekv", "window", 4)), l)
	require.NoError(t, err)
	require.Equal(t, 1, s.NaNs())
	require.True(t, math.IsNaN(float64(s[0][5])))
	for _, v := range s[1][:20] {
		require.LessOrEqual(t, v, float32(10))
	}
}
