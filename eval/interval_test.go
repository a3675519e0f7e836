package eval

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWilsonSolvesItsEquation: the bounds are the proportions x that lie
// exactly z standard deviations from the observed one, (p-x)² = z²·x(1-x)/n.
func TestWilsonSolvesItsEquation(t *testing.T) {
	const z = 1.959963984540054
	for _, n := range []float64{1, 3.2, 12, 400} {
		for _, p := range []float64{0, 0.1, 0.5, 0.7, 1} {
			low, high := wilson(p, n)
			require.LessOrEqual(t, low, p)
			require.GreaterOrEqual(t, high, p)
			for _, x := range []float64{low, high} {
				if x == 0 || x == 1 {
					require.Equal(t, p, x, "a bound at the end")
					continue
				}
				require.InDelta(t, z*math.Sqrt(x*(1-x)/n), math.Abs(p-x), 1e-12, "p %v, n %v", p, n)
			}
		}
	}
}

// TestMiddle: of 40 equal parts, the first and the last are left out.
func TestMiddle(t *testing.T) {
	x := make([]float64, resamples)
	for i := range x {
		x[i] = float64(resamples - i) // from the largest, 1 … resamples
	}
	low, high := middle(x)
	require.Equal(t, float64(resamples/40+1), low)
	require.Equal(t, float64(resamples-resamples/40), high)
}

// TestResamplesOfEqualScores do not vary, and each group counts once.
func TestResamplesOfEqualScores(t *testing.T) {
	low, high := bootstrap([][]float64{{1, 1, 1}, {0.5}})
	require.Equal(t, [2]float64{0.75, 0.75}, [2]float64{low, high})
	low, high = pooled([][]float64{{0.5, 0.5}, {0.5, 0.5}})
	require.InDelta(t, 0.5, low, 1e-12)
	require.InDelta(t, 0.5, high, 1e-12)
	// Items of large groups weigh less: all four sums of two draws from 3/4 and 1/4.
	low, high = pooled([][]float64{{1.5}, {0.5}})
	require.InDelta(t, 0.5, low, 1e-12)
	require.InDelta(t, 1.5, high, 1e-12)
}
