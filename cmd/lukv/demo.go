package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

type demoCmd struct {
	Metric string  `group:"policy" default:"keydiff" placeholder:"NAME" help:"What ranks entries (default ${default}): ${metrics}."`
	Ratio  float64 `group:"policy" default:"0.8" placeholder:"R" help:"Fraction of the cache to remove (default ${default})."`
	Limit  int     `default:"5" placeholder:"N" help:"At most N questions per task, of those with 1,024 and 2,048 tokens (default ${default}; 0: all)."`
	Texts  int     `default:"3" placeholder:"N" help:"Calibration texts to profile on, up to 8 (default ${default})."`
	JSON   bool    `help:"One JSON object."`

	runtimeFlags
}

func (demoCmd) Help() string {
	return `Loads the embedded model, measures a profile of it, removes 80 % of the cache of long contexts before their questions are known, and asks the questions: with the full cache and with the same metric under three ways of dividing the budget between the heads: uniform, AdaKV, LU-KV.

The questions were never trained on, and the profile is measured on other texts. All metrics and ratios stand in docs/results.md.`
}

// demoAllocators are compared with the full cache; the last is the project's own.
var demoAllocators = []string{"uniform", "adakv", "lukv"}

// demoExample is the task whose longest question is shown in full.
const demoExample = "niah_single_2"

// demoResult is what demo --json prints.
type demoResult struct {
	Model          string        `json:"model"`
	Metric         string        `json:"metric"`
	Ratio          float64       `json:"ratio"`
	ProfilePairs   int           `json:"profile_questions"`
	ProfileSeconds float64       `json:"profile_seconds"`
	Seconds        float64       `json:"seconds"`
	Rows           []eval.Row    `json:"rows"`
	Example        []eval.Answer `json:"example"`
	Gains          []demoGain    `json:"gains"`
}

// demoGain is a paired difference of accuracy, LU-KV minus another allocator.
type demoGain struct {
	Over string  `json:"over"`
	Diff float64 `json:"diff"`
	Low  float64 `json:"low"`
	High float64 `json:"high"`
}

// demo is one execution of the demo.
type demo struct {
	*demoCmd
	e       *env
	m       *model.Model
	metric  lukv.MetricConfig
	profile *lukv.Profile
	methods []eval.Method
	result  demoResult
}

func (c *demoCmd) Run(e *env) error {
	metric, err := parseMetric(c.Metric)
	if err != nil {
		return err
	}
	switch {
	case !(c.Ratio > 0 && c.Ratio < 1):
		return usage("--ratio: found %v, expected above 0 and below 1", c.Ratio)
	case c.Texts < 1 || c.Limit < 0:
		return usage("--texts and --limit: found %d and %d, expected at least 1 and 0", c.Texts, c.Limit)
	}
	start := time.Now()
	m, err := c.open(e, builtin.Name)
	if err != nil {
		return err
	}
	defer m.Close()
	d := &demo{demoCmd: c, e: e, m: m, metric: metric}
	d.result = demoResult{Model: m.ID(), Metric: metricName(metric), Ratio: c.Ratio}
	cfg := m.Config()
	d.say("Model      Needle-Llama, a retriever of %s parameters: %d layers of %d KV heads",
		count(m.WeightBytes()/2), cfg.Layers, cfg.KVHeads)
	where := fmt.Sprintf("%d threads, %s", m.Threads(), m.CPU())
	if dev := m.Device(); dev != nil {
		where += ", " + dev.Info().Name
	}
	d.say("           %s, loaded in %s", where, time.Since(start).Round(time.Millisecond))
	for _, step := range []func() error{d.measure, d.example, d.questions} {
		if err := step(); err != nil {
			return err
		}
	}
	d.result.Seconds = time.Since(start).Seconds()
	if c.JSON {
		return report.WriteJSON(e.out, d.result)
	}
	d.say("\nAll of it took %s. More: lukv --help, README.md, docs/results.md.", time.Since(start).Round(100*time.Millisecond))
	return nil
}

// say prints a line for people.
func (d *demo) say(format string, args ...any) {
	if !d.JSON {
		fmt.Fprintf(d.e.out, format+"\n", args...)
	}
}

