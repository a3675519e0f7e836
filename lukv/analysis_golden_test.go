package lukv

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

func TestGoldenAnalysis(t *testing.T) {
	var golden struct {
		Analysis []analysisCase `json:"analysis"`
	}
	raw, err := os.ReadFile(evictionGolden("solvers.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &golden))
	checks := &goldenChecks{name: "analysis"}
	defer checks.report(t)
	for i, c := range golden.Analysis {
		for _, row := range c.Rows {
			where := fmt.Sprintf("analysis %d budget %d", i, row.B)
			oracle, metric := Keep(nil, c.Importance, row.B, Protection{}), Keep(nil, c.Scores, row.B, Protection{})
			missing := func(from, in []int32) (out []int32) {
				for _, t := range from {
					if !slices.Contains(in, t) {
						out = append(out, t)
					}
				}
				return out
			}
			misses := missing(oracle, metric)
			require.ElementsMatch(t, row.Hits, missing(oracle, misses), where)
			require.ElementsMatch(t, row.Misses, misses, where)
			require.ElementsMatch(t, row.FalsePositives, missing(metric, oracle), where)
			best, lost, mass := DroppedMass(c.Importance, oracle), DroppedMass(c.Importance, metric), DroppedMass(c.Importance, nil)
			require.InDelta(t, row.OracleLoss, best, 1e-9, where)
			require.InDelta(t, row.MetricLoss, lost, 1e-9, where)
			require.InDelta(t, row.Gap, lost-best, 1e-9, where)
			require.InDelta(t, row.RecallMetric, 1-lost/mass, 1e-12, where)
			require.InDelta(t, row.RecallOracle, 1-best/mass, 1e-12, where)
			checks.n += 5
		}
	}
}
