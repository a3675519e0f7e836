package results

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

// remedies writes what was tried against the losses of profiles of output
// errors.
func (p *page) remedies() {
	c := &p.f.Remedies
	if c.Items == 0 {
		return
	}
	p.printf("## Remedies for tasks without calibration questions\n\n"+
		"Profiles of output errors lose kinds of task that their calibration lacks. What was tried against it, on %d development items, %d of\n"+
		"each task (full cache: %s): a smaller power γ of the layers' weights; for every head a quarter or half of what heads keep on average, paid\n"+
		"by the others in proportion; and rows mixed with uniform ones.\n\n",
		c.Items, partItems, c.Full)
	p.comparison(c, metrics, remedyRatios, remedyMethods)
	p.printf("Paired differences of the profile as it is, in points, with 95 %% intervals; above zero, the remedy loses:\n\n")
	p.gainsTable(c, metrics, remedyRatios, remedyOver)
	for _, over := range remedyOver {
		p.againstText(c.Gains, over)
	}
	p.printf("\n### Remedies by kind of task\n\n")
	p.table([]string{"metric", "tasks"}, append([]string{"full"}, remedyMethods...))
	for _, metric := range metrics {
		for _, ratio := range remedyRatios {
			for _, kind := range kinds {
				p.kind(rowName(metric, ratio), kind.name, kind.tasks)
			}
		}
	}
	p.printf("\n")
}

// kind writes the means over tasks with the given name prefixes.
func (p *page) kind(row, name string, prefixes []string) {
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
				sums[m] += t.Scores[row][m]
			}
		}
	}
	p.printf("| %s | %s | %.0f |", row, name, 100*full/n)
	for _, m := range remedyMethods {
		p.printf(" %.0f |", 100*sums[m]/n)
	}
	p.printf("\n")
}
