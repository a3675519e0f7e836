package command

import (
	"bytes"
	"fmt"
	"io"

	"github.com/lukv/lukv/internal/embedded"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

type probeCmd struct {
	modelFlags
	Output   string   `short:"o" required:"" placeholder:"FILE" help:"Write the allocator to FILE as JSON; - is standard output."`
	Data     []string `short:"d" sep:"none" placeholder:"FILE" help:"Read probes from FILE: JSON Lines of {context, needle, question, answer_prefix, answer}; the needle occurs in the context exactly once. May be repeated (default: facts hidden in a story)."`
	Limit    int      `placeholder:"N" help:"Use only the first N probes."`
	MaxSteps int      `default:"${probesteps}" placeholder:"N" help:"Limit answers to N tokens (default ${default})."`
	Raw      bool     `help:"Do not apply the chat template."`
}

func (probeCmd) Help() string {
	return `Measure how much each query head attends to the fact that a question asks for while the model answers: HeadKV's retrieval and reasoning probe, from which the allocator headkv makes budgets. Probes with wrong answers (word F1 of at most 50 %) do not count. The result is the allocator as JSON.

Examples:

  lukv probe DIR -o headkv.json

  lukv run DIR --context book.txt --ratio 0.8 --allocator "$(cat headkv.json)" "Who did it?"`
}

func (c *probeCmd) unused(g given) error {
	if c.Model == builtin.Name {
		return g.unused("raw", "prompts of the embedded model are always those of its card")
	}
	return nil
}

func (c *probeCmd) outputs() []string { return []string{c.Output} }

func (c *probeCmd) Run(e *env) error {
	if c.Limit < 0 || c.MaxSteps < 1 {
		return usage("--limit and --max-steps: found %d and %d, expected 0 or more, and at least 1", c.Limit, c.MaxSteps)
	}
	probes, err := c.probes()
	if err != nil {
		return err
	}
	m, framing, err := c.openFramed(e, c.Raw)
	if err != nil {
		return err
	}
	defer m.Close()
	line := e.longProgress()
	defer line.clear()
	a, scores, err := embedded.HeadKV(e.ctx, m, probes, calibration.ProbeOptions{
		Options:  calibration.Options{Prompt: framing.Prompt, MaxSteps: c.MaxSteps, Session: c.session()},
		Progress: func(done int) { line.show("probing: question %d of %d", done, len(probes)) },
	})
	if err != nil {
		return err
	}
	line.clear()
	e.note("%d of %d probes answered correctly", scores.Correct, scores.Probes)
	if 2*scores.Correct < scores.Probes || scores.Correct < 4 {
		e.note("note: so few correct answers give an unreliable measurement of the heads")
	}
	return e.writeTo(c.Output, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, a)
		return err
	})
}

// probes returns the probes that the flags name.
func (c *probeCmd) probes() ([]calibration.Probe, error) {
	var out []calibration.Probe
	for _, path := range c.Data {
		data, err := inputfile.Read(path, maxInput)
		if err != nil {
			return nil, fmt.Errorf("read probes: %w", err)
		}
		more, err := calibration.ReadProbes(bytes.NewReader(data), path)
		if err != nil {
			return nil, err
		}
		out = append(out, more...)
	}
	if len(c.Data) == 0 {
		out = calibration.NarrativeProbes()
		if c.Model == builtin.Name {
			out = embedded.Probes()
		}
	}
	if c.Limit > 0 {
		out = out[:min(c.Limit, len(out))]
	}
	return out, nil
}
