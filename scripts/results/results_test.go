package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
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

// The page in the repository is made from the figures beside it.
func TestPageIsMadeFromFigures(t *testing.T) {
	page, err := os.ReadFile("../../docs/results.md")
	require.NoError(t, err)
	require.Equal(t, string(page), pageOf(t, figures(t)),
		"write the page again: cd scripts/results && go run . -render")
	for _, table := range Tables {
		file, err := os.ReadFile("../../docs/results/" + table.Name + ".csv")
		require.NoError(t, err)
		var b strings.Builder
		require.NoError(t, figures(t).WriteCSV(&b, table.Name))
		require.Equal(t, string(file), b.String(), "write the tables again: cd scripts/results && go run . -render")
		require.Contains(t, string(page), "(results/"+table.Name+".csv)")
	}
	require.ErrorContains(t, figures(t).WriteCSV(io.Discard, "more"), `found table "more"`)
}

// The tables have a row for every score and difference of the figures, with its values.
func TestTablesAreComplete(t *testing.T) {
	f := figures(t)
	rows := func(table string) map[string]int {
		var b strings.Builder
		require.NoError(t, f.WriteCSV(&b, table))
		records, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
		require.NoError(t, err)
		count := map[string]int{}
		for _, r := range records[1:] {
			count[strings.Join(r, "|")]++
		}
		return count
	}
	scores := rows("scores")
	for name, c := range map[string]struct {
		items int
		full  Score
		cells Cells
	}{
		"allocators": {f.Test.Items, f.Test.Full, f.Test.Cells}, "objectives": {f.Objectives.Items, f.Objectives.Full, f.Objectives.Cells},
		"metrics": {f.Metrics.Items, f.Metrics.Full, f.Metrics.Cells}, "weights": {f.Weights.Items, f.Weights.Full, f.Weights.Cells},
		"remedies": {f.Remedies.Items, f.Remedies.Full, f.Remedies.Cells}, "development": {f.Development.Items, f.Development.Full, f.Development.Cells},
	} {
		full := fmt.Sprintf("%s|%d||0|full cache|%.4f|%.4f|%.4f||", name, c.items, c.full.Score, c.full.Low, c.full.High)
		require.Equal(t, 1, scores[full], full)
		for _, x := range c.cells {
			row := fmt.Sprintf("%s|%d|%s|%g|%s|%.4f|%.4f|%.4f|%.4f|%d", name, c.items, x.Metric, x.Ratio, x.Method,
				x.Score.Score, x.Low, x.High, x.Achieved, x.CacheBytes)
			require.Equal(t, 1, scores[row], row)
		}
	}
	gains := len(f.Test.Gains) + len(f.Objectives.Gains) + len(f.Metrics.Gains) + len(f.Weights.Gains) + len(f.PerHead.Gains) + len(f.Remedies.Gains)
	require.Len(t, rows("differences"), gains)
	require.Len(t, rows("losses"), len(f.Losses.Cells))
	require.Len(t, rows("solver"), len(f.Solver.Levels))
	require.Len(t, rows("tasks"), 13*(len(metrics)*(len(allocators)+1)+len(objectiveMetrics)*(len(objectiveMethods)+1)+
		len(remedyRatios)*len(metrics)*(len(remedyMethods)+1)))
	require.Equal(t, 1, rows("tasks")[fmt.Sprintf("remedies|keydiff|0.9|vt|8|%s|%.4f", halfMixed, f.Remedies.taskAt(t, "vt", "keydiff at 90 %", halfMixed))])
}

func (c *Comparison) taskAt(t *testing.T, task, row, method string) float64 {
	t.Helper()
	for _, x := range c.Tasks {
		if x.Task == task {
			return x.Scores[row][method]
		}
	}
	t.Fatalf("found no task %s", task)
	return 0
}

// Figures are complete: each table has a cell for every metric, ratio and method.
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
	for name, c := range map[string]struct {
		of      Comparison
		metrics []string
		ratios  []float64
		methods []string
		gains   int // in a row
	}{
		"metrics":  {f.Metrics, lukv.Metrics(), ratios, metricMethods, len(metricOver)},
		"weights":  {f.Weights, objectiveMetrics, ratios, weightMethods, 1},
		"per head": {f.PerHead, []string{setName(perHeadSets[0]), setName(perHeadSets[1])}, ratios, []string{perHead}, len(objectiveMetrics)},
		"remedies": {f.Remedies, metrics, remedyRatios, remedyMethods, len(remedyOver)},
	} {
		require.NotZero(t, c.of.Items, name)
		rows := len(c.metrics) * len(c.ratios)
		require.Len(t, c.of.Cells, rows*len(c.methods), name)
		require.Len(t, c.of.Gains, rows*c.gains, name)
		for _, metric := range c.metrics {
			for _, ratio := range c.ratios {
				for _, m := range c.methods {
					require.NotZero(t, c.of.Cells.at(metric, ratio, m).Score, "%s: %s %v %s", name, metric, ratio, m)
				}
			}
		}
	}
	require.Len(t, f.Losses.Cells, len(metrics)*len(ratios)*len(allocators))
	require.Len(t, f.Test.Gains, len(metrics)*len(ratios)*len(against))
	require.Len(t, f.Solver.Levels, len(metrics)*(len(solverLevels)+1))
	require.Equal(t, 13, len(f.Test.Tasks))
}

