package eval

import (
	"encoding/csv"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lukv/lukv/internal/report"
)

// Row summarises the answers of one method to one task, or to all tasks.
type Row struct {
	Method    string  `json:"method"`
	Metric    string  `json:"metric,omitempty"`
	Allocator string  `json:"allocator,omitempty"`
	Ratio     float64 `json:"ratio"` // requested
	Task      string  `json:"task"`  // "average" over the tasks' scores, each task counting once
	N         int     `json:"n"`
	Failed    int     `json:"failed,omitempty"` // items without an answer, not part of N

	Score float64 `json:"score"` // mean, 0 to 1
	Low   float64 `json:"low"`   // 95 % bootstrap interval
	High  float64 `json:"high"`

	RatioAchieved float64 `json:"ratio_achieved"` // mean of what was removed
	CacheBytes    int64   `json:"cache_bytes"`    // mean after compression
	PeakBytes     int64   `json:"peak_bytes"`     // largest during a prefill; 0: not measured
	FullBytes     int64   `json:"full_bytes"`     // mean of an uncompressed cache
	Seconds       float64 `json:"seconds"`        // mean time per answer, its share of the prefill included
}

// Average is the task name of a method's last row.
const Average = "average"

// resamples is the number of bootstrap resamples.
const resamples = 1000

// Summarize returns, for each method in order of first appearance, a row per
// task in order of first appearance and, where there are several, an average
// row. Items that failed do not count. Intervals come from resampling items
// within their task with a fixed seed.
func Summarize(answers []Answer) []Row {
	var methods, tasks []string
	byMethod := map[string]map[string][]Answer{}
	failed := map[string]map[string]int{}
	for _, a := range answers {
		if a.Error != "" {
			if failed[a.Method] == nil {
				failed[a.Method] = map[string]int{}
			}
			failed[a.Method][a.Task]++
			continue
		}
		if byMethod[a.Method] == nil {
			byMethod[a.Method] = map[string][]Answer{}
			methods = append(methods, a.Method)
		}
		if !slices.Contains(tasks, a.Task) {
			tasks = append(tasks, a.Task)
		}
		byMethod[a.Method][a.Task] = append(byMethod[a.Method][a.Task], a)
	}
	var rows []Row
	for _, m := range methods {
		var all []Answer
		var groups [][]float64
		mean, lost := 0.0, 0
		for _, t := range tasks {
			lost += failed[m][t]
			as := byMethod[m][t]
			if len(as) == 0 {
				continue
			}
			row := describe(m, t, as)
			row.Failed = failed[m][t]
			scores := make([]float64, len(as))
			for i, a := range as {
				scores[i] = a.Score
			}
			row.Low, row.High = bootstrap([][]float64{scores})
			rows = append(rows, row)
			groups = append(groups, scores)
			all = append(all, as...)
			mean += row.Score
		}
		if len(groups) < 2 {
			continue
		}
		row := describe(m, Average, all)
		row.Failed = lost
		row.Score = mean / float64(len(groups))
		row.Low, row.High = bootstrap(groups)
		rows = append(rows, row)
	}
	return rows
}

func describe(method, task string, as []Answer) Row {
	n := float64(len(as))
	r := Row{Method: method, Task: task, N: len(as), Metric: as[0].Metric, Allocator: as[0].Allocator, Ratio: as[0].Ratio}
	var cache, full int64
	for _, a := range as {
		r.Score += a.Score / n
		r.RatioAchieved += a.RatioAchieved / n
		r.Seconds += a.Time.Seconds() / n
		cache += a.CacheBytes
		full += a.FullBytes
		r.PeakBytes = max(r.PeakBytes, a.PeakBytes)
	}
	r.CacheBytes, r.FullBytes = cache/int64(len(as)), full/int64(len(as))
	return r
}

