package command

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/embedded"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

type demoCmd struct {
	Metric string  `group:"policy" default:"keydiff" placeholder:"NAME" help:"Rank entries by this metric (default ${default}): ${metrics}."`
	Ratio  float64 `group:"policy" default:"0.8" placeholder:"R" help:"Remove this fraction of the cache (default ${default})."`
	Limit  int     `default:"5" placeholder:"N" help:"Ask at most N questions per task, of 1,024 and 2,048 tokens (default ${default}; 0: all)."`
	Texts  int     `default:"3" placeholder:"N" help:"Profile on N calibration texts, up to 8 (default ${default})."`
	JSON   bool    `help:"Print one JSON object."`

	runtimeFlags
}

func (demoCmd) Help() string {
	return `Load the embedded model, measure a profile of it, remove 80 % of the cache of long contexts before their questions are known, and ask the questions: with the full cache, and with one metric under four allocators: uniform, AdaKV, LU-KV as published, and LU-KV with a profile of output errors (docs/specification.md, 5.9).

The questions were never trained on, and the profile is measured on other texts. docs/results.md has the results for all metrics and ratios.

Examples:

  lukv demo

  lukv demo --metric snapkv --ratio 0.9 --limit 0`
}

// demoAllocators are compared with the full cache; the last is the project's own,
// with a profile of the published objective.
var demoAllocators = []string{"uniform", "adakv", "lukv"}

// demoOutputErrors is the method with a profile of the other objective.
const demoOutputErrors = "output-error"

// demoFormat is the format identifier that demo --json prints.
const demoFormat = "lukv demo 1"

// demoResult is printed by demo --json.
type demoResult struct {
	Format         string        `json:"format"`
	Model          string        `json:"model"`
	Metric         string        `json:"metric"`
	Ratio          float64       `json:"ratio"`
	Methods        []evalMethod  `json:"methods"`
	Profile        string        `json:"profile"` // digest
	ProfilePairs   int           `json:"profile_questions"`
	ProfileSeconds float64       `json:"profile_seconds"`
	OutputErrors   string        `json:"output_error_profile"` // digest
	Seconds        float64       `json:"seconds"`
	Rows           []eval.Row    `json:"rows"`
	Examples       []demoExample `json:"examples"`
	Gains          []demoGain    `json:"gains"`
	Notes          []evalNote    `json:"notes"`
}

// demoExample is a question shown in full.
type demoExample struct {
	Rule         string        `json:"rule"`
	Task         string        `json:"task"`
	Question     string        `json:"question"`
	AnswerPrefix string        `json:"answer_prefix"`
	Expected     []string      `json:"expected"`
	Answers      []eval.Answer `json:"answers"`
}

// demoGain compares two methods, question by question.
type demoGain struct {
	Of   string `json:"of"`
	Over string `json:"over"`
	eval.Difference
	Wins   int `json:"wins"` // questions that Of answers better
	Ties   int `json:"ties"`
	Losses int `json:"losses"`
}

