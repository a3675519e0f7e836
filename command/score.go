package command

import (
	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/internal/report"
)

type scoreCmd struct {
	Runs []string `arg:"" name:"run" help:"Folders of lukv eval --out, files of --items, or predictions of kvpress, RULER or LongBench (files or folders)."`

	scoringFlags
	CSV      bool `name:"csv" xor:"format" help:"Print CSV in long form."`
	JSON     bool `name:"json" xor:"format" help:"Print one JSON object."`
	Markdown bool `xor:"format" help:"Print a Markdown table."`
}

func (scoreCmd) Help() string {
	return `Score recorded answers again, without a model: lukv's own, kvpress's predictions.csv, whose folder names the method, RULER's pred/TASK.jsonl and LongBench's pred/MODEL/DATASET.jsonl. Nothing is written.

Examples:

  lukv score runs/ruler --ruler-clean official

  lukv score results/ruler__4096__model__snapkv__0.80 --csv`
}

// scoreFormat is the format identifier that score --json prints.
const scoreFormat = "lukv score 1"

func (c *scoreCmd) Run(e *env) error {
	var rows []eval.Row
	failed := 0
	all, err := runs.Read(c.Runs...)
	if err != nil {
		return err
	}
	for _, r := range all {
		r.Rescore(c.scoring())
		some := eval.Summarize(r.Answers)
		for i := range some {
			if len(c.Runs) > 1 {
				some[i].Method = r.Name + ": " + some[i].Method
			}
		}
		rows = append(rows, some...)
		for _, a := range r.Answers {
			if a.Error != "" {
				failed++
			}
		}
	}
	if failed > 0 {
		e.note("note: %s failed when given: not counted", report.Count(failed, "answer"))
	}
	switch {
	case c.JSON:
		return e.writeJSON(scoreFormat, struct {
			Rows []eval.Row `json:"rows"`
		}{rows})
	case c.CSV:
		return eval.WriteCSV(e.out, rows, nil)
	case c.Markdown:
		return eval.WriteMarkdown(e.out, rows)
	}
	return eval.WriteTable(e.out, rows)
}