// session gives contexts room for their answers behind the trained length.
func (d *demo) session() model.SessionOptions {
	o := d.runtimeFlags.session()
	if o.MaxTokens == 0 {
		o.MaxTokens = 2 * d.m.Config().MaxPositions
	}
	return o
}

// measure makes the profile.
func (d *demo) measure() error {
	texts := builtinTexts()
	texts = texts[:min(d.Texts, len(texts))]
	start := time.Now()
	line := d.e.progress()
	defer line.clear()
	line.show("profiling")
	p, err := calibration.Profile(d.e.ctx, d.m, texts, calibration.ProfileOptions{
		Options:  calibration.Options{Prompt: builtin.Prompt, Session: d.session()},
		Metric:   d.metric,
		Progress: func(p calibration.Progress) { line.show("profiling: question %d of %d", p.Done, p.Total) },
	})
	line.clear()
	if err != nil {
		return err
	}
	d.profile = p
	took := time.Since(start)
	d.result.ProfilePairs, d.result.ProfileSeconds = p.Pairs, took.Seconds()
	d.say("Profile    of the metric %s, measured on %d questions about %d other texts in %s", d.metric.Name, p.Pairs, len(texts), took.Round(10*time.Millisecond))
	d.say("           percent of its entries that each head gives up when %.0f %% of all go:\n", 100*d.Ratio)
	if !d.JSON {
		h := report.HeatMap{Values: p.HeatMap(d.Ratio, false).Ratios}
		if err := h.WriteText(d.e.out, d.e.colors()); err != nil {
			return err
		}
	}
	d.methods = []eval.Method{{Name: "full"}}
	for _, a := range demoAllocators {
		policy := &lukv.Policy{Metric: d.metric, Allocator: lukv.AllocatorConfig{Name: a}, Ratio: d.Ratio}
		if policy.Allocator.NeedsProfile() {
			policy.Profile = p
		}
		d.methods = append(d.methods, eval.Method{Name: a, Policy: policy})
	}
	return nil
}

// items returns the embedded samples of at least 1,024 tokens.
func (d *demo) items() []eval.Item {
	var out []eval.Item
	for _, s := range builtin.Samples() {
		if s.Length >= 1024 {
			out = append(out, eval.Item{
				Task: s.Task, Context: s.Context, Question: s.Question, AnswerPrefix: s.AnswerPrefix, Answers: s.Answers,
			})
		}
	}
	return out
}

// evaluate answers items under all methods.
func (d *demo) evaluate(items []eval.Item, share bool, what string) ([]eval.Answer, error) {
	line := d.e.progress()
	defer line.clear()
	var answers []eval.Answer
	o := eval.Options{
		Framing: builtinFraming, Session: d.session(), SharePrefill: share,
		Progress: func(done, total int) { line.show("%s: answer %d of %d", what, done, total) },
	}
	err := eval.Run(d.e.ctx, d.m, items, d.methods, o, func(a eval.Answer) error {
		answers = append(answers, a)
		return nil
	})
	return answers, err
}

// longest returns, for each task, the item with the longest context.
func longest(items []eval.Item) map[string]int {
	at := map[string]int{}
	for i, it := range items {
		if best, ok := at[it.Task]; !ok || len(it.Context) > len(items[best].Context) {
			at[it.Task] = i
		}
	}
	return at
}

