package command

import (
	"time"

	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/eval/study"
)

type analyzeFrontierCmd struct {
	Runs []string `arg:"" name:"run" help:"Evaluation runs of one model and the same questions: folders (eval --out), files of answers (eval --items) or of divergences (eval --measure kl --json)."`
	Best bool     `help:"Print only the methods that nothing dominates."`
	analyzeOut
}

func (analyzeFrontierCmd) Help() string {
	return `Compare methods by the bytes that their caches take: cache types, ratios and allocators on one scale. A method is dominated if another takes no more bytes and scores no lower (or diverges no more), one of them strictly. Divergences of several cache types need one reference (eval --measure kl --reference-cache). The table on standard output has all methods by bytes with 95 % intervals, those that nothing dominates in bold; a dominated one is followed by the best of those that dominate it, and by the difference, paired by item. Items that some method did not answer are left out.

Examples:

  for t in bf16 int8 int4; do lukv eval DIR --data questions.jsonl --cache-type $t --allocator uniform,adakv --out runs/$t; done
  lukv analyze frontier runs/bf16 runs/int8 runs/int4 -o frontier.json
  lukv plot frontier.json --svg figures`
}

func (c *analyzeFrontierCmd) unused(g given) error {
	if c.Out == "-" {
		return g.unused("best", "the JSON on standard output has all methods")
	}
	return nil
}

func (c *analyzeFrontierCmd) Run(e *env) error {
	start := time.Now()
	all, err := runs.ReadMeasured(c.Runs...)
	if err != nil {
		return err
	}
	figures, points, err := study.Frontier(all)
	if err != nil {
		return err
	}
	f := &study.File{Title: "Accuracy against bytes", Figures: figures, Frontier: points}
	for _, r := range all {
		if f.Model == "" {
			f.Model = r.Settings.Model
		}
	}
	if err := c.finish(e, start, f); err != nil || c.Out == "-" {
		return err
	}
	return study.WriteFrontier(e.out, points, c.Best)
}
