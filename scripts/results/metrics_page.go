package main

import (
	"slices"
)

// everyMetric writes the comparison of all metrics.
func (p *page) everyMetric() {
	c := &p.f.Metrics
	if c.Items == 0 {
		return
	}
	names := c.Cells.metrics()
	p.printf("## Every metric\n\nMetrics in their default configuration under allocators and both objectives, with the embedded profiles; headkv uses the\n"+
		"importance that `lukv probe builtin` measures, and triattention the centres of queries from calibration. %d samples, drawn\nlike `lukv eval builtin --limit %d`; full cache: %s. Scores with %s removed:\n\n", c.Items, metricItems, c.Full, percent(taskRatio))
	p.table([]string{"metric"}, metricMethods)
	for _, metric := range names {
		best := c.Cells.best(metric, taskRatio, metricMethods)
		p.printf("| %s |", metric)
		for _, m := range metricMethods {
			mark := ""
			x := c.Cells.at(metric, taskRatio, m)
			if x.Score.Score == best.Score.Score {
				mark = "**"
			}
			p.printf(" %s%.1f%s |", mark, 100*x.Score.Score, mark)
		}
		p.printf("\n")
	}
	p.printf("\n")
	for _, ratio := range ratios {
		best := slices.MaxFunc(c.Cells, func(a, b Cell) int { return compareAt(a, b, ratio) })
		p.printf("* With %s removed, %s with %s is highest: %.1f.\n", percent(ratio), best.Metric, best.Method, 100*best.Score.Score)
	}
	p.missed(c.Cells)
	p.printf("\nPaired differences of output error × effect:\n\n")
	for _, over := range metricOver {
		p.againstText(c.Gains, over)
	}
	p.printf("\n")
}

// missed says which methods remove a different fraction than requested.
func (p *page) missed(cells Cells) {
	const most = 0.02
	for _, method := range metricMethods {
		for _, ratio := range ratios {
			low, high := 1.0, 0.0
			for _, c := range cells {
				if c.Method == method && c.Ratio == ratio {
					low, high = min(low, c.Achieved), max(high, c.Achieved)
				}
			}
			if low < ratio-most || high > ratio+most {
				p.printf("* %s removes %.0f to %.0f %% where %s is requested.\n", method, 100*low, 100*high, percent(ratio))
			}
		}
	}
}

// compareAt orders the cells of a ratio by score, and all others below them.
func compareAt(a, b Cell, ratio float64) int {
	score := func(c Cell) float64 {
		if c.Ratio != ratio {
			return -1
		}
		return c.Score.Score
	}
	switch x, y := score(a), score(b); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// weights writes the comparison of the two measured effects, and that of one
// metric per head with single metrics.
func (p *page) weights() {
	w := &p.f.Weights
	if w.Items == 0 {
		return
	}
	p.printf("## Effects of layers: cut and span\n\nProfiles of output errors whose layers are weighted by the effect of cutting each layer alone (cut, the default), or by each layer's\n"+
		"contribution to a cut of all layers at 50, 80 and 90 %% (span, six times as many passes), from %d questions of each calibration\ntext. %d "+
		"samples, %d of each task; full cache: %s. Means over %s:\n\n", weightQuestions, w.Items, partItems, w.Full, list(objectiveMetrics))
	p.means(w.Cells, objectiveMetrics, ratios, weightMethods)
	p.againstText(w.Gains, "span")

	h := &p.f.PerHead
	p.printf("\n## A metric for each head\n\nThe metric `per_head` with cut weights, from the same questions and on the same samples:\n\n")
	p.table([]string{"metrics"}, []string{"50 %", "80 %", "90 %"})
	for _, set := range perHeadSets {
		p.printf("| %s |", setName(set))
		for _, ratio := range ratios {
			p.printf(" %s |", h.Cells.at(setName(set), ratio, perHead).Score)
		}
		p.printf("\n")
	}
	p.printf("\nPaired differences from each metric alone (the column cut above):\n\n")
	for _, metric := range objectiveMetrics {
		p.againstText(h.Gains, metric)
	}
	p.printf("\n")
}
