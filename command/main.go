package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
	"github.com/lukv/lukv/model/arch"
	"golang.org/x/term"

	"github.com/lukv/lukv/internal/bench"
	"github.com/lukv/lukv/internal/embedded"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// cli is the command line: one field per command.
type cli struct {
	Quiet   bool        `short:"q" help:"Print neither progress nor notes on standard error."`
	Verbose bool        `short:"v" help:"Log the runtime's actions to standard error."`
	Version versionFlag `help:"Print the version and quit."`

	Demo     demoCmd     `cmd:"" help:"Show cache compression at work on the embedded model (under a minute)."`
	Run      runCmd      `cmd:"" help:"Answer a prompt, optionally from a compressed context."`
	Profile  profileCmd  `cmd:"" help:"Measure a model's profile, from which the allocator lukv sets each head's budget."`
	Probe    probeCmd    `cmd:"" help:"Measure which heads retrieve the fact that a question asks for (allocator headkv)."`
	Choose   chooseCmd   `cmd:"" help:"Rank compression policies by what they lose of your own documents."`
	Eval     evalCmd     `cmd:"" help:"Measure the cost of compression on questions with known answers."`
	Score    scoreCmd    `cmd:"" help:"Rescore recorded answers, without a model."`
	Report   reportCmd   `cmd:"" help:"Tabulate evaluation results."`
	Analyze  analyzeCmd  `cmd:"" help:"Produce the data for figures about losses and costs of compression."`
	Plot     plotCmd     `cmd:"" help:"Draw figures from lukv analyze data."`
	Inspect  inspectCmd  `cmd:"" help:"Show a checkpoint, profile, saved session or trace."`
	Chat     chatCmd     `cmd:"" help:"Chat with a model."`
	Pull     pullCmd     `cmd:"" help:"Download a model from the hub into the cache."`
	List     listCmd     `cmd:"" help:"List the models in the cache."`
	Rm       rmCmd       `cmd:"" help:"Remove models from the cache."`
	Convert  convertCmd  `cmd:"" help:"Convert a GGUF file to a checkpoint folder."`
	Quantize quantizeCmd `cmd:"" help:"Round the weights of a model to few bits."`
	Gen      genCmd      `cmd:"" help:"Generate evaluation questions."`
	Serve    serveCmd    `cmd:"" help:"Serve a model over an OpenAI-compatible HTTP API."`
	Bench    benchCmd    `cmd:"" help:"Benchmark speed against the machine's limits."`

	Embed      embedCmd      `cmd:"" help:"Compute the embeddings of texts."`
	Devices    devicesCmd    `cmd:"" help:"List the devices that models can run on."`
	Tokenize   tokenizeCmd   `cmd:"" help:"Encode text with a model's tokenizer, or decode tokens."`
	Template   templateCmd   `cmd:"" help:"Render a conversation with a model's chat template."`
	Ver        versionCmd    `cmd:"" name:"version" help:"Print version, build and CPU."`
	Completion completionCmd `cmd:"" help:"Print a shell completion script."`
	Man        manCmd        `cmd:"" help:"Print the manual page."`
}

// Exit statuses; see cmd/lukv. The Go runtime exits with 2 on any crash, so wrong
// usage is not 2 but the EX_USAGE of sysexits.h.
const (
	exitOK          = 0
	exitFailed      = 1
	exitCrashed     = 2 // the runtime's
	exitRefused     = 3
	exitFull        = 4
	exitDevice      = 5
	exitUsage       = 64
	exitInterrupted = 130
)

const description = `A transformer runtime in Go with key/value-cache compression.

MODEL is a checkpoint folder, a GGUF file, the name of a hub model in the cache, or builtin for the embedded test model. Results go to standard output, everything else to standard error.

Exit status: 0 done, 1 failed, 2 crashed, 3 refused (unsupported model; profile or session of another model), 4 does not fit (context, cache or device memory full), 5 no such device or device lost, 64 wrong usage, 130 interrupted.`

// Main runs the command line of the process and exits with its status.
func Main() {
	program = programName()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// program is the name of the program in help, errors and completion scripts.
var program = "lukv"

// programName returns the last part of the main package's path.
func programName() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || !strings.Contains(info.Path, "/") || strings.HasSuffix(info.Path, ".test") { // files by themselves, or tests
		return program
	}
	return path.Base(info.Path)
}

// env is the environment that a command runs in.
type env struct {
	ctx      context.Context
	args     []string // the command line, for the record
	in       io.Reader
	out, err io.Writer
	quiet    bool
	given    given // flags given on the command line
	log      *slog.Logger
}

