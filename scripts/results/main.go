package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/embedded"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

// maxInput bounds the files that are read, in bytes.
const maxInput = 64 << 20

// command holds the flags.
type command struct {
	docs, development string
	only              []string
	render            bool
	threads           int
	precision         string
}

func main() {
	var c command
	var only string
	flag.StringVar(&c.docs, "docs", "../../docs", "write results.md, results.json and results/*.csv in this folder")
	flag.StringVar(&c.development, "development", "../../training/development.jsonl", "read the development set, on which choices are made, from this file")
	flag.StringVar(&only, "only", "", "measure only these parts and keep all other figures: "+strings.Join(Parts(), ","))
	flag.BoolVar(&c.render, "render", false, "measure nothing; write the page and the tables from results.json")
	flag.IntVar(&c.threads, "threads", 0, "number of threads (default: all processors)")
	flag.StringVar(&c.precision, "precision", "auto", "precision of activations: auto, bf16 or f32")
	flag.Parse()
	if only != "" {
		c.only = strings.Split(only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := c.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "results:", err)
		os.Exit(1)
	}
}

func (c *command) run(ctx context.Context) error {
	figuresFile := filepath.Join(c.docs, "results.json")
	var figures *Figures
	if c.render || len(c.only) > 0 {
		data, err := inputfile.Read(figuresFile, maxInput)
		if err != nil {
			return err
		}
		if figures, err = Read(bytes.NewReader(data)); err != nil {
			return err
		}
	}
	if !c.render {
		var err error
		if figures, err = c.measure(ctx, figuresFile, figures); err != nil {
			return err
		}
	}
	if err := atomicfile.Write(filepath.Join(c.docs, "results.md"), 0o644, figures.WriteMarkdown); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(c.docs, "results"), 0o755); err != nil {
		return err
	}
	for _, t := range Tables {
		write := func(w io.Writer) error { return figures.WriteCSV(w, t.Name) }
		if err := atomicfile.Write(filepath.Join(c.docs, "results", t.Name+".csv"), 0o644, write); err != nil {
			return err
		}
	}
	return nil
}

// measure measures all figures, or some parts of the given ones anew, and writes them
// to a file after each part.
func (c *command) measure(ctx context.Context, file string, figures *Figures) (*Figures, error) {
	o, err := c.options()
	if err != nil {
		return nil, err
	}
	m, err := builtin.Open(ctx, model.WithThreads(c.threads), model.WithPrecision(model.Precision(c.precision)))
	if err != nil {
		return nil, err
	}
	defer m.Close()
	write := func() error {
		return atomicfile.Write(file, 0o644, func(w io.Writer) error { return report.WriteJSON(w, figures) })
	}
	if len(c.only) == 0 {
		if figures, err = Measure(ctx, m, o); err != nil {
			return nil, err
		}
		return figures, write()
	}
	for _, part := range c.only {
		if err := MeasurePart(ctx, m, o, figures, part); err != nil {
			return nil, err
		}
		if err := write(); err != nil {
			return nil, err
		}
	}
	return figures, nil
}

// options returns the experiments' data and settings.
func (c *command) options() (Options, error) {
	data, err := inputfile.Read(c.development, maxInput)
	if err != nil {
		return Options{}, err
	}
	development, err := eval.ReadItems(bytes.NewReader(data), c.development)
	if err != nil {
		return Options{}, err
	}
	test, err := eval.ReadItems(bytes.NewReader(builtin.SamplesJSONL()), "the embedded samples")
	if err != nil {
		return Options{}, err
	}
	// Some development contexts and their answers slightly exceed the trained length.
	session := model.SessionOptions{MaxTokens: 4096}
	return Options{
		Eval:   eval.Options{Framing: embedded.Framing, Session: session},
		Prompt: builtin.Prompt, Texts: embedded.Texts(), Test: test, Development: development,
		Profiles: func(metric string, outputErrors bool) (*lukv.Profile, error) {
			if outputErrors {
				return builtin.OutputErrorProfile(lukv.MetricConfig{Name: metric})
			}
			return builtin.Profile(lukv.MetricConfig{Name: metric})
		},
		HeadKV: func(ctx context.Context, m *model.Model) (lukv.AllocatorConfig, error) {
			a, _, err := embedded.HeadKV(ctx, m, embedded.Probes(), calibration.ProbeOptions{
				Options: calibration.Options{Prompt: builtin.Prompt, MaxSteps: embedded.ProbeSteps},
			})
			return a, err
		},
		Progress: func(what string, done, total int) {
			if done == total || done%32 == 0 {
				fmt.Fprintf(os.Stderr, "%s: %d of %d\n", what, done, total)
			}
		},
	}, nil
}
