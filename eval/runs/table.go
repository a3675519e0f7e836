package runs

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/report"
)

// What the columns of a table can be.
const (
	ByTask     = "task"
	ByCategory = "category" // of LongBench or RULER
	ByRatio    = "ratio"    // the average over tasks
)

// Options select the contents of a table.
type Options struct {
	By         string    // ByTask if ""
	Ratios     []float64 // empty: all; the full cache is always shown
	Metrics    []string  // empty: all
	Allocators []string  // empty: all

	// Against, if not "", names the allocator with which the others of the same
	// run, metric and ratio are compared, item by item.
	Against string

	// Reference, if not nil, is a published table whose rows go below those with
	// the same metric, allocator and ratio; only those of Model, if it is not "".
	Reference *Reference
	Model     string
}

// Table has methods as rows and tasks, categories or ratios as columns.
type Table struct {
	By      string   `json:"by"`
	Columns []Column `json:"columns"`
	Rows    []Row    `json:"rows"`

	Differences []Difference `json:"differences"`
	Notes       []string     `json:"notes"`
}

// Column is a task, a category, the average, or a ratio.
type Column struct {
	Name    string   `json:"name"`
	N       int      `json:"n"`                  // largest number of items of a method
	FullSet int      `json:"full_set,omitempty"` // items of the benchmark's own set, if known
	tasks   []string // nil: all
	ratio   float64  // of ByRatio
}

// Row is a method of a run, or a published one.
type Row struct {
	Run       string  `json:"run"`              // "" for published rows
	Model     string  `json:"model,omitempty"`  // of published rows
	Method    string  `json:"method,omitempty"` // its name in the run; by ratio, without the ratio and only if metric and allocator do not identify it
	Metric    string  `json:"metric,omitempty"`
	Allocator string  `json:"allocator,omitempty"`
	Ratio     float64 `json:"ratio"`
	Cells     []*Cell `json:"cells"` // by column; null: no score

	full  string // the metric with its parameters
	named bool   // other rows of the run have the same metric and allocator names
}

// Cell is a score in percent.
type Cell struct {
	Percent  float64 `json:"percent"`
	N        int     `json:"n,omitempty"`
	Missing  int     `json:"missing_tasks,omitempty"` // in a mean: tasks that other methods answered
	Interval string  `json:"interval,omitempty"`      // how its 95 % interval was made
	Low      float64 `json:"low"`
	High     float64 `json:"high"`
	Best     bool    `json:"best,omitempty"` // among the allocators with the same run, metric and ratio
}

// Difference is the mean difference in points between two allocators, over the
// items that both answered.
type Difference struct {
	Run     string  `json:"run"`
	Metric  string  `json:"metric"`
	Ratio   float64 `json:"ratio"`
	A       string  `json:"allocator"`
	B       string  `json:"over"`
	Percent float64 `json:"difference"`
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	How     string  `json:"interval"` // "": too few items for one
	N       int     `json:"n"`
	Tasks   int     `json:"tasks"`
}

// method is one method of a run.
type method struct {
	Row
	answers []eval.Answer

	line              string // its name without the ratio
	metric, allocator string // with their parameters
}

// parameters derives line, metric and allocator from the method's name in lukv eval,
// [preset: ]metric/allocator/ratio. Metrics or allocators with the same name but
// different parameters are never merged.
func (m *method) parameters() {
	m.metric, m.allocator = m.Metric, m.Allocator
	m.line = m.metric + "/" + m.allocator
	name, ok := strings.CutSuffix(m.Method, "/"+strconv.FormatFloat(m.Ratio, 'g', -1, 64))
	if !ok || m.Metric == "" {
		return
	}
	m.line = name
	at := strings.LastIndex(name, `/{"name":"`+m.Allocator+`"`)
	if metric, plain := strings.CutSuffix(name, "/"+m.Allocator); plain {
		at = len(metric)
	}
	if at < 0 {
		return
	}
	m.metric, m.allocator = name[:at], name[at+1:]
	if preset, metric, ok := strings.Cut(m.metric, ": "); ok && !strings.HasPrefix(preset, "{") {
		m.metric = metric // presets are compared with each other
	}
}

// apart reports whether other methods of the run have the same names of metric and
// allocator.
func (m *method) apart(all []*method) bool {
	return slices.ContainsFunc(all, func(o *method) bool {
		return o.Run == m.Run && o.Metric == m.Metric && o.Allocator == m.Allocator && o.line != m.line
	})
}