// run executes a command line and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	// kong leaves through its Exit function after printing help.
	type leave struct{ code int }
	defer func() {
		switch r := recover().(type) {
		case nil:
		case leave:
			code = r.code
		default:
			panic(r)
		}
	}()
	var c cli
	parser, err := newParser(&c, kong.Writers(stdout, stderr), kong.Exit(func(code int) { panic(leave{code}) }))
	if err != nil {
		panic(err) // the structs above are wrong
	}
	if len(args) == 0 {
		args = []string{"--help"}
	} else if args[0] == "help" { // as git, go and ollama have it
		args = append(slices.Clone(args[1:]), "--help")
	}
	stdout, stderr = onScreen(stdout), onScreen(stderr)
	e := &env{ctx: ctx, args: args, in: stdin, out: stdout, err: stderr}
	k, err := parser.Parse(joinNegative(args))
	if err != nil {
		if !errors.As(err, new(*fs.PathError)) { // help that could not be written
			err = usageError{err}
		}
		var parse *kong.ParseError
		if errors.As(err, &parse) {
			k = parse.Context
		}
	} else {
		e.quiet, e.given = c.Quiet, givenFlags(k)
		e.log = slog.New(slog.DiscardHandler)
		if c.Verbose {
			e.log = slog.New(slog.NewTextHandler(stderr, nil))
		}
		target := k.Selected().Target.Addr().Interface()
		if t, ok := target.(flagChecker); ok {
			err = t.unused(e.given)
		}
		if t, ok := target.(outputter); ok && err == nil {
			err = checkOutputs(t.outputs())
		}
		if err == nil {
			err = k.Run(e)
		}
	}
	if err == nil {
		return exitOK
	}
	hint := ""
	if errors.As(err, new(usageError)) {
		hint = " (see " + helpOf(k) + ")"
	}
	stopped := ctx.Err() != nil
	if stopped && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) { // wherever that was noticed
		err, hint = errors.New("interrupted"), ""
	}
	fmt.Fprintf(stderr, "%s: %s%s\n", program, oneLine(err), hint)
	if stopped {
		return exitInterrupted
	}
	return exitCode(err)
}

// joinNegative rewrites --flag -1 as --flag=-1, since the parser would take -1 for a
// short flag; no short flag is a digit. (The parser's option for hyphenated values
// would take the next flag as the value of a flag that lacks one.)
func joinNegative(args []string) []string {
	var out []string
	for i, a := range args {
		if a == "--" {
			return append(out, args[i:]...)
		}
		last := len(out) - 1
		if _, err := strconv.ParseFloat(a, 64); err == nil && strings.HasPrefix(a, "-") && last >= 0 &&
			strings.HasPrefix(out[last], "--") && !strings.Contains(out[last], "=") {
			out[last] += "=" + a
			continue
		}
		out = append(out, a)
	}
	return out
}

// newParser returns the command-line parser. Help, completion and manual are made
// from its model.
func newParser(c *cli, options ...kong.Option) (*kong.Kong, error) {
	_, blockNames := blockTypes()
	return kong.New(c, append(options, kong.Name(program), kong.Description(description),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Vars{"metrics": strings.Join(lukv.Metrics(), ", ") + ", learned (with a profile)", "profiledmetrics": strings.Join(append(lukv.Metrics(), "learned"), ", "), "allocators": strings.Join(lukv.Allocators(), ", "),
			"presets":       strings.Join(lukv.PolicyPresets(), ", "),
			"choosemetrics": chooseMetrics,
			"probesteps":    strconv.Itoa(embedded.ProbeSteps),
			"blocktypes":    strings.Join(blockNames, ","),
			"cachetypes":    strings.Join(kvcache.TypeNames(), ","),
			"shapes":        strings.Join(arch.Shapes(), ", "),
			"normalization": lukv.DefaultProfileIdentity().Normalization},
		kong.ExplicitGroups([]kong.Group{
			{Key: "listen", Title: "Address and access:"},
			{Key: "served", Title: "Models and requests:"},
			{Key: "limits", Title: "Limits:"},
			{Key: "kept", Title: "Kept across restarts:"},
			{Key: "events", Title: "Events for routers:"},
			{Key: "model", Title: "Model:"},
			{Key: "policy", Title: "Compression:"},
			{Key: "sampling", Title: "Sampling:"},
		}))...)
}

// helpOf returns the command line that shows help for the command in k.
func helpOf(k *kong.Context) string {
	line := program
	if k != nil {
		for _, p := range k.Path {
			if p.Command != nil {
				line += " " + p.Command.Name
			}
		}
	}
	return line + " --help"
}

// oneLine returns an error's text as one line; joined errors contain line breaks.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// usageError is a mistake in the command line.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func exitCode(err error) int {
	var u usageError
	switch {
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	case errors.As(err, &u):
		return exitUsage
	case errors.Is(err, model.ErrUnsupported), errors.Is(err, model.ErrWrongModel), errors.Is(err, lukv.ErrProfileMismatch):
		return exitRefused
	case errors.Is(err, model.ErrContextFull), errors.Is(err, kvcache.ErrFull), errors.Is(err, bench.ErrMemory),
		errors.Is(err, kernels.ErrDeviceMemory):
		return exitFull
	case errors.Is(err, kernels.ErrNoDevice), errors.Is(err, kernels.ErrDeviceLost):
		return exitDevice
	}
	return exitFailed
}

// isTerminal reports whether a reader or writer is a terminal.
func isTerminal(x any) bool {
	f, ok := x.(interface{ Fd() uintptr })
	return ok && term.IsTerminal(int(f.Fd()))
}
