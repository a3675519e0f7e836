package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

// resultsCmd regenerates docs/results.md: the experiments on the embedded
// model that the project's claims rest on.
type resultsCmd struct {
	Out         string `short:"o" required:"" placeholder:"FILE" help:"Markdown file to write. Text between its notes markers is kept."`
	Development string `placeholder:"FILE" default:"model/builtin/testdata/development.jsonl" help:"Development set, on which choices are made."`
	runtimeFlags
}

func (resultsCmd) Help() string {
	return "Maintainers' command: measures profiles of the embedded model under every normalisation, compares them on the development set, and evaluates all allocators on the embedded samples. Takes minutes."
}

// What is compared.
var (
	resultMetrics = []string{"snapkv", "keydiff", "expected_attention"}
	resultRatios  = []float64{0.5, 0.8, 0.9}

	// profileVariants are the ways of making a profile that the development set
	// decides between; the first is the default.
	profileVariants = []profileVariant{
		{"none", lukv.NormNone, lukv.ObjectiveUtility, lukv.SolverGreedy, false},
		{"none, repaired", lukv.NormNone, lukv.ObjectiveUtility, lukv.SolverRepair, false},
		{"per layer", lukv.NormLayer, lukv.ObjectiveUtility, lukv.SolverGreedy, false},
		{"per layer, repaired", lukv.NormLayer, lukv.ObjectiveUtility, lukv.SolverRepair, false},
		{"global", lukv.NormGlobal, lukv.ObjectiveUtility, lukv.SolverGreedy, false},
		{"none, question counted", lukv.NormNone, lukv.ObjectiveUtility, lukv.SolverGreedy, true},
		{"none, without the gap", lukv.NormNone, lukv.ObjectiveCapacity, lukv.SolverGreedy, false},
		{"per layer, without the gap", lukv.NormLayer, lukv.ObjectiveCapacity, lukv.SolverGreedy, false},
	}
)

type profileVariant struct {
	name, norm, objective, solver string
	question                      bool // the question's last row counts, too
}

// results is the state of one run of the experiments.
type results struct {
	e        *env
	m        *model.Model
	session  model.SessionOptions
	metrics  []lukv.Metric
	profiles map[string]*lukv.Profile // metric/variant
	solver   solverFigures
}

// solverFigures say how close the greedy solver came to its lower bound.
type solverFigures struct {
	levels             int     // solved
	exact              int     // with a certificate of zero
	loss, bound        float64 // summed over levels, greedy
	repaired           float64 // summed loss with repair
	improved, worsened int     // levels that repair changed
}

func (c *resultsCmd) Run(e *env) error {
	data, err := os.ReadFile(c.Development)
	if err != nil {
		return err
	}
	development, err := eval.ReadItems(bytes.NewReader(data), c.Development)
	if err != nil {
		return err
	}
	test, err := eval.ReadItems(bytes.NewReader(builtin.SamplesJSONL()), "the embedded samples")
	if err != nil {
		return err
	}
	m, err := c.open(e, builtin.Name)
	if err != nil {
		return err
	}
	defer m.Close()
	r := &results{e: e, m: m, session: c.runtimeFlags.session(), profiles: map[string]*lukv.Profile{}}
	// Some development contexts and their answers pass the trained length a little.
	r.session.MaxTokens = max(r.session.MaxTokens, 4096)
	for _, name := range resultMetrics {
		metric, err := lukv.NewMetric(lukv.MetricConfig{Name: name})
		if err != nil {
			return err
		}
		r.metrics = append(r.metrics, metric)
	}
	notes, err := keptNotes(c.Out)
	if err != nil {
		return err
	}

	var out bytes.Buffer
	fmt.Fprintf(&out, "# What compression costs the embedded model\n\n"+
		"Written by `lukv results -o docs/results.md` (`make results`); the notes are kept from run to run.\n"+
		"Model: %s, %s precision. Scores are percentages of expected answers found, averaged over %d tasks;\n"+
		"intervals are 95 %% bootstrap intervals over items (1000 resamples). Compression is question-agnostic:\n"+
		"the context is compressed before the question is known. Greedy decoding.\n\n", m.ID(), m.Precision(), countTasks(test))
	out.WriteString(notes)
	for _, question := range []bool{false, true} {
		if err := r.measure(question); err != nil {
			return err
		}
	}
	if err := r.writeTest(&out, test); err != nil {
		return err
	}
	if err := r.writeDevelopment(&out, development); err != nil {
		return err
	}
	if err := r.writeLosses(&out, development); err != nil {
		return err
	}
	r.writeSolver(&out)
	return atomicfile.Write(c.Out, 0o644, func(w io.Writer) error {
		_, err := w.Write(out.Bytes())
		return err
	})
}

