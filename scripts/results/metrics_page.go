package results

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
	p.printf("## Every metric\n\nMetrics in their default configuration under allocators and both objectives, with the embedded profiles and, for headkv, the\n"+
		"importance that `lukv probe builtin` measures. triattention has the centres of queries from calibration under every\n"+
		"allocator. %d samples, drawn as `lukv eval builtin --limit %d` does; full cache: %s.\n\n", c.Items, metricItems, c.Full)
	p.comparison(c, names, ratios, metricMethods)
	for _, ratio := range ratios {
		best := slices.MaxFunc(c.Cells, func(a, b Cell) int { return compareAt(a, b, ratio) })
		p.printf("* With %s removed, %s with %s is highest: %.1f.\n", percent(ratio), best.Metric, best.Method, 100*best.Score.Score)
	}
	p.missed(c.Cells)
	p.printf("\nPaired differences of output error × effect, in points, with 95 %% intervals:\n\n")
	p.gainsTable(c, names, ratios, metricOver)
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
				p.printf("* %s removes %.0f to %.0f %% where %s is asked for.\n", method, 100*low, 100*high, percent(ratio))
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
	p.printf("## Effects of layers: cut and span\n\nProfiles of output errors whose layers are weighted by the effect of cutting each alone (cut, the default), and by what each adds to a\n"+
		"cut of all layers at 50, 80 and 90 %% (span, six times as many passes), all from %d questions of each of the calibration texts. %d\n"+
		"samples, %d of each task; full cache: %s.\n\n", weightQuestions, w.Items, partItems, w.Full)
	p.table([]string{"metric", "removed"}, append(slices.Clone(weightMethods), "cut − span"))
	for _, metric := range objectiveMetrics {
		for _, ratio := range ratios {
			p.printf("| %s | %s |", metric, percent(ratio))
			for _, m := range weightMethods {
				p.printf(" %s |", w.Cells.at(metric, ratio, m).Score)
			}
			p.differences(w.Gains, metric, ratio)
			p.printf("\n")
		}
	}
	p.printf("\n")
	p.againstText(w.Gains, "span")

	h := &p.f.PerHead
	p.printf("\n## A metric for each head\n\nThe metric `per_head`, with cut weights, from the same questions, on the same samples; then its paired differences\n" +
		"from the metrics alone (the column cut above).\n\n")
	var sets []string
	for _, set := range perHeadSets {
		sets = append(sets, setName(set))
	}
	columns := []string{perHead}
	for _, metric := range objectiveMetrics {
		columns = append(columns, "− "+metric)
	}
	p.table([]string{"metrics", "removed"}, columns)
	for _, set := range sets {
		for _, ratio := range ratios {
			p.printf("| %s | %s | %s |", set, percent(ratio), h.Cells.at(set, ratio, perHead).Score)
			p.differences(h.Gains, set, ratio)
			p.printf("\n")
		}
	}
	p.printf("\n")
	for _, metric := range objectiveMetrics {
		p.againstText(h.Gains, metric)
	}
	p.printf("\n")
}
