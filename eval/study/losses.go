package study

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
)

// LossOptions say what [Losses] compares.
type LossOptions struct {
	Calibration calibration.Options // framing, sessions, steps of an answer
	Metrics     []lukv.MetricConfig
	Allocators  []lukv.AllocatorConfig
	Profiles    []*lukv.Profile // [metric], for the allocator lukv; nil: the metric has no such line
	Ratio       float64         // of the losses by layer and head

	// ExactItems is the number of questions that the exact solver works on, in
	// steps of a sixteenth of a head's entries.
	ExactItems int

	State    *State                      // may be nil
	Progress func(from, done, total int) // may be nil; from: done by an earlier run
}

// Question is a question to measure on, with the task it counts towards.
type Question struct {
	Task string
	Text calibration.Text // one question
}

// exactSteps is the exact solver's number of steps per head.
const exactSteps = 16

// The solvers that are compared.
const (
	uniform = iota
	exact
	greedy
	repaired
)

var solverNames = []string{"uniform", fmt.Sprintf("exact in steps of 1/%d head", exactSteps), "greedy", "greedy and repair"}

// The ratios of curves, from percentages.
var (
	recallGrid = steps(0, 100, 2)
	solverGrid = steps(10, 90, 10)
	localGrid  = steps(5, 95, 5)
)

func steps(from, to, by int) []float64 {
	var out []float64
	for i := from; i <= to; i += by {
		out = append(out, float64(i)/100)
	}
	return out
}

// losses gathers sums over questions.
type losses struct {
	lossSums

	ctx     context.Context
	o       *LossOptions
	metrics []lukv.Metric
	names   []string // of the metrics, all different
	model   string
	shape   lukv.CacheShape
}

// lossSums are the sums, which are saved in case the work is interrupted.
type lossSums struct {
	N      int                      `json:"questions"`
	Recall [][]float64              `json:"recall"`       // [oracle, then metrics][grid] sums over questions
	Heads  [][][][]float64          `json:"heads"`        // [metric][allocator][L][K] sums of the share of importance lost; nil: no profile
	Solver [][]float64              `json:"solvers"`      // [solver][grid] sums over questions of losses
	Exact  int                      `json:"solved"`       // questions in Solver
	Local  map[string][][][]float64 `json:"local_ratios"` // task: [L][K][grid] sums of local ratios
	Tasks  map[string]int           `json:"tasks"`        // questions of each
}

// Losses measures oracle importance (the largest A·‖v·W_O‖ of an entry in any
// decode step) on questions, answered with the full cache, and returns figures
// of what metrics and allocators keep and lose of it. Losses are fractions of
// the total importance of a question's entries.
func Losses(ctx context.Context, m *model.Model, questions []Question, o LossOptions) ([]report.Figure, error) {
	l, err := newLosses(ctx, m.ID(), m.Config(), &o)
	if err != nil {
		return nil, err
	}
	var texts []calibration.Text
	for _, q := range questions {
		texts = append(texts, q.Text)
	}
	if err := l.begin(questions); err != nil {
		return nil, err
	}
	if have, err := o.State.take(sumsPart, &l.lossSums); err != nil {
		return nil, err
	} else if have && !l.fit(len(questions)) {
		return nil, fmt.Errorf("unfinished work: %s of another shape (remove it to begin anew)", sumsPart)
	}
	from := l.N
	err = calibration.Measure(ctx, m, texts, l.metrics, o.Calibration, from, func(p *calibration.Pair) error {
		if o.Progress != nil {
			o.Progress(from, p.Index+1, len(questions))
		}
		imp, err := p.Importance(lukv.NormNone)
		if err != nil {
			return err
		}
		if err := l.add(questions[p.Index].Task, p.Tokens, imp, p.Scores); err != nil {
			return err
		}
		return errors.Join(o.State.put(sumsPart, &l.lossSums), o.State.save())
	})
	if err != nil {
		return nil, err
	}
	return l.figures(), nil
}

// sumsPart is the name of the part that holds the sums.
const sumsPart = "sums"

