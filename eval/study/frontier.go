package study

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/internal/report"
)

// What a point of a frontier measures.
const (
	measureScore = "score" // percent, more is better
	measureKL    = "kl"    // nats per token of answers, less is better
)

// FrontierPoint is a method of a run: what its caches take and what they are worth, over
// the items that every method of its measure answered.
type FrontierPoint struct {
	Run           string  `json:"run"`
	CacheType     string  `json:"cache_type,omitempty"` // "": the run does not say
	Method        string  `json:"method"`
	Metric        string  `json:"metric,omitempty"` // "" for the full cache
	Allocator     string  `json:"allocator,omitempty"`
	RatioAchieved float64 `json:"ratio_achieved"`
	CacheBytes    int64   `json:"cache_bytes"` // mean of a compressed context
	Share         float64 `json:"share"`       // of the most that any method takes

	Measure  string  `json:"measure"` // score or kl
	N        int     `json:"n"`
	Value    float64 `json:"value"`
	Interval string  `json:"interval"` // how its 95 % interval was made; "": too few items, and Low and High are 0
	Low      float64 `json:"low"`
	High     float64 `json:"high"`

	// Best: no other point takes as few bytes and is as good, one of them strictly.
	// If there is one, By is the best such point, and Difference its value minus this
	// one, paired by item.
	Best       bool             `json:"best"`
	By         string           `json:"by,omitempty"`
	Difference *eval.Difference `json:"difference,omitempty"`

	name    string // with cache type and method, and the run where others have the same
	line    string // likewise, without the budget
	answers []eval.Answer
}

// Frontier shows what the methods of some runs are worth against the bytes that their
// caches take: a figure for scores, and one for divergences if there are any. Runs are of
// one model and one set of questions; divergences are from full caches of one type.
func Frontier(all []*runs.Measured) ([]report.Figure, []FrontierPoint, error) {
	if err := sameQuestions(all); err != nil {
		return nil, nil, fmt.Errorf("frontier: %w", err)
	}
	var figures []report.Figure
	var points []FrontierPoint
	for _, measure := range []string{measureScore, measureKL} {
		some, err := frontierPoints(all, measure)
		if err != nil {
			return nil, nil, fmt.Errorf("frontier: %w", err)
		}
		if len(some) > 0 {
			points, figures = append(points, some...), append(figures, frontierFigure(some))
		}
	}
	return figures, points, nil
}

// sameQuestions returns an error if runs are known to differ in what they were asked.
func sameQuestions(all []*runs.Measured) error {
	var known *runs.Measured
	divergences := ""
	for _, r := range all {
		if s := r.Settings; s.Model != "" {
			if known == nil {
				known = r
			}
			if s.Model != known.Settings.Model {
				return fmt.Errorf("%s is of the model %s, %s of %s: expected one model", known.Name, known.Settings.Model, r.Name, s.Model)
			}
			if !bytes.Equal(s.Data, known.Settings.Data) {
				return fmt.Errorf("%s and %s asked different questions: expected the same files", known.Name, r.Name)
			}
		}
		if len(r.Divergences) > 0 {
			if divergences = cmp.Or(divergences, r.Settings.From); divergences != r.Settings.From {
				return fmt.Errorf("divergences from full caches of %s and %s: expected one reference, as with --reference-cache and --reference-model", divergences, r.Settings.From)
			}
		}
	}
	return nil
}

// frontierPoints returns the points of a measure by bytes, ascending.
func frontierPoints(all []*runs.Measured, measure string) ([]FrontierPoint, error) {
	var points []FrontierPoint
	for i, r := range all {
		answers := r.Answers
		if measure == measureKL {
			answers = divergenceAnswers(r.Divergences)
		}
		points = append(points, pointsOf(r, i, answers)...)
	}
	if len(points) == 0 {
		return nil, nil
	}
	if !keepShared(points) {
		return nil, errors.New("no question was answered by every method of these runs")
	}
	nameApart(points)
	most := int64(1)
	for i := range points {
		points[i].measure(measure)
		most = max(most, points[i].CacheBytes)
	}
	if points[0].CacheBytes == 0 {
		return nil, fmt.Errorf("%s: the answers have no bytes of caches, expected those of lukv eval", points[0].Run)
	}
	for i := range points {
		points[i].Share = float64(points[i].CacheBytes) / float64(most)
	}
	for i := range points {
		points[i].dominate(points)
	}
	slices.SortStableFunc(points, func(a, b FrontierPoint) int { return cmp.Compare(a.CacheBytes, b.CacheBytes) })
	return points, nil
}

