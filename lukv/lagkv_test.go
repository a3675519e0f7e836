package lukv

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLagKVMatchesDefinition computes the scores channel by channel: the rows of
// a partition in the range of the next one, their deviation, a softmax over the
// partition, the mean of keys and values.
func TestLagKVMatchesDefinition(t *testing.T) {
	const T, D, sinks, lag = 23, 4, 2, 5 // partitions at 2, 7, 12; 17 to 21 follow the last; 22 is left
	l := randomAttention(T, 4, 2, D)
	m := mustMetric(t, configured("lagkv", "sinks", sinks, "lag", lag, "cross", true))
	got, err := Score(context.Background(), m, l)
	require.NoError(t, err)
	for h := range 2 {
		want := make([]float64, T)
		for _, rows := range [][]float32{l.Keys(h, 0, T, nil), l.Values(h, 0, T, nil)} {
			for p := sinks; p < 17; p += lag {
				e, sum := make([]float64, lag), 0.0
				for i := range lag {
					x := make([]float64, D)
					mean := 0.0
					for c := range D {
						low, high := math.Inf(1), math.Inf(-1)
						for r := p + lag; r < p+2*lag; r++ {
							low, high = min(low, float64(rows[r*D+c])), max(high, float64(rows[r*D+c]))
						}
						x[c] = (float64(rows[(p+i)*D+c]) - low) / (high - low)
						mean += x[c] / D
					}
					v := 0.0
					for _, y := range x {
						v += (y - mean) * (y - mean) / (D - 1)
					}
					e[i] = math.Exp(math.Sqrt(v))
					sum += e[i]
				}
				for i := range lag {
					want[p+i] += e[i] / sum / 2
				}
			}
		}
		for i := sinks; i < 17; i++ {
			require.InDelta(t, want[i], got[h][i], 1e-6, "slot %d", i)
		}
		require.Greater(t, got[h][17], float32(1), "what follows the last partition ranks above all partitions")
		require.False(t, math.IsInf(float64(got[h][17]), 1))
		for _, i := range []int{0, 1, 18, 22} {
			require.True(t, math.IsInf(float64(got[h][i]), 1), "slot %d", i)
		}
		ranked, err := Score(context.Background(), mustMetric(t, configured("lagkv", "sinks", sinks, "lag", lag)), l)
		require.NoError(t, err)
		for p := sinks; p < 17; p += lag {
			sum := float32(0)
			for i := range lag {
				sum += ranked[h][p+i]
				for j := range lag {
					if want[p+i] > want[p+j] {
						require.Greater(t, ranked[h][p+i], ranked[h][p+j])
					}
				}
			}
			require.InDelta(t, 2, sum, 1e-6, "0, 0.2 … 0.8 once each: every partition keeps its share")
		}
	}
}

// TestLagKVOfShortTexts: with fewer than two partitions the newest entries stay.
func TestLagKVOfShortTexts(t *testing.T) {
	l := randomAttention(11, 2, 1, 4)
	m := mustMetric(t, configured("lagkv", "sinks", 2, "lag", 5))
	s, err := Score(context.Background(), m, l)
	require.NoError(t, err)
	require.Equal(t, []int32{0, 1, 5, 6, 7, 8, 9, 10}, Keep(nil, s[0], 8, m.Protection(11, 8)))
	require.Equal(t, []int32{0, 1, 8, 9, 10}, Keep(nil, s[0], 5, m.Protection(11, 5)))
	// A channel that never changes says nothing, and nothing is divided by its
	// range.
	flat := make([]float32, 11*4)
	l.Keys = func(_, lo, hi int, _ []float32) []float32 { return flat[lo*4 : hi*4] }
	s, err = Score(context.Background(), mustMetric(t, configured("lagkv", "sinks", 0, "lag", 2)), l)
	require.NoError(t, err)
	require.Zero(t, s.NaNs())
}
