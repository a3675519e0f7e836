package command

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/model"
)

// divergenceResult is printed by eval --measure kl --json.
type divergenceResult struct {
	Format   string               `json:"format"`
	Settings evalSettings         `json:"settings"`
	Version  versionInfo          `json:"version"`
	Rows     []eval.DivergenceRow `json:"rows"`
	Items    []eval.Divergence    `json:"items"`
}

// divergence measures how far the methods move the full cache's own answers.
func (c *evalCmd) divergence(e *env, m *model.Model, questions evalQuestions, methods []eval.Method, o eval.Options, settings evalSettings) error {
	result := divergenceResult{Format: runs.DivergenceFormat, Settings: settings, Version: readVersion()}
	record := recorder[eval.Divergence]{
		path: c.Items, verb: "measured", nouns: "measurements",
		places: questions.places, item: func(d *eval.Divergence) *int { return &d.Item },
	}
	var err error
	if c.Items != "" {
		if record.log, err = eval.OpenLog[eval.Divergence](c.Items, settings.hash(), settings); err != nil {
			return err
		}
	}
	result.Items, err = record.run(e, o, func(o eval.Options, emit func(eval.Divergence) error) error {
		return eval.Divergences(e.ctx, m, questions.items, methods, o, emit)
	})
	if err != nil {
		return err
	}
	// A run that was extended has the items that it had before first.
	at := placesOf(methods)
	slices.SortStableFunc(result.Items, func(a, b eval.Divergence) int {
		return cmp.Or(a.Item-b.Item, at[a.Method]-at[b.Method])
	})
	result.Rows = eval.SummarizeDivergences(result.Items)
	if err := c.printDivergence(e, &result); err != nil {
		return err
	}
	failed, noted := 0, map[string]bool{}
	for _, d := range result.Items {
		if d.Error != "" {
			failed++
			fmt.Fprintf(e.err, "failed: %s, line %d, task %s: %s\n", d.Method, d.Line, d.Task, d.Error)
		}
		if len(d.Notes) > 0 && !noted[d.Method] {
			noted[d.Method] = true
			e.note("note: %s: %s", d.Method, d.Notes[0])
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d measurements failed", failed, len(result.Items))
	}
	return nil
}

func (c *evalCmd) printDivergence(e *env, result *divergenceResult) error {
	switch {
	case c.JSON:
		return report.WriteJSON(e.out, result)
	case c.CSV:
		return eval.WriteDivergenceCSV(e.out, result.Rows, policies(result.Settings.Methods))
	case c.Markdown:
		return eval.WriteDivergenceMarkdown(e.out, result.Rows)
	}
	if err := eval.WriteDivergenceTable(e.out, result.Rows); err != nil {
		return err
	}
	return writePolicies(e.out, result.Settings.Methods)
}