// divergenceAnswers returns divergences in the place of scores.
func divergenceAnswers(all []eval.Divergence) []eval.Answer {
	var out []eval.Answer
	for _, d := range all {
		out = append(out, eval.Answer{Item: d.Item, Task: d.Task, Method: d.Method, Metric: d.Metric, Allocator: d.Allocator, Ratio: d.Ratio, Tokens: d.Tokens,
			Bytes: d.Bytes, Score: d.KL, Error: d.Error, RatioAchieved: d.RatioAchieved, CacheBytes: d.CacheBytes, FullBytes: d.FullBytes})
	}
	return out
}

// pointsOf returns the methods of run i with their answers.
func pointsOf(r *runs.Measured, i int, answers []eval.Answer) []FrontierPoint {
	var out []FrontierPoint
	at := map[string]int{}
	for _, a := range answers {
		k, ok := at[a.Method]
		if !ok {
			k = len(out)
			at[a.Method] = k
			out = append(out, FrontierPoint{Run: r.Name, CacheType: r.Settings.Cache, Method: a.Method, Metric: a.Metric, Allocator: a.Allocator})
		}
		if a.Error == "" {
			out[k].answers = append(out[k].answers, a)
		}
	}
	for k := range out { // in comparisons, the methods of several runs are apart
		for n := range out[k].answers {
			out[k].answers[n].Method = fmt.Sprintf("%d %s", i, out[k].Method)
		}
	}
	return out
}

// keepShared leaves the items that all points answered, and reports whether there are any.
func keepShared(points []FrontierPoint) bool {
	type item struct {
		task string
		n    int
	}
	count := map[item]int{}
	for _, p := range points {
		for _, a := range p.answers {
			count[item{a.Task, a.Item}]++
		}
	}
	some := false
	for i := range points {
		p := &points[i]
		p.answers = slices.DeleteFunc(p.answers, func(a eval.Answer) bool { return count[item{a.Task, a.Item}] < len(points) })
		some = len(p.answers) > 0
	}
	return some
}

// nameApart names points and lines by what tells them apart.
func nameApart(points []FrontierPoint) {
	names, types := map[string]int{}, map[string]bool{}
	for _, p := range points {
		names[p.CacheType+p.Method]++
		types[p.CacheType] = true
	}
	for i := range points {
		p := &points[i]
		prefix := ""
		if names[p.CacheType+p.Method] > 1 {
			prefix = p.Run + ": "
		}
		if len(types) > 1 {
			prefix += cmp.Or(p.CacheType, "unknown type") + ", "
		}
		method := p.Method
		if at := strings.LastIndex(method, "/"); at >= 0 && p.Metric != "" {
			method = method[:at] // metric/allocator/budget
		}
		p.name, p.line = prefix+p.Method, prefix+method
	}
}

// measure fills in what the answers say.
func (p *FrontierPoint) measure(measure string) {
	p.Measure, p.N = measure, len(p.answers)
	row := meanRow(eval.Summarize(p.answers))
	p.RatioAchieved, p.CacheBytes = row.RatioAchieved, row.CacheBytes
	if measure == measureScore {
		p.Value, p.Low, p.High, p.Interval = row.Percent, 100*row.Low, 100*row.High, row.Interval
		return
	}
	var all []eval.Divergence
	for _, a := range p.answers {
		all = append(all, eval.Divergence{Item: a.Item, Task: a.Task, KL: a.Score})
	}
	rows := eval.SummarizeDivergences(all)
	last := rows[len(rows)-1]
	p.Value, p.Low, p.High, p.Interval = last.KL, last.Low, last.High, last.Interval
}

// meanRow returns the mean over tasks, or the row of the only one, which may have ranges of
// lengths below it.
func meanRow(rows []eval.Row) eval.Row {
	if last := rows[len(rows)-1]; last.Task == eval.Average {
		return last
	}
	return rows[0]
}

// better returns by how much p is better than q, in the unit of the measure.
func (p *FrontierPoint) better(q *FrontierPoint) float64 {
	if p.Measure == measureKL {
		return q.Value - p.Value
	}
	return p.Value - q.Value
}

// dominate says whether another point is no larger and no worse, and which one is best.
func (p *FrontierPoint) dominate(points []FrontierPoint) {
	var by *FrontierPoint
	for i := range points {
		q := &points[i]
		gain := q.better(p)
		if q.CacheBytes > p.CacheBytes || gain < 0 || q.CacheBytes == p.CacheBytes && gain == 0 {
			continue
		}
		if by == nil || q.better(by) > 0 || q.better(by) == 0 && q.CacheBytes < by.CacheBytes {
			by = q
		}
	}
	if p.Best = by == nil; p.Best {
		return
	}
	p.By = by.name
	d := eval.Compare(append(slices.Clone(by.answers), p.answers...), by.answers[0].Method, p.answers[0].Method)
	if p.Measure == measureScore {
		d.Diff, d.Low, d.High = 100*d.Diff, 100*d.Low, 100*d.High
	}
	p.Difference = &d
}

