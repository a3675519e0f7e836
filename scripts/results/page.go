package results

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/report"
)

// WriteMarkdown writes the page.
func (f *Figures) WriteMarkdown(w io.Writer) error {
	p := &page{f: f}
	p.printf(`# What compression costs the embedded model

Scores are percentages of expected answers found, every one of %d tasks counting once; behind a score stands its 95 %% bootstrap
interval over items (1000 resamples). Compression is question-agnostic: the context is compressed before the question is
known. Decoding is greedy. Everything on this page, the sentences included, is made by `+"`make results`"+` from
[results.json](results.json). Parts are measured again with `+"`lukv results --only %s`"+`. Model:
%s, %s precision; profiles as embedded.

`, len(f.Test.Tasks), strings.Join(Parts(), ","), f.Model, f.Precision)
	p.short()
	p.test()
	p.byTask()
	p.objectives()
	p.everyMetric()
	p.weights()
	p.oneLayer()
	p.development()
	p.remedies()
	p.losses()
	p.solver()
	_, err := io.WriteString(w, p.b.String())
	return err
}

// page is one page being written.
type page struct {
	f *Figures
	b strings.Builder
}

func (p *page) printf(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

// table begins a table: text columns, then columns of numbers.
func (p *page) table(text []string, numbers []string) {
	p.printf("| %s |\n|%s%s\n", strings.Join(append(slices.Clone(text), numbers...), " | "),
		strings.Repeat("---|", len(text)), strings.Repeat("---:|", len(numbers)))
}

// scores writes a row of a table, its best scores bold.
func (p *page) scores(cells Cells, metric string, ratio float64, methods []string) {
	p.printf("| %s | %s |", metric, percent(ratio))
	best := cells.best(metric, ratio, methods).Score.Score
	for _, m := range methods {
		c := cells.at(metric, ratio, m)
		text := c.Score.String()
		if c.Score.Score == best {
			score, interval, _ := strings.Cut(text, " ")
			text = "**" + score + "** " + interval
		}
		p.printf(" %s |", text)
	}
	p.printf("\n")
}

// differences writes a row's paired differences in points.
func (p *page) differences(gains []Gain, metric string, ratio float64) {
	for _, g := range gains {
		if g.Metric == metric && g.Ratio == ratio {
			p.printf(" %+.1f (%+.1f to %+.1f) |", 100*g.Diff, 100*g.Low, 100*g.High)
		}
	}
}

func (s Score) String() string {
	return fmt.Sprintf("%.1f (%.1f–%.1f)", 100*s.Score, 100*s.Low, 100*s.High)
}

func percent(x float64) string { return fmt.Sprintf("%.0f %%", 100*x) }

// eachRow calls do for every metric and ratio.
func eachRow(do func(metric string, ratio float64)) {
	for _, metric := range metrics {
		for _, ratio := range ratios {
			do(metric, ratio)
		}
	}
}

// list joins parts for use in a sentence.
func list(parts []string) string {
	if len(parts) < 2 {
		return strings.Join(parts, "")
	}
	return strings.Join(parts[:len(parts)-1], ", ") + " and " + parts[len(parts)-1]
}

// rowsText names rows of a table, grouping the ratios of a metric.
func rowsText(rows []Cell) string {
	var names, parts []string
	at := map[string][]string{}
	for _, c := range rows {
		if at[c.Metric] == nil {
			names = append(names, c.Metric)
		}
		at[c.Metric] = append(at[c.Metric], percent(c.Ratio))
	}
	for _, name := range names {
		parts = append(parts, name+" at "+list(at[name]))
	}
	return list(parts)
}

// best returns the cell with the highest score in a row, the first one in a tie.
func (cs Cells) best(metric string, ratio float64, methods []string) Cell {
	best := Cell{Score: Score{Score: -1}}
	for _, m := range methods {
		if c := cs.at(metric, ratio, m); c.Score.Score > best.Score.Score {
			best = c
		}
	}
	return best
}

// short writes the sentences meant to be quoted.
func (p *page) short() {
	t := &p.f.Test
	p.printf("## In short\n\n")
	n := len(metrics) * len(ratios)
	led := map[string][]Cell{}
	eachRow(func(metric string, ratio float64) {
		c := t.Cells.best(metric, ratio, allocators)
		led[c.Method] = append(led[c.Method], c)
	})
	p.printf("* **LU-KV has the highest score in %d of %d rows** of the first table", len(led["lukv"]), n)
	if len(led["lukv"]) > 0 {
		p.printf(" (%s)", rowsText(led["lukv"]))
	}
	p.printf(".")
	for _, a := range allocators {
		if a != "lukv" && len(led[a]) > 0 {
			p.printf(" %s leads in %d (%s).", a, len(led[a]), rowsText(led[a]))
		}
	}
	p.printf("\n")
	for _, over := range against {
		p.gains(over)
	}
	for _, ratio := range ratios {
		best := Cell{Score: Score{Score: -1}}
		for _, metric := range metrics {
			if c := t.Cells.best(metric, ratio, allocators); c.Score.Score > best.Score.Score {
				best = c
			}
		}
		p.printf("* With %s removed, the best of all combinations (%s with %s) keeps %.1f of the full cache's %.1f points, in %s instead of %s.\n",
			percent(ratio), best.Metric, best.Method, 100*best.Score.Score, 100*t.Full.Score, report.Bytes(best.CacheBytes), report.Bytes(t.FullBytes))
	}
	p.printf("* The model is a 4-million-parameter retriever, the data are its generator's, and the profiles are made on the same kind of text.\n" +
		"  The figures compare methods with each other; they say nothing about other models:\n" +
		"  for one, see [experiments.md](experiments.md).\n\n")
}

// sides divides the rows by where the interval of the difference lies: above zero,
// below it, or on both sides.
func sides(gains []Gain, over string) (above, below, open []Cell) {
	for _, g := range gains {
		c := Cell{Metric: g.Metric, Ratio: g.Ratio}
		switch {
		case g.Over != over:
		case g.Low > 0:
			above = append(above, c)
		case g.High < 0:
			below = append(below, c)
		default:
			open = append(open, c)
		}
	}
	return above, below, open
}

// gains writes in how many rows the interval shows LU-KV ahead of another
// allocator.
func (p *page) gains(over string) {
	low, high := 1.0, -1.0
	for _, g := range p.f.Test.Gains {
		if g.Over == over {
			low, high = min(low, g.Diff), max(high, g.Diff)
		}
	}
	above, below, open := sides(p.f.Test.Gains, over)
	p.printf("* Item by item, LU-KV scores %+.1f to %+.1f points against %s. The paired interval lies above zero in %d of %d rows",
		100*low, 100*high, over, len(above), len(above)+len(below)+len(open))
	if len(open) > 0 {
		p.printf("; it includes zero for %s", rowsText(open))
	}
	if len(below) > 0 {
		p.printf("; it lies below zero for %s", rowsText(below))
	}
	p.printf(".\n")
}

func (p *page) test() {
	t := &p.f.Test
	p.printf("## Allocators on the embedded samples\n\nThe test set: %d samples of 256 to 2,048 tokens. Full cache: %s, %s on average.\n\n",
		t.Items, t.Full, report.Bytes(t.FullBytes))
	p.table([]string{"metric", "removed"}, allocators)
	eachRow(func(metric string, ratio float64) {
		p.scores(t.Cells, metric, ratio, allocators)
	})
	p.printf("\nPaired differences of LU-KV, in points, with 95 %% intervals; what was really removed; and what the cache held on average,\npage slack included:\n\n")
	var columns []string
	for _, a := range against {
		columns = append(columns, "LU-KV − "+a)
	}
	held := append(slices.Clone(against), "lukv")
	for _, what := range []string{"removed: ", "cache: "} {
		for i, a := range held {
			if i > 0 {
				what = ""
			}
			columns = append(columns, what+a)
		}
	}
	p.table([]string{"metric", "removed"}, columns)
	eachRow(func(metric string, ratio float64) {
		p.printf("| %s | %s |", metric, percent(ratio))
		p.differences(t.Gains, metric, ratio)
		for _, a := range held {
			p.printf(" %.1f %% |", 100*t.Cells.at(metric, ratio, a).Achieved)
		}
		for _, a := range held {
			p.printf(" %s |", report.Bytes(t.Cells.at(metric, ratio, a).CacheBytes))
		}
		p.printf("\n")
	})
	p.printf("\n")
}

func (p *page) byTask() {
	p.printf("### By task, at %s\n\n", percent(taskRatio))
	p.tasks(p.f.Test.Tasks, metrics, allocators)
}

// tasks writes a table by task for each metric.
func (p *page) tasks(tasks []Task, metrics, methods []string) {
	for _, metric := range metrics {
		p.printf("%s:\n\n", metric)
		p.table([]string{"task"}, append([]string{"n", "full"}, methods...))
		mean := make([]float64, len(methods)+1)
		n := 0
		for _, t := range tasks {
			p.printf("| %s | %d | %.0f |", t.Task, t.Items, 100*t.Full)
			mean[0] += t.Full
			n += t.Items
			for i, a := range methods {
				p.printf(" %.0f |", 100*t.Scores[metric][a])
				mean[i+1] += t.Scores[metric][a]
			}
			p.printf("\n")
		}
		p.printf("| average | %d |", n)
		for _, x := range mean {
			p.printf(" %.1f |", 100*x/float64(len(tasks)))
		}
		p.printf("\n\n")
	}
}

func (p *page) oneLayer() {
	o := &p.f.OneLayer
	p.printf("## One layer alone\n\nScores on %d development items when %s of one layer goes, uniformly over its heads, and the other layers keep everything\n(full cache: %.1f):\n\n",
		o.Items, percent(o.Ratio), 100*o.Full)
	layers := len(o.Scores[metrics[0]])
	var columns []string
	for l := range layers {
		columns = append(columns, fmt.Sprintf("layer %d", l))
	}
	p.table([]string{"metric"}, columns)
	worst := map[int][]string{}
	for _, metric := range metrics {
		p.printf("| %s |", metric)
		at := 0
		for l, s := range o.Scores[metric] {
			if s < o.Scores[metric][at] {
				at = l
			}
		}
		for l, s := range o.Scores[metric] {
			mark := ""
			if l == at {
				mark = "**"
			}
			p.printf(" %s%.1f%s |", mark, 100*s, mark)
		}
		p.printf("\n")
		worst[at] = append(worst[at], metric)
	}
	p.printf("\n")
	for l := range layers {
		if len(worst[l]) > 0 {
			p.printf("With %s, layer %d costs most. ", list(worst[l]), l)
		}
	}
	p.printf("The oracle adds up importance over layers as if a unit were worth the same in each, which\n" +
		"on this model it is not: an allocator whose fixed slope happens to spare the costly layer (pyramidkv, at low ratios) can\n" +
		"therefore score higher than its loss of importance, below, suggests.\n\n")
}

func (p *page) development() {
	d := &p.f.Development
	p.printf("## How to make the profile: development set\n\n%d items made by the model's generator with seeds of their own (512 to 2,048 tokens); no item of the test set.\n"+
		"Full cache: %s. The columns are normalisations of the oracle importance, the repaired solver, the question's last row\ncounted as a decoding step, and the ablation without the optimality gap.\n\n", d.Items, d.Full)
	names := []string{"uniform"}
	for _, v := range variants {
		names = append(names, v.name)
	}
	p.table([]string{"metric", "removed"}, names)
	eachRow(func(metric string, ratio float64) {
		p.printf("| %s | %s |", metric, percent(ratio))
		for _, name := range names {
			p.printf(" %s |", d.Cells.at(metric, ratio, name).Score)
		}
		p.printf("\n")
	})
	p.printf("| mean | |")
	for _, name := range names {
		p.printf(" %.1f |", 100*d.mean(name))
	}
	p.printf("\n\n")
	p.versus("No normalisation against one divisor per layer (the authors' recorder)", "none", "per layer")
	p.versus("Repaired against greedy solutions", "none, repaired", "none")
	p.versus("With the question counted against without", "none, question counted", "none")
	p.versus("Profiles made as if the metric ranked perfectly (\"without the gap\") against uniform budgets", "none, without the gap", "uniform")
	p.versus("The same against profiles with the gap", "none, without the gap", "none")
	p.printf("\nDecided here, on one small model: no normalisation, greedy, the question not counted. `lukv profile` offers the others.\n\n")
}

// mean returns the mean score of a column.
func (d *Development) mean(name string) float64 {
	sum, n := 0.0, 0
	eachRow(func(metric string, ratio float64) {
		sum += d.Cells.at(metric, ratio, name).Score.Score
		n++
	})
	return sum / float64(n)
}

// versus says where one column is above another, judged by the figures as printed.
func (p *page) versus(what, a, b string) {
	d := &p.f.Development
	var above, equal, below []Cell
	low, high := 100.0, -100.0
	eachRow(func(metric string, ratio float64) {
		c := Cell{Metric: metric, Ratio: ratio}
		x := tenths(d.Cells.at(metric, ratio, a).Score.Score) - tenths(d.Cells.at(metric, ratio, b).Score.Score)
		low, high = min(low, float64(x)/10), max(high, float64(x)/10)
		switch {
		case x > 0:
			above = append(above, c)
		case x < 0:
			below = append(below, c)
		default:
			equal = append(equal, c)
		}
	})
	p.printf("* %s: %+.1f to %+.1f points, higher in %d of %d rows", what, low, high, len(above), len(above)+len(equal)+len(below))
	if len(equal) > 0 {
		p.printf(", equal in %d", len(equal))
	}
	if few := below; len(few) > 0 && len(few) <= len(above) {
		p.printf(", lower for %s", rowsText(few))
	} else if len(above) > 0 && len(above) < len(below) {
		p.printf(" (%s)", rowsText(above))
	}
	p.printf("; mean %.1f against %.1f.\n", 100*d.mean(a), 100*d.mean(b))
}

// tenths is a score in tenths of a point, as printed.
func tenths(score float64) int {
	var whole, part int
	fmt.Sscanf(fmt.Sprintf("%.1f", 100*score), "%d.%d", &whole, &part)
	return 10*whole + part
}

func (p *page) losses() {
	p.printf("## Oracle importance lost\n\nShare of the importance (not normalised) of %d development items that the kept entries lack, in percent; in parentheses what the\n"+
		"best possible choice of entries would lose under the same budgets. The difference is the optimality gap of the metric.\n\n", p.f.Losses.Items)
	p.table([]string{"metric", "removed"}, allocators)
	eachRow(func(metric string, ratio float64) {
		p.printf("| %s | %s |", metric, percent(ratio))
		least := 2.0
		of := map[string]Loss{}
		for _, c := range p.f.Losses.Cells {
			if c.Metric == metric && c.Ratio == ratio {
				of[c.Allocator] = c
				least = min(least, c.Loss)
			}
		}
		for _, a := range allocators {
			mark := ""
			if of[a].Loss == least {
				mark = "**"
			}
			p.printf(" %s%.1f%s (%.1f) |", mark, 100*of[a].Loss, mark, 100*of[a].Oracle)
		}
		p.printf("\n")
	})
	p.printf("\n")
}

// solver reports the certificates over all calibration questions.
func (p *page) solver() {
	s := &p.f.Solver
	p.printf("## Solver\n\nHow far the summed losses of all calibration questions can lie above the optimum at most, in percent of the lower bound: greedy, and\n"+
		"repaired in parentheses. At low ratios hardly anything is lost, and the bound is a small number to be a percentage of.\n"+
		"Of %d solutions (questions × metrics × levels) %d are proven optimal as greedy finds them; repair improved %d and worsened %d.\n\n",
		s.Solutions, s.Exact, s.Improved, s.Worsened)
	var columns []string
	for _, level := range solverLevels {
		columns = append(columns, fmt.Sprintf("%d %%", level))
	}
	p.table([]string{"metric"}, append(columns, "all levels"))
	for _, metric := range metrics {
		p.printf("| %s |", metric)
		for _, level := range append(slices.Clone(solverLevels), 0) {
			for _, r := range s.Levels {
				if r.Metric == metric && r.Ratio == float64(level)/100 {
					p.printf(" %s (%s) |", above(r.Greedy, r.Bound), above(r.Repaired, r.Bound))
				}
			}
		}
		p.printf("\n")
	}
}

// above says how far a loss lies above its bound, in percent.
func above(loss, bound float64) string {
	if bound <= 0 {
		return "–"
	}
	x := 100 * max(0, loss/bound-1)
	if x >= 10 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.2f", x)
}
