package command

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/eval/study"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
	"github.com/lukv/lukv/tokenizer"
)

type analyzeCmd struct {
	Losses   analyzeLossesCmd   `cmd:"" help:"Measure how much oracle importance metrics and allocators keep, and how close budgets come to the optimum."`
	Cost     analyzeCostCmd     `cmd:"" help:"Measure memory and time to the first token by context length."`
	Needle   analyzeNeedleCmd   `cmd:"" help:"Measure needle retrieval by depth and context length."`
	Profiles analyzeProfilesCmd `cmd:"" help:"Measure the agreement between profiles."`
	Scores   analyzeScoresCmd   `cmd:"" help:"Collect evaluation scores by compression ratio."`
	Frontier analyzeFrontierCmd `cmd:"" help:"Collect evaluation scores and divergences by bytes of the cache, and find what nothing dominates."`

	Continuation analyzeContinuationCmd `cmd:"" help:"Measure language modelling after compressed contexts, and whether profiles transfer."`
}

func (analyzeCmd) Help() string {
	return `Produces the data for figures as JSON; lukv plot draws them. losses, cost, needle and continuation, if interrupted, go on from FILE.state when the same command is given again.

Examples:

  lukv analyze losses builtin --allocator uniform,adakv,lukv --limit 1 -o losses.json`
}

// analyzeOut is the destination of an analysis.
type analyzeOut struct {
	Out string `short:"o" required:"" placeholder:"FILE" help:"Write the figures' data to FILE as JSON; - is standard output."`
}

func (o *analyzeOut) outputs() []string { return []string{o.Out} }

// finish writes an analysis that began at start.
func (o *analyzeOut) finish(e *env, start time.Time, f *study.File) error {
	f.Command, f.Seconds = e.commandLine(), time.Since(start).Seconds()
	return e.writeTo(o.Out, func(w io.Writer) error { return f.Write(w) })
}

// measure runs a study, resuming where the same command was interrupted, and writes
// its result.
func (o *analyzeOut) measure(e *env, m *model.Model, line *progress, study func(*study.State) (*study.File, error)) error {
	start := time.Now()
	path := statePath(o.Out)
	state, err := readState(e, path, m.ID())
	if err != nil {
		return err
	}
	if state != nil {
		state.Save = func() error {
			e.log.Info("part measured", "kept in", path)
			return e.writeTo(path, state.Write)
		}
	}
	f, err := study(state)
	line.clear()
	if err != nil {
		if e.ctx.Err() != nil && path != "" && exists(path) {
			e.note("unfinished work is in %s; the same command continues from it", path)
		}
		return err
	}
	if err := o.finish(e, start, f); err != nil {
		return err
	}
	return removeState(path)
}

// workLine is the command line without the flags that do not change the work.
func (e *env) workLine() string {
	silent := func(arg string) bool { return slices.Contains([]string{"-q", "--quiet", "-v", "--verbose"}, arg) }
	return (&env{args: slices.DeleteFunc(slices.Clone(e.args), silent)}).commandLine()
}

// readState returns the unfinished work of the same command, or an empty state; nil
// without a path.
func readState(e *env, path, modelID string) (*study.State, error) {
	if path == "" {
		return nil, nil
	}
	file, err := inputfile.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &study.State{Command: e.workLine(), Model: modelID}, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	s, err := study.ReadState(file, path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w (remove it to begin anew)", err)
	case s.Command != e.workLine() || s.Model != modelID:
		return nil, fmt.Errorf("%s is unfinished work of another command or model: %s (remove it to begin anew)", path, s.Command)
	}
	e.note("resuming from %s", path)
	return s, nil
}

// methodFlags choose methods.
type methodFlags struct {
	budgetLists `set:"ratios=0.8"`
	Metric      []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Rank entries by these metrics (default snapkv): ${metrics}; or JSON objects."`
	Allocator   []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Divide the budget by these allocators (default uniform): ${allocators}; or JSON objects."`
	Profile     []string `group:"policy" sep:"none" placeholder:"FILE" help:"Read profiles for the allocator lukv, one per metric. May be repeated."`
}

