package runs

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/eval"
)

// missingMark follows means over fewer tasks.
const missingMark = "†"

// label names a row.
func (t *Table) label(r *Row) string {
	var parts []string
	switch {
	case r.named:
		parts = append(parts, r.Method)
	case r.Metric != "":
		parts = append(parts, r.Metric, r.Allocator)
		if t.By != ByRatio {
			parts = append(parts, strconv.FormatFloat(100*r.Ratio, 'g', 4, 64)+" %")
		}
	case r.Ratio == 0 && (r.Run == "" || r.Method == "full"):
		parts = append(parts, "full")
	default:
		parts = append(parts, r.Method)
	}
	name := strings.Join(parts, ", ")
	if r.Model != "" {
		return name + " (published, " + r.Model + ")"
	}
	if slices.ContainsFunc(t.Rows, func(x Row) bool { return x.Run != r.Run && x.Run != "" }) {
		return r.Run + ": " + name
	}
	return name
}

// text prints a cell, with its interval if requested.
func (c *Cell) text(column *Column, intervals bool, dash string) string {
	if c == nil {
		return ""
	}
	s := strconv.FormatFloat(c.Percent, 'f', 2, 64)
	if c.Missing > 0 {
		s += missingMark
	}
	if intervals && c.Interval != "" {
		s += fmt.Sprintf(" (%.1f%s%.1f)", c.Low, dash, c.High)
	}
	if c.N > 0 && c.N < column.N {
		s += fmt.Sprintf(" [n=%d]", c.N)
	}
	return s
}

// head returns the line of names and that of item counts.
func (t *Table) head() (names, counts []string) {
	names, counts = []string{"method"}, []string{"n"}
	for _, c := range t.Columns {
		names = append(names, c.Name)
		counts = append(counts, strconv.Itoa(c.N))
	}
	return names, counts
}

// WriteMarkdown writes the table for people to read, with scores in percent and
// the best of each block in bold. intervals adds 95 % intervals.
func (t *Table) WriteMarkdown(w io.Writer, intervals bool) error {
	var b strings.Builder
	line := func(cells []string) {
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	names, counts := t.head()
	line(names)
	b.WriteString("| --- " + strings.Repeat("| ---: ", len(t.Columns)) + "|\n")
	line(counts)
	for i := range t.Rows {
		r := &t.Rows[i]
		cells := []string{strings.ReplaceAll(t.label(r), "|", `\|`)}
		for k, c := range r.Cells {
			s := c.text(&t.Columns[k], intervals, "–")
			if c != nil && c.Best {
				s = "**" + s + "**"
			}
			cells = append(cells, s)
		}
		line(cells)
	}
	if len(t.Differences) > 0 {
		b.WriteString("\n| metric | removed | difference | points (95 % interval) | n | tasks |\n| --- | ---: | --- | ---: | ---: | ---: |\n")
		for _, d := range t.Differences {
			line([]string{d.Metric, strconv.FormatFloat(100*d.Ratio, 'g', 4, 64) + " %", d.A + " − " + d.B, d.text("–"), strconv.Itoa(d.N), strconv.Itoa(d.Tasks)})
		}
	}
	for _, n := range t.Notes {
		b.WriteString("\n" + n + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// text prints a difference with its interval.
func (d *Difference) text(dash string) string {
	s := fmt.Sprintf("%+.2f", d.Percent)
	if d.How == "" {
		return s + " (too few items)"
	}
	return s + fmt.Sprintf(" (%+.1f %s %+.1f)", d.Low, dash, d.High)
}

var latex = strings.NewReplacer(`\`, `\textbackslash{}`, "_", `\_`, "%", `\%`, "&", `\&`, "#", `\#`, "$", `\$`, "{", `\{`, "}", `\}`,
	"~", `\textasciitilde{}`, "^", `\textasciicircum{}`, missingMark, `\dag{}`)

// WriteLaTeX writes the table as a tabular with booktabs rules; notes become
// comments.
func (t *Table) WriteLaTeX(w io.Writer, intervals bool) error {
	var b strings.Builder
	for _, n := range t.Notes {
		b.WriteString("% " + n + "\n")
	}
	b.WriteString("\\begin{tabular}{l" + strings.Repeat("r", len(t.Columns)) + "}\n\\toprule\n")
	line := func(cells []string) { b.WriteString(strings.Join(cells, " & ") + " \\\\\n") }
	names, counts := t.head()
	for i := range names {
		names[i] = latex.Replace(names[i])
	}
	line(names)
	line(counts)
	b.WriteString("\\midrule\n")
	for i := range t.Rows {
		r := &t.Rows[i]
		cells := []string{latex.Replace(t.label(r))}
		for k, c := range r.Cells {
			s := latex.Replace(c.text(&t.Columns[k], intervals, "--"))
			if c != nil && c.Best {
				s = `\textbf{` + s + "}"
			}
			cells = append(cells, s)
		}
		line(cells)
	}
	b.WriteString("\\bottomrule\n\\end{tabular}\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteCSV writes the cells in long form.
func (t *Table) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	c.Write([]string{"run", "model", "method", "metric", "allocator", "ratio", "column", "n", "missing_tasks", "percent", "interval", "low", "high", "best"})
	f := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	for _, r := range t.Rows {
		for k, x := range r.Cells {
			if x == nil {
				continue
			}
			ratio := r.Ratio
			if t.By == ByRatio {
				ratio = t.Columns[k].ratio
			}
			column := t.Columns[k].Name
			if t.By == ByRatio {
				column = eval.Average
			}
			c.Write([]string{r.Run, r.Model, r.Method, r.Metric, r.Allocator, f(ratio), column, strconv.Itoa(x.N), strconv.Itoa(x.Missing),
				f(x.Percent), x.Interval, f(x.Low), f(x.High), strconv.FormatBool(x.Best)})
		}
	}
	c.Flush()
	return c.Error()
}
