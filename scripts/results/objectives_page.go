package results

import "fmt"

// comparison writes the scores of methods under metrics, and their means.
func (p *page) comparison(c *Comparison, metrics []string, ratios []float64, methods []string) {
	p.table([]string{"metric", "removed"}, methods)
	mean := map[string]float64{}
	for _, metric := range metrics {
		for _, ratio := range ratios {
			p.scores(c.Cells, metric, ratio, methods)
			for _, m := range methods {
				mean[m] += c.Cells.at(metric, ratio, m).Score.Score
			}
		}
	}
	p.printf("| mean | |")
	for _, m := range methods {
		p.printf(" %.1f |", 100*mean[m]/float64(len(metrics)*len(ratios)))
	}
	p.printf("\n\n")
}

// gainsTable writes the paired differences of a comparison.
func (p *page) gainsTable(c *Comparison, metrics []string, ratios []float64, over []string) {
	var columns []string
	for _, over := range over {
		columns = append(columns, "− "+methodText(over))
	}
	p.table([]string{"metric", "removed"}, columns)
	for _, metric := range metrics {
		for _, ratio := range ratios {
			p.printf("| %s | %s |", metric, percent(ratio))
			p.differences(c.Gains, metric, ratio)
			p.printf("\n")
		}
	}
	p.printf("\n")
}

// methodText is a method's name in a table's header.
func methodText(method string) string {
	if method == fullCache {
		return "full cache"
	}
	return method
}

// objectives writes the comparison of the published objective with that of output
// errors.
func (p *page) objectives() {
	o := &p.f.Objectives
	p.printf("## Two objectives of a profile\n\n"+
		"LU-KV with profiles of the published objective (lukv), and of output errors with all layers weighing the same (output error)\n"+
		"and weighted by the effect of cutting each (output error × effect). %d samples, those of the first table; full cache: %s.\n"+
		"The published objective stays the default: this is one small model whose retrieval lives in one layer.\n\n", o.Items, o.Full)
	p.comparison(o, objectiveMetrics, ratios, objectiveMethods)
	p.printf("Paired differences of output error × effect, in points, with 95 %% intervals:\n\n")
	p.gainsTable(o, objectiveMetrics, ratios, objectiveOver)
	for _, over := range objectiveOver {
		p.againstText(o.Gains, over)
	}
	p.taskLosses()
	p.printf("\n### Objectives by task, at %s\n\n", percent(taskRatio))
	p.tasks(o.Tasks, objectiveMetrics, objectiveMethods)
}

// againstText says in how many rows a method's interval against another excludes
// zero.
func (p *page) againstText(gains []Gain, over string) {
	above, below, open := sides(gains, over)
	if over == fullCache {
		over = "the full cache"
	}
	p.printf("* Against %s, the interval lies above zero in %d of %d rows and below in %d", over, len(above), len(above)+len(below)+len(open), len(below))
	if len(below) > 0 {
		p.printf(" (%s)", rowsText(below))
	}
	p.printf(".\n")
}

// taskLosses names the tasks that lose most under the objective at taskRatio: kinds
// of question that the calibration texts may lack.
func (p *page) taskLosses() {
	var losses []string
	for _, metric := range objectiveMetrics {
		worst, task := 0.0, ""
		for _, t := range p.f.Objectives.Tasks {
			if d := t.Scores[metric][byEffect] - t.Scores[metric][published]; d < worst {
				worst, task = d, t.Task
			}
		}
		if task != "" {
			losses = append(losses, fmt.Sprintf("%s %.0f points with %s", task, 100*worst, metric))
		}
	}
	if len(losses) == 0 {
		p.printf("* No task loses by it against lukv at %s.\n", percent(taskRatio))
		return
	}
	p.printf("* At %s, the tasks that lose most by it against lukv: %s. Single tasks have few items.\n", percent(taskRatio), list(losses))
}