// demo is one execution of the demo.
type demo struct {
	*demoCmd
	e       *env
	m       *model.Model
	metric  lukv.MetricConfig
	profile *lukv.Profile
	methods []eval.Method
	items   []eval.Item
	answers []eval.Answer // of all items under all methods
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
	case c.Limit < 0:
		return usage("--limit: found %d, expected 0 or more", c.Limit)
	case c.Texts < 1:
		return usage("--texts: found %d, expected at least 1", c.Texts)
	}
	start := time.Now()
	m, err := c.open(e, builtin.Name)
	if err != nil {
		return err
	}
	defer m.Close()
	d := &demo{demoCmd: c, e: e, m: m, metric: metric}
	d.result = demoResult{Format: demoFormat, Model: m.ID(), Metric: metricName(metric), Ratio: c.Ratio}
	cfg := m.Config()
	d.say("Model      Needle-Llama, a retriever of %s parameters: %d layers of %d KV heads",
		count(m.WeightBytes()/2), cfg.Layers, cfg.KVHeads)
	where := fmt.Sprintf("%s, %s", report.Count(m.Threads(), "thread"), m.CPU())
	if dev := m.Device(); dev != nil {
		where += ", " + dev.Info().Name
	}
	d.say("           %s, loaded in %s", where, time.Since(start).Round(time.Millisecond))
	for _, step := range []func() error{d.measure, d.ask, d.examples, d.questions} {
		if err := step(); err != nil {
			return err
		}
	}
	d.result.Seconds = time.Since(start).Seconds()
	if c.JSON {
		return report.WriteJSON(e.out, d.result)
	}
	if err := writePolicies(e.out, d.result.Methods); err != nil {
		return err
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

// session returns options that leave room for answers beyond the trained length.
func (d *demo) session() model.SessionOptions {
	o := d.runtimeFlags.session()
	if o.MaxTokens == 0 {
		o.MaxTokens = 2 * d.m.Config().MaxPositions
	}
	return o
}

// profileFor measures a profile for an objective.
func (d *demo) profileFor(texts []calibration.Text, objective string) (*lukv.Profile, error) {
	line := d.e.progress()
	defer line.clear()
	line.show("profiling")
	return calibration.Profile(d.e.ctx, d.m, texts, calibration.ProfileOptions{
		Options:   calibration.Options{Prompt: builtin.Prompt, Session: d.session()},
		Metric:    d.metric,
		Objective: objective,
		Progress:  func(p calibration.Progress) { line.show("profiling: question %d of %d", p.Done, p.Total) },
	})
}

// measure measures the profiles and sets up the methods.
func (d *demo) measure() error {
	texts := embedded.Texts()
	texts = texts[:min(d.Texts, len(texts))]
	start := time.Now()
	p, err := d.profileFor(texts, lukv.ObjectiveUtility)
	if err != nil {
		return err
	}
	d.profile = p
	took := time.Since(start)
	d.result.ProfilePairs, d.result.ProfileSeconds = p.Pairs, took.Seconds()
	if d.result.Profile, err = p.Digest(); err != nil {
		return err
	}
	d.say("Profile    of the metric %s, measured on %d questions about %d other texts in %s", d.metric.Name, p.Pairs, len(texts), took.Round(10*time.Millisecond))
	d.say("           percent of its entries that each head gives up when %.0f %% of all go:\n", 100*d.Ratio)
	if !d.JSON {
		h := report.HeatMap{Values: p.HeatMap(d.Ratio, false).Ratios}
		if err := h.WriteText(raw(d.e.out), d.e.colors()); err != nil {
			return err
		}
	}
	d.methods = []eval.Method{{Name: "full"}}
	for _, a := range demoAllocators {
		policy := &lukv.Policy{Metric: d.metric, Allocator: lukv.AllocatorConfig{Name: a}, Ratio: d.Ratio}
		if policy.UsesProfile() {
			policy.Profile = p
		}
		d.methods = append(d.methods, eval.Method{Name: a, Policy: policy})
	}
	if err := d.measureOutputErrors(texts); err != nil {
		return err
	}
	for _, m := range d.methods {
		policy, err := inForce(d.m, d.session(), m.Policy)
		if err != nil {
			return err
		}
		d.result.Methods = append(d.result.Methods, evalMethod{Name: m.Name, Policy: policy})
	}
	return nil
}

// measureOutputErrors adds the method with a profile of the other objective.
func (d *demo) measureOutputErrors(texts []calibration.Text) error {
	start := time.Now()
	p, err := d.profileFor(texts, lukv.ObjectiveOutputError)
	if err != nil {
		return err
	}
	if d.result.OutputErrors, err = p.Digest(); err != nil {
		return err
	}
	d.say("\nProfile    of output errors, on the same questions in %s:\n", time.Since(start).Round(10*time.Millisecond))
	if !d.JSON {
		h := report.HeatMap{Values: p.HeatMap(d.Ratio, false).Ratios}
		if err := h.WriteText(raw(d.e.out), d.e.colors()); err != nil {
			return err
		}
	}
	d.methods = append(d.methods, eval.Method{Name: demoOutputErrors, Policy: &lukv.Policy{
		Metric: d.metric, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Ratio: d.Ratio, Profile: p,
	}})
	return nil
}

// longSamples returns the embedded samples of at least 1,024 tokens.
func longSamples() []eval.Item {
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
		Framing: embedded.Framing, Session: d.session(), OwnPrefills: !share,
		Progress: func(done, total int) { line.show("%s: answer %d of %d", what, done, total) },
	}
	err := eval.Run(d.e.ctx, d.m, items, d.methods, o, func(a eval.Answer) error {
		answers = append(answers, a)
		return nil
	})
	return answers, err
}

