package lukv

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCAKEMatchesDefinition: mean and γ times the unbiased variance of the attention
// that the last queries pay to the entries before them, pooled with zeros beyond the
// ends, averaged over the group. In a text no longer than the window, the window is
// one entry shorter than the text; a single row has no variance.
func TestCAKEMatchesDefinition(t *testing.T) {
	const G, gamma = 2, 7.0
	for _, c := range []struct{ T, window, effective int }{{20, 6, 6}, {20, 2, 2}, {20, 1, 1}, {6, 6, 5}, {5, 32, 4}, {2, 32, 1}} {
		l := randomAttention(c.T, 2*G, 2, 8)
		m := mustMetric(t, configured("cake", "window", c.window, "kernel", 3, "gamma", gamma))
		require.Equal(t, Protection{Window: c.effective}, m.Protection(c.T, 0))
		require.Equal(t, c.effective, m.Needs(c.T, 0).Window)
		got, err := Score(context.Background(), m, l)
		require.NoError(t, err)
		n := c.T - c.effective
		for h := range 2 {
			want := make([]float64, n)
			for g := range G {
				x := make([]float64, n+2) // a zero at each end
				for column := range n {
					var paid []float64
					mean, variance := 0.0, 0.0
					for p := n; p < c.T; p++ {
						paid = append(paid, attentionOf(l, h, l.Queries.Row(p, h*G+g), p)[column])
						mean += paid[len(paid)-1] / float64(c.effective)
					}
					for _, a := range paid {
						if c.effective > 1 {
							variance += (a - mean) * (a - mean) / float64(c.effective-1)
						}
					}
					x[column+1] = mean + gamma*variance
				}
				for column := range n {
					want[column] += (x[column] + x[column+1] + x[column+2]) / 3 / G
				}
			}
			for i := range c.T {
				if i < n {
					require.InEpsilon(t, want[i], got[h][i], 1e-4, "%+v head %d entry %d", c, h, i)
				} else {
					require.True(t, math.IsInf(float64(got[h][i]), 1), "%+v entry %d", c, i)
				}
			}
		}
	}
	for _, T := range []int{0, 1} {
		require.Zero(t, mustMetric(t, MetricConfig{Name: "cake"}).Protection(T, 0))
	}
}
