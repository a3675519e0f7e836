package eval

import (
	"slices"
	"strconv"

	"github.com/lukv/lukv/eval/scoring"
)

// Row summarises the answers of one method on one task or several.
type Row struct {
	Method    string  `json:"method"`
	Metric    string  `json:"metric,omitempty"`
	Allocator string  `json:"allocator,omitempty"`
	Ratio     float64 `json:"ratio"`                   // requested
	Tokens    int     `json:"budget_tokens,omitempty"` // or Bytes: the budget instead of a ratio
	Bytes     int64   `json:"budget_bytes,omitempty"`
	Task      string  `json:"task"`
	Tasks     int     `json:"tasks,omitempty"` // in a mean over tasks, each counting once
	N         int     `json:"n"`
	Failed    int     `json:"failed"` // items without an answer, not counted in N
	Empty     int     `json:"empty"`  // answers with nothing to score; they count as they are
	Missing   int     `json:"missing_tasks,omitempty"`

	Score    float64 `json:"score"`   // mean, 0 to 1
	Percent  float64 `json:"percent"` // Score in percent, rounded to two decimals
	Interval string  `json:"interval"`
	Low      float64 `json:"low"` // 95 % interval of Score
	High     float64 `json:"high"`

	RatioAchieved float64 `json:"ratio_achieved"` // mean fraction removed
	CacheBytes    int64   `json:"cache_bytes"`    // mean after compression
	PeakBytes     int64   `json:"peak_bytes"`     // largest peak of a prefill; 0: not measured
	FullBytes     int64   `json:"full_bytes"`     // mean of an uncompressed cache
	Seconds       float64 `json:"seconds"`        // mean time per answer, including its share of the prefill
}

// Average is the task name of a method's last row.
const Average = "average"

// Summarize returns, for each method in order of first appearance, a row per
// task in order of first appearance and, where there are several tasks, an
// average row. LongBench's tasks have a row per category before that, and
// LongBench-E's a row per range of lengths. Items that failed do not count;
// tasks in which a method answered nothing are left out of its means, whose
// rows say how many there are.
func Summarize(answers []Answer) []Row {
	var methods, tasks []string
	byMethod := map[string]map[string][]Answer{}
	failed := map[string]map[string]int{}
	for _, a := range answers {
		if !slices.Contains(tasks, a.Task) {
			tasks = append(tasks, a.Task)
		}
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
		byMethod[a.Method][a.Task] = append(byMethod[a.Method][a.Task], a)
	}
	rows := []Row{} // a list in JSON, even if everything failed
	for _, m := range methods {
		rows = append(rows, summarize(m, tasks, byMethod[m], failed[m])...)
	}
	return rows
}

// summarize returns the rows of one method.
func summarize(method string, tasks []string, answers map[string][]Answer, failed map[string]int) []Row {
	var rows []Row
	for _, t := range tasks {
		if as := answers[t]; len(as) > 0 {
			row := describe(method, t, as)
			row.Failed = failed[t]
			row.score(scoresOf(as))
			d, e := scoring.LongBench(t)
			if d != nil && !e { // multiplied first (spec evaluation 5.1)
				row.Percent = round2(100 * sum(scoresOf(as)) / float64(len(as)))
			}
			rows = append(rows, row)
			if e {
				rows = append(rows, byLength(method, t, as)...)
			}
		}
	}
	mean := func(name string, of func(task string) bool) {
		var all []Answer
		var groups [][]float64
		lost, missing := 0, 0
		for _, t := range tasks {
			if !of(t) {
				continue
			}
			lost += failed[t]
			if len(answers[t]) == 0 {
				missing++
				continue
			}
			all = append(all, answers[t]...)
			groups = append(groups, scoresOf(answers[t]))
		}
		if len(groups) == 0 {
			return
		}
		row := describe(method, name, all)
		row.Failed, row.Missing, row.Tasks = lost, missing, len(groups)
		row.score(groups...)
		rows = append(rows, row)
	}
	for _, c := range scoring.Categories {
		mean(c, func(task string) bool { d, _ := scoring.LongBench(task); return d != nil && d.Category == c })
	}
	if len(tasks) > 1 {
		mean(Average, func(string) bool { return true })
	}
	return rows
}

// byLength returns the rows for a LongBench-E task's ranges of lengths.
func byLength(method, task string, as []Answer) []Row {
	var rows []Row
	for _, b := range scoring.Buckets {
		var in []Answer
		for _, a := range as {
			if scoring.Bucket(a.Length) == b {
				in = append(in, a)
			}
		}
		if len(in) > 0 {
			row := describe(method, task+" "+b, in)
			row.score(scoresOf(in))
			rows = append(rows, row)
		}
	}
	return rows
}

func scoresOf(as []Answer) []float64 {
	out := make([]float64, len(as))
	for i, a := range as {
		out[i] = a.Score
	}
	return out
}

// score sets the score and its interval. The order of arithmetic is the
// specification's for RULER: fractions are summed, divided by their number, multiplied by
// 100, then rounded (spec evaluation 3.7).
func (r *Row) score(groups ...[]float64) {
	mean := 0.0
	for _, g := range groups {
		mean += sum(g) / float64(len(g))
	}
	mean /= float64(len(groups))
	r.Score, r.Percent = mean, round2(100*mean)
	r.Low, r.High, r.Interval = interval(groups)
}

// round2 rounds to two decimals, correctly rounded in decimal.
func round2(x float64) float64 {
	v, err := strconv.ParseFloat(strconv.FormatFloat(x, 'f', 2, 64), 64)
	if err != nil {
		return x // not finite
	}
	return v
}

// describe returns a row without its score.
func describe(method, task string, as []Answer) Row {
	n := float64(len(as))
	r := Row{Method: method, Task: task, N: len(as), Metric: as[0].Metric, Allocator: as[0].Allocator, Ratio: as[0].Ratio, Tokens: as[0].Tokens, Bytes: as[0].Bytes}
	var cache, full int64
	for _, a := range as {
		r.RatioAchieved += a.RatioAchieved
		r.Seconds += a.Time.Seconds()
		cache += a.CacheBytes
		full += a.FullBytes
		r.PeakBytes = max(r.PeakBytes, a.PeakBytes)
		if a.Empty {
			r.Empty++
		}
	}
	r.RatioAchieved /= n
	r.Seconds /= n
	r.CacheBytes, r.FullBytes = cache/int64(len(as)), full/int64(len(as))
	return r
}
