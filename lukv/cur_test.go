package lukv

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCURMatchesDefinition(t *testing.T) {
	const T, D = 11, 4
	l := randomAttention(T, 2, 1, D)
	square := func(rows []float32) []float64 {
		x := make([]float64, T)
		for i, v := range rows {
			x[i/D] += float64(v) * float64(v)
		}
		return x
	}
	local := func(x []float64) []float64 {
		out := make([]float64, T)
		for i := range x {
			sum := 0.0
			for j := i / 4 * 4; j < min(i/4*4+4, T); j++ {
				sum += x[j]
			}
			out[i] = x[i] / sum
		}
		return out
	}
	keys, values := square(l.Keys(0, 0, T, nil)), square(l.Values(0, 0, T, nil))
	for of, combine := range map[string]func(k, v float64) float64{
		"product": func(k, v float64) float64 { return k * v },
		"mean":    func(k, v float64) float64 { return (k + v) / 2 },
		"key":     func(k, v float64) float64 { return k },
		"value":   func(k, v float64) float64 { return v },
	} {
		for _, size := range []int{0, 4} {
			k, v := keys, values
			if size > 0 {
				k, v = local(keys), local(values)
			}
			want, sum := make([]float64, T), 0.0
			for i := range want {
				want[i] = combine(k[i], v[i])
				sum += want[i]
			}
			got, err := Score(context.Background(), mustMetric(t, configured("cur", "of", of, "local", size)), l)
			require.NoError(t, err)
			for i := range want {
				require.InEpsilon(t, want[i]/sum, got[0][i], 1e-6, "%s, local %d, slot %d", of, size, i)
			}
		}
	}
	m := mustMetric(t, MetricConfig{Name: "cur"})
	require.Equal(t, Protection{Sinks: 4}, m.Protection(100, 0))
	zero := *l
	zero.Values = func(_, lo, hi int, _ []float32) []float32 { return make([]float32, (hi-lo)*D) }
	s, err := Score(context.Background(), m, &zero)
	require.NoError(t, err)
	require.Zero(t, s.NaNs(), "values of length 0")
}
