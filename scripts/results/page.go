package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/report"
)

// WriteMarkdown writes the page: conclusions, with summary tables. The
// full tables are those of [Figures.WriteCSV].
func (f *Figures) WriteMarkdown(w io.Writer) error {
	p := &page{f: f}
	p.printf(`# What compression costs the embedded model

Each score is the percentage of expected answers found, averaged over %d tasks and followed by its 95 %% bootstrap interval over
items (1000 resamples). The context is compressed before the question is known. Decoding is greedy. Model: %s, %s
precision, with the embedded profiles.

`+"`make results`"+` makes this page, sentences included, from [results.json](results.json);
`+"`cd scripts/results && go run . -only %s`"+` measures parts of it. The full tables are:

`, len(f.Test.Tasks), f.Model, f.Precision, strings.Join(Parts(), ","))
	for _, t := range Tables {
		p.printf("* [%s.csv](results/%s.csv): %s\n", t.Name, t.Name, t.Content)
	}
	p.printf("\n")
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
	p.printf("* The model is a 4-million-parameter retriever, the data come from its generator, and the profiles were measured on similar text.\n" +
		"  The figures compare methods on this model only; [experiments.md](experiments.md) covers another model.\n\n")
}

// sides divides the rows by whether the interval of the difference is above zero, below
// zero, or includes zero.
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

// gains writes in how many rows the interval shows that LU-KV scores higher than another
// allocator.
func (p *page) gains(over string) {
	low, high := 1.0, -1.0
	for _, g := range p.f.Test.Gains {
		if g.Over == over {
			low, high = min(low, g.Diff), max(high, g.Diff)
		}
	}
	above, below, open := sides(p.f.Test.Gains, over)
	p.printf("* Item by item, LU-KV scores %+.1f to %+.1f points against %s. The paired interval is above zero in %d of %d rows",
		100*low, 100*high, over, len(above), len(above)+len(below)+len(open))
	if len(open) > 0 {
		p.printf("; it includes zero for %s", rowsText(open))
	}
	if len(below) > 0 {
		p.printf("; it is below zero for %s", rowsText(below))
	}
	p.printf(".\n")
}

func (p *page) test() {
	t := &p.f.Test
	p.printf("## Allocators on the embedded samples\n\nThe test set has %d samples of 256 to 2,048 tokens. Full cache: %s, %s on average.\n\n",
		t.Items, t.Full, report.Bytes(t.FullBytes))
	p.table([]string{"metric", "removed"}, allocators)
	eachRow(func(metric string, ratio float64) {
		p.scores(t.Cells, metric, ratio, allocators)
	})
	p.printf("\nPaired differences of LU-KV in points, with 95 %% intervals:\n\n")
	var columns []string
	for _, a := range against {
		columns = append(columns, "− "+a)
	}
	p.table([]string{"metric", "removed"}, columns)
	eachRow(func(metric string, ratio float64) {
		p.printf("| %s | %s |", metric, percent(ratio))
		p.differences(t.Gains, metric, ratio)
		p.printf("\n")
	})
	p.printf("\n")
}

func (p *page) byTask() {
	p.printf("### By task, with %s removed\n\nMeans over %s:\n\n", percent(taskRatio), list(metrics))
	p.tasks(p.f.Test.Tasks, metrics, allocators)
}

// tasks writes a table by task of means over metrics.
func (p *page) tasks(tasks []Task, metrics, methods []string) {
	p.table([]string{"task"}, append([]string{"full"}, methods...))
	for _, t := range tasks {
		p.printf("| %s | %.0f |", t.Task, 100*t.Full)
		for _, a := range methods {
			sum := 0.0
			for _, metric := range metrics {
				sum += t.Scores[metric][a]
			}
			p.printf(" %.0f |", 100*sum/float64(len(metrics)))
		}
		p.printf("\n")
	}
	p.printf("\n")
}