// leastKL is drawn for divergences that are less, which a logarithmic axis does not show.
const leastKL = 1e-6

// frontierFigure draws the points of one measure, which ascend by bytes: a line for the
// budgets of a method, which ends in the full cache of its run.
func frontierFigure(points []FrontierPoint) report.Figure {
	f := report.Figure{ID: "frontier", Title: "Score against bytes", X: "cache of a context (KiB)", Y: "score", LogX: true,
		Note: "Averages over tasks. Rings: nothing else takes as few bytes and scores as high; bars are their 95 % intervals. The full cache of its type ends each line."}
	if points[0].Measure == measureKL {
		f.ID, f.Title, f.Y, f.LogY = "frontier-kl", "Divergence against bytes", "nats per token", true
		f.Note = "Divergence of answers from those of the full cache, averages over tasks. Rings: nothing else takes as few bytes and diverges as little; bars are their 95 % intervals. Less than 1e-6 is drawn as that."
	}
	f.Subtitle = report.Count(points[0].N, "item") + " per point"
	var lines []string // of f, with their runs
	for _, full := range []bool{false, true} {
		for i := range points {
			p := &points[i]
			if full != (p.Metric == "") {
				continue
			}
			ended := false
			for k := range f.Lines {
				if full && lines[k] == p.Run {
					ended = true
					p.drawOn(&f.Lines[k])
				}
			}
			if ended {
				continue
			}
			k := slices.IndexFunc(f.Lines, func(l report.Line) bool { return l.Name == p.line })
			if k < 0 {
				k = len(f.Lines)
				f.Lines, lines = append(f.Lines, report.Line{Name: p.line}), append(lines, p.Run)
			}
			p.drawOn(&f.Lines[k])
		}
	}
	return f
}

// drawOn adds the point to a line.
func (p *FrontierPoint) drawOn(l *report.Line) {
	y, low, high := p.Value, p.Low, p.High
	if p.Interval == "" {
		low, high = y, y
	}
	if p.Measure == measureKL {
		y, low, high = max(y, leastKL), max(low, leastKL), max(high, leastKL)
	}
	l.X, l.Y, l.Low, l.High = append(l.X, float64(p.CacheBytes)/1024), append(l.Y, y), append(l.Low, low), append(l.High, high)
	l.Best = append(l.Best, p.Best)
}

// WriteFrontier writes points as a Markdown table, those that nothing dominates in bold;
// with best, only these.
func WriteFrontier(w io.Writer, points []FrontierPoint, best bool) error {
	var b strings.Builder
	for i := range points {
		p := &points[i]
		if i == 0 || points[i-1].Measure != p.Measure {
			if i > 0 {
				b.WriteByte('\n')
			}
			fmt.Fprintf(&b, "| method | KiB | of the largest | removed | %s | 95 %% | n | no larger and no worse |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n",
				map[string]string{measureScore: "score", measureKL: "nats per token"}[p.Measure])
		}
		if p.Best || !best {
			p.writeRow(&b)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// signed formats a difference with its sign.
func signed(x float64, number func(float64) string) string {
	if s := number(x); x < 0 {
		return s
	} else {
		return "+" + s
	}
}

func (p *FrontierPoint) writeRow(b *strings.Builder) {
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', 1, 64) }
	if p.Measure == measureKL {
		number = func(x float64) string { return strconv.FormatFloat(x, 'f', 4, 64) }
	}
	bounds := func(how string, low, high float64) string {
		if how == "" {
			return ""
		}
		return number(low) + " to " + number(high)
	}
	name, other := "`"+strings.ReplaceAll(p.name, "|", `\|`)+"`", ""
	if p.Best {
		name = "**" + name + "**"
	} else {
		d := p.Difference
		other = fmt.Sprintf("`%s`, %s", strings.ReplaceAll(p.By, "|", `\|`), signed(d.Diff, number))
		if d.Interval != "" {
			other += " (" + bounds(d.Interval, d.Low, d.High) + ")"
		}
	}
	fmt.Fprintf(b, "| %s | %.1f | %.1f %% | %.1f %% | %s | %s | %d | %s |\n", name, float64(p.CacheBytes)/1024, 100*p.Share, 100*p.RatioAchieved,
		number(p.Value), bounds(p.Interval, p.Low, p.High), p.N, other)
}
