package lukv

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAnalyzeIdentities: the gap is misses minus false positives, the metric's
// loss is that of its curve, the oracle's that of the curve without a gap, and
// both aggregations of recall are what their names say.
func TestAnalyzeIdentities(t *testing.T) {
	importance, scores := syntheticModel(3, 2, 80, 2)
	rng := rand.New(rand.NewPCG(4, 4))
	prot := Protection{Sinks: 4, Window: 3}
	budgets := newBudgets(3, 2)
	for l := range budgets {
		for h := range budgets[l] {
			budgets[l][h] = rng.IntN(81)
		}
	}
	a, err := Analyze(t.Context(), importance, scores, budgets, prot, false)
	require.NoError(t, err)
	kept, mass, ratios, oracles := 0.0, 0.0, 0.0, 0.0
	for l := range budgets {
		for h, b := range budgets[l] {
			got := a.Heads[l][h]
			imp := importance[l][h]
			free := max(0, b-7)
			metric, err := lossCurve(imp, scores[l][h], prot)
			require.NoError(t, err)
			oracle, err := lossCurve(imp, imp, prot)
			require.NoError(t, err)
			require.InDelta(t, metric.Losses(nil)[free], got.MetricLoss, 1e-9)
			require.InDelta(t, oracle.Losses(nil)[free], got.OracleLoss, 1e-9)
			require.Equal(t, free, got.Hits+got.Misses)

			_, sets, err := AnalyzeHeadSets(imp, scores[l][h], b, prot, false)
			require.NoError(t, err)
			require.Len(t, sets.Misses, got.Misses)
			require.Len(t, sets.FalsePositives, got.Misses)
			gap := 0.0
			for i := range sets.Misses {
				gap += float64(imp[sets.Misses[i]]) - float64(imp[sets.FalsePositives[i]])
			}
			require.InDelta(t, gap, got.Gap(), 1e-9)

			m := sumOf(imp[4:77])
			mass += m
			kept += m - got.MetricLoss
			ratios += (m - got.MetricLoss) / m
			oracles += (m - got.OracleLoss) / m
		}
	}
	total := a.Total()
	require.InDelta(t, kept/mass, total.Recall, 1e-12)
	require.InDelta(t, ratios/6, total.MeanRecall, 1e-12)
	require.InDelta(t, oracles/6, total.MeanOracleRecall, 1e-12)
	require.GreaterOrEqual(t, total.OracleRecall, total.Recall)
	require.InDelta(t, total.MetricLoss/6, total.MeanLoss(), 1e-12)
	require.InDelta(t, total.Gap(), total.MetricLoss-total.OracleLoss, 1e-12)
	layers := 0.0
	for l := range 3 {
		layers += a.Layer(l).MetricLoss
	}
	require.InDelta(t, total.MetricLoss, layers, 1e-9)

	// Layers that take no part are not counted.
	importance[1] = nil
	some, err := Analyze(t.Context(), importance, scores, budgets, prot, true)
	require.NoError(t, err)
	require.Equal(t, 4, some.Total().Heads)
	require.InDelta(t, sumOf(importance[0][0]), some.Heads[0][0].Mass, 1e-9)
}

// TestAnalyzeNothing: recalls are numbers even without any heads.
func TestAnalyzeNothing(t *testing.T) {
	a := Analysis{Heads: [][]HeadAnalysis{nil}}
	require.Equal(t, LossSummary{Recall: 1, OracleRecall: 1}, a.Total())
	require.Equal(t, a.Total(), a.Layer(0))
	require.Zero(t, a.Total().MeanOracleLoss())
}

func TestAnalyzeErrors(t *testing.T) {
	row := []float32{1, 2}
	_, err := AnalyzeHead(row, row[:1], 1, Protection{}, false)
	require.ErrorContains(t, err, "1 scores for 2 importances")
	_, err = AnalyzeHead([]float32{float32(math.NaN())}, row[:1], 1, Protection{}, false)
	require.ErrorContains(t, err, "importance NaN")
	table := [][][]float32{{row}}
	_, err = Analyze(t.Context(), table, nil, nil, Protection{}, false)
	require.ErrorContains(t, err, "of 1, 0 and 0 layers")
	_, err = Analyze(t.Context(), table, table, [][]int{{}}, Protection{}, false)
	require.ErrorContains(t, err, "layer 0")
	done, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Analyze(done, table, table, [][]int{{1}}, Protection{}, false)
	require.ErrorIs(t, err, context.Canceled)
}
