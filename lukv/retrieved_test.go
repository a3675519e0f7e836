package lukv

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRetrievedMatchesDefinition counts, for each entry of the fact, the entries that
// come before it.
func TestRetrievedMatchesDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(4, 4))
	for range 200 {
		n, steps := 2+rng.IntN(20), 1+rng.IntN(4)
		from := rng.IntN(n)
		to := from + 1 + rng.IntN(n-from)
		probs := make([]float32, steps*n)
		for i := range probs {
			probs[i] = float32(rng.IntN(6)) / 8 // with ties
		}
		want := 0.0
		for s := range steps {
			row := probs[s*n : (s+1)*n]
			for j := from; j < to; j++ {
				before := 0
				for i, v := range row {
					if v > row[j] || v == row[j] && i < j {
						before++
					}
				}
				if before < to-from {
					want += float64(row[j]) / float64(to-from)
				}
			}
		}
		require.InDelta(t, want, Retrieved(probs, n, from, to), 1e-12)
	}
	// By hand: both of the two largest of the first step are in the fact, one of the
	// second's is.
	require.InDelta(t, (0.5+0.3+0.4)/2, Retrieved([]float32{.1, .5, .3, .1, .5, .4, .1, 0}, 4, 1, 3), 1e-7)
}
