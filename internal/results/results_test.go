package results

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func figures(t *testing.T) *Figures {
	t.Helper()
	data, err := os.ReadFile("../../docs/results.json")
	require.NoError(t, err)
	f, err := Read(bytes.NewReader(data))
	require.NoError(t, err)
	return f
}

func pageOf(t *testing.T, f *Figures) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, f.WriteMarkdown(&b))
	return b.String()
}

// The page in the repository is made of the figures beside it.
func TestPageIsMadeFromFigures(t *testing.T) {
	page, err := os.ReadFile("../../docs/results.md")
	require.NoError(t, err)
	require.Equal(t, string(page), pageOf(t, figures(t)),
		"write the page again: go run ./cmd/lukv results --render -o docs/results.md --figures docs/results.json")
}

// Figures are complete: a cell of each table for every metric, ratio and method.
func TestFiguresAreComplete(t *testing.T) {
	f := figures(t)
	names := []string{"uniform"}
	for _, v := range variants {
		names = append(names, v.name)
	}
	eachRow(func(metric string, ratio float64) {
		for _, a := range allocators {
			require.NotZero(t, f.Test.Cells.at(metric, ratio, a).Score, "%s %v %s", metric, ratio, a)
		}
		for _, name := range names {
			require.NotZero(t, f.Development.Cells.at(metric, ratio, name).Score, "%s %v %s", metric, ratio, name)
		}
	})
	for _, metric := range objectiveMetrics {
		for _, ratio := range ratios {
			for _, m := range objectiveMethods {
				require.NotZero(t, f.Objectives.Cells.at(metric, ratio, m).Score, "%s %v %s", metric, ratio, m)
			}
		}
	}
	require.Len(t, f.Objectives.Gains, len(objectiveMetrics)*len(ratios)*len(objectiveOver))
	require.Equal(t, 13, len(f.Objectives.Tasks))
	require.Equal(t, f.Test.Full, f.Objectives.Full, "the same samples")
	eachRow(func(metric string, ratio float64) {
		for _, a := range []string{"adakv", "pyramidkv", published} {
			x, y := f.Test.Cells.at(metric, ratio, a), f.Objectives.Cells.at(metric, ratio, a)
			require.InDelta(t, x.Score.Score, y.Score.Score, 1e-12, "measured twice, apart: %s", methodName(metric, ratio, a))
			require.Equal(t, x.CacheBytes, y.CacheBytes)
		}
	})
	require.Len(t, f.Losses.Cells, len(metrics)*len(ratios)*len(allocators))
	require.Len(t, f.Test.Gains, len(metrics)*len(ratios)*len(against))
	require.Len(t, f.Solver.Levels, len(metrics)*(len(solverLevels)+1))
	require.Equal(t, 13, len(f.Test.Tasks))
}

// What the page says follows the figures: where they change, so do the sentences.
func TestSentencesFollowFigures(t *testing.T) {
	f := figures(t)
	set := func(cs Cells, metric string, ratio float64, method string, score float64) {
		for i := range cs {
			if cs[i].Metric == metric && cs[i].Ratio == ratio && cs[i].Method == method {
				cs[i].Score = Score{score, score - 0.01, score + 0.01}
			}
		}
	}
	eachRow(func(metric string, ratio float64) {
		set(f.Test.Cells, metric, ratio, "lukv", 0.3)
		set(f.Test.Cells, metric, ratio, "uniform", 0.99)
		set(f.Development.Cells, metric, ratio, "none", 0.5)
		set(f.Development.Cells, metric, ratio, "per layer", 0.5)
	})
	set(f.Test.Cells, "keydiff", 0.8, "lukv", 1)
	set(f.Development.Cells, "snapkv", 0.5, "per layer", 0.61)
	for i := range f.Test.Gains {
		f.Test.Gains[i].Diff, f.Test.Gains[i].Low, f.Test.Gains[i].High = -0.2, -0.3, -0.1
	}
	for _, metric := range metrics {
		f.OneLayer.Scores[metric][5] = 0
	}
	for i := range f.Objectives.Gains {
		g := &f.Objectives.Gains[i]
		if g.Diff, g.Low, g.High = .1, .05, .2; g.Over == published && g.Metric == "key_distance" {
			g.Diff, g.Low, g.High = -.1, -.2, -.05
		}
	}
	for _, task := range f.Objectives.Tasks {
		task.Scores["snapkv"][byEffect] = task.Scores["snapkv"][published]
		task.Scores["keydiff"][byEffect] = task.Scores["keydiff"][published] - .25
	}
	page := pageOf(t, f)
	for _, want := range []string{
		"* Against lukv, the interval lies above zero in 9 of 12 rows and below in 3 (key_distance at 50 %, 80 % and 90 %).",
		" -25 points with keydiff",
		"LU-KV has the highest score in 1 of 9 rows** of the first table (keydiff at 80 %). uniform leads in 8",
		"LU-KV scores -20.0 to -20.0 points against uniform. The paired interval lies above zero in 0 of 9 rows; it lies below zero for snapkv at 50 %, 80 % and 90 %",
		"(the authors' recorder): -11.0 to +0.0 points, higher in 0 of 9 rows, equal in 8;",
		"With snapkv, keydiff and expected_attention, layer 5 costs most.",
	} {
		require.Contains(t, page, want)
	}
}

func TestRead(t *testing.T) {
	f := figures(t)
	data, err := json.Marshal(f)
	require.NoError(t, err)
	back, err := Read(bytes.NewReader(data))
	require.NoError(t, err)
	require.Equal(t, f, back)
	for _, bad := range []string{"", "{}", `{"format":"lukv results 2"}`, `{"format":"lukv results 1","more":1}`} {
		_, err := Read(strings.NewReader(bad))
		require.ErrorContains(t, err, "read results", bad)
	}
}

// The distance from the optimum is that of the row's own losses.
func TestAbove(t *testing.T) {
	for want, x := range map[string][2]float64{"0.00": {1, 1}, "0.50": {1.005, 1}, "143": {2.43, 1}, "–": {1, 0}} {
		require.Equal(t, want, above(x[0], x[1]))
	}
}

// The README's sentence on the results is true of them.
func TestReadmeSaysWhatTheFiguresSay(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(string(readme)), " ")
	require.Contains(t, text, "for three metrics, five allocators and three ratios")
	require.Contains(t, text, "at 80 % and 90 % LU-KV leads with every metric measured there; at 50 % PyramidKV, which costs nothing to set up, is ahead of it with two metrics of three")
	f := figures(t)
	require.Equal(t, [3]int{3, 5, 3}, [3]int{len(metrics), len(allocators), len(ratios)})
	ahead := 0
	eachRow(func(metric string, ratio float64) {
		if ratio > 0.5 {
			require.Equal(t, "lukv", f.Test.Cells.best(metric, ratio, allocators).Method)
		} else if f.Test.Cells.at(metric, ratio, "pyramidkv").Score.Score > f.Test.Cells.at(metric, ratio, "lukv").Score.Score {
			ahead++
		}
	})
	require.Equal(t, 2, ahead)
}