// The notes of a results file stand between these lines.
const notesBegin, notesEnd = "<!-- notes -->\n", "<!-- /notes -->\n"

// keptNotes returns the notes of an earlier results file, markers included.
func keptNotes(path string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return notesBegin + "\n" + notesEnd + "\n", nil
	}
	if err != nil {
		return "", err
	}
	_, rest, ok := strings.Cut(string(text), notesBegin)
	notes, _, ok2 := strings.Cut(rest, notesEnd)
	if !ok || !ok2 {
		return "", fmt.Errorf("%s: no notes between %q and %q", path, strings.TrimSpace(notesBegin), strings.TrimSpace(notesEnd))
	}
	return notesBegin + notes + notesEnd + "\n", nil
}

func countTasks(items []eval.Item) int {
	seen := map[string]bool{}
	for _, it := range items {
		seen[it.Task] = true
	}
	return len(seen)
}

// measure makes all profiles that count the question's last row, or not, from
// one measurement of the calibration texts.
func (r *results) measure(question bool) error {
	texts := builtinTexts()
	o := calibration.Options{Prompt: builtinFraming.Prompt, Session: r.session, IncludeQuestion: question}
	builders := map[string]*lukv.ProfileBuilder{}
	for _, metric := range r.metrics {
		for _, v := range profileVariants {
			if v.question != question {
				continue
			}
			po := calibration.ProfileOptions{Options: o, Metric: metric.Config(), Normalization: v.norm, Objective: v.objective, Solver: v.solver}
			id, err := po.Identity(r.m, texts)
			if err != nil {
				return err
			}
			c := r.m.Config()
			if builders[metric.Name()+"/"+v.name], err = lukv.NewProfileBuilder(id, c.Layers, c.KVHeads, nil); err != nil {
				return err
			}
		}
	}
	bar := r.e.progress()
	defer bar.clear()
	total := calibration.Pairs(texts)
	err := calibration.Measure(r.e.ctx, r.m, texts, r.metrics, o, 0, func(p *calibration.Pair) error {
		for i, metric := range r.metrics {
			var greedy *solve.LevelSet
			for _, v := range profileVariants {
				if v.question != question {
					continue
				}
				imp, err := p.Importance(v.norm)
				if err != nil {
					return err
				}
				set, err := builders[metric.Name()+"/"+v.name].Add(r.e.ctx, p.Index, imp, p.Scores[i])
				if err != nil {
					return err
				}
				switch v {
				case profileVariants[0]:
					greedy = set
				case profileVariants[1]:
					r.solver.add(greedy, set)
				}
			}
		}
		bar.show("profiles: pair %d of %d", p.Index+1, total)
		return nil
	})
	if err != nil {
		return err
	}
	for name, b := range builders {
		if r.profiles[name], err = b.Profile(); err != nil {
			return err
		}
	}
	return nil
}

func (s *solverFigures) add(greedy, repaired *solve.LevelSet) {
	for i := range greedy.Loss {
		s.levels++
		s.loss += greedy.Loss[i]
		s.bound += greedy.Bound[i]
		s.repaired += repaired.Loss[i]
		if greedy.Loss[i] <= greedy.Bound[i] {
			s.exact++
		}
		switch {
		case repaired.Loss[i] < greedy.Loss[i]:
			s.improved++
		case repaired.Loss[i] > greedy.Loss[i]:
			s.worsened++
		}
	}
}

