// Command bench-lab measures questions of the project's makers that lukv bench does not
// answer. Each command prints one JSON object.
//
//	cd scripts/bench-lab
//	go run . [flags] operations DEVICE   # operations of an accelerator against its own limits
//	go run . [flags] start SHAPE|DIR     # from opening a checkpoint to its first token
//	go run . [flags] lookup MODEL        # decoding with and without lookup drafts
//	go run . [flags] exact MODEL         # drafts of a compressed cache that are right
//	go run . [flags] draw SHAPE|MODEL    # sampling, as a share of a decoding step
//	go run . [flags] busy SHAPE|MODEL    # decoding against processes that compete for processors
//	go run . [flags] write SHAPE DIR     # a checkpoint of random weights, for lukv bench DIR
//
// SHAPE is a name of lukv bench --shape, DIR a checkpoint folder, MODEL a folder or builtin.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/internal/report"
	_ "github.com/lukv/lukv/kernels/vulkan"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// settings holds the flags.
type settings struct {
	reps, threads, batch, depth, tokens, busy, items int
	device                                           string
	weights                                          tensor.Type
	command                                          []string // starts a busy process
	progress                                         func(what string)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench-lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, in io.Reader, out, log io.Writer) error {
	if len(args) == 1 && args[0] == "spin" { // started by the command busy
		return Busy(in, out)
	}
	s := settings{progress: func(what string) { fmt.Fprintln(log, what) }}
	flags := flag.NewFlagSet("bench-lab", flag.ContinueOnError)
	flags.SetOutput(log)
	flags.IntVar(&s.reps, "reps", 5, "repeat each measurement N times")
	flags.IntVar(&s.threads, "threads", 0, "number of threads (default: all processors)")
	flags.StringVar(&s.device, "device", "", "run models on this accelerator")
	flags.IntVar(&s.batch, "batch", 1, "decode N sessions together")
	flags.IntVar(&s.depth, "depth", 0, "start with N entries in the cache")
	flags.IntVar(&s.tokens, "tg", 32, "decode N tokens")
	flags.IntVar(&s.busy, "busy", 3, "number of competing processes")
	flags.IntVar(&s.items, "n", 100, "number of prompts of each set for lookup and exact")
	weights := flags.String("weights", "bf16", "type of random weights: f32, f16 or bf16")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, x := range []struct {
		name       string
		value, low int
	}{{"reps", s.reps, 1}, {"threads", s.threads, 0}, {"batch", s.batch, 1}, {"depth", s.depth, 0}, {"tg", s.tokens, 1}, {"busy", s.busy, 0}, {"n", s.items, 1}} {
		if x.value < x.low {
			return fmt.Errorf("-%s: found %d, expected %d or more", x.name, x.value, x.low)
		}
	}
	var ok bool
	if s.weights, ok = map[string]tensor.Type{"f32": tensor.F32, "f16": tensor.F16, "bf16": tensor.BF16}[*weights]; !ok {
		return fmt.Errorf("-weights: found %q, expected f32, f16 or bf16", *weights)
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	s.command = []string{program, "spin"}
	result, err := s.measure(ctx, flags.Args())
	return errors.Join(err, writeResult(out, result))
}

func writeResult(out io.Writer, result any) error {
	if result == nil {
		return nil
	}
	return report.WriteJSON(out, result)
}

// measure runs the command that the arguments name.
func (s *settings) measure(ctx context.Context, args []string) (any, error) {
	if len(args) == 3 && args[0] == "write" {
		return s.write(ctx, args[1], args[2])
	}
	commands := map[string]func(context.Context, string) (any, error){
		"operations": s.operations, "start": s.start, "lookup": s.lookup, "exact": s.exact, "draw": s.draw, "busy": s.contend,
	}
	if len(args) != 2 || commands[args[0]] == nil {
		return nil, fmt.Errorf("found arguments %q, expected a command and its argument: operations DEVICE, start, lookup, exact, draw or busy MODEL, write SHAPE DIR", args)
	}
	return commands[args[0]](ctx, args[1])
}

// source returns the model of a name, and whether its weights are random.
func (s *settings) source(name string) (source *bench.Source, random bool, err error) {
	if name == builtin.Name {
		return bench.Checkpoint(name, builtin.Open), false, nil
	}
	if info, err := os.Stat(name); err == nil && info.IsDir() {
		return bench.Folder(name, name), false, nil
	}
	source, err = bench.Shape(name, s.weights)
	return source, true, err
}

// options returns the options that models are opened with.
func (s *settings) options() []model.Option {
	opts := []model.Option{model.WithThreads(s.threads)}
	if s.device != "" {
		opts = append(opts, model.WithDevice(s.device))
	}
	return opts
}

// sessions returns the batch's sessions, with random entries in their caches. The caller
// closes them.
func (s *settings) sessions(m *model.Model) ([]*model.Session, error) {
	var out []*model.Session
	for i := range s.batch {
		session, err := m.NewSession(model.SessionOptions{MaxTokens: s.depth + max(s.tokens, s.reps) + 2})
		if err == nil {
			out = append(out, session)
			if s.depth > 0 {
				err = session.FillRandom(s.depth, uint64(i+1))
			}
		}
		if err != nil {
			closeAll(out)
			return nil, err
		}
	}
	return out, nil
}

func closeAll(sessions []*model.Session) {
	for _, s := range sessions {
		s.Close()
	}
}

// decode returns the time of n steps of all sessions.
func decode(ctx context.Context, m *model.Model, sessions []*model.Session, n int) (time.Duration, error) {
	tokens := make([]int32, len(sessions))
	begin := time.Now()
	for i := range n {
		for j := range tokens {
			tokens[j] = int32((31*i + 7*j) % m.Config().Vocab)
		}
		if err := m.Step(ctx, sessions, tokens); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}

// open opens a model with its tokenizer. The caller calls release.
func (s *settings) open(ctx context.Context, name string) (m *model.Model, tok *tokenizer.Tokenizer, release func(), err error) {
	source, _, err := s.source(name)
	if err != nil {
		return nil, nil, nil, err
	}
	m, err = source.Open(ctx, s.options()...)
	if err != nil {
		source.Release()
		return nil, nil, nil, err
	}
	release = func() { m.Close(); source.Release() }
	if tok, err = m.Tokenizer(); err != nil {
		release()
		return nil, nil, nil, fmt.Errorf("tokenizer of %s: %w", name, err)
	}
	return m, tok, release, nil
}
