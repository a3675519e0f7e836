package study

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/internal/report"
)

// Sensitivity shows scores against ratios, a line per metric and allocator with its 95
// % interval; the full cache is the point at 0 of each. The names of lines that
// several runs have include the run: LU-KV with profiles of different texts, for
// instance.
func Sensitivity(all []*runs.Run) (report.Figure, error) {
	f := report.Figure{ID: "sensitivity", Title: "Score against ratio", X: "fraction removed", Y: "score",
		Note: "Averages over tasks; at 0 stands the full cache. Up to four lines have their 95 % intervals as bands; the data have all."}
	t, err := runs.NewTable(all, runs.Options{By: runs.ByRatio})
	if err != nil {
		return f, err
	}
	full, in := map[string]*runs.Cell{}, map[string]map[string]bool{}
	for _, r := range t.Rows {
		name := lineName(&r)
		if in[name] == nil {
			in[name] = map[string]bool{}
		}
		in[name][r.Run] = true
		if r.Metric == "" && r.Cells[0] != nil && t.Columns[0].Name == "0" {
			full[r.Run] = r.Cells[0]
		}
	}
	n := 0
	for _, r := range t.Rows {
		if r.Metric == "" {
			continue
		}
		l := report.Line{Name: lineName(&r)}
		if len(in[l.Name]) > 1 {
			l.Name += " of " + r.Run
		}
		add := func(x float64, c *runs.Cell) {
			n = max(n, c.N)
			l.X, l.Y, l.Low, l.High = append(l.X, x), append(l.Y, c.Percent), append(l.Low, c.Low), append(l.High, c.High)
		}
		if c := full[r.Run]; c != nil {
			add(0, c)
		}
		for i, c := range r.Cells {
			if x, err := strconv.ParseFloat(t.Columns[i].Name, 64); c != nil && err == nil {
				add(x, c)
			}
		}
		f.Lines = append(f.Lines, l)
	}
	if len(f.Lines) == 0 { // other programs' predictions do not name the metric
		return f, fmt.Errorf("scores: found %s without a metric, expected those of lukv eval", report.Count(len(t.Rows), "method"))
	}
	f.Subtitle = strconv.Itoa(n) + " items per point"
	return f, nil
}

// lineName is a method's name without its ratio.
func lineName(r *runs.Row) string { return cmp.Or(r.Method, r.Metric+", "+r.Allocator) }