// policyOf returns the policy of a metric, an allocator and a ratio.
func (r *results) policyOf(metric, allocator string, ratio float64, variant string) *lukv.Policy {
	p := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: ratio}
	if p.Allocator.NeedsProfile() {
		p.Profile = r.profiles[metric+"/"+variant]
	}
	return p
}

// evaluate answers items under methods, all derived from one prefill each.
func (r *results) evaluate(what string, items []eval.Item, methods []eval.Method) ([]eval.Answer, error) {
	bar := r.e.progress()
	defer bar.clear()
	var answers []eval.Answer
	o := eval.Options{Framing: builtinFraming, SharePrefill: true, Session: r.session,
		Progress: func(done, total int) { bar.show("%s: answer %d of %d", what, done, total) }}
	err := eval.Run(r.e.ctx, r.m, items, methods, o, func(a eval.Answer) error {
		answers = append(answers, a)
		return nil
	})
	return answers, err
}

// averages returns the average row of each method.
func averages(answers []eval.Answer) map[string]eval.Row {
	out := map[string]eval.Row{}
	for _, row := range eval.Summarize(answers) {
		if row.Task == eval.Average {
			out[row.Method] = row
		}
	}
	return out
}

func cellName(metric, allocator string, ratio float64) string {
	return fmt.Sprintf("%s/%s/%g", metric, allocator, ratio)
}

