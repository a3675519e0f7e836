package command

import (
	"bytes"
	"fmt"

	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/internal/report"
)

type reportCmd struct {
	Runs []string `arg:"" name:"run" help:"Evaluation runs, in the formats of lukv score."`

	By        string   `enum:"task,category,ratio" default:"task" help:"Set the columns: ${enum}."`
	Ratio     []string `sep:"none" placeholder:"R,…" help:"Show only these ratios (default: all)."`
	Metric    []string `sep:"none" placeholder:"NAME,…" help:"Show only these metrics (default: all)."`
	Allocator []string `sep:"none" placeholder:"NAME,…" help:"Show only these allocators (default: all)."`

	CI             bool   `name:"ci" help:"Add 95 % intervals: bootstrap over items, Wilson's interval below ten items."`
	Against        string `placeholder:"NAME" help:"Show paired differences of every allocator from this one, over the items that both answered."`
	Reference      string `placeholder:"FILE" help:"Add rows of published scores: CSV with model, allocator, metric, ratio and tasks or categories."`
	ReferenceModel string `placeholder:"NAME" help:"Add only the published scores of this model."`

	CSV   bool `name:"csv" xor:"format" help:"Print CSV in long form."`
	JSON  bool `name:"json" xor:"format" help:"Print one JSON object."`
	LaTeX bool `name:"latex" xor:"format" help:"Print a LaTeX table (booktabs)."`
}

func (reportCmd) Help() string {
	return `Make tables of runs, as Markdown by default: a row per method, the full cache first, scores in percent, the best allocator of each metric and ratio bold. n is the number of items scored.

Examples:

  lukv report runs/ruler --ratio 0.8 --ci --against uniform

  lukv report runs/longbench --by category --latex

  lukv report runs/ruler --reference ruler_4k_r80.csv --reference-model mistral-7b-instruct-v0.3`
}

// reportFormat is the format identifier that report --json prints.
const reportFormat = "lukv report 1"

func (c *reportCmd) Run(e *env) error {
	ratios, err := parseRatios(c.Ratio)
	if err != nil {
		return err
	}
	o := runs.Options{By: c.By, Ratios: ratios, Metrics: splitList(c.Metric), Allocators: splitList(c.Allocator), Against: c.Against, Model: c.ReferenceModel}
	if c.Reference != "" {
		data, err := e.readText(c.Reference)
		if err != nil {
			return fmt.Errorf("read reference: %w", err)
		}
		if o.Reference, err = runs.ReadReference(bytes.NewReader(data), c.Reference); err != nil {
			return err
		}
	}
	all, err := runs.Read(c.Runs...)
	if err != nil {
		return err
	}
	t, err := runs.NewTable(all, o)
	if err != nil {
		return err
	}
	switch {
	case c.JSON:
		return report.WriteJSON(e.out, struct {
			Format string `json:"format"`
			*runs.Table
		}{reportFormat, t})
	case c.CSV:
		return t.WriteCSV(e.out)
	case c.LaTeX:
		return t.WriteLaTeX(e.out, c.CI)
	}
	return t.WriteMarkdown(e.out, c.CI)
}

func (c *reportCmd) unused(g given) error {
	if !g["reference"] {
		if err := g.unused("reference-model", "published scores need --reference"); err != nil {
			return err
		}
	}
	if c.CSV || c.LaTeX {
		if err := g.unused("against", "differences are in Markdown and JSON alone"); err != nil {
			return err
		}
	}
	if c.CSV || c.JSON {
		return g.unused("ci", "CSV and JSON always have the intervals")
	}
	return nil
}
