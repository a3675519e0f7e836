package solve

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

type solverCase struct {
	Style     string      `json:"style"`
	Floor     int         `json:"floor"`
	Gains     [][]float32 `json:"gains_in_metric_order"`
	Projected [][]float64 `json:"projected_gains"`
	Runs      []struct {
		Budget      int      `json:"budget"`
		Greedy      []int    `json:"greedy"`
		RelaxedLoss *float64 `json:"greedy_relaxed_loss"`
		RawLoss     float64  `json:"greedy_raw_loss"`
		OptimalLoss float64  `json:"optimal_raw_loss"`
		OptimalLex  []int    `json:"optimal_lex_smallest"`
	} `json:"runs"`
}

func TestGoldenSolvers(t *testing.T) {
	var golden struct {
		Free    []solverCase `json:"free"`
		Floored []solverCase `json:"floored"`
	}
	dir := os.Getenv("LUKV_GOLDEN_EVICTION")
	if dir == "" {
		dir = filepath.Join("..", "testdata", "eviction")
	}
	raw, err := os.ReadFile(filepath.Join(dir, "solvers.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	checks := 0

	ctx := t.Context()
	for i, c := range append(golden.Free, golden.Floored...) {
		name := fmt.Sprintf("case %d (%s, floor %d)", i, c.Style, c.Floor)
		// The floored cases give every head its floor first and project the
		// rest, which is what protected entries are.
		curves := make([]*Curve, len(c.Gains))
		for h, g := range c.Gains {
			var err error
			curves[h], err = NewCurve(g[c.Floor:], c.Floor)
			require.NoError(t, err, name)
			if c.Projected != nil {
				require.InDeltaSlice(t, c.Projected[h], curves[h].Projected(nil), 1e-9, "%s head %d", name, h)
				wide := make([]float64, len(g))
				for j, v := range g {
					wide[j] = float64(v)
				}
				require.InDeltaSlice(t, c.Projected[h], project(wide), 1e-9, "%s head %d", name, h)
				checks++
			}
		}
		totals := make([]int, len(c.Runs))
		for r, run := range c.Runs {
			totals[r] = run.Budget
		}
		greedy, err := Greedy(ctx, curves, nil, totals)
		require.NoError(t, err, name)
		for r, run := range c.Runs {
			where := fmt.Sprintf("%s budget %d", name, run.Budget)
			require.Equal(t, run.Greedy, greedy[r].Keep, where)
			require.InDelta(t, run.RawLoss, greedy[r].Loss, 1e-9, where)
			if run.RelaxedLoss != nil {
				require.InDelta(t, *run.RelaxedLoss, greedy[r].Bound, 1e-9, where)
			}
			exact, err := Exact(ctx, curves, nil, run.Budget, ExactOptions{})
			require.NoError(t, err, where)
			require.Equal(t, run.OptimalLex, exact.Keep, where)
			require.InDelta(t, run.OptimalLoss, exact.Loss, 1e-9, where)
			require.LessOrEqual(t, greedy[r].Bound, run.OptimalLoss+1e-9, where)
			repaired, err := Repair(ctx, curves, nil, greedy[r])
			require.NoError(t, err, where)
			require.LessOrEqual(t, repaired.Loss, run.RawLoss, where)
			require.GreaterOrEqual(t, repaired.Loss, run.OptimalLoss-1e-9, where)
			checks += 4
		}
	}
	t.Logf("golden solvers: %d checks", checks)
	require.Positive(t, checks)
}
