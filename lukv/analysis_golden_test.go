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
