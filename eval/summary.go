package eval

import (
	"slices"
	"strconv"
)

// Row summarises the answers of one method to one task, or to all tasks.
type Row struct {
	Method    string  `json:"method"`
	Metric    string  `json:"metric,omitempty"`
	Allocator string  `json:"allocator,omitempty"`
	Ratio     float64 `json:"ratio"` // requested
	Task      string  `json:"task"`  // "average" over the tasks' scores, each task counting once
	N         int     `json:"n"`
	Failed    int     `json:"failed"` // items without an answer, not part of N
	Empty     int     `json:"empty"`  // answers with nothing to score; they count as they are
	Missing   int     `json:"missing_tasks,omitempty"`

	Score    float64 `json:"score"`   // mean, 0 to 1
	Percent  float64 `json:"percent"` // of it, rounded to two decimals
	Interval string  `json:"interval"`
	Low      float64 `json:"low"` // 95 % interval of Score
	High     float64 `json:"high"`

	RatioAchieved float64 `json:"ratio_achieved"` // mean of what was removed
	CacheBytes    int64   `json:"cache_bytes"`    // mean after compression
	PeakBytes     int64   `json:"peak_bytes"`     // largest during a prefill; 0: not measured
	FullBytes     int64   `json:"full_bytes"`     // mean of an uncompressed cache
	Seconds       float64 `json:"seconds"`        // mean time per answer, its share of the prefill included
}

// Average is the task name of a method's last row.
const Average = "average"

// Summarize returns, for each method in order of first appearance, a row per
// task in order of first appearance and, where there are several tasks, an
// average row. Items that failed do not count; tasks of which a method answered
// nothing are missing from its average, whose row says how many.
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
	var rows []Row
	for _, m := range methods {
		var all []Answer
		var groups [][]float64
		mean, lost, missing := 0.0, 0, 0
		for _, t := range tasks {
			lost += failed[m][t]
			as := byMethod[m][t]
			if len(as) == 0 {
				missing++
				continue
			}
			row := describe(m, t, as)
			row.Failed = failed[m][t]
			scores := make([]float64, len(as))
			for i, a := range as {
				scores[i] = a.Score
			}
			row.score(sum(scores)/float64(len(as)), [][]float64{scores})
			rows = append(rows, row)
			groups = append(groups, scores)
			all = append(all, as...)
			mean += row.Score
		}
		if len(tasks) < 2 {
			continue
		}
		row := describe(m, Average, all)
		row.Failed, row.Missing = lost, missing
		row.score(mean/float64(len(groups)), groups)
		rows = append(rows, row)
	}
	return rows
}

// score sets the score and its interval. The order of arithmetic is the
// specification's: fractions are summed, divided by their number, multiplied by
// 100, then rounded (spec evaluation 3.7).
func (r *Row) score(mean float64, groups [][]float64) {
	r.Score, r.Percent = mean, round2(100*mean)
	r.Low, r.High, r.Interval = interval(groups)
}

// round2 rounds to two decimals, correctly in decimal.
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
	r := Row{Method: method, Task: task, N: len(as), Metric: as[0].Metric, Allocator: as[0].Allocator, Ratio: as[0].Ratio}
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
