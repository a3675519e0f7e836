package lukv

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv/solve"
)

func TestSweepRepairAndScopes(t *testing.T) {
	importance, scores := syntheticModel(3, 2, 300, 7)
	prot := Protection{Sinks: 4, Window: 1}
	ctx := t.Context()
	plain, err := solveLevels(ctx, importance, scores, prot, solve.SweepOptions{}, nil)
	require.NoError(t, err)
	repaired, err := solveLevels(ctx, importance, scores, prot, solve.SweepOptions{Repair: true}, nil)
	require.NoError(t, err)
	layered, err := solveLevels(ctx, importance, scores, prot, solve.SweepOptions{Scope: solve.ScopePerLayer}, nil)
	require.NoError(t, err)
	moves := 0
	for i := range solve.Levels {
		total, totalRepaired := 0, 0
		for l := range plain.Keep[i] {
			layer := 0
			for h, b := range plain.Keep[i][l] {
				require.GreaterOrEqual(t, b, 5)
				total += b
				totalRepaired += repaired.Keep[i][l][h]
				layer += layered.Keep[i][l][h]
			}
			want := 600 - int(math.RoundToEven(float64(i+1)/100*600))
			require.Equal(t, max(want, 10), layer, "level %d layer %d", i+1, l)
		}
		require.Equal(t, max(1800-int(math.RoundToEven(float64(i+1)/100*1800)), 30), total)
		require.Equal(t, total, totalRepaired)
		require.LessOrEqual(t, repaired.Loss[i], plain.Loss[i])
		require.GreaterOrEqual(t, repaired.Loss[i], plain.Bound[i]-1e-6)
		require.GreaterOrEqual(t, layered.Loss[i], plain.Bound[i]-1e-6)
		moves += repaired.Moves[i]
	}
	require.Positive(t, moves)
}

// TestSweepExcludesLayers: a layer without curves takes no part and gets 0.
func TestSweepExcludesLayers(t *testing.T) {
	importance, scores := syntheticModel(3, 2, 100, 1)
	with, err := solveLevels(t.Context(), [][][]float32{importance[0], nil, importance[2]}, scores, Protection{}, solve.SweepOptions{}, nil)
	require.NoError(t, err)
	without, err := solveLevels(t.Context(), [][][]float32{importance[0], importance[2]}, [][][]float32{scores[0], scores[2]}, Protection{}, solve.SweepOptions{}, nil)
	require.NoError(t, err)
	for i := range solve.Levels {
		require.Equal(t, []int{0, 0}, with.Keep[i][1])
		require.Equal(t, without.Keep[i][0], with.Keep[i][0])
		require.Equal(t, without.Keep[i][1], with.Keep[i][2])
		require.Equal(t, without.Loss[i], with.Loss[i])
	}
}

func TestLossCurveErrors(t *testing.T) {
	ok := []float32{1, 2}
	for name, err := range map[string]error{
		"1 scores for 2":    second(lossCurve(ok, []float32{1}, Protection{})),
		"importance NaN":    second(lossCurve([]float32{1, float32(math.NaN())}, ok, Protection{})),
		"importance -1":     second(lossCurve([]float32{1, -1}, ok, Protection{})),
		"scores of 1 heads": second(lossCurves(t.Context(), [][][]float32{{ok, ok}}, [][][]float32{{ok}}, Protection{}, nil)),
	} {
		require.ErrorContains(t, err, name)
	}
	importance, scores := syntheticModel(1, 1, 10, 1)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := solveLevels(done, importance, scores, Protection{}, solve.SweepOptions{}, nil)
	require.ErrorIs(t, err, context.Canceled)
}

func second[T any](_ T, err error) error { return err }

// syntheticModel draws importances with a heavy tail and scores that are
// correlated with them, [L][K][T].
func syntheticModel(layers, kvHeads, T int, seed uint64) (importance, scores [][][]float32) {
	rng := rand.New(rand.NewPCG(seed, 99))
	for l := range layers {
		var imp, sc [][]float32
		for h := range kvHeads {
			a, b := make([]float32, T), make([]float32, T)
			sharp := 1 + float64((l*kvHeads+h)%5)
			for t := range a {
				v := math.Pow(rng.Float64(), 2*sharp)
				a[t] = float32(v)
				b[t] = float32(v*0.7 + 0.3*rng.Float64())
			}
			imp, sc = append(imp, a), append(sc, b)
		}
		importance, scores = append(importance, imp), append(scores, sc)
	}
	return importance, scores
}

func BenchmarkSweep(b *testing.B) {
	importance, scores := syntheticModel(32, 8, 1024, 5)
	for name, opt := range map[string]solve.SweepOptions{"greedy": {}, "repair": {Repair: true}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := solveLevels(context.Background(), importance, scores, Protection{Sinks: 4, Window: 1}, opt, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