// begin tells the state on which inputs the sums depend.
func (l *losses) begin(questions []Question) error {
	profiles := make([]string, len(l.o.Profiles))
	for i, p := range l.o.Profiles {
		var err error
		if p == nil {
			continue
		}
		if profiles[i], err = p.Digest(); err != nil {
			return err
		}
	}
	c := &l.o.Calibration
	return l.o.State.begin(questions, c.MaxSteps, c.IncludeQuestion, c.Session.MaxTokens, l.o.Metrics, l.o.Allocators, profiles, l.o.Ratio, l.o.ExactItems)
}

// fit reports whether the sums have the shape of this measurement.
func (l *losses) fit(questions int) bool {
	grid := func(x [][][]float64, n int) bool {
		if len(x) != l.shape.Layers {
			return false
		}
		for _, layer := range x {
			if len(layer) != l.shape.KVHeads || slices.ContainsFunc(layer, func(head []float64) bool { return len(head) != n }) {
				return false
			}
		}
		return true
	}
	ok := l.N >= 0 && l.N <= questions && len(l.Tasks) == len(l.Local) && len(l.Recall) == 1+len(l.metrics) && len(l.Heads) == len(l.metrics) && len(l.Solver) == len(solverNames)
	for _, x := range l.Recall {
		ok = ok && len(x) == len(recallGrid)
	}
	for _, allocators := range l.Heads {
		ok = ok && len(allocators) == len(l.o.Allocators)
		for _, heads := range allocators {
			ok = ok && (heads == nil || len(heads) == l.shape.Layers &&
				!slices.ContainsFunc(heads, func(layer []float64) bool { return len(layer) != l.shape.KVHeads }))
		}
	}
	for _, x := range l.Solver {
		ok = ok && len(x) == len(solverGrid)
	}
	for task, x := range l.Local {
		ok = ok && l.Tasks[task] > 0 && grid(x, len(localGrid))
	}
	return ok
}

func newLosses(ctx context.Context, id string, c *model.Config, o *LossOptions) (*losses, error) {
	if len(o.Profiles) != len(o.Metrics) {
		return nil, fmt.Errorf("losses: %d profiles for %d metrics", len(o.Profiles), len(o.Metrics))
	}
	l := &losses{ctx: ctx, o: o, model: id, shape: lukv.CacheShape{Layers: c.Layers, KVHeads: c.KVHeads, Excluded: make([]bool, c.Layers)},
		lossSums: lossSums{Recall: make([][]float64, 1+len(o.Metrics)), Heads: make([][][][]float64, len(o.Metrics)), Solver: make([][]float64, len(solverNames)),
			Local: map[string][][][]float64{}, Tasks: map[string]int{}}}
	for at := range c.Layers {
		l.shape.Excluded[at] = !c.Ragged(at)
	}
	for i := range l.Recall {
		l.Recall[i] = make([]float64, len(recallGrid))
	}
	for i := range l.Solver {
		l.Solver[i] = make([]float64, len(solverGrid))
	}
	for i, cfg := range o.Metrics {
		metric, err := lukv.NewMetric(cfg)
		if err != nil {
			return nil, err
		}
		l.metrics, l.names = append(l.metrics, metric), append(l.names, cfg.Name)
		if slices.Contains(l.names[:i], cfg.Name) { // with other parameters
			l.names[i] = fmt.Sprintf("%s-%d", cfg.Name, i+1)
		}
		l.Heads[i] = make([][][]float64, len(o.Allocators))
		for a := range o.Allocators { // to fail here rather than after the first question
			if _, err := l.compile(i, a); err != nil {
				return nil, err
			}
		}
	}
	return l, nil
}

