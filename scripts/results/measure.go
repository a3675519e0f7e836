package main

import (
	"context"
	"fmt"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
)

// What is compared.
var (
	metrics    = []string{"snapkv", "keydiff", "expected_attention"}
	ratios     = []float64{0.5, 0.8, 0.9}
	allocators = []string{"uniform", "pyramidkv", "adakv", "global", "lukv"}
	against    = []string{"uniform", "adakv"} // what LU-KV is compared with, item by item

	// variants are the ways of making a profile among which the development set
	// decides; the first is the default.
	variants = []variant{
		{"none", lukv.NormNone, lukv.ObjectiveUtility, lukv.SolverGreedy, false},
		{"none, repaired", lukv.NormNone, lukv.ObjectiveUtility, lukv.SolverRepair, false},
		{"per layer", lukv.NormLayer, lukv.ObjectiveUtility, lukv.SolverGreedy, false},
		{"per layer, repaired", lukv.NormLayer, lukv.ObjectiveUtility, lukv.SolverRepair, false},
		{"global", lukv.NormGlobal, lukv.ObjectiveUtility, lukv.SolverGreedy, false},
		{"none, question counted", lukv.NormNone, lukv.ObjectiveUtility, lukv.SolverGreedy, true},
		{"none, without the gap", lukv.NormNone, lukv.ObjectiveCapacity, lukv.SolverGreedy, false},
		{"per layer, without the gap", lukv.NormLayer, lukv.ObjectiveCapacity, lukv.SolverGreedy, false},
	}

	// solverLevels are the levels whose certificates are shown.
	solverLevels = []int{10, 25, 50, 80, 90, 95, 99}
)

const (
	taskRatio  = 0.8 // of the table by task
	layerRatio = 0.8 // of a single layer
	lossItems  = 65  // development items whose oracle importance is measured
)

type variant struct {
	name, norm, objective, solver string
	question                      bool // the question's last row counts, too
}

// Options configure the experiments.
type Options struct {
	Eval        eval.Options // framing and sessions
	Prompt      calibration.Prompt
	Texts       []calibration.Text // from which profiles are made
	Profiles    Profiles           // made beforehand
	Test        []eval.Item
	Development []eval.Item

	// HeadKV probes heads and returns the allocator made from the result.
	HeadKV func(context.Context, *model.Model) (lukv.AllocatorConfig, error)

	// Progress, if not nil, is told how far each step has come.
	Progress func(what string, done, total int)
}

// Profiles returns the profile of a metric in its default configuration, made for
// output errors or for the published objective.
type Profiles func(metric string, outputErrors bool) (*lukv.Profile, error)

// run is one execution of the experiments.
type run struct {
	ctx      context.Context
	m        *model.Model
	o        Options
	metrics  []lukv.Metric
	profiles map[string]*lukv.Profile // by metric and variant
	f        *Figures
}

// Measure makes all profiles of m, compares them and the allocators, and
// returns the results. It takes minutes.
func Measure(ctx context.Context, m *model.Model, o Options) (*Figures, error) {
	r := newRun(ctx, m, o, &Figures{Format: Format, Model: m.ID(), Precision: string(m.Precision())})
	if err := r.makeMetrics(); err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	for _, step := range []func() error{
		func() error { return r.measureProfiles(false) },
		func() error { return r.measureProfiles(true) },
		r.test, r.objectives, r.oneLayer, r.development, r.losses, r.everyMetric, r.weights, r.remedies,
	} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("results: %w", err)
		}
	}
	return r.f, nil
}

// Parts returns the parts of the figures that can be measured on their own.
func Parts() []string { return []string{"losses", "objectives", "metrics", "weights", "remedies"} }

// MeasurePart measures one of [Parts] again and leaves the other figures as they
// are.
func MeasurePart(ctx context.Context, m *model.Model, o Options, f *Figures, part string) error {
	if f.Model != m.ID() || f.Precision != string(m.Precision()) {
		return fmt.Errorf("results: the figures are of model %s in %s, this one is %s in %s", f.Model, f.Precision, m.ID(), m.Precision())
	}
	r := newRun(ctx, m, o, f)
	step := map[string]func() error{
		"losses": r.lossesAlone, "objectives": r.objectives, "metrics": r.everyMetric, "weights": r.weights, "remedies": r.remedies,
	}[part]
	if step == nil {
		return fmt.Errorf("results: found part %q, expected one of %q", part, Parts())
	}
	if err := step(); err != nil {
		return fmt.Errorf("results: %s: %w", part, err)
	}
	return nil
}