// ask asks all questions and sums up the answers.
func (d *demo) ask() error {
	var err error
	if d.items, _, err = eval.Subset(longSamples(), 0, d.Limit, 42); err != nil {
		return err
	}
	if d.answers, err = d.evaluate(d.items, true, "questions"); err != nil {
		return err
	}
	d.result.Rows = eval.Summarize(d.answers)
	d.result.Notes = evalNotes(d.answers)
	scores := d.scores()
	own := demoAllocators[len(demoAllocators)-1]
	for _, pair := range [][2]string{{own, "uniform"}, {own, "adakv"}, {demoOutputErrors, own}} {
		of, over := pair[0], pair[1]
		g := demoGain{Of: of, Over: over, Difference: eval.Compare(d.answers, of, over)}
		for i := range d.items {
			switch x, y := scores[i][of], scores[i][over]; {
			case x > y:
				g.Wins++
			case x < y:
				g.Losses++
			default:
				g.Ties++
			}
		}
		d.result.Gains = append(d.result.Gains, g)
	}
	return nil
}

// scores returns the score of each item by method.
func (d *demo) scores() []map[string]float64 {
	out := make([]map[string]float64, len(d.items))
	for _, a := range d.answers {
		if out[a.Item] == nil {
			out[a.Item] = map[string]float64{}
		}
		out[a.Item][a.Method] = a.Score
	}
	return out
}

// exampleRules choose the questions that are shown in full: of those that a rule
// admits, the one with the longest context, or the first of several. One rule
// shows a gain of LU-KV, one a gain of other methods, and one a loss of all
// methods. The scores are those of the full cache, of LU-KV, and the
// worst and best of the others.
var exampleRules = []struct {
	text  string
	admit func(full, lukv, worst, best float64) bool
}{
	{"LU-KV finds the answer and another way does not", func(full, lukv, worst, best float64) bool { return full == 1 && lukv == 1 && worst < 1 }},
	{"LU-KV finds less than another way", func(full, lukv, worst, best float64) bool { return lukv < best }},
	{"only the full cache finds the answer", func(full, lukv, worst, best float64) bool { return full == 1 && lukv < 1 && best < 1 }},
}

// choose returns the item that a rule shows, -1 if there is none.
func (d *demo) choose(scores []map[string]float64, admit func(full, lukv, worst, best float64) bool) int {
	at := -1
	for i, it := range d.items {
		worst, best := 1.0, 0.0
		last := len(demoAllocators) - 1
		for _, a := range append(slices.Clone(demoAllocators[:last]), demoOutputErrors) {
			if x, ok := scores[i][a]; ok {
				worst, best = min(worst, x), max(best, x)
			}
		}
		own := scores[i][demoAllocators[last]]
		if admit(scores[i]["full"], own, worst, best) && (at < 0 || len(it.Context) > len(d.items[at].Context)) {
			at = i
		}
	}
	return at
}

// examples shows questions under every method, each with its own prefill, so
// that peaks are real.
func (d *demo) examples() error {
	scores := d.scores()
	d.result.Examples = []demoExample{}
	for _, rule := range exampleRules {
		i := d.choose(scores, rule.admit)
		if i < 0 {
			d.say("\nExample    of the %d questions there is none where %s", len(d.items), rule.text)
			continue
		}
		it := d.items[i]
		answers, err := d.evaluate([]eval.Item{it}, false, "example")
		if err != nil {
			return err
		}
		d.result.Examples = append(d.result.Examples, demoExample{rule.text, it.Task, it.Question, it.AnswerPrefix, it.Answers, answers})
		if d.JSON {
			continue
		}
		d.say("\nExample    the longest context where %s:", rule.text)
		d.say("           %d tokens, of which %.0f %% of the cache may stay", answers[0].ContextTokens, 100*(1-d.Ratio))
		d.say("           %s", it.Question)
		d.say("           %s …  expected: %s\n", it.AnswerPrefix, strings.Join(it.Answers, ", "))
		t := report.Table{Indent: "  ", Right: []int{1, 2}}
		t.Row("cache", "held", "peak", "answer")
		for _, a := range answers {
			t.Cells(report.Cell{Text: a.Method}, report.Cell{Text: report.Bytes(a.CacheBytes)},
				report.Cell{Text: report.Bytes(a.PeakBytes)}, answerCell(a, 60))
		}
		if err := t.Write(d.e.out, d.e.colors()); err != nil {
			return err
		}
	}
	return nil
}

