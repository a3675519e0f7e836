package lukv

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// evictionGolden returns the path of a file of the eviction golden set.
func evictionGolden(name string) string { return filepath.Join(goldenFolder(), name) }

// goldenChecks counts what a conformance test compared, prints the number and
// fails when there was nothing to compare.
type goldenChecks struct {
	name      string
	n, skips  int
	skipNotes map[string]int
}

func (c *goldenChecks) report(t *testing.T) {
	t.Helper()
	line := fmt.Sprintf("golden %s: %d checks, %d skipped", c.name, c.n, c.skips)
	for note, n := range c.skipNotes {
		line += fmt.Sprintf(" (%s: %d)", note, n)
	}
	t.Log(line)
	fmt.Println(line)
	if c.n == 0 {
		t.Errorf("golden %s: no checks ran", c.name)
	}
}

func (c *goldenChecks) skip(note string, n int) {
	c.skips += n
	if c.skipNotes == nil {
		c.skipNotes = map[string]int{}
	}
	c.skipNotes[note] += n
}

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

type analysisCase struct {
	Importance []float32 `json:"importance"`
	Scores     []float32 `json:"scores"`
	Rows       []struct {
		B              int     `json:"b"`
		Hits           []int32 `json:"hits"`
		Misses         []int32 `json:"misses"`
		FalsePositives []int32 `json:"false_positives"`
		OracleLoss     float64 `json:"oracle_loss"`
		MetricLoss     float64 `json:"metric_loss"`
		Gap            float64 `json:"gap"`
		RecallMetric   float64 `json:"recall_metric"`
		RecallOracle   float64 `json:"recall_oracle"`
	} `json:"rows"`
}

func TestGoldenSolvers(t *testing.T) {
	var golden struct {
		Free     []solverCase   `json:"free"`
		Floored  []solverCase   `json:"floored"`
		Analysis []analysisCase `json:"analysis"`
	}
	raw, err := os.ReadFile(evictionGolden("solvers.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	checks := &goldenChecks{name: "solvers"}
	defer checks.report(t)

	ctx := t.Context()
	for i, c := range append(golden.Free, golden.Floored...) {
		name := fmt.Sprintf("case %d (%s, floor %d)", i, c.Style, c.Floor)
		// The floored cases give every head its floor first and project the
		// rest, which is what protected entries are.
		curves := make([]*Curve, len(c.Gains))
		for h, g := range c.Gains {
			var err error
			curves[h], err = CurveFromGains(g[c.Floor:], c.Floor)
			require.NoError(t, err, name)
			if c.Projected != nil {
				require.InDeltaSlice(t, c.Projected[h], curves[h].Projected(nil), 1e-9, "%s head %d", name, h)
				wide := make([]float64, len(g))
				for j, v := range g {
					wide[j] = float64(v)
				}
				require.InDeltaSlice(t, c.Projected[h], Project(wide), 1e-9, "%s head %d", name, h)
				checks.n++
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
			checks.n += 4
		}
	}
	for i, c := range golden.Analysis {
		for _, row := range c.Rows {
			where := fmt.Sprintf("analysis %d budget %d", i, row.B)
			a, sets, err := AnalyzeHeadSets(c.Importance, c.Scores, row.B, Protection{}, true)
			require.NoError(t, err, where)
			require.ElementsMatch(t, row.Hits, sets.Hits, where)
			require.ElementsMatch(t, row.Misses, sets.Misses, where)
			require.ElementsMatch(t, row.FalsePositives, sets.FalsePositives, where)
			require.InDelta(t, row.OracleLoss, a.OracleLoss, 1e-9, where)
			require.InDelta(t, row.MetricLoss, a.MetricLoss, 1e-9, where)
			require.InDelta(t, row.Gap, a.Gap(), 1e-9, where)
			require.InDelta(t, row.RecallMetric, a.Recall(), 1e-12, where)
			require.InDelta(t, row.RecallOracle, a.OracleRecall(), 1e-12, where)
			checks.n += 5
		}
	}
}