// bootstrap returns the 95 % interval of the mean of group means, resampling
// within each group.
func bootstrap(groups [][]float64) (low, high float64) {
	rng := rand.New(rand.NewPCG(42, 0))
	means := make([]float64, resamples)
	for i := range means {
		for _, g := range groups {
			sum := 0.0
			for range g {
				sum += g[rng.IntN(len(g))]
			}
			means[i] += sum / float64(len(g))
		}
		means[i] /= float64(len(groups))
	}
	slices.Sort(means)
	return means[resamples*25/1000], means[resamples*975/1000-1]
}

// Compare returns the mean difference of score between methods a and b over
// the items that both answered, each task counting once, with its paired 95 %
// bootstrap interval.
func Compare(answers []Answer, a, b string) (diff, low, high float64) {
	type key struct {
		task string
		item int
	}
	scores := map[key]float64{}
	for _, x := range answers {
		if x.Method == b && x.Error == "" {
			scores[key{x.Task, x.Item}] = x.Score
		}
	}
	var tasks []string
	byTask := map[string][]float64{}
	for _, x := range answers {
		if x.Method != a || x.Error != "" {
			continue
		}
		if s, ok := scores[key{x.Task, x.Item}]; ok {
			if byTask[x.Task] == nil {
				tasks = append(tasks, x.Task)
			}
			byTask[x.Task] = append(byTask[x.Task], x.Score-s)
		}
	}
	if len(tasks) == 0 {
		return 0, 0, 0
	}
	var groups [][]float64
	for _, t := range tasks {
		g := byTask[t]
		groups = append(groups, g)
		sum := 0.0
		for _, d := range g {
			sum += d
		}
		diff += sum / float64(len(g)) / float64(len(tasks))
	}
	low, high = bootstrap(groups)
	return diff, low, high
}

// cells are a row's columns for people; scores in percent.
func (r *Row) cells() []string {
	peak := "-"
	if r.PeakBytes > 0 {
		peak = report.Bytes(r.PeakBytes)
	}
	n := strconv.Itoa(r.N)
	if r.Failed > 0 {
		n += fmt.Sprintf(" (%d failed)", r.Failed)
	}
	return []string{
		r.Method, r.Task, n, fmt.Sprintf("%.1f", 100*r.Score), fmt.Sprintf("%.1f-%.1f", 100*r.Low, 100*r.High),
		fmt.Sprintf("%.1f %%", 100*r.RatioAchieved), report.Bytes(r.CacheBytes), peak,
		time.Duration(r.Seconds * float64(time.Second)).Round(time.Millisecond).String(),
	}
}

var header = []string{"method", "task", "n", "score", "95 % interval", "removed", "cache", "peak", "time/answer"}

// WriteTable prints rows as an aligned table; scores in percent.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(header, "\t"))
	for i := range rows {
		fmt.Fprintln(t, strings.Join(rows[i].cells(), "\t"))
	}
	return t.Flush()
}

// WriteMarkdown writes rows as a Markdown table; scores in percent.
func WriteMarkdown(w io.Writer, rows []Row) error {
	var b strings.Builder
	line := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
		}
		b.WriteString("|\n")
	}
	line(header)
	b.WriteString("| --- | --- " + strings.Repeat("| ---: ", len(header)-2) + "|\n")
	for i := range rows {
		line(rows[i].cells())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteCSV writes rows in long form with a header.
func WriteCSV(w io.Writer, rows []Row) error {
	c := csv.NewWriter(w)
	c.Write([]string{"method", "metric", "allocator", "ratio", "task", "n", "failed", "score", "low", "high",
		"ratio_achieved", "cache_bytes", "peak_bytes", "full_bytes", "seconds"})
	f := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	for _, r := range rows {
		c.Write([]string{r.Method, r.Metric, r.Allocator, f(r.Ratio), r.Task, strconv.Itoa(r.N), strconv.Itoa(r.Failed),
			f(r.Score), f(r.Low), f(r.High), f(r.RatioAchieved), strconv.FormatInt(r.CacheBytes, 10),
			strconv.FormatInt(r.PeakBytes, 10), strconv.FormatInt(r.FullBytes, 10), f(r.Seconds)})
	}
	c.Flush()
	return c.Error()
}