// methods returns the full cache and the cross product of the flags.
func (f *methodFlags) methods(m *model.Model, name string) ([]eval.Method, error) {
	c := evalCmd{modelFlags: modelFlags{Model: name}, budgetLists: f.budgetLists, Metric: f.Metric, Allocator: f.Allocator, Profile: f.Profile}
	if b, err := c.budgets(); err == nil && len(b) == 0 {
		c.Ratio = []string{"0.8"}
	}
	return c.methods(m)
}

type analyzeLossesCmd struct {
	modelFlags
	Data      []string `short:"d" sep:"none" placeholder:"FILE" help:"Read questions from FILE, in the formats of lukv eval (default for builtin: its samples)."`
	Limit     int      `placeholder:"N" help:"Ask at most N questions per task."`
	Steps     int      `default:"64" placeholder:"N" help:"Limit answers to N tokens (default ${default})."`
	Exact     int      `default:"2" placeholder:"N" help:"Solve N questions exactly (default ${default})."`
	Ratio     float64  `group:"policy" default:"0.8" placeholder:"R" help:"Measure losses by layer and head with this fraction removed (default ${default})."`
	Metric    []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Rank entries by these metrics (default snapkv,keydiff,expected_attention); solve for the first."`
	Allocator []string `group:"policy" sep:"none" placeholder:"NAME,…" help:"Divide the budget by these allocators (default uniform,pyramidkv,adakv, and lukv with a profile)."`
	Profile   []string `group:"policy" sep:"none" placeholder:"FILE" help:"Read profiles for the allocator lukv, one per metric. May be repeated."`
	Raw       bool     `help:"Do not apply the chat template."`
	analyzeOut
}

func (analyzeLossesCmd) Help() string {
	return `Answer questions with the full cache, measure how much the answers drew on each entry, and compare this with the ranking of metrics and the entries that allocators keep.

Examples:

  lukv analyze losses builtin --limit 1 -o losses.json

  lukv analyze losses DIR --data ruler.jsonl --metric snapkv --profile snapkv.profile -o losses.json`
}

func (c *analyzeLossesCmd) Run(e *env) error {
	switch {
	case !(c.Ratio >= 0 && c.Ratio < 1):
		return usage("--ratio: found %v, expected at least 0 and below 1", c.Ratio)
	case c.Steps < 1:
		return usage("--steps: found %d, expected 1 or more", c.Steps)
	case c.Exact < 0:
		return usage("--exact: found %d, expected 0 or more", c.Exact)
	}
	read := evalCmd{modelFlags: c.modelFlags, Data: c.Data, Limit: c.Limit, Seed: 42}
	asked, err := read.questions(e)
	if err != nil {
		return err
	}
	m, framing, err := c.openFramed(e, c.Raw)
	if err != nil {
		return err
	}
	defer m.Close()
	o := study.LossOptions{Calibration: calibration.Options{Prompt: framing.Prompt, MaxSteps: c.Steps, Session: c.session()},
		Ratio: c.Ratio, ExactItems: c.Exact}
	if err := c.methods(m, &o); err != nil {
		return err
	}
	var questions []study.Question
	for _, it := range asked.items {
		questions = append(questions, study.Question{Task: it.Task, Text: calibration.Text{Context: it.Context,
			Questions: []calibration.Question{{Question: it.Question, AnswerPrefix: it.AnswerPrefix}}}})
	}
	line := e.longProgress()
	defer line.clear()
	o.Progress = line.counter("measuring", "questions")
	return c.measure(e, m, line, func(state *study.State) (*study.File, error) {
		o.State = state
		figures, err := study.Losses(e.ctx, m, questions, o)
		return &study.File{Title: "Oracle importance kept and lost", Model: m.ID(), Data: c.dataNames(asked.data), N: len(questions), Figures: figures}, err
	})
}

// dataNames returns the names of the data: the values of --data, since all files in a
// folder may share one name, or else the builtin samples.
func (c *analyzeLossesCmd) dataNames(builtin []eval.DataFile) string {
	out := c.Data
	if len(out) == 0 {
		for _, d := range builtin {
			out = append(out, d.Name)
		}
	}
	return strings.Join(out, ", ")
}