// demoLegend explains the marks of answers and figures.
const demoLegend = "+ right, ~ partly right, - wrong; * the best with a part of the cache"

// answerCell is a prediction in a table, marked as right or wrong.
func answerCell(a eval.Answer, columns int) report.Cell {
	text := clip(strings.Join(strings.Fields(a.Prediction), " "), columns)
	switch a.Score {
	case 1:
		return report.Cell{Text: "+ " + text, Ink: report.Good}
	case 0:
		return report.Cell{Text: "- " + text, Ink: report.Bad}
	}
	return report.Cell{Text: "~ " + text}
}

// questions prints the results over all questions.
func (d *demo) questions() error {
	if d.JSON {
		return nil
	}
	d.say("\nQuestions  %d about contexts of 1,024 and 2,048 tokens, each answered with every cache.", len(d.items))
	d.say("           %.0f %% of each cache was removed before the question was known.", 100*d.Ratio)
	d.say("           %s\n", demoLegend)
	if err := d.accuracies(); err != nil {
		return err
	}
	d.say("")
	t := report.Table{Indent: "  ", Right: []int{1, 3, 4, 5}}
	t.Row("question by question", "points", "95 % interval", "better", "equal", "worse")
	for _, g := range d.result.Gains {
		bounds := "too few questions"
		if g.Interval != "" {
			bounds = fmt.Sprintf("%+.1f to %+.1f", 100*g.Low, 100*g.High)
		}
		t.Row(g.Of+" minus "+g.Over, fmt.Sprintf("%+.1f", 100*g.Diff), bounds,
			fmt.Sprint(g.Wins), fmt.Sprint(g.Ties), fmt.Sprint(g.Losses))
	}
	if err := t.Write(d.e.out, report.NoColors); err != nil {
		return err
	}
	for _, n := range d.result.Notes {
		d.e.note("note: %s, %s: %s", n.Method, report.Count(n.Answers, "answer"), n.Note)
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
	t := report.Table{Indent: "  "}
	for i := range d.methods {
		t.Right = append(t.Right, i+1)
	}
	line := func(name string, cell func(eval.Row) string, task string) {
		row := []string{name}
		for _, m := range d.methods {
			row = append(row, cell(rows[task][m.Name])+" ")
		}
		t.Row(row...)
	}
	scores := func(name, task string) {
		best := 0.0
		for _, m := range d.methods {
			if m.Policy != nil {
				best = max(best, rows[task][m.Name].Percent)
			}
		}
		row := []report.Cell{{Text: name}}
		for _, m := range d.methods {
			r := rows[task][m.Name]
			c := report.Cell{Text: fmt.Sprintf("%.1f ", 100*r.Score)}
			if m.Policy != nil && r.Percent == best && best > 0 {
				c = report.Cell{Text: fmt.Sprintf("%.1f*", 100*r.Score), Ink: report.Bold}
			}
			row = append(row, c)
		}
		t.Cells(row...)
	}
	line("accuracy in percent (questions)", func(r eval.Row) string { return r.Method }, eval.Average)
	for _, task := range tasks {
		if task != eval.Average {
			scores(fmt.Sprintf("%s (%d)", task, rows[task]["full"].N), task)
		}
	}
	scores("average", eval.Average)
	line("95 % interval", func(r eval.Row) string { return fmt.Sprintf("%.1f-%.1f", 100*r.Low, 100*r.High) }, eval.Average)
	line("removed", func(r eval.Row) string { return fmt.Sprintf("%.1f %%", 100*r.RatioAchieved) }, eval.Average)
	line("held on average", func(r eval.Row) string { return report.Bytes(r.CacheBytes) }, eval.Average)
	return t.Write(d.e.out, d.e.colors())
}
