package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
)

// Tables are the files that WriteCSV makes: the full tables that the page summarises.
// Scores, losses and ratios are fractions from 0 to 1; intervals are 95 %.
var Tables = []struct{ Name, Content string }{
	{"scores", "every score of every experiment with its interval, the fraction removed and the size of the cache"},
	{"differences", "every paired difference with its interval"},
	{"tasks", "scores by task"},
	{"layers", "scores after cutting one layer"},
	{"losses", "oracle importance lost"},
	{"solver", "losses of solutions and their lower bounds"},
}

// WriteCSV writes one of [Tables].
func (f *Figures) WriteCSV(w io.Writer, table string) error {
	rows, ok := map[string]func() [][]string{
		"scores": f.scoreRows, "differences": f.differenceRows, "tasks": f.taskRows,
		"layers": f.layerRows, "losses": f.lossRows, "solver": f.solverRows,
	}[table]
	if !ok {
		return fmt.Errorf("results: found table %q, expected one of %v", table, Tables)
	}
	return csv.NewWriter(w).WriteAll(rows())
}

// namedComparison is an experiment with a name and the method whose gains it lists.
type namedComparison struct {
	name, of string
	Comparison
}

// comparisons returns all experiments that compare methods.
func (f *Figures) comparisons() []namedComparison {
	t, d := &f.Test, &f.Development
	return []namedComparison{
		{"allocators", "lukv", Comparison{Items: t.Items, Full: t.Full, Cells: t.Cells, Gains: t.Gains, Tasks: t.Tasks}},
		{"objectives", byEffect, f.Objectives},
		{"metrics", byEffect, f.Metrics},
		{"weights", weightMethods[0], f.Weights},
		{"per_head", perHead, f.PerHead},
		{"development", "", Comparison{Items: d.Items, Full: d.Full, Cells: d.Cells}},
		{"remedies", asIs, f.Remedies},
	}
}

func fraction(x float64) string { return strconv.FormatFloat(x, 'f', 4, 64) }

func ratioText(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

func (f *Figures) scoreRows() [][]string {
	out := [][]string{{"experiment", "items", "metric", "removed", "method", "score", "low", "high", "removed_achieved", "cache_bytes"}}
	for _, c := range f.comparisons() {
		row := func(metric string, ratio float64, method string, s Score, more ...string) {
			out = append(out, append([]string{
				c.name, strconv.Itoa(c.Items), metric, ratioText(ratio), method, fraction(s.Score), fraction(s.Low), fraction(s.High),
			}, more...))
		}
		if c.Full != (Score{}) {
			row("", 0, "full cache", c.Full, "", "")
		}
		for _, x := range c.Cells {
			row(x.Metric, x.Ratio, x.Method, x.Score, fraction(x.Achieved), strconv.FormatInt(x.CacheBytes, 10))
		}
	}
	return out
}

func (f *Figures) differenceRows() [][]string {
	out := [][]string{{"experiment", "metric", "removed", "method", "minus", "difference", "low", "high"}}
	for _, c := range f.comparisons() {
		for _, g := range c.Gains {
			out = append(out, []string{
				c.name, g.Metric, ratioText(g.Ratio), c.of, methodText(g.Over), fraction(g.Diff), fraction(g.Low), fraction(g.High),
			})
		}
	}
	return out
}

func (f *Figures) taskRows() [][]string {
	out := [][]string{{"experiment", "metric", "removed", "task", "items", "method", "score"}}
	// key names the scores of a metric at a ratio.
	add := func(c namedComparison, ratio float64, metrics, methods []string, key func(metric string) string) {
		for _, t := range c.Tasks {
			for _, metric := range metrics {
				row := func(method string, score float64) {
					out = append(out, []string{c.name, metric, ratioText(ratio), t.Task, strconv.Itoa(t.Items), method, fraction(score)})
				}
				row("full cache", t.Full)
				for _, method := range methods {
					row(method, t.Scores[key(metric)][method])
				}
			}
		}
	}
	same := func(metric string) string { return metric }
	for _, c := range f.comparisons() {
		switch c.name {
		case "allocators":
			add(c, taskRatio, metrics, allocators, same)
		case "objectives":
			add(c, taskRatio, objectiveMetrics, objectiveMethods, same)
		case "remedies":
			for _, ratio := range remedyRatios {
				add(c, ratio, metrics, remedyMethods, func(metric string) string { return rowName(metric, ratio) })
			}
		}
	}
	return out
}

func (f *Figures) layerRows() [][]string {
	out := [][]string{{"metric", "removed", "layer", "score"}}
	for _, metric := range metrics {
		for l, s := range f.OneLayer.Scores[metric] {
			out = append(out, []string{metric, ratioText(f.OneLayer.Ratio), strconv.Itoa(l), fraction(s)})
		}
	}
	return out
}

func (f *Figures) lossRows() [][]string {
	out := [][]string{{"metric", "removed", "allocator", "loss", "loss_of_best_entries"}}
	for _, c := range f.Losses.Cells {
		out = append(out, []string{c.Metric, ratioText(c.Ratio), c.Allocator, fraction(c.Loss), fraction(c.Oracle)})
	}
	return out
}

func (f *Figures) solverRows() [][]string {
	out := [][]string{{"metric", "removed", "lower_bound", "greedy", "repaired"}}
	for _, r := range f.Solver.Levels {
		removed := "all levels"
		if r.Ratio > 0 {
			removed = ratioText(r.Ratio)
		}
		out = append(out, []string{r.Metric, removed, ratioText(r.Bound), ratioText(r.Greedy), ratioText(r.Repaired)})
	}
	return out
}
