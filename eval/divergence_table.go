package eval

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/report"
)

// DivergenceRow summarises the divergences of one method on one task or on all.
type DivergenceRow struct {
	Method    string  `json:"method"`
	Metric    string  `json:"metric"`
	Allocator string  `json:"allocator"`
	Ratio     float64 `json:"ratio"`
	Tokens    int     `json:"budget_tokens,omitempty"`
	Bytes     int64   `json:"budget_bytes,omitempty"`
	Task      string  `json:"task"`
	Tasks     int     `json:"tasks,omitempty"` // in a mean over tasks, each counting once
	N         int     `json:"n"`
	Failed    int     `json:"failed"` // items that could not be measured, not counted in N

	KL       float64 `json:"kl"`       // nats per token of the answer, mean
	Interval string  `json:"interval"` // how the 95 % interval was made; "": too few items, and Low and High are 0
	Low      float64 `json:"low"`
	High     float64 `json:"high"`

	AnswerTokens  int     `json:"answer_tokens"` // of all items
	RatioAchieved float64 `json:"ratio_achieved"`
	CacheBytes    int64   `json:"cache_bytes"` // mean after compression
	FullBytes     int64   `json:"full_bytes"`
}

// SummarizeDivergences returns, for each method in order of first appearance, a row per
// task in order of first appearance and, where there are several tasks, an average row.
func SummarizeDivergences(all []Divergence) []DivergenceRow {
	var methods, tasks []string
	for _, d := range all {
		if !slices.Contains(methods, d.Method) {
			methods = append(methods, d.Method)
		}
		if !slices.Contains(tasks, d.Task) {
			tasks = append(tasks, d.Task)
		}
	}
	rows := []DivergenceRow{}
	for _, m := range methods {
		groups := make([][]Divergence, 0, len(tasks))
		for _, t := range tasks {
			var g []Divergence
			for _, d := range all {
				if d.Method == m && d.Task == t {
					g = append(g, d)
				}
			}
			if row, ok := divergenceRow(t, g); ok {
				groups = append(groups, g)
				rows = append(rows, row)
			}
		}
		if len(groups) > 1 {
			row, _ := divergenceRow(Average, groups...)
			row.Tasks = len(groups)
			rows = append(rows, row)
		}
	}
	return rows
}

// divergenceRow summarises the items of some tasks, each counting once; false if none
// was measured.
func divergenceRow(name string, tasks ...[]Divergence) (DivergenceRow, bool) {
	row := DivergenceRow{Task: name}
	var groups [][]float64
	var cache, full int64
	for _, task := range tasks {
		var values []float64
		for _, d := range task {
			row.Method, row.Metric, row.Allocator, row.Ratio, row.Tokens, row.Bytes = d.Method, d.Metric, d.Allocator, d.Ratio, d.Tokens, d.Bytes
			if d.Error != "" {
				row.Failed++
				continue
			}
			values = append(values, d.KL)
			row.N++
			row.AnswerTokens += d.AnswerTokens
			row.RatioAchieved += d.RatioAchieved
			cache, full = cache+d.CacheBytes, full+d.FullBytes
		}
		if len(values) > 0 {
			groups = append(groups, values)
			row.KL += sum(values) / float64(len(values))
		}
	}
	if row.N == 0 {
		return row, false
	}
	row.KL /= float64(len(groups))
	row.RatioAchieved /= float64(row.N)
	row.CacheBytes, row.FullBytes = cache/int64(row.N), full/int64(row.N)
	row.Low, row.High, row.Interval = unboundedInterval(groups)
	return row, true
}

// WriteDivergenceTable prints rows as an aligned table.
func WriteDivergenceTable(w io.Writer, rows []DivergenceRow) error {
	t := report.Table{Right: []int{2, 3, 4, 5, 6}}
	t.Row(divergenceHeader...)
	for i := range rows {
		t.Row(rows[i].cells()...)
	}
	return t.Write(w, report.NoColors)
}

// WriteDivergenceMarkdown writes rows as a Markdown table.
func WriteDivergenceMarkdown(w io.Writer, rows []DivergenceRow) error {
	var b strings.Builder
	b.WriteString("| " + strings.Join(divergenceHeader, " | ") + " |\n| --- | --- " + strings.Repeat("| ---: ", len(divergenceHeader)-2) + "|\n")
	for i := range rows {
		b.WriteString("| " + strings.ReplaceAll(strings.Join(rows[i].cells(), "\x00"), "|", `\|`) + " |\n")
	}
	_, err := io.WriteString(w, strings.ReplaceAll(b.String(), "\x00", " | "))
	return err
}

var divergenceHeader = []string{"method", "task", "n", "nats/token", "95 % interval", "removed", "cache"}

func (r *DivergenceRow) cells() []string {
	n, bounds := strconv.Itoa(r.N), "-"
	if r.Failed > 0 {
		n += fmt.Sprintf(" (%d failed)", r.Failed)
	}
	if r.Interval != "" {
		bounds = fmt.Sprintf("%.4f-%.4f", r.Low, r.High)
	}
	return []string{r.Method, r.Task, n, fmt.Sprintf("%.4f", r.KL), bounds, fmt.Sprintf("%.1f %%", 100*r.RatioAchieved), report.Bytes(r.CacheBytes)}
}

// WriteDivergenceCSV writes rows in long form with a header. policies holds, by method,
// the policy in force as JSON.
func WriteDivergenceCSV(w io.Writer, rows []DivergenceRow, policies map[string]string) error {
	c := csv.NewWriter(w)
	f := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	c.Write([]string{"method", "metric", "allocator", "ratio", "task", "n", "failed", "kl", "interval", "low", "high",
		"answer_tokens", "ratio_achieved", "cache_bytes", "full_bytes", "budget_tokens", "budget_bytes", "policy"})
	for _, r := range rows {
		c.Write([]string{r.Method, r.Metric, r.Allocator, f(r.Ratio), r.Task, strconv.Itoa(r.N), strconv.Itoa(r.Failed),
			f(r.KL), r.Interval, f(r.Low), f(r.High), strconv.Itoa(r.AnswerTokens), f(r.RatioAchieved),
			strconv.FormatInt(r.CacheBytes, 10), strconv.FormatInt(r.FullBytes, 10), budgetCell(int64(r.Tokens)), budgetCell(r.Bytes), policies[r.Method]})
	}
	c.Flush()
	return c.Error()
}