// writeTest compares the allocators on the embedded samples.
func (r *results) writeTest(w *bytes.Buffer, items []eval.Item) error {
	allocators := []string{"uniform", "pyramidkv", "adakv", "global", "lukv"}
	methods := []eval.Method{{Name: "full"}}
	for _, metric := range resultMetrics {
		for _, ratio := range resultRatios {
			for _, a := range allocators {
				methods = append(methods, eval.Method{Name: cellName(metric, a, ratio), Policy: r.policyOf(metric, a, ratio, profileVariants[0].name)})
			}
		}
	}
	answers, err := r.evaluate("samples", items, methods)
	if err != nil {
		return err
	}
	rows := averages(answers)
	full := rows["full"]
	fmt.Fprintf(w, "## Allocators on the embedded samples\n\nThe test set: %d samples of 256 to 2,048 tokens. Full cache: %.1f (%.1f–%.1f), %s on average.\n"+
		"Behind each score its interval; \"cache\" is what the cache of that method held on average, page slack included.\n\n",
		full.N, 100*full.Score, 100*full.Low, 100*full.High, report.Bytes(full.CacheBytes))
	fmt.Fprintf(w, "| metric | removed | %s |\n|---|---|%s\n", strings.Join(allocators, " | "), strings.Repeat("---|", len(allocators)))
	for _, metric := range resultMetrics {
		for _, ratio := range resultRatios {
			fmt.Fprintf(w, "| %s | %.0f %% |", metric, 100*ratio)
			best := 0.0
			for _, a := range allocators {
				best = max(best, rows[cellName(metric, a, ratio)].Score)
			}
			for _, a := range allocators {
				row := rows[cellName(metric, a, ratio)]
				mark := ""
				if row.Score == best {
					mark = "**"
				}
				fmt.Fprintf(w, " %s%.1f%s (%.1f–%.1f) |", mark, 100*row.Score, mark, 100*row.Low, 100*row.High)
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintf(w, "\nPaired differences of LU-KV, in points, with 95 %% intervals, and what was really removed:\n\n"+
		"| metric | removed | LU-KV − uniform | LU-KV − AdaKV | achieved: uniform | AdaKV | LU-KV | cache: uniform | AdaKV | LU-KV |\n|---|---|---|---|---|---|---|---|---|---|\n")
	for _, metric := range resultMetrics {
		for _, ratio := range resultRatios {
			lu := cellName(metric, "lukv", ratio)
			fmt.Fprintf(w, "| %s | %.0f %% |", metric, 100*ratio)
			for _, a := range []string{"uniform", "adakv"} {
				d, lo, hi := eval.Compare(answers, lu, cellName(metric, a, ratio))
				fmt.Fprintf(w, " %+.1f (%+.1f to %+.1f) |", 100*d, 100*lo, 100*hi)
			}
			for _, a := range []string{"uniform", "adakv", "lukv"} {
				fmt.Fprintf(w, " %.1f %% |", 100*rows[cellName(metric, a, ratio)].RatioAchieved)
			}
			for _, a := range []string{"uniform", "adakv", "lukv"} {
				fmt.Fprintf(w, " %s |", report.Bytes(rows[cellName(metric, a, ratio)].CacheBytes))
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintf(w, "\n### By task, at 80 %%\n\n")
	return writeTasks(w, answers, allocators, 0.8)
}

// writeTasks prints the scores of each task under each method at a ratio.
func writeTasks(w *bytes.Buffer, answers []eval.Answer, allocators []string, ratio float64) error {
	scores := map[string]map[string]eval.Row{}
	var tasks []string
	for _, row := range eval.Summarize(answers) {
		if scores[row.Task] == nil {
			scores[row.Task] = map[string]eval.Row{}
			tasks = append(tasks, row.Task)
		}
		scores[row.Task][row.Method] = row
	}
	fmt.Fprintf(w, "| task | n | full |")
	for _, metric := range resultMetrics {
		for _, a := range allocators {
			fmt.Fprintf(w, " %s %s |", metric, a)
		}
	}
	fmt.Fprintf(w, "\n|---|---|---|%s\n", strings.Repeat("---|", len(resultMetrics)*len(allocators)))
	for _, task := range tasks {
		full := scores[task]["full"]
		fmt.Fprintf(w, "| %s | %d | %.0f |", task, full.N, 100*full.Score)
		for _, metric := range resultMetrics {
			for _, a := range allocators {
				fmt.Fprintf(w, " %.0f |", 100*scores[task][cellName(metric, a, ratio)].Score)
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	return nil
}

// writeDevelopment compares the ways of making a profile on the development set.
func (r *results) writeDevelopment(w *bytes.Buffer, items []eval.Item) error {
	methods := []eval.Method{{Name: "full"}}
	for _, metric := range resultMetrics {
		for _, ratio := range resultRatios {
			methods = append(methods, eval.Method{Name: cellName(metric, "uniform", ratio), Policy: r.policyOf(metric, "uniform", ratio, "")})
			for _, v := range profileVariants {
				methods = append(methods, eval.Method{Name: cellName(metric, v.name, ratio), Policy: r.policyOf(metric, "lukv", ratio, v.name)})
			}
		}
	}
	answers, err := r.evaluate("development set", items, methods)
	if err != nil {
		return err
	}
	rows := averages(answers)
	full := rows["full"]
	fmt.Fprintf(w, "## How to make the profile: development set\n\n%d items made by the model's generator with seeds of their own (512 to 2,048 tokens); no item of the test set.\n"+
		"Full cache: %.1f. The columns are normalisations of the oracle importance, the repaired solver, the question's last row counted as a decoding step, and the ablation without the optimality gap.\n\n", full.N, 100*full.Score)
	fmt.Fprintf(w, "| metric | removed | uniform |")
	for _, v := range profileVariants {
		fmt.Fprintf(w, " %s |", v.name)
	}
	fmt.Fprintf(w, "\n|---|---|---|%s\n", strings.Repeat("---|", len(profileVariants)))
	sums := make([]float64, len(profileVariants)+1)
	for _, metric := range resultMetrics {
		for _, ratio := range resultRatios {
			names := []string{"uniform"}
			for _, v := range profileVariants {
				names = append(names, v.name)
			}
			fmt.Fprintf(w, "| %s | %.0f %% |", metric, 100*ratio)
			for i, name := range names {
				row := rows[cellName(metric, name, ratio)]
				sums[i] += row.Score / float64(len(resultMetrics)*len(resultRatios))
				fmt.Fprintf(w, " %.1f (%.1f–%.1f) |", 100*row.Score, 100*row.Low, 100*row.High)
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintf(w, "| mean | |")
	for _, s := range sums {
		fmt.Fprintf(w, " %.1f |", 100*s)
	}
	fmt.Fprintf(w, "\n\n")
	return nil
}

// lossItems is the number of development items whose oracle importance is measured.
const lossItems = 65

// writeLosses compares what the allocators lose of the oracle importance.
func (r *results) writeLosses(w *bytes.Buffer, items []eval.Item) error {
	var texts []calibration.Text
	for i := 0; i < len(items); i += max(1, len(items)/lossItems) {
		texts = append(texts, calibration.Text{Context: items[i].Context,
			Questions: []calibration.Question{{Question: items[i].Question, AnswerPrefix: items[i].AnswerPrefix}}})
	}
	allocators := []string{"uniform", "pyramidkv", "adakv", "global", "lukv"}
	type cell struct{ mass, loss, oracle float64 }
	cells := map[string]*cell{}
	c := r.m.Config()
	shape := lukv.CacheShape{Layers: c.Layers, KVHeads: c.KVHeads}
	bar := r.e.progress()
	defer bar.clear()
	o := calibration.Options{Prompt: builtinFraming.Prompt, Session: r.session}
	err := calibration.Measure(r.e.ctx, r.m, texts, r.metrics, o, 0, func(p *calibration.Pair) error {
		imp, err := p.Importance(lukv.NormNone)
		if err != nil {
			return err
		}
		for i, metric := range r.metrics {
			scores := make([]lukv.Scores, len(p.Scores[i]))
			for l := range scores {
				scores[l] = p.Scores[i][l]
			}
			for _, ratio := range resultRatios {
				for _, a := range allocators {
					compiled, err := r.policyOf(metric.Name(), a, ratio, profileVariants[0].name).Compile(r.m.ID(), shape)
					if err != nil {
						return err
					}
					d := compiled.Demand(p.Tokens)
					budgets, err := compiled.Allocator().ModelBudgets(d, scores)
					if err != nil {
						return err
					}
					an, err := lukv.Analyze(r.e.ctx, imp, p.Scores[i], budgets, d.Protection, true)
					if err != nil {
						return err
					}
					key := cellName(metric.Name(), a, ratio)
					if cells[key] == nil {
						cells[key] = &cell{}
					}
					t := an.Total()
					cells[key].mass += t.Mass
					cells[key].loss += t.MetricLoss
					cells[key].oracle += t.OracleLoss
				}
			}
		}
		bar.show("losses: %d of %d", p.Index+1, len(texts))
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "## Oracle importance lost\n\nShare of the importance (not normalised) of %d development items that the kept entries lack, in percent;\n"+
		"in parentheses what the best possible choice of entries would lose under the same budgets. The difference is the optimality gap of the metric.\n\n", len(texts))
	fmt.Fprintf(w, "| metric | removed | %s |\n|---|---|%s\n", strings.Join(allocators, " | "), strings.Repeat("---|", len(allocators)))
	for _, metric := range resultMetrics {
		for _, ratio := range resultRatios {
			fmt.Fprintf(w, "| %s | %.0f %% |", metric, 100*ratio)
			for _, a := range allocators {
				x := cells[cellName(metric, a, ratio)]
				fmt.Fprintf(w, " %.1f (%.1f) |", 100*x.loss/x.mass, 100*x.oracle/x.mass)
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintln(w)
	return nil
}

// writeSolver reports the solver's certificates over all calibration pairs.
func (r *results) writeSolver(w *bytes.Buffer) {
	s := r.solver
	fmt.Fprintf(w, "## Solver\n\n%d allocations (pairs × metrics × levels). The certificate (loss − lower bound) is zero for %.1f %% of them; in total greedy lies\n"+
		"at most %.3f %% above the optimum, with repair at most %.3f %%. Repair improved %d allocations and worsened %d.\n",
		s.levels, 100*float64(s.exact)/float64(max(1, s.levels)), 100*(s.loss/s.bound-1), 100*(s.repaired/s.bound-1), s.improved, s.worsened)
}
