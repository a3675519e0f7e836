package sampling

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDivergence(t *testing.T) {
	logits := func(p ...float64) []float32 {
		var out []float32
		for _, v := range p {
			out = append(out, float32(math.Log(v)))
		}
		return out
	}
	p, q := logits(.7, .2, .1), logits(.5, .3, .2)
	require.InDelta(t, .08512, DivergenceGiven(p, q, LogSumExp(p)), 5e-6)
	require.Zero(t, DivergenceGiven(p, p, LogSumExp(p)))
	sure := []float32{0, float32(math.Inf(-1))}
	require.InDelta(t, math.Log(2), DivergenceGiven(sure, []float32{1, 1}, LogSumExp(sure)), 1e-12)
}
