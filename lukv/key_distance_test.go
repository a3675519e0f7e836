package lukv

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestKeyDistanceMatchesDefinition starts from unrotated keys, so the metric has
// to recover them despite rotation, yarn's factor and lost slots.
func TestKeyDistanceMatchesDefinition(t *testing.T) {
	const T, D, scale = 300, 6, 1.3
	l := randomAttention(T, 4, 2, D)
	l.RopeScale = scale
	rng := rand.New(rand.NewPCG(3, 9))
	pos := make([]int32, T)
	for i := range pos {
		pos[i] = int32(i + i/7)
	}
	plain := make([][]float64, 2)
	keys := make([][]float32, 2)
	for h := range plain {
		for i := range T {
			row := make([]float64, D)
			for j := range row {
				row[j] = rng.NormFloat64() + 2
			}
			plain[h] = append(plain[h], row...)
			for _, v := range rotate(row, 1, D, int(pos[i]), l.InvFreq) {
				keys[h] = append(keys[h], float32(v*scale))
			}
		}
	}
	l.Positions = func(int) []int32 { return pos }
	l.Keys = func(h, lo, hi int, _ []float32) []float32 { return keys[h][lo*D : hi*D] }
	for _, weighted := range []bool{false, true} {
		s, err := Score(context.Background(), mustMetric(t, configured("key_distance", "values", weighted)), l)
		require.NoError(t, err)
		for h := range plain {
			mean, values := make([]float64, D), make([]float64, D)
			v := l.Values(h, 0, T, nil)
			for i := range T {
				for j := range D {
					mean[j] += plain[h][i*D+j] / T
					values[j] += float64(v[i*D+j]) / T
				}
			}
			for i := range T {
				want := 0.0
				for j := range D {
					d := plain[h][i*D+j] - mean[j]
					want += d * d
				}
				if weighted {
					sum := 0.0
					for q := 2 * h; q < 2*h+2; q++ {
						w := l.Output(q, 0, l.OutputDim, nil)
						for m := range l.OutputDim {
							y := 0.0
							for j := range D {
								y += (float64(v[i*D+j]) - values[j]) * float64(w[m*D+j])
							}
							sum += y * y
						}
					}
					want *= math.Sqrt(sum)
				}
				require.InEpsilon(t, want, s[h][i], 1e-4, "values %t, head %d, entry %d", weighted, h, i)
			}
		}
	}
	l.InvFreq = l.InvFreq[:1]
	_, err := Score(context.Background(), keyDistance{}, l)
	require.ErrorContains(t, err, "found 1 rope frequencies, expected half of head dimension 6")
}