// example shows one question under every method, each with its own prefill, so
// that peaks are real.
func (d *demo) example() error {
	all := d.items()
	it := all[longest(all)[demoExample]]
	answers, err := d.evaluate([]eval.Item{it}, false, "example")
	if err != nil {
		return err
	}
	d.result.Example = answers
	d.say("\nExample    a context of %d tokens; the budget is %.0f %% of its cache", answers[0].ContextTokens, 100*(1-d.Ratio))
	d.say("           %s", it.Question)
	d.say("           %s …  expected: %s\n", it.AnswerPrefix, strings.Join(it.Answers, ", "))
	if d.JSON {
		return nil
	}
	t := tabwriter.NewWriter(d.e.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  cache\theld\tpeak\tanswer")
	for _, a := range answers {
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", a.Method, report.Bytes(a.CacheBytes), report.Bytes(a.PeakBytes), oneAnswer(a, 60))
	}
	return t.Flush()
}

// oneAnswer is a prediction in a table, marked if it is all right.
func oneAnswer(a eval.Answer, columns int) string {
	text := clip(strings.Join(strings.Fields(a.Prediction), " "), columns)
	if a.Score == 1 {
		return "+ " + text
	}
	return "- " + text
}

// sideBySide prints the answers to the longest question of each task that has
// a single answer, whatever comes out.
func (d *demo) sideBySide(items []eval.Item, answers []eval.Answer) error {
	at := longest(items)
	t := tabwriter.NewWriter(d.e.out, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "  the longest of task\texpected")
	for _, m := range d.methods {
		fmt.Fprintf(t, "\t%s", m.Name)
	}
	fmt.Fprintln(t)
	for i, it := range items {
		if at[it.Task] != i || len(it.Answers) != 1 {
			continue
		}
		fmt.Fprintf(t, "  %s\t%s", it.Task, it.Answers[0])
		for _, m := range d.methods {
			for _, a := range answers {
				if a.Item == i && a.Method == m.Name {
					fmt.Fprintf(t, "\t%s", oneAnswer(a, 16))
				}
			}
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t)
	return t.Flush()
}

// questions asks all questions and prints accuracies.
func (d *demo) questions() error {
	items, err := eval.Subset(d.items(), 0, d.Limit, 42)
	if err != nil {
		return err
	}
	start := time.Now()
	answers, err := d.evaluate(items, true, "questions")
	if err != nil {
		return err
	}
	d.result.Rows = eval.Summarize(answers)
	for _, a := range demoAllocators[:len(demoAllocators)-1] {
		g := demoGain{Over: a}
		g.Diff, g.Low, g.High = eval.Compare(answers, "lukv", a)
		d.result.Gains = append(d.result.Gains, g)
	}
	if d.JSON {
		return nil
	}
	d.say("\nQuestions  %d about contexts of 1,024 and 2,048 tokens, answered four times in %s.", len(items), time.Since(start).Round(100*time.Millisecond))
	d.say("           %.0f %% of each cache was removed before the question was known.\n", 100*d.Ratio)
	if err := d.sideBySide(items, answers); err != nil {
		return err
	}
	if err := d.accuracies(); err != nil {
		return err
	}
	d.say("")
	for _, g := range d.result.Gains {
		d.say("  LU-KV minus %-8s %+.1f points (95 %% interval %+.1f to %+.1f, paired)", g.Over+":", 100*g.Diff, 100*g.Low, 100*g.High)
	}
	return nil
}

// accuracies prints the accuracy of each task under each method, the averages,
// and what the caches held.
func (d *demo) accuracies() error {
	rows := map[string]map[string]eval.Row{} // by task and method
	var tasks []string
	for _, r := range d.result.Rows {
		if rows[r.Task] == nil {
			rows[r.Task] = map[string]eval.Row{}
			tasks = append(tasks, r.Task)
		}
		rows[r.Task][r.Method] = r
	}
	t := tabwriter.NewWriter(d.e.out, 0, 0, 2, ' ', 0)
	line := func(name string, cell func(eval.Row) string, task string) {
		fmt.Fprintf(t, "  %s", name)
		for _, m := range d.methods {
			fmt.Fprintf(t, "\t%s", cell(rows[task][m.Name]))
		}
		fmt.Fprintln(t)
	}
	score := func(r eval.Row) string { return fmt.Sprintf("%.1f", 100*r.Score) }
	line("accuracy in percent", func(r eval.Row) string { return r.Method }, eval.Average)
	for _, task := range tasks {
		if task != eval.Average {
			line(fmt.Sprintf("%s (%d)", task, rows[task]["full"].N), score, task)
		}
	}
	line("average", score, eval.Average)
	line("95 % interval", func(r eval.Row) string { return fmt.Sprintf("%.1f-%.1f", 100*r.Low, 100*r.High) }, eval.Average)
	line("removed", func(r eval.Row) string { return fmt.Sprintf("%.1f %%", 100*r.RatioAchieved) }, eval.Average)
	line("held on average", func(r eval.Row) string { return report.Bytes(r.CacheBytes) }, eval.Average)
	return t.Flush()
}
