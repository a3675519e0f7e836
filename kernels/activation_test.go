package kernels

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestActivationsFollowTheirFormulas compares with float64, far outside the usual range, too.
func TestActivationsFollowTheirFormulas(t *testing.T) {
	for _, x := range []float64{0, 1e-4, -1e-4, 0.3, -0.3, 1, -1, 2.5, -2.5, 7, -7, 40, -40, 1e4, -1e4} {
		got := []float32{0}
		CPU{}.Gated(GELUTanh, got, []float32{float32(x)}, []float32{2})
		want := x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		require.InDelta(t, want, float64(got[0]), 4e-7*(1+math.Abs(want)), "GELU of %g", x)

		for _, limit := range []float64{0.5, 30, 72} {
			capped := []float32{float32(x)}
			CPU{}.SoftCap(capped, float32(limit))
			require.InDelta(t, limit*math.Tanh(x/limit), float64(capped[0]), 3e-7*limit, "%g capped at %g", x, limit)
			require.LessOrEqual(t, math.Abs(float64(capped[0])), limit)
		}
	}
}

func TestRoute(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(-1))
	for _, c := range []struct {
		logits []float32
		want   []int32
	}{
		{[]float32{1, 3, 2}, []int32{1, 2}},
		{[]float32{2, 2, 2, 2}, []int32{0, 1, 2}}, // the lower index wins ties
		{[]float32{-1, 5, 5, 0}, []int32{1, 2}},
		{[]float32{4}, []int32{0}},
		{[]float32{inf, inf, 0}, []int32{2, 0}},
		{[]float32{nan, 1, nan, 2}, []int32{3, 1, 0}},
	} {
		experts, weights := make([]int32, len(c.want)), make([]float32, len(c.want))
		Route(experts, weights, c.logits, false)
		require.Equal(t, c.want, experts, "%v", c.logits)
		if c.logits[0] != c.logits[0] {
			continue
		}
		sum := 0.0
		for _, v := range c.logits {
			sum += math.Exp(float64(v))
		}
		all := float32(0)
		for i, x := range experts {
			require.InDelta(t, math.Exp(float64(c.logits[x]))/sum, float64(weights[i]), 1e-6)
			all += weights[i]
		}
		before := append([]float32(nil), weights...)
		Route(experts, weights, c.logits, true)
		for i := range weights {
			require.Equal(t, before[i]/all, weights[i])
		}
	}
}
