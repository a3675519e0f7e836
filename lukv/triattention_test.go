package lukv

import (
	"context"
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// triAttentionOf computes the published definition: for every frequency f the
// amplitude ‖E q_f‖·‖k_f‖ times cos(ω_f(Δ+δ) + φ_f), φ_f the angle between the
// unrotated centre and key, averaged over δ = 1, 2, 4 …; plus (E‖q_f‖-‖E q_f‖)·‖k_f‖;
// the head's scores with mean 0 and deviation 1, the largest over the group.
func triAttentionOf(l *Layer, h, first, future int, centers []queryCenter) []float64 {
	D, G, T := l.HeadDim, l.Group(), l.Len(h)
	keys := unrotatedKeys(l, h, 0, T)
	out := make([]float64, T)
	for q := h * G; q < (h+1)*G; q++ {
		row := make([]float64, 0, T)
		for t := first; t < T; t++ {
			sum := 0.0
			for f, w := range l.InvFreq {
				qa, qb := centers[q].Mean[f], centers[q].Mean[D/2+f]
				ka, kb := keys[t][f], keys[t][D/2+f]
				length, center := math.Hypot(ka, kb), math.Hypot(qa, qb)
				phase := math.Atan2(qb, qa) - math.Atan2(kb, ka)
				for i := range future {
					distance := float64(l.NextPosition - 1 - t + 1<<i)
					sum += center * length * math.Cos(w*distance+phase) / float64(future)
				}
				sum += (centers[q].Lengths[f] - center) * length
			}
			row = append(row, sum)
		}
		for i, v := range zScores([][]float64{row})[0] {
			if q == h*G || v > out[first+i] {
				out[first+i] = v
			}
		}
	}
	return out
}

func TestTriAttentionMatchesDefinition(t *testing.T) {
	const T, D, H, sinks, future = 40, 6, 4, 3, 5
	l := randomAttention(T, H, 2, D)
	l.NextPosition = 55
	// Of what passed by: the root of the mean square stands for the mean length.
	centers := make([]queryCenter, H)
	cov := make([]float64, D*D)
	for q := range centers {
		centers[q] = queryCenter{Mean: make([]float64, D), Lengths: make([]float64, D/2)}
		l.Stats.Mean(q, centers[q].Mean)
		require.NoError(t, l.Stats.Cov(q, cov))
		for f := range D / 2 {
			a, b := centers[q].Mean[f], centers[q].Mean[D/2+f]
			centers[q].Lengths[f] = math.Sqrt(a*a + b*b + cov[f*D+f] + cov[(D/2+f)*(D+1)])
		}
	}
	check := func(m Metric, centers []queryCenter) {
		got, err := Score(context.Background(), m, l)
		require.NoError(t, err)
		for h := range 2 {
			want := triAttentionOf(l, h, sinks, future, centers)
			for i := range T {
				if i < sinks {
					require.True(t, math.IsInf(float64(got[h][i]), 1))
					continue
				}
				require.InDelta(t, want[i], got[h][i], 1e-4, "head %d slot %d", h, i)
			}
		}
	}
	check(mustMetric(t, configured("triattention", "future", future, "sinks", sinks)), centers)

	// From calibration: nothing of the queries is read.
	for q := range centers {
		centers[q].Mean[q%D] += 2
		for f := range centers[q].Lengths {
			centers[q].Lengths[f] += 2 + float64(f)
		}
	}
	layers := [][]queryCenter{centers}
	m := mustMetric(t, configured("triattention", "future", future, "sinks", sinks, "centers", layers))
	require.Equal(t, Needs{Keys: true}, m.Needs(T, 0))
	l.Stats = nil
	check(m, centers)
	data, err := json.Marshal(MetricConfigOf(m))
	require.NoError(t, err)
	again, err := ParseMetricConfig(string(data))
	require.NoError(t, err)
	require.Equal(t, m, mustMetric(t, again))
	l.Index = 1
	_, err = Score(context.Background(), m, l)
	require.ErrorContains(t, err, "score layer 1 with triattention: found centers of 1 layers of 4 query heads × 6, expected more layers of 4 × 6")
}
