package main

import "fmt"

// methodText is a method's name in a table's header.
func methodText(method string) string {
	if method == fullCache {
		return "full cache"
	}
	return method
}

// objectives writes the comparison of the published objective with output errors.
func (p *page) objectives() {
	o := &p.f.Objectives
	p.printf("## Two objectives of a profile\n\n"+
		"LU-KV with profiles of the published objective (lukv), and of output errors with all layers weighted equally (output error)\n"+
		"or by the effect of cutting each layer (output error × effect). %d samples, as in the first table; full cache: %s. The published\n"+
		"objective remains the default, since this is one small model whose retrieval is concentrated in one layer. Means over\n%s:\n\n", o.Items, o.Full, list(objectiveMetrics))
	p.means(o.Cells, objectiveMetrics, ratios, objectiveMethods)
	p.printf("Paired differences of output error × effect:\n\n")
	for _, over := range objectiveOver {
		p.againstText(o.Gains, over)
	}
	p.taskLosses()
	p.printf("\n")
}

// againstText says in how many rows a method's interval against another excludes
// zero.
func (p *page) againstText(gains []Gain, over string) {
	above, below, open := sides(gains, over)
	if over == fullCache {
		over = "the full cache"
	}
	p.printf("* Against %s, the interval is above zero in %d of %d rows and below in %d", over, len(above), len(above)+len(below)+len(open), len(below))
	if len(below) > 0 && len(below) <= listedRows {
		p.printf(" (%s)", rowsText(below))
	}
	p.printf(".\n")
}

// listedRows is the largest number of rows that a sentence names.
const listedRows = 8

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
		p.printf("* No task scores lower than under lukv with %s removed.\n", percent(taskRatio))
		return
	}
	p.printf("* With %s removed, the tasks that lose most against lukv: %s. Each task has few items.\n", percent(taskRatio), list(losses))
}