// methods reads the flags.
func (c *analyzeLossesCmd) methods(m *model.Model, o *study.LossOptions) error {
	metrics := splitList(c.Metric)
	if len(metrics) == 0 {
		metrics = []string{"snapkv", "keydiff", "expected_attention"}
	}
	allocators := splitList(c.Allocator)
	if len(allocators) == 0 {
		allocators = []string{"uniform", "pyramidkv", "adakv", "lukv"}
	}
	named := false // an allocator that needs profiles was named explicitly
	for _, text := range allocators {
		a, err := parseAllocator(text)
		if err != nil {
			return err
		}
		named = named || len(c.Allocator) > 0 && a.NeedsProfile()
		o.Allocators = append(o.Allocators, a)
	}
	profiles, err := loadProfiles(c.Profile)
	if err != nil {
		return err
	}
	for _, text := range metrics {
		metric, err := parseMetric(text)
		if err != nil {
			return err
		}
		if learned, ok := (&lukv.Policy{Metric: metric}).Learned(); ok {
			return usage("--metric %s: it ranks by its profile, which this measurement does not give to metrics; see lukv analyze cost, needle and continuation", learned.Name)
		}
		find := profiles.match
		if named && len(c.Profile) == 0 {
			find = profiles.find
		}
		p, err := find(m, c.Model, metric, "")
		if err != nil {
			return err
		}
		o.Metrics, o.Profiles = append(o.Metrics, metric), append(o.Profiles, p)
	}
	return profiles.unused()
}

type analyzeCostCmd struct {
	modelFlags
	Length  []string `sep:"none" placeholder:"N,…" help:"Measure contexts of N tokens (default 512,1024,1536). 17 tokens are added, so N + 17 must fit the model's context."`
	Repeats int      `default:"3" placeholder:"N" help:"Repeat each measurement N times and report the median (default ${default})."`
	methodFlags
	analyzeOut
}

func (analyzeCostCmd) Help() string {
	return `Measures, by the length of the context, the cache's size at its peak and after compression, and the time to the first token and per token after it.

Examples:

  lukv analyze cost DIR --length 4096,8192,16384 --metric snapkv --allocator uniform,adakv --ratio 0.8 -o cost.json`
}

func (c *analyzeCostCmd) Run(e *env) error {
	lengths, err := wholeNumbers("--length", c.Length, []int{512, 1024, 1536})
	if err != nil {
		return err
	}
	if c.Repeats < 1 {
		return usage("--repeats: found %d, expected 1 or more", c.Repeats)
	}
	m, err := c.open(e)
	if err != nil {
		return err
	}
	defer m.Close()
	methods, err := c.methods(m, c.Model)
	if err != nil {
		return err
	}
	line := e.longProgress()
	defer line.clear()
	o := study.CostOptions{Lengths: lengths, Methods: methods, Repeats: c.Repeats, Session: c.session()}
	o.Progress = func(from, done, total int) {
		line.show("measuring: %d of %d tokens%s", done, total, line.left(from, done, total))
	}
	return c.measure(e, m, line, func(state *study.State) (*study.File, error) {
		o.State = state
		figures, err := study.Cost(e.ctx, m, o)
		return &study.File{Title: "Memory and time", Model: m.ID(), N: c.Repeats, Figures: figures}, err
	})
}

// wholeNumbers parses a list of whole numbers from 0 to 2^24; an empty list gives def.
func wholeNumbers(flag string, list []string, def []int) ([]int, error) {
	var out []int
	for _, s := range splitList(list) {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 || n > 1<<24 {
			return nil, usage("%s: found %q, expected a whole number from 0 to %d", flag, s, 1<<24)
		}
		out = append(out, n)
	}
	if len(out) == 0 {
		return def, nil
	}
	return out, nil
}

type analyzeNeedleCmd struct {
	modelFlags
	Length []string `sep:"none" placeholder:"N,…" help:"Measure contexts of N tokens (default 512,1024,2048, as far as they fit)."`
	Depth  []string `sep:"none" placeholder:"P,…" help:"Place the sentence at these depths, in percent of the context (default 0,25,50,75,100)."`
	methodFlags
	Raw bool `help:"Do not apply the chat template."`
	analyzeOut
}

