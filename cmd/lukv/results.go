package main

import (
	"bytes"
	"io"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/internal/results"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/builtin"
)

// resultsCmd regenerates docs/results.md: the experiments on the embedded
// model that the project's claims rest on.
type resultsCmd struct {
	Out         string `short:"o" required:"" placeholder:"FILE" help:"Markdown file to write."`
	Figures     string `required:"" placeholder:"FILE" help:"JSON file of the figures that the page is made from."`
	Objectives  bool   `help:"Measure the objectives of profiles alone; all other figures stay."`
	Render      bool   `help:"Measure nothing: make the page from the figures that are there."`
	Development string `placeholder:"FILE" default:"model/builtin/testdata/development.jsonl" help:"Development set, on which choices are made."`
	runtimeFlags
}

func (resultsCmd) Help() string {
	return "Maintainers' command: measures profiles of the embedded model under every normalisation, compares them on the development set, and evaluates all allocators on the embedded samples. Takes minutes."
}

func (c *resultsCmd) Run(e *env) error {
	figures := new(results.Figures)
	if c.Render || c.Objectives {
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
		if err := atomicfile.Write(c.Figures, 0o644, func(w io.Writer) error { return report.WriteJSON(w, figures) }); err != nil {
			return err
		}
	}
	return atomicfile.Write(c.Out, 0o644, figures.WriteMarkdown)
}

// measure returns new figures, or old ones with new objectives.
func (c *resultsCmd) measure(e *env, old *results.Figures) (*results.Figures, error) {
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
	// Some development contexts and their answers pass the trained length a little.
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
		Progress: func(what string, done, total int) { bar.show("%s: %d of %d", what, done, total) },
	}
	if c.Objectives {
		return old, results.MeasureObjectives(e.ctx, m, o, old)
	}
	return results.Measure(e.ctx, m, o)
}
