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
	result := divergenceResult{Format: runs.DivergenceFormat, Settings: settings, Version: readVersion(), Items: []eval.Divergence{}}
	var log *eval.Log[eval.Divergence]
	if c.Items != "" {
		var err error
		if log, err = eval.OpenLog[eval.Divergence](c.Items, settings.hash(), settings); err != nil {
			return err
		}
		defer log.Close()
		result.Items = append(result.Items, recorded(log, questions.places, func(d eval.Divergence) int { return d.Item })...)
		if n := len(result.Items); n > 0 {
			e.note("resuming from %s: %s there", c.Items, report.Count(n, "measurement"))
		}
		o.Done = func(i int, method string) bool { return log.Done(questions.places[i], method) }
	}
	line := e.longProgress()
	defer line.clear()
	resumed := len(result.Items)
	o.Progress = func(done, total int) {
		e.log.Info("measured", "done", done, "of", total)
		line.show("measuring: %d of %d answers%s", done, total, line.left(resumed, done, total))
	}
	err := eval.Divergences(e.ctx, m, questions.items, methods, o, func(d eval.Divergence) error {
		d.Item = questions.places[d.Item]
		result.Items = append(result.Items, d)
		if log != nil {
			return log.Add(d)
		}
		return nil
	})
	line.clear()
	if err != nil {
		if log != nil && e.ctx.Err() != nil {
			e.note("the measurements so far are in %s; the same command continues from it", c.Items)
		}
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