func (analyzeNeedleCmd) Help() string {
	return `Examples:

  lukv analyze needle DIR --length 1024,4096 --depth 0,50,100 --allocator uniform,adakv -o needle.json`
}

func (c *analyzeNeedleCmd) Run(e *env) error {
	lengths, err := wholeNumbers("--length", c.Length, []int{512, 1024, 2048})
	if err != nil {
		return err
	}
	depths, err := wholeNumbers("--depth", c.Depth, []int{0, 25, 50, 75, 100})
	if err != nil {
		return err
	}
	m, framing, err := c.openFramed(e, c.Raw)
	if err != nil {
		return err
	}
	defer m.Close()
	methods, err := c.methods(m, c.Model)
	if err != nil {
		return err
	}
	tok, err := m.Tokenizer()
	if err != nil {
		return err
	}
	if len(c.Length) == 0 { // the question and its answer follow
		lengths = slices.DeleteFunc(lengths, func(n int) bool { return n > 512 && n+needleRoom > m.Config().MaxPositions })
	}
	items, err := study.Needles(lengths, depths, func(s string) int { return len(tok.Encode(s, tokenizer.EncodeOptions{SpecialAsText: true})) })
	if err != nil {
		return usageError{err}
	}
	line := e.longProgress()
	defer line.clear()
	o := eval.Options{Framing: framing, Session: c.session()}
	failed := 0
	err = c.measure(e, m, line, func(state *study.State) (*study.File, error) {
		answers, err := study.AskNeedles(e.ctx, m, items, methods, o, state, line.counter("asking", "questions"))
		for _, a := range answers {
			if a.Error != "" && err == nil { // a cell that stays empty
				fmt.Fprintf(e.err, "failed: %s, %s: %s\n", a.Method, a.Task, a.Error)
				failed++
			}
		}
		return &study.File{Title: "Needles", Model: m.ID(), N: len(items), Figures: []report.Figure{study.NeedleMap(lengths, depths, answers)}}, err
	})
	if err == nil && failed > 0 {
		err = fmt.Errorf("%d questions could not be asked, see above; their cells are empty", failed)
	}
	return err
}

// needleRoom is more than the tokens of a needle's question and answer.
const needleRoom = 128

type analyzeProfilesCmd struct {
	Profiles []string `arg:"" name:"profile" help:"Two or more profiles of one model."`
	analyzeOut
}

func (analyzeProfilesCmd) Help() string {
	return `Compares profiles made from different texts, or by different metrics: does one transfer?

Examples:

  lukv analyze profiles novel.profile essay.profile -o agreement.json`
}

func (c *analyzeProfilesCmd) Run(e *env) error {
	if len(c.Profiles) < 2 {
		return usage("found one profile, expected two or more to compare")
	}
	start := time.Now()
	var names []string
	var profiles []*lukv.Profile
	for _, path := range c.Profiles {
		p, err := lukv.LoadProfile(path)
		if err != nil {
			return err
		}
		names, profiles = append(names, strings.TrimSuffix(filepath.Base(path), ".profile")), append(profiles, p)
	}
	figures, err := study.Agreement(names, profiles)
	if err != nil {
		return err
	}
	return c.finish(e, start, &study.File{Title: "Agreement of profiles", Model: profiles[0].Identity.Model, Figures: figures})
}

type analyzeScoresCmd struct {
	Runs []string `arg:"" name:"run" help:"Evaluation runs: folders of lukv eval --out or files of --items."`
	analyzeOut
}

func (analyzeScoresCmd) Help() string {
	return `Examples:

  lukv analyze scores runs/ruler -o scores.json

  lukv analyze scores runs/novel runs/essays -o transfer.json # one allocator with profiles of two texts`
}

func (c *analyzeScoresCmd) Run(e *env) error {
	start := time.Now()
	all, err := runs.Read(c.Runs...)
	if err != nil {
		return err
	}
	figure, err := study.Sensitivity(all)
	if err != nil {
		return err
	}
	return c.finish(e, start, &study.File{Title: "Scores", Figures: []report.Figure{figure}})
}