// compile returns the policy of a metric and an allocator, nil if it lacks a profile.
func (l *losses) compile(metric, allocator int) (*lukv.Compiled, error) {
	a := l.o.Allocators[allocator]
	policy := &lukv.Policy{Metric: l.o.Metrics[metric], Allocator: a, Ratio: l.o.Ratio}
	if a.NeedsProfile() {
		if policy.Profile = l.o.Profiles[metric]; policy.Profile == nil {
			return nil, nil
		}
	}
	c, err := policy.Compile(l.model, l.shape)
	if err != nil {
		return nil, err
	}
	if _, ok := c.Allocator().(lukv.LayerWeigher); ok {
		return nil, fmt.Errorf("losses: found allocator %s, which looks at the layers themselves, expected those that divide by scores or a profile", a.Name)
	}
	return c, nil
}

// add adds one question.
func (l *losses) add(task string, T int, imp [][][]float32, scores [][][][]float32) error {
	l.N++
	mass := 0.0
	for _, layer := range imp {
		for _, head := range layer {
			for _, v := range head {
				mass += float64(v)
			}
		}
	}
	if mass == 0 {
		mass = 1
	}
	l.addRecall(0, imp, imp, mass)
	for i := range l.metrics {
		l.addRecall(1+i, imp, scores[i], mass)
		if err := l.allocate(i, T, imp, scores[i], mass); err != nil {
			return err
		}
	}
	return l.solve(task, T, imp, scores[0], mass)
}

// addRecall adds the fraction of importance that the best entries of each head
// hold.
func (l *losses) addRecall(ranking int, imp, scores [][][]float32, mass float64) {
	for li, layer := range imp {
		for h, head := range layer {
			gains := ranked(head, scores[li][h])
			sum, kept := 0.0, 0
			for g := len(recallGrid) - 1; g >= 0; g-- {
				for b := remaining(recallGrid[g], len(head)); kept < b; kept++ {
					sum += float64(gains[kept])
				}
				l.Recall[ranking][g] += sum / mass
			}
		}
	}
}

// remaining is floor((1-ratio)·n) for a ratio of whole percents, in integers: 1-0.9 in
// floating point is less than 0.1.
func remaining(ratio float64, n int) int {
	return (100 - int(math.Round(100*ratio))) * n / 100
}

// ranked returns importances from the best score to the worst.
func ranked(imp, scores []float32) []float32 {
	order := make([]int, len(imp))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(scores[b], scores[a]) })
	out := make([]float32, len(imp))
	for i, t := range order {
		out[i] = imp[t]
	}
	return out
}

// allocate adds the losses of a metric under every allocator.
func (l *losses) allocate(metric, T int, imp, scores [][][]float32, mass float64) error {
	layers := make([]lukv.Scores, len(scores))
	for i := range scores {
		layers[i] = scores[i]
	}
	for i, a := range l.o.Allocators {
		compiled, err := l.compile(metric, i)
		if err != nil {
			return err
		}
		if compiled == nil {
			continue
		}
		d := compiled.Demand(T)
		budgets, err := lukv.Allocate(compiled.Allocator(), d, layers)
		if err != nil {
			return fmt.Errorf("allocator %s: %w", a.Name, err)
		}
		if l.Heads[metric][i] == nil {
			l.Heads[metric][i] = make([][]float64, l.shape.Layers)
			for li := range l.Heads[metric][i] {
				l.Heads[metric][i][li] = make([]float64, l.shape.KVHeads)
			}
		}
		var kept []int32
		for li, layer := range imp {
			if err := l.ctx.Err(); err != nil {
				return err
			}
			for h, head := range layer {
				kept = lukv.Keep(kept, scores[li][h], budgets[li][h], d.Protection)
				l.Heads[metric][i][li][h] += lukv.DroppedMass(head, kept) / mass
			}
		}
	}
	return nil
}

