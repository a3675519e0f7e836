package lukv

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCAKEBudgets: what the window leaves of the budget is divided in proportion to
// the preferences, rounded down and then repaired once, computed by hand.
func TestCAKEBudgets(t *testing.T) {
	const T, window = 20, 4
	for _, c := range []struct {
		weights []float64
		total   int // entries of a head in all layers, including those of the window
		want    []int
	}{
		{[]float64{1, 3}, 8 + 2*window, []int{2, 6}},
		{[]float64{1, 1, 1}, 10 + 3*window, []int{4, 3, 3}},        // one is left and goes to the lowest layer
		{[]float64{math.Pi, math.E}, 11 + 2*window, []int{6, 5}},   // 5.9 and 5.1
		{[]float64{1, 9}, 20 + 2*window, []int{4, 16}},             // no layer has more than 16 beside the window
		{[]float64{1, 1, 18}, 35 + 3*window, []int{10, 9, 16}},     // 1, 1, 31: 15 too many for two layers
		{[]float64{12, 1, 27}, 45 + 3*window, []int{16, 9, 16}},    // 13, 1, 30: 14 too many lift the first above 16
		{[]float64{5, 0, 0}, 17 + 3*window, []int{16, 1, 0}},       // one too many
		{[]float64{0, 5, 0, 0}, 20 + 4*window, []int{2, 16, 1, 1}}, // four too many for three layers
		{[]float64{0, 0, 0, 0}, 10 + 4*window, []int{3, 3, 2, 2}},  // nothing is preferred
		{[]float64{1, 2}, 2*window - 1, []int{0, -1}},              // the windows do not fit, and the total holds
	} {
		d := Demand{T: T, Layers: len(c.weights), KVHeads: 2, Absolute: true, Entries: 2 * c.total, Weights: c.weights, Protection: Protection{Window: window}}
		scores := make([]Scores, d.Layers)
		for l := range scores {
			scores[l] = Scores{make([]float32, T), make([]float32, T)}
		}
		got, err := Allocate(mustAllocator(t, "cake"), d, scores)
		require.NoError(t, err)
		for l, n := range c.want {
			require.Equal(t, []int{n + window, n + window}, got[l], "%+v layer %d", c, l)
		}
	}
}

// TestCAKEPreference: the dispersion of the last queries' attention to what
// precedes them, and the sum of its variances, each to the power of one over its
// temperature, over all query heads of the layer.
func TestCAKEPreference(t *testing.T) {
	const T, G, tau1, tau2 = 14, 2, 1.6, 0.6
	l := randomAttention(T, 2*G, 2, 8)
	for _, window := range []int{5, 40} {
		w := min(window, T-1)
		dispersion, shift := 0.0, 0.0
		for q := range 2 * G {
			rows := make([][]float64, w)
			for i := range rows {
				rows[i] = attentionOf(l, q/G, l.Queries.Row(T-w+i, q), T-w+i)[:T-w]
			}
			for column := range T - w {
				mean := 0.0
				for _, row := range rows {
					mean += row[column] / float64(w)
					dispersion -= row[column] * math.Log(row[column]+1e-10)
				}
				for _, row := range rows {
					shift += (row[column] - mean) * (row[column] - mean) / float64(w-1)
				}
			}
		}
		a := mustAllocator(t, "cake", "window", window)
		got, err := Weigh(context.Background(), a, l)
		require.NoError(t, err)
		require.InEpsilon(t, math.Pow(dispersion, 1/tau1)*math.Pow(shift, 1/tau2), got, 1e-5)
		require.Equal(t, w, ObserverOf(a).Needs(T, 0).Window)
	}
	short, err := Weigh(context.Background(), mustAllocator(t, "cake", "window", 1), l)
	require.NoError(t, err)
	require.Zero(t, short, "a single row does not shift")
	none, err := Weigh(context.Background(), mustAllocator(t, "uniform"), l)
	require.NoError(t, err)
	require.Zero(t, none)
	require.Nil(t, ObserverOf(mustAllocator(t, "uniform")))
	l.Keys = nil
	_, err = Weigh(context.Background(), mustAllocator(t, "cake"), l)
	require.ErrorContains(t, err, "score layer 0 with cake: keys are missing")
}
