package eval

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/lukv/lukv/internal/report"
)

var header = []string{"method", "task", "n", "empty", "score", "95 % interval", "removed", "cache", "peak", "time/answer"}

// wilsonMark marks intervals from few items.
const wilsonMark = "*"

// fewNote explains the mark.
var fewNote = fmt.Sprintf("%s Wilson's interval: a task has fewer than %d items, too few to resample.", wilsonMark, fewItems)

// cells are a row's columns for people to read; scores are in percent.
func (r *Row) cells() []string {
	peak := "-"
	if r.PeakBytes > 0 {
		peak = report.Bytes(r.PeakBytes)
	}
	n := strconv.Itoa(r.N)
	var lacking []string
	if r.Failed > 0 {
		lacking = append(lacking, fmt.Sprintf("%d failed", r.Failed))
	}
	if r.Missing > 0 {
		lacking = append(lacking, report.Count(r.Missing, "task")+" missing")
	}
	if len(lacking) > 0 {
		n += " (" + strings.Join(lacking, ", ") + ")"
	}
	bounds := fmt.Sprintf("%.1f-%.1f", 100*r.Low, 100*r.High)
	if r.Interval == IntervalWilson {
		bounds = wilsonMark + bounds
	}
	removed, cache, seconds := "-", "-", "-" // not known for predictions from elsewhere
	if r.FullBytes > 0 {
		removed, cache = fmt.Sprintf("%.1f %%", 100*r.RatioAchieved), report.Bytes(r.CacheBytes)
	}
	if r.Seconds > 0 {
		seconds = time.Duration(r.Seconds * float64(time.Second)).Round(time.Millisecond).String()
	}
	return []string{
		r.Method, r.Task, n, strconv.Itoa(r.Empty), fmt.Sprintf("%.2f", r.Percent), bounds,
		removed, cache, peak, seconds,
	}
}

// anyFew reports whether any interval is Wilson's.
func anyFew(rows []Row) bool {
	for _, r := range rows {
		if r.Interval == IntervalWilson {
			return true
		}
	}
	return false
}

// WriteTable prints rows as an aligned table; scores are in percent.
func WriteTable(w io.Writer, rows []Row) error {
	t := report.Table{Right: []int{2, 3, 4, 5, 6, 7, 8, 9}}
	t.Row(header...)
	for i := range rows {
		t.Row(rows[i].cells()...)
	}
	if err := t.Write(w, report.NoColors); err != nil || !anyFew(rows) {
		return err
	}
	_, err := fmt.Fprintln(w, fewNote)
	return err
}

// WriteMarkdown writes rows as a Markdown table; scores are in percent.
func WriteMarkdown(w io.Writer, rows []Row) error {
	var b strings.Builder
	line := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + strings.NewReplacer("|", `\|`, wilsonMark, `\`+wilsonMark).Replace(c) + " ")
		}
		b.WriteString("|\n")
	}
	line(header)
	b.WriteString("| --- | --- " + strings.Repeat("| ---: ", len(header)-2) + "|\n")
	for i := range rows {
		line(rows[i].cells())
	}
	if anyFew(rows) {
		b.WriteString("\n\\" + fewNote + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteCSV writes rows in long form with a header. policies holds, by method,
// the policy in force as JSON; nil leaves that column empty.
func WriteCSV(w io.Writer, rows []Row, policies map[string]string) error {
	c := csv.NewWriter(w)
	c.Write([]string{"method", "metric", "allocator", "ratio", "task", "n", "failed", "empty", "missing_tasks",
		"score", "percent", "interval", "low", "high",
		"ratio_achieved", "cache_bytes", "peak_bytes", "full_bytes", "seconds", "budget_tokens", "budget_bytes", "policy"})
	f := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	for _, r := range rows {
		c.Write([]string{r.Method, r.Metric, r.Allocator, f(r.Ratio), r.Task, strconv.Itoa(r.N), strconv.Itoa(r.Failed),
			strconv.Itoa(r.Empty), strconv.Itoa(r.Missing), f(r.Score), f(r.Percent), r.Interval, f(r.Low), f(r.High),
			f(r.RatioAchieved), strconv.FormatInt(r.CacheBytes, 10), strconv.FormatInt(r.PeakBytes, 10),
			strconv.FormatInt(r.FullBytes, 10), f(r.Seconds), budgetCell(int64(r.Tokens)), budgetCell(r.Bytes), policies[r.Method]})
	}
	c.Flush()
	return c.Error()
}

// budgetCell is a budget in a table, empty where a ratio was asked for.
func budgetCell(n int64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}