// What the page says follows the figures: if they change, so do the sentences.
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
	set(f.Metrics.Cells, "cur", 0.9, "adakv", 0.999)
	for i := range f.Metrics.Cells {
		c := &f.Metrics.Cells[i]
		if c.Achieved = c.Ratio; c.Method == "pyramidkv" && c.Metric == "knorm" && c.Ratio == 0.5 {
			c.Achieved = 0.53
		}
	}
	for i := range f.Metrics.Gains {
		g := &f.Metrics.Gains[i]
		if g.Diff, g.Low, g.High = .1, .05, .2; g.Over == fullCache && g.Metric == "knorm" {
			g.Diff, g.Low, g.High = -.1, -.2, -.05
		}
	}
	for i := range f.Remedies.Gains {
		g := &f.Remedies.Gains[i]
		g.Diff, g.Low, g.High = -.01, -.1, .1
	}
	rows := len(f.Metrics.Cells.metrics()) * len(ratios)
	page := pageOf(t, f)
	for _, want := range []string{
		"* pyramidkv removes 50 to 53 % where 50 % is requested.\n\nPaired",
		"* With 90 % removed, cur with adakv is highest: 99.9.",
		fmt.Sprintf("* Against the full cache, the interval is above zero in %d of %d rows and below in 3 (knorm at 50 %%, 80 %% and 90 %%).", rows-3, rows),
		"* Against half for certain, the interval is above zero in 0 of 6 rows and below in 0.",
		"* Against lukv, the interval is above zero in 9 of 12 rows and below in 3 (key_distance at 50 %, 80 % and 90 %).",
		" -25 points with keydiff",
		"LU-KV has the highest score in 1 of 9 rows** of the first table (keydiff at 80 %). uniform leads in 8",
		"LU-KV scores -20.0 to -20.0 points against uniform. The paired interval is above zero in 0 of 9 rows; it is below zero for snapkv at 50 %, 80 % and 90 %",
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

// kind writes means over the tasks of a kind.
func TestKind(t *testing.T) {
	row := func(task string, full, floor float64) Task {
		return Task{Task: task, Full: full, Scores: map[string]map[string]float64{"row": {halfFloor: floor}}}
	}
	p := page{f: &Figures{Remedies: Comparison{Tasks: []Task{row("cwe", 0.5, 0.2), row("vt", 1, 1), row("fwe", 0.7, 0.4)}}}}
	p.kind([]string{"row"}, "words", []string{"cwe", "fwe"})
	require.Equal(t, "| words | 60 | 0 | 0 | 0 | 30 | 0 | 0 | 0 | 0 |\n", p.b.String())
}

// Rows with a floor keep their mean: no head keeps less than its share of it,
// and the others share the rest in proportion. Mixed rows lie in between.
func TestRemedyRows(t *testing.T) {
	shares := []float64{0.1, 0.3, 1.6, 2} // of the mean, at 80 % and above
	var values []float64
	for i := range 99 {
		ratio := float64(i+1) / 100
		for _, share := range shares {
			kept := 1 - ratio/0.8*(1-0.2*share)
			if ratio >= 0.8 {
				kept = (1 - ratio) * share
			}
			values = append(values, 1-kept)
		}
	}
	p, err := lukv.NewProfile(lukv.DefaultProfileIdentity(), 2, 2, values, nil)
	require.NoError(t, err)
	kept := func(p *lukv.Profile, err error) []float64 {
		require.NoError(t, err)
		var out []float64
		for _, row := range p.Level(79) {
			for _, v := range row {
				out = append(out, (1-v)/0.2)
			}
		}
		return out
	}
	require.InDeltaSlice(t, shares, kept(p, nil), 1e-9)
	require.InDeltaSlice(t, []float64{0.5, 0.5, 1.6 * 3 / 3.6, 2 * 3 / 3.6}, kept(floored(p, 0.5)), 1e-9)
	require.InDeltaSlice(t, []float64{0.25, 0.3 * 3.75 / 3.9, 1.6 * 3.75 / 3.9, 2 * 3.75 / 3.9}, kept(floored(p, 0.25)), 1e-9)
	require.InDeltaSlice(t, []float64{0.325, 0.475, 1.45, 1.75}, kept(mixed(p, 0.25)), 1e-9)
}

// The sentence about the results in docs/methods.md agrees with the figures.
func TestMethodsSayWhatTheFiguresSay(t *testing.T) {
	page, err := os.ReadFile("../../docs/methods.md")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(string(page)), " ")
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

// docs/methods.md agrees with the figures on every metric: points lost with 80 %
// removed. Its table may have more columns.
func TestMethodsSayWhatWasLost(t *testing.T) {
	text, err := os.ReadFile("../../docs/methods.md")
	require.NoError(t, err)
	f := figures(t)
	columns := map[string]string{"uniform": "uniform", "`lukv`": published, "output errors": byEffect}
	at := map[int]string{}
	seen := 0
	for line := range strings.Lines(string(text)) {
		row := strings.Split(strings.TrimSpace(line), "|")
		for i, cell := range row {
			row[i] = strings.TrimSpace(cell)
		}
		if len(row) > 2 && row[1] == "metric" && slices.Contains(row, "output errors") {
			for i, cell := range row {
				if method, ok := columns[cell]; ok {
					at[i] = method
				}
			}
			require.Len(t, at, len(columns))
			continue
		}
		if len(at) == 0 || seen == len(lukv.Metrics()) || len(row) < 2 || !strings.HasPrefix(row[1], "`") {
			continue
		}
		metric := strings.Trim(row[1], "`")
		require.Contains(t, lukv.Metrics(), metric)
		seen++
		for i, method := range at {
			lost := f.Metrics.Full.Score - f.Metrics.Cells.at(metric, taskRatio, method).Score.Score
			require.Equal(t, fmt.Sprintf("%.0f", 100*lost), row[i], "%s, %s", metric, method)
		}
	}
	require.Equal(t, len(lukv.Metrics()), seen)
	require.Contains(t, strings.Join(strings.Fields(string(text)), " "),
		fmt.Sprintf("n = %d, full cache %.1f", f.Metrics.Items, 100*f.Metrics.Full.Score))
}