// means writes a table by ratio of mean scores over metrics, the best bold.
func (p *page) means(cells Cells, metrics []string, ratios []float64, methods []string) {
	p.table([]string{"removed"}, methods)
	for _, ratio := range ratios {
		means := make([]float64, len(methods))
		for i, m := range methods {
			for _, metric := range metrics {
				means[i] += cells.at(metric, ratio, m).Score.Score / float64(len(metrics))
			}
		}
		p.printf("| %s |", percent(ratio))
		for _, x := range means {
			if x == slices.Max(means) {
				p.printf(" **%.1f** |", 100*x)
			} else {
				p.printf(" %.1f |", 100*x)
			}
		}
		p.printf("\n")
	}
	p.printf("\n")
}

func (p *page) oneLayer() {
	o := &p.f.OneLayer
	p.printf("## One layer alone\n\nScores on %d development items when %s of one layer is removed, uniformly over its heads, and the other layers keep\nall entries (full cache: %.1f):\n\n",
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
	p.printf("The oracle sums importance over layers as if a unit were worth the same in each layer, which does not hold for this\n" +
		"model. An allocator that happens to spare the costly layer (pyramidkv at low ratios) can therefore score higher\n" +
		"than its loss of importance suggests.\n\n")
}

func (p *page) development() {
	d := &p.f.Development
	p.printf("## How to make the profile: development set\n\n%d items from the model's generator with other seeds (512 to 2,048 tokens), none of them in the test set. Full cache: %s.\n"+
		"The columns are normalisations of the oracle importance, the repaired solver, the question's last row counted as a decoding\nstep, and profiles without the optimality gap. Means over %s:\n\n", d.Items, d.Full, list(metrics))
	names := []string{"uniform"}
	for _, v := range variants {
		names = append(names, v.name)
	}
	p.means(d.Cells, metrics, ratios, names)
	p.versus("No normalisation against one divisor per layer (the authors' recorder)", "none", "per layer")
	p.versus("Repaired against greedy solutions", "none, repaired", "none")
	p.versus("With the question counted against without", "none, question counted", "none")
	p.versus("Profiles made as if the metric ranked perfectly (\"without the gap\") against uniform budgets", "none, without the gap", "uniform")
	p.versus("The same against profiles with the gap", "none, without the gap", "none")
	p.printf("\nThe defaults follow from this comparison on one small model: no normalisation, the greedy solver, the question not counted. `lukv profile`\noffers the other variants.\n\n")
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

// losses writes mean losses over metrics.
func (p *page) losses() {
	p.printf("## Oracle importance lost\n\nPercentage of the importance (not normalised) of %d development items that the kept entries lack; in parentheses, the loss of the\n"+
		"best possible choice of entries under the same budgets. The difference is the optimality gap of the metric. Means over\n%s:\n\n", p.f.Losses.Items, list(metrics))
	p.table([]string{"removed"}, allocators)
	for _, ratio := range ratios {
		p.printf("| %s |", percent(ratio))
		for _, a := range allocators {
			var loss, oracle float64
			for _, c := range p.f.Losses.Cells {
				if c.Ratio == ratio && c.Allocator == a {
					loss += c.Loss / float64(len(metrics))
					oracle += c.Oracle / float64(len(metrics))
				}
			}
			p.printf(" %.1f (%.1f) |", 100*loss, 100*oracle)
		}
		p.printf("\n")
	}
	p.printf("\n")
}

// solver reports the certificates over all calibration questions.
func (p *page) solver() {
	s := &p.f.Solver
	p.printf("## Solver\n\nThe summed losses of all calibration questions exceed the optimum by at most these percentages of the lower bound, over all levels;\n"+
		"repaired solutions in parentheses. Greedy is proven optimal for %d of %d solutions (questions × metrics × levels); repair\nimproved %d and worsened %d.\n\n",
		s.Exact, s.Solutions, s.Improved, s.Worsened)
	p.table([]string{"metric"}, []string{"greedy (repaired)"})
	for _, r := range s.Levels {
		if r.Ratio == 0 {
			p.printf("| %s | %s (%s) |\n", r.Metric, above(r.Greedy, r.Bound), above(r.Repaired, r.Bound))
		}
	}
}

// above returns how far a loss exceeds its bound, in percent.
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