// NewTable makes a table of runs. Numbers tell runs with equal names apart.
func NewTable(all []*Run, o Options) (*Table, error) {
	for _, r := range all {
		for _, a := range r.Answers {
			if a.Tokens > 0 || a.Bytes > 0 {
				return nil, fmt.Errorf("report: %s: method %s has a budget in entries or bytes, expected ratios alone: tables are by ratio", r.Name, a.Method)
			}
		}
	}
	o.By = cmp.Or(o.By, ByTask)
	methods := methodsOf(all, &o)
	if len(methods) == 0 {
		return nil, fmt.Errorf("report: none of the %d runs has answers with these metrics, allocators and ratios", len(all))
	}
	t := &Table{By: o.By, Differences: []Difference{}, Notes: []string{}}
	tasks := tasksOf(methods)
	switch o.By {
	case ByTask:
		for _, task := range tasks {
			t.Columns = append(t.Columns, Column{Name: task, tasks: []string{task}, FullSet: eval.FullSet(task)})
		}
	case ByCategory:
		t.Columns = categoriesOf(tasks)
	case ByRatio:
		t.byRatio(methods)
	default:
		return nil, fmt.Errorf("report: columns by %q, expected %s, %s or %s", o.By, ByTask, ByCategory, ByRatio)
	}
	if err := o.check(all); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if o.By != ByRatio {
		if len(t.Columns) > 1 {
			t.Columns = append(t.Columns, Column{Name: eval.Average})
		}
		for _, m := range methods {
			for i := range t.Columns {
				m.Cells = append(m.Cells, t.Columns[i].cell(m.answers, tasks))
			}
			m.full, m.named = m.metric, m.apart(methods)
			t.Rows = append(t.Rows, m.Row)
		}
	}
	t.count()
	t.best()
	if o.Reference != nil {
		if err := t.refer(o.Reference, o.Model); err != nil {
			return nil, err
		}
	}
	if o.Against != "" {
		if !slices.ContainsFunc(methods, func(m *method) bool { return m.Allocator == o.Against }) {
			return nil, fmt.Errorf("report: none of the methods has the allocator %s, which the others are held against", o.Against)
		}
		t.compare(methods, o.Against)
	}
	t.note(all)
	return t, nil
}

// check returns an error if no answer has a metric, an allocator or a ratio that is asked
// for: a table without it would look complete.
func (o *Options) check(all []*Run) error {
	metrics, allocators, ratios := map[string]bool{}, map[string]bool{}, map[float64]bool{}
	for _, r := range all {
		for _, a := range r.Answers {
			if a.Metric != "" || a.Ratio != 0 { // not the full cache
				metrics[a.Metric], allocators[a.Allocator], ratios[a.Ratio] = true, true, true
			}
		}
	}
	return errors.Join(among("metric", o.Metrics, metrics), among("allocator", o.Allocators, allocators), among("ratio", o.Ratios, ratios))
}

// among returns an error that names values that are asked for but absent.
func among[T cmp.Ordered](what string, asked []T, there map[T]bool) error {
	for _, a := range asked {
		if !there[a] {
			return fmt.Errorf("none of the answers has the %s %v, found %v", what, a, slices.Sorted(maps.Keys(there)))
		}
	}
	return nil
}

// methodsOf returns the methods that a table is about, the full cache first.
func methodsOf(all []*Run, o *Options) []*method {
	var out []*method
	seen := map[string]int{}
	for _, r := range all {
		name := r.Name
		if seen[name]++; seen[name] > 1 {
			name += " (" + strconv.Itoa(seen[r.Name]) + ")"
		}
		of := map[string]*method{}
		var list []*method
		for _, a := range r.Answers {
			full := a.Metric == "" && a.Ratio == 0
			if !full && (len(o.Ratios) > 0 && !slices.Contains(o.Ratios, a.Ratio) ||
				len(o.Metrics) > 0 && !slices.Contains(o.Metrics, a.Metric) ||
				len(o.Allocators) > 0 && !slices.Contains(o.Allocators, a.Allocator)) {
				continue
			}
			m := of[a.Method]
			if m == nil {
				m = &method{Row: Row{Run: name, Method: a.Method, Metric: a.Metric, Allocator: a.Allocator, Ratio: a.Ratio}}
				m.parameters()
				of[a.Method] = m
				list = append(list, m)
			}
			m.answers = append(m.answers, a)
		}
		// A stopped run may have answered in any order.
		slices.SortStableFunc(list, func(a, b *method) int {
			return cmp.Or(cmp.Compare(min(1, len(a.Metric)), min(1, len(b.Metric))), strings.Compare(a.Metric, b.Metric), cmp.Compare(a.Ratio, b.Ratio))
		})
		out = append(out, list...)
	}
	return out
}

