package main

import "strings"

// kinds are groups of tasks, by name prefix.
var kinds = []struct {
	name  string
	tasks []string
}{
	{"one needle", []string{"niah_single"}},
	{"several needles", []string{"niah_multi"}},
	{"chains", []string{"vt"}},
	{"words", []string{"cwe", "fwe"}},
	{"questions", []string{"qa"}},
}

// remedies writes the remedies against the losses of profiles of output errors.
func (p *page) remedies() {
	c := &p.f.Remedies
	if c.Items == 0 {
		return
	}
	p.printf("## Remedies for tasks without calibration questions\n\n"+
		"Profiles of output errors lose on kinds of task that their calibration lacks. Remedies tried on %d development items, %d of\n"+
		"each task (full cache: %s): a smaller power γ of the layers' weights; a floor for every head of a quarter or half of the mean, paid for\n"+
		"by the other heads in proportion; and rows mixed with uniform rows. Means over %s:\n\n",
		c.Items, partItems, c.Full, list(metrics))
	p.means(c.Cells, metrics, remedyRatios, remedyMethods)
	p.printf("Paired differences of the unchanged profile from each remedy; above zero, the remedy loses:\n\n")
	for _, over := range remedyOver {
		p.againstText(c.Gains, over)
	}
	p.printf("\n### Remedies by kind of task\n\nMeans over %s, with %s removed:\n\n", list(metrics), percent(taskRatio))
	p.table([]string{"tasks"}, append([]string{"full"}, remedyMethods...))
	var rows []string
	for _, metric := range metrics {
		rows = append(rows, rowName(metric, taskRatio))
	}
	for _, kind := range kinds {
		p.kind(rows, kind.name, kind.tasks)
	}
	p.printf("\n")
}

// kind writes the means over rows and over tasks with the given name prefixes.
func (p *page) kind(rows []string, name string, prefixes []string) {
	full, n := 0.0, 0.0
	sums := map[string]float64{}
	for _, t := range p.f.Remedies.Tasks {
		for _, prefix := range prefixes {
			if !strings.HasPrefix(t.Task, prefix) {
				continue
			}
			full += t.Full
			n++
			for _, m := range remedyMethods {
				for _, row := range rows {
					sums[m] += t.Scores[row][m] / float64(len(rows))
				}
			}
		}
	}
	p.printf("| %s | %.0f |", name, 100*full/n)
	for _, m := range remedyMethods {
		p.printf(" %.0f |", 100*sums[m]/n)
	}
	p.printf("\n")
}