// solve divides the budget among all heads by the first metric's loss curves.
func (l *losses) solve(task string, T int, imp, scores [][][]float32, mass float64) error {
	var curves []*solve.Curve
	for li, layer := range imp {
		for h, head := range layer {
			c, err := solve.NewCurve(ranked(head, scores[li][h]), 0)
			if err != nil {
				return err
			}
			curves = append(curves, c)
		}
	}
	totals := func(grid []float64) []int {
		out := make([]int, len(grid))
		for i, r := range grid {
			out[i] = int((1-r)*float64(T*len(curves)) + 0.5)
		}
		return out
	}
	l.Tasks[task]++
	local, err := solve.Greedy(l.ctx, curves, nil, totals(localGrid))
	if err != nil {
		return err
	}
	if l.Local[task] == nil {
		l.Local[task] = make([][][]float64, l.shape.Layers)
		for i := range l.Local[task] {
			l.Local[task][i] = make([][]float64, l.shape.KVHeads)
			for h := range l.Local[task][i] {
				l.Local[task][i][h] = make([]float64, len(localGrid))
			}
		}
	}
	unit := 0
	for li, layer := range imp {
		for h := range layer {
			for g := range localGrid {
				l.Local[task][li][h][g] += 1 - float64(local[g].Keep[unit])/float64(T)
			}
			unit++
		}
	}
	if l.Exact >= l.o.ExactItems {
		return nil
	}
	l.Exact++
	return l.compareSolvers(T, curves, totals(solverGrid), mass)
}

// compareSolvers adds the losses of the solvers.
func (l *losses) compareSolvers(T int, curves []*solve.Curve, totals []int, mass float64) error {
	add := func(solver, g int, loss float64) { l.Solver[solver][g] += loss / mass }
	results, err := solve.Greedy(l.ctx, curves, nil, totals)
	if err != nil {
		return err
	}
	var all []float64
	for g := range totals {
		add(greedy, g, results[g].Loss)
		better, err := solve.Repair(l.ctx, curves, nil, results[g])
		if err != nil {
			return err
		}
		add(repaired, g, better.Loss)
		best, err := solve.Exact(l.ctx, curves, nil, totals[g], solve.ExactOptions{Quantum: max(1, T/exactSteps)})
		if err != nil {
			return err
		}
		add(exact, g, best.Loss)
		for _, c := range curves {
			all = c.Losses(all)
			add(uniform, g, all[min(totals[g]/len(curves), len(all)-1)])
		}
	}
	return nil
}

// figures returns the means.
func (l *losses) figures() []report.Figure {
	n := report.Count(l.N, "question")
	out := []report.Figure{l.recallFigure(n)}
	for metric, allocators := range l.Heads {
		if slices.ContainsFunc(allocators, func(heads [][]float64) bool { return heads != nil }) {
			out = append(out, l.lossFigures(metric, n)...)
		}
	}
	if l.Exact > 0 {
		f := report.Figure{ID: "solver", Title: "Greedy against exact", Subtitle: fmt.Sprintf("%s; importance lost by budgets from its own loss curves; %s", l.o.Metrics[0].Name, report.Count(l.Exact, "question")),
			X: "global ratio", Y: "share of importance lost",
			Note: "Budgets that each question's own loss curves give, without protected entries. The exact solver works in steps of a sixteenth of a head, so it can lie above greedy, which has none; where both coincide, greedy loses nothing by being greedy."}
		for i, name := range solverNames {
			f.Lines = append(f.Lines, report.Line{Name: name, X: solverGrid, Y: scaled(l.Solver[i], l.Exact)})
		}
		out = append(out, f)
	}
	return append(out, l.localFigure(n))
}

func scaled(x []float64, n int) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / float64(n)
	}
	return out
}

func (l *losses) recallFigure(n string) report.Figure {
	f := report.Figure{ID: "recall", Title: "Recall of oracle importance", Subtitle: "the same number of entries kept in every head; " + n, X: "global ratio", Y: "recall",
		Note: "What share of the importance the best entries hold, by the oracle's own ranking and by each metric's. The distance of a metric from the oracle is its optimality gap; the oracle's distance from 1 no ranking can avoid."}
	for i, name := range append([]string{"oracle"}, l.names...) {
		f.Lines = append(f.Lines, report.Line{Name: name, X: recallGrid, Y: scaled(l.Recall[i], l.N)})
	}
	return f
}

