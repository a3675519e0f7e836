package main

import (
	"bytes"
	"context"
	"io"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/internal/results"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

// resultsCmd regenerates docs/results.md: the experiments on the embedded
// model that the project's claims rest on.
type resultsCmd struct {
	Out         string   `short:"o" required:"" placeholder:"FILE" help:"Markdown file to write."`
	Figures     string   `required:"" placeholder:"FILE" help:"JSON file of the figures that the page is made from."`
	Only        []string `placeholder:"PART,…" enum:"${resultparts}" help:"Measure these parts alone, one after another; all other figures stay: ${resultparts}."`
	Render      bool     `help:"Measure nothing: make the page from the figures that are there."`
	Development string   `placeholder:"FILE" default:"model/builtin/testdata/development.jsonl" help:"Development set, on which choices are made."`
	runtimeFlags
}

func (resultsCmd) Help() string {
	return "Maintainers' command: measures profiles of the embedded model under every normalisation, compares them on the development set, and evaluates all allocators on the embedded samples. Takes minutes."
}

func (c *resultsCmd) outputs() []string {
	if c.Render {
		return []string{c.Out}
	}
	return []string{c.Out, c.Figures}
}

func (c *resultsCmd) Run(e *env) error {
	var figures *results.Figures
	if c.Render || len(c.Only) > 0 {
		data, err := inputfile.Read(c.Figures, maxInput)
		if err != nil {
			return err
		}
		if figures, err = results.Read(bytes.NewReader(data)); err != nil {
			return err
		}
	}
	if !c.Render {
		var err error
		if figures, err = c.measure(e, figures); err != nil {
			return err
		}
	}
	return atomicfile.Write(c.Out, 0o644, figures.WriteMarkdown)
}

// measure measures all figures, or some parts of the given ones anew, and writes them.
func (c *resultsCmd) measure(e *env, figures *results.Figures) (*results.Figures, error) {
	data, err := inputfile.Read(c.Development, maxInput)
	if err != nil {
		return nil, err
	}
	development, err := eval.ReadItems(bytes.NewReader(data), c.Development)
	if err != nil {
		return nil, err
	}
	test, err := eval.ReadItems(bytes.NewReader(builtin.SamplesJSONL()), "the embedded samples")
	if err != nil {
		return nil, err
	}
	m, err := c.open(e, builtin.Name)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	session := c.session()
	// Some development contexts and their answers slightly exceed the trained length.
	session.MaxTokens = max(session.MaxTokens, 4096)
	bar := e.progress()
	defer bar.clear()
	o := results.Options{
		Eval:   eval.Options{Framing: builtinFraming, Session: session},
		Prompt: builtin.Prompt, Texts: builtinTexts(), Test: test, Development: development,
		Profiles: func(metric string, outputErrors bool) (*lukv.Profile, error) {
			if outputErrors {
				return builtin.OutputErrorProfile(lukv.MetricConfig{Name: metric})
			}
			return builtin.Profile(lukv.MetricConfig{Name: metric})
		},
		HeadKV: func(ctx context.Context, m *model.Model) (lukv.AllocatorConfig, error) {
			a, _, err := probeHeads(ctx, m, builtinProbes(), calibration.ProbeOptions{
				Options: calibration.Options{Prompt: builtin.Prompt, MaxSteps: probeSteps, Session: c.session()},
			})
			return a, err
		},
		Progress: func(what string, done, total int) { bar.show("%s: %d of %d", what, done, total) },
	}
	write := func() error {
		return atomicfile.Write(c.Figures, 0o644, func(w io.Writer) error { return report.WriteJSON(w, figures) })
	}
	if len(c.Only) == 0 {
		if figures, err = results.Measure(e.ctx, m, o); err != nil {
			return nil, err
		}
		return figures, write()
	}
	for _, part := range c.Only {
		if err := results.MeasurePart(e.ctx, m, o, figures, part); err != nil {
			return nil, err
		}
		if err := write(); err != nil {
			return nil, err
		}
	}
	return figures, nil
}
