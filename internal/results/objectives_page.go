package results

import "fmt"

// objectives writes the comparison of the published objective with output errors.
func (p *page) objectives() {
	o := &p.f.Objectives
	if o.Items == 0 {
		return
	}
	p.printf("## Two objectives of a profile\n\n"+
		"LU-KV with profiles of the published objective (lukv), and of output errors with all layers weighing the same (output error)\n"+
		"and weighted by the effect of cutting each (output error × effect). %d samples, those of the first table; full cache: %s.\n"+
		"The published objective stays the default: this is one small model whose retrieval lives in one layer.\n\n", o.Items, o.Full)
	p.table([]string{"metric", "removed"}, objectiveMethods)
	mean := map[string]float64{}
	n := 0
	for _, metric := range objectiveMetrics {
		for _, ratio := range ratios {
			p.scores(o.Cells, metric, ratio, objectiveMethods)
			for _, m := range objectiveMethods {
				mean[m] += o.Cells.at(metric, ratio, m).Score.Score
			}
			n++
		}
	}
	p.printf("| mean | |")
	for _, m := range objectiveMethods {
		p.printf(" %.1f |", 100*mean[m]/float64(n))
	}
	p.printf("\n\nPaired differences of output error × effect, in points, with 95 %% intervals:\n\n")
	var columns []string
	for _, over := range objectiveOver {
		if over == "full" {
			over = "full cache"
		}
		columns = append(columns, "− "+over)
	}
	p.table([]string{"metric", "removed"}, columns)
	for _, metric := range objectiveMetrics {
		for _, ratio := range ratios {
			p.printf("| %s | %s |", metric, percent(ratio))
			p.differences(o.Gains, metric, ratio)
			p.printf("\n")
		}
	}
	p.printf("\n")
	for _, over := range objectiveOver {
		p.objectiveGains(over)
	}
	p.taskLosses()
	p.printf("\n### Objectives by task, at %s\n\n", percent(taskRatio))
	p.tasks(o.Tasks, objectiveMetrics, objectiveMethods)
}

// objectiveGains says in how many rows the last method differs from another beyond
// doubt.
func (p *page) objectiveGains(over string) {
	above, below, open := sides(p.f.Objectives.Gains, over)
	if over == "full" {
		over = "the full cache"
	}
	p.printf("* Against %s, the interval lies above zero in %d of %d rows and below in %d", over, len(above), len(above)+len(below)+len(open), len(below))
	if len(below) > 0 {
		p.printf(" (%s)", rowsText(below))
	}
	p.printf(".\n")
}

// taskLosses names the tasks that lose most by the objective at taskRatio: kinds of
// question that the calibration texts may lack.
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