func newRun(ctx context.Context, m *model.Model, o Options, f *Figures) *run {
	o.Eval.OwnPrefills = false
	if o.Progress == nil {
		o.Progress = func(string, int, int) {}
	}
	return &run{ctx: ctx, m: m, o: o, profiles: map[string]*lukv.Profile{}, f: f}
}

// makeMetrics makes the metrics whose scores are measured, in their default configuration.
func (r *run) makeMetrics() error {
	for _, name := range metrics {
		metric, err := lukv.NewMetric(lukv.MetricConfig{Name: name})
		if err != nil {
			return err
		}
		r.metrics = append(r.metrics, metric)
	}
	return nil
}

// measureProfiles makes all profiles that count the question's last row, or
// all that do not, from one measurement of the calibration texts.
func (r *run) measureProfiles(question bool) error {
	o := calibration.Options{Prompt: r.o.Prompt, Session: r.o.Eval.Session, IncludeQuestion: question}
	builders := map[string]*lukv.ProfileBuilder{}
	c := r.m.Config()
	for _, metric := range r.metrics {
		for _, v := range variants {
			if v.question != question {
				continue
			}
			po := calibration.ProfileOptions{Options: o, Metric: lukv.MetricConfigOf(metric), Normalization: v.norm, Objective: v.objective, Solver: v.solver}
			id, err := po.Identity(r.m, r.o.Texts)
			if err != nil {
				return err
			}
			if builders[lukv.MetricConfigOf(metric).Name+"/"+v.name], err = lukv.NewProfileBuilder(id, c.Layers, c.KVHeads, nil); err != nil {
				return err
			}
		}
	}
	total := calibration.Pairs(r.o.Texts)
	err := calibration.Measure(r.ctx, r.m, r.o.Texts, r.metrics, o, 0, func(p *calibration.Pair) error {
		for i, metric := range r.metrics {
			var greedy *solve.LevelSet
			for _, v := range variants {
				if v.question != question {
					continue
				}
				imp, err := p.Importance(v.norm)
				if err != nil {
					return err
				}
				set, err := builders[lukv.MetricConfigOf(metric).Name+"/"+v.name].Add(r.ctx, p.Index, imp, p.Scores[i])
				if err != nil {
					return err
				}
				switch v {
				case variants[0]:
					greedy = set
				case variants[1]:
					r.f.Solver.add(lukv.MetricConfigOf(metric).Name, greedy, set)
				}
			}
		}
		r.o.Progress("profiles", p.Index+1, total)
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

// add adds the solutions of one question.
func (s *Solver) add(metric string, greedy, repaired *solve.LevelSet) {
	row := func(ratio float64) *SolverRow {
		for i := range s.Levels {
			if s.Levels[i].Metric == metric && s.Levels[i].Ratio == ratio {
				return &s.Levels[i]
			}
		}
		s.Levels = append(s.Levels, SolverRow{Metric: metric, Ratio: ratio})
		return &s.Levels[len(s.Levels)-1]
	}
	count := func(ratio float64, i int) {
		x := row(ratio)
		x.Bound += greedy.Bound[i]
		x.Greedy += greedy.Loss[i]
		x.Repaired += repaired.Loss[i]
	}
	for _, level := range solverLevels {
		count(float64(level)/100, level-1)
	}
	for i := range greedy.Loss {
		count(0, i)
		s.Solutions++
		if greedy.Loss[i] <= greedy.Bound[i] {
			s.Exact++
		}
		switch {
		case repaired.Loss[i] < greedy.Loss[i]:
			s.Improved++
		case repaired.Loss[i] > greedy.Loss[i]:
			s.Worsened++
		}
	}
}

// policy returns the policy of a metric, an allocator and a ratio.
func (r *run) policy(metric, allocator string, ratio float64, variant string) *lukv.Policy {
	p := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Allocator: lukv.AllocatorConfig{Name: allocator}, Ratio: ratio}
	if p.Allocator.NeedsProfile() {
		p.Profile = r.profiles[metric+"/"+variant]
	}
	return p
}

// evaluate answers items under methods, with one shared prefill per context.
func (r *run) evaluate(what string, items []eval.Item, methods []eval.Method) ([]eval.Answer, error) {
	var answers []eval.Answer
	o := r.o.Eval
	o.Progress = func(done, total int) { r.o.Progress(what, done, total) }
	err := eval.Run(r.ctx, r.m, items, methods, o, func(a eval.Answer) error {
		if a.Error != "" {
			return fmt.Errorf("%s, item %d under %s: %s", what, a.Item, a.Method, a.Error)
		}
		answers = append(answers, a)
		return nil
	})
	return answers, err
}

func methodName(metric string, ratio float64, method string) string {
	return fmt.Sprintf("%s/%g/%s", metric, ratio, method)
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

func scoreOf(r eval.Row) Score { return Score{r.Score, r.Low, r.High} }

// cells returns the average rows of methods as a table.
func cells(rows map[string]eval.Row, metrics []string, ratios []float64, methods []string) Cells {
	var out Cells
	for _, metric := range metrics {
		for _, ratio := range ratios {
			for _, method := range methods {
				row := rows[methodName(metric, ratio, method)]
				out = append(out, Cell{metric, ratio, method, scoreOf(row), row.RatioAchieved, row.CacheBytes})
			}
		}
	}
	return out
}

// test compares the allocators on the embedded samples.
func (r *run) test() error {
	methods := []eval.Method{{Name: "full"}}
	for _, metric := range metrics {
		for _, ratio := range ratios {
			for _, a := range allocators {
				methods = append(methods, eval.Method{Name: methodName(metric, ratio, a), Policy: r.policy(metric, a, ratio, variants[0].name)})
			}
		}
	}
	answers, err := r.evaluate("samples", r.o.Test, methods)
	if err != nil {
		return err
	}
	rows := averages(answers)
	full := rows["full"]
	t := Test{Items: full.N, Full: scoreOf(full), FullBytes: full.CacheBytes, Cells: cells(rows, metrics, ratios, allocators)}
	for _, metric := range metrics {
		for _, ratio := range ratios {
			for _, a := range against {
				d := eval.Compare(answers, methodName(metric, ratio, "lukv"), methodName(metric, ratio, a))
				t.Gains = append(t.Gains, Gain{Metric: metric, Ratio: ratio, Over: a, Diff: d.Diff, Low: d.Low, High: d.High})
			}
		}
	}
	t.Tasks = tasks(answers, metrics, taskRatio, allocators)
	r.f.Test = t
	return nil
}

// tasks returns the scores of each task at a ratio.
func tasks(answers []eval.Answer, metrics []string, ratio float64, methods []string) []Task {
	rows := map[string]map[string]eval.Row{}
	var names []string
	for _, row := range eval.Summarize(answers) {
		if row.Task == eval.Average {
			continue
		}
		if rows[row.Task] == nil {
			rows[row.Task] = map[string]eval.Row{}
			names = append(names, row.Task)
		}
		rows[row.Task][row.Method] = row
	}
	var out []Task
	for _, name := range names {
		full := rows[name]["full"]
		t := Task{Task: name, Items: full.N, Full: full.Score, Scores: map[string]map[string]float64{}}
		for _, metric := range metrics {
			t.Scores[metric] = map[string]float64{}
			for _, a := range methods {
				t.Scores[metric][a] = rows[name][methodName(metric, ratio, a)].Score
			}
		}
		out = append(out, t)
	}
	return out
}

// oneLayer removes part of one layer only, by means of a profile made to do so.
func (r *run) oneLayer() error {
	var items []eval.Item
	for i := 0; i < len(r.o.Development); i += 2 {
		items = append(items, r.o.Development[i])
	}
	c := r.m.Config()
	methods := []eval.Method{{Name: "full"}}
	name := func(metric string, layer int) string { return fmt.Sprintf("%s/%d", metric, layer) }
	for _, metric := range metrics {
		for layer := range c.Layers {
			values := make([]float64, solve.Levels*c.Layers*c.KVHeads)
			for level := range solve.Levels {
				for h := range c.KVHeads {
					values[(level*c.Layers+layer)*c.KVHeads+h] = float64(level+1) / 100
				}
			}
			p, err := lukv.NewProfile(r.profiles[metric+"/"+variants[0].name].Identity, c.Layers, c.KVHeads, values, nil)
			if err != nil {
				return err
			}
			policy := r.policy(metric, "lukv", layerRatio, variants[0].name)
			policy.Profile = p
			methods = append(methods, eval.Method{Name: name(metric, layer), Policy: policy})
		}
	}
	answers, err := r.evaluate("one layer", items, methods)
	if err != nil {
		return err
	}
	rows := averages(answers)
	o := OneLayer{Items: len(items), Ratio: layerRatio, Full: rows["full"].Score, Scores: map[string][]float64{}}
	for _, metric := range metrics {
		for layer := range c.Layers {
			row := rows[name(metric, layer)]
			if want := layerRatio / float64(c.Layers); row.RatioAchieved < want-0.01 || row.RatioAchieved > want+0.01 {
				return fmt.Errorf("one layer: %s removed %.3f of all entries, expected %.3f", row.Method, row.RatioAchieved, want)
			}
			o.Scores[metric] = append(o.Scores[metric], row.Score)
		}
	}
	r.f.OneLayer = o
	return nil
}

// development compares the ways of making a profile on the development set.
func (r *run) development() error {
	methods := []eval.Method{{Name: "full"}}
	names := []string{"uniform"}
	for _, v := range variants {
		names = append(names, v.name)
	}
	for _, metric := range metrics {
		for _, ratio := range ratios {
			methods = append(methods, eval.Method{Name: methodName(metric, ratio, "uniform"), Policy: r.policy(metric, "uniform", ratio, "")})
			for _, v := range variants {
				methods = append(methods, eval.Method{Name: methodName(metric, ratio, v.name), Policy: r.policy(metric, "lukv", ratio, v.name)})
			}
		}
	}
	answers, err := r.evaluate("development set", r.o.Development, methods)
	if err != nil {
		return err
	}
	rows := averages(answers)
	r.f.Development = Development{Items: rows["full"].N, Full: scoreOf(rows["full"]), Cells: cells(rows, metrics, ratios, names)}
	return nil
}

// lossesAlone is losses with the profiles made beforehand, which are those of the first
// variant.
func (r *run) lossesAlone() error {
	if err := r.makeMetrics(); err != nil {
		return err
	}
	for _, name := range metrics {
		p, err := r.embedded(name, false)
		if err != nil {
			return err
		}
		r.profiles[name+"/"+variants[0].name] = p
	}
	return r.losses()
}

// losses compares how much of the oracle importance the allocators lose.
func (r *run) losses() error {
	var texts []calibration.Text
	items := r.o.Development
	for i := 0; i < len(items); i += max(1, len(items)/lossItems) {
		texts = append(texts, calibration.Text{Context: items[i].Context,
			Questions: []calibration.Question{{Question: items[i].Question, AnswerPrefix: items[i].AnswerPrefix}}})
	}
	type sums struct{ mass, loss, oracle float64 }
	total := map[string]*sums{}
	var kept []int32
	c := r.m.Config()
	shape := lukv.CacheShape{Layers: c.Layers, KVHeads: c.KVHeads}
	o := calibration.Options{Prompt: r.o.Prompt, Session: r.o.Eval.Session}
	err := calibration.Measure(r.ctx, r.m, texts, r.metrics, o, 0, func(p *calibration.Pair) error {
		imp, err := p.Importance(lukv.NormNone)
		if err != nil {
			return err
		}
		for i, metric := range r.metrics {
			scores := make([]lukv.Scores, len(p.Scores[i]))
			for l := range scores {
				scores[l] = p.Scores[i][l]
			}
			for _, ratio := range ratios {
				for _, a := range allocators {
					compiled, err := r.policy(lukv.MetricConfigOf(metric).Name, a, ratio, variants[0].name).Compile(r.m.ID(), shape)
					if err != nil {
						return err
					}
					d := compiled.Demand(p.Tokens)
					budgets, err := lukv.Allocate(compiled.Allocator(), d, scores)
					if err != nil {
						return err
					}
					key := methodName(lukv.MetricConfigOf(metric).Name, ratio, a)
					if total[key] == nil {
						total[key] = &sums{}
					}
					for l, heads := range imp { // unlike the oracle, metrics have to keep protected entries
						for h, importance := range heads {
							total[key].mass += lukv.DroppedMass(importance, nil)
							kept = lukv.Keep(kept, importance, budgets[l][h], lukv.Protection{})
							total[key].oracle += lukv.DroppedMass(importance, kept)
							kept = lukv.Keep(kept, p.Scores[i][l][h], budgets[l][h], d.Protection)
							total[key].loss += lukv.DroppedMass(importance, kept)
						}
					}
				}
			}
		}
		r.o.Progress("losses", p.Index+1, len(texts))
		return nil
	})
	if err != nil {
		return err
	}
	r.f.Losses = Losses{Items: len(texts)}
	for _, metric := range metrics {
		for _, ratio := range ratios {
			for _, a := range allocators {
				x := total[methodName(metric, ratio, a)]
				r.f.Losses.Cells = append(r.f.Losses.Cells, Loss{metric, ratio, a, x.loss / x.mass, x.oracle / x.mass})
			}
		}
	}
	return nil
}