// lossFigures are the losses of one metric by layer and by head.
func (l *losses) lossFigures(metric int, n string) []report.Figure {
	name := l.names[metric]
	full := name
	if cfg := l.o.Metrics[metric]; cfg.Name != name {
		full = cfg.String()
	}
	ratio := fmt.Sprintf("%s, %g %% removed; %s", full, 100*l.o.Ratio, n)
	lines := report.Figure{ID: "layer-loss-" + name, Title: "Loss by layer: " + name, Subtitle: ratio, X: "layer", Y: "share of importance lost",
		Note: "The points of a line add up to what the allocator loses in all: "}
	heat := report.Figure{ID: "head-loss-" + name, Title: "Loss by head: " + name, Subtitle: ratio, X: "KV head", Y: "layer", Unit: "%",
		Note: "Percent of a question's importance that is lost in each head, one scale for all panels."}
	var totals []string
	for i, at := range l.Heads[metric] {
		if at == nil {
			continue
		}
		a := l.allocatorName(i)
		line := report.Line{Name: a}
		panel := report.HeatPanel{Name: a, Columns: numbers(l.shape.KVHeads), Rows: numbers(len(at))}
		total := 0.0
		for li, heads := range at {
			sum := 0.0
			row := make([]*float64, l.shape.KVHeads)
			for h, v := range heads {
				v /= float64(l.N)
				sum += v
				v *= 100
				row[h] = &v
			}
			total += sum
			line.X, line.Y = append(line.X, float64(li)), append(line.Y, sum)
			panel.Values = append(panel.Values, row)
		}
		totals = append(totals, fmt.Sprintf("%s %.1f %%", a, 100*total))
		lines.Lines = append(lines.Lines, line)
		heat.Heat = append(heat.Heat, panel)
	}
	lines.Note += strings.Join(totals, ", ") + "."
	return []report.Figure{lines, heat}
}

// allocatorName is the name of an allocator, in full if an earlier one has the same
// name.
func (l *losses) allocatorName(i int) string {
	a := l.o.Allocators[i]
	if slices.ContainsFunc(l.o.Allocators[:i], func(b lukv.AllocatorConfig) bool { return b.Name == a.Name }) {
		return a.String()
	}
	return a.Name
}

func numbers(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = strconv.Itoa(i)
	}
	return out
}

// localFigure shows how much of each head is removed, task by task.
func (l *losses) localFigure(n string) report.Figure {
	metric := l.o.Metrics[0].Name
	f := report.Figure{ID: "local-ratios", Title: "Local ratio of every head", Subtitle: metric + ": " + n, X: "global ratio", Y: "local ratio",
		Note: "One cell per head (layer.head): pale lines are what questions of each task ask for by their own losses, strong ones their mean and, where there is one, the profile. A line below the diagonal is a head that is spared."}
	f.Columns = l.shape.KVHeads * max(1, 15/l.shape.KVHeads)
	tasks := make([]string, 0, len(l.Tasks))
	for task := range l.Tasks {
		tasks = append(tasks, task)
	}
	slices.Sort(tasks)
	profile := l.o.Profiles[0]
	for li, excluded := range l.shape.Excluded {
		if excluded {
			continue
		}
		for h := range l.shape.KVHeads {
			c := report.Chart{Name: fmt.Sprintf("%d.%d", li, h)}
			mean := make([]float64, len(localGrid))
			for _, task := range tasks {
				y := scaled(l.Local[task][li][h], l.Tasks[task])
				c.Lines = append(c.Lines, report.Line{Name: task, X: localGrid, Y: y, Pale: true})
				for g := range mean {
					mean[g] += y[g] / float64(len(tasks))
				}
			}
			c.Lines = append(c.Lines, report.Line{Name: "mean of tasks", X: localGrid, Y: mean})
			if profile != nil {
				y := make([]float64, len(localGrid))
				for g, r := range localGrid {
					y[g] = profile.Row(r, true)[li][h]
				}
				c.Lines = append(c.Lines, report.Line{Name: "profile", X: localGrid, Y: y})
			}
			f.Charts = append(f.Charts, c)
		}
	}
	return f
}