// tasksOf returns all tasks in the benchmarks' own order, then others in order
// of first appearance.
func tasksOf(methods []*method) []string {
	var found []string
	for _, m := range methods {
		for _, a := range m.answers {
			if !slices.Contains(found, a.Task) {
				found = append(found, a.Task)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(eval.TaskOrder(a), eval.TaskOrder(b)) })
	return found
}

// categoriesOf returns a column for each category of the tasks.
func categoriesOf(tasks []string) []Column {
	var out []Column
	for _, task := range tasks {
		name := cmp.Or(eval.Category(task), "other")
		i := slices.IndexFunc(out, func(c Column) bool { return c.Name == name })
		if i < 0 {
			i = len(out)
			out = append(out, Column{Name: name})
		}
		out[i].tasks = append(out[i].tasks, task)
	}
	return out
}

// cell scores the answers of a column's tasks, each task counting once; nil if
// there are none.
func (c *Column) cell(answers []eval.Answer, all []string) *Cell {
	tasks := c.tasks
	if tasks == nil {
		tasks = all
	}
	var some []eval.Answer
	answered := map[string]bool{}
	for _, a := range answers {
		if slices.Contains(tasks, a.Task) {
			some = append(some, a)
			answered[a.Task] = answered[a.Task] || a.Error == ""
		}
	}
	rows := eval.Summarize(some)
	if len(rows) == 0 {
		return nil
	}
	row := rows[len(rows)-1] // the average, if there is more than one task
	if len(answered) == 1 {
		row = rows[0] // LongBench-E's ranges of lengths come after the task
	}
	missing := len(tasks)
	for _, ok := range answered {
		if ok {
			missing--
		}
	}
	return &Cell{Percent: row.Percent, N: row.N, Missing: missing, Interval: row.Interval, Low: 100 * row.Low, High: 100 * row.High}
}

// byRatio fills the table with one row per run, metric and allocator.
func (t *Table) byRatio(methods []*method) {
	tasks := tasksOf(methods)
	var ratios []float64
	for _, m := range methods {
		if !slices.Contains(ratios, m.Ratio) {
			ratios = append(ratios, m.Ratio)
		}
	}
	slices.Sort(ratios)
	for _, r := range ratios {
		t.Columns = append(t.Columns, Column{Name: strconv.FormatFloat(r, 'g', -1, 64), ratio: r})
	}
	var lines []*method // the first of each row
	for _, m := range methods {
		i := slices.IndexFunc(lines, func(o *method) bool {
			return o.Run == m.Run && o.Metric != "" && o.line == m.line
		})
		if i < 0 {
			i = len(t.Rows)
			row := m.Row
			row.Cells, row.Ratio = make([]*Cell, len(ratios)), 0
			row.full, row.named = m.metric, m.apart(methods)
			if m.Metric != "" {
				row.Method = ""
			}
			if row.named {
				row.Method = m.line
			}
			lines, t.Rows = append(lines, m), append(t.Rows, row)
		}
		t.Rows[i].Cells[slices.Index(ratios, m.Ratio)] = (&Column{}).cell(m.answers, tasks)
	}
}

// count sets the columns' numbers of items.
func (t *Table) count() {
	for i := range t.Columns {
		for _, r := range t.Rows {
			if c := r.Cells[i]; c != nil {
				t.Columns[i].N = max(t.Columns[i].N, c.N)
			}
		}
	}
}

// best marks the highest scores among the allocators with equal run, metric and
// ratio, if they differ.
func (t *Table) best() {
	for i := range t.Columns {
		for _, r := range t.Rows {
			var block []*Cell
			for _, x := range t.Rows {
				if x.Run == r.Run && x.full == r.full && x.Ratio == r.Ratio && x.Metric != "" && x.Cells[i] != nil {
					block = append(block, x.Cells[i])
				}
			}
			if c := r.Cells[i]; c != nil && len(block) > 1 {
				c.Best = !slices.ContainsFunc(block, func(o *Cell) bool { return o.Percent > c.Percent }) &&
					slices.ContainsFunc(block, func(o *Cell) bool { return o.Percent < c.Percent })
			}
		}
	}
}

// compare compares the allocators of each run, metric and ratio with one of them.
func (t *Table) compare(methods []*method, against string) {
	for _, b := range methods {
		if b.Allocator != against {
			continue
		}
		for _, a := range methods {
			if a.Run != b.Run || a.metric != b.metric || a.Ratio != b.Ratio || a.Method == b.Method {
				continue
			}
			d := eval.Compare(append(slices.Clone(a.answers), b.answers...), a.Method, b.Method)
			if d.N == 0 {
				continue
			}
			metric, of, over := a.Metric, a.Allocator, against
			if a.apart(methods) || b.apart(methods) {
				metric, of, over = a.metric, a.allocator, b.allocator
			}
			t.Differences = append(t.Differences, Difference{Run: a.Run, Metric: metric, Ratio: a.Ratio, A: of, B: over,
				Percent: 100 * d.Diff, Low: 100 * d.Low, High: 100 * d.High, How: d.Interval, N: d.N, Tasks: d.Tasks})
		}
	}
}

// note adds a remark for readers.
func (t *Table) note(all []*Run) {
	failed := 0
	for _, r := range all {
		if r.Info != nil && r.Info.Data == "builtin" {
			t.Notes = append(t.Notes, r.Name+": questions made of this project's own texts; the scores compare methods with each other and not with published figures.")
		}
		for _, a := range r.Answers {
			if a.Error != "" {
				failed++
			}
		}
	}
	if failed > 0 {
		t.Notes = append(t.Notes, fmt.Sprintf("%s without an answer (too long for the context): not counted.", report.Count(failed, "item")))
	}
	for _, c := range t.Columns {
		if c.FullSet > 0 && c.N < c.FullSet {
			t.Notes = append(t.Notes, "n: items scored; the benchmark's own set has more of at least one task.")
			break
		}
	}
	for _, r := range t.Rows {
		if slices.ContainsFunc(r.Cells, func(c *Cell) bool { return c != nil && c.Missing > 0 }) {
			t.Notes = append(t.Notes, missingMark+" a mean over fewer tasks than others have.")
			break
		}
	}
}
