package lukv

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/lukv/solve"
)

// keptGrid holds the kept fractions at which output errors are measured, after
// the smallest that a context allows.
var keptGrid = []float64{.02, .03, .05, .075, .1, .15, .2, .25, .3, .4, .5, .6, .7, .8, .9, 1}

// OutputErrors are the measurements from which a profile of output errors was solved. Nothing more
// is needed to solve it again. U counts the KV heads of all layers, layer by
// layer; those of layers that take no part have empty rows.
type OutputErrors struct {
	AnswerSteps int `json:"answer_steps"` // of all pairs

	// Effects holds the measured effect of every layer in nats per answer step,
	// [L][1] with weights of kind cut, [L][ratios] with span, and LayerWeights
	// the weights made from them, [L].
	Effects      [][]float64 `json:"effects,omitempty"`
	LayerWeights []float64   `json:"layer_weights"`

	// Grid holds fractions kept, and Error the error of every head at each of
	// them, per answer step: [U][len(Grid)]. With a metric per head it is the
	// smallest of Errors, [metric][U][len(Grid)], which is empty otherwise.
	Grid   []float64     `json:"grid"`
	Error  [][]float64   `json:"error"`
	Errors [][][]float64 `json:"errors,omitempty"`

	// MetricOf is the metric of every level and head, [99][U], as an index into
	// the parameter metrics of the profile's metric; empty unless that is
	// per_head.
	MetricOf [][]int `json:"metric_of,omitempty"`
}

// AnswerErrors is what one pair contributes to a profile of output errors, summed
// over the steps of the answer.
type AnswerErrors struct {
	Tokens int // T of the context
	Steps  int // 0: the pair is left out

	// Errors holds those of [HeadAttention.OutputErrors] at the counts of
	// [OutputErrorBuilder.Counts], [metric][U]; nil for layers that take no part.
	Errors [][][]float64

	// Divergence holds that of each of [OutputErrorBuilder.States] from the full cache.
	Divergence []float64
}

// OutputErrorBuilder adds up measurements of the answers to calibration
// questions and solves once for all of them. Pairs are added in a fixed order;
// the state can be saved after any of them and the work resumed with the same
// result. Not safe for concurrent use, except for Counts and States.
type OutputErrorBuilder struct {
	id              ProfileIdentity
	metrics         []Metric
	layers, kvHeads int
	excluded        []int
	active          []int // layers that take part

	pairs, steps int // pairs added, including those without steps
	left         int // of these, pairs without steps
	minT, maxT   int
	grid         []float64
	errors       [][][]float64 // [metric][U][grid] sums
	divergence   []float64     // sums
}

// NewOutputErrorBuilder starts a profile. The arguments are those of
// [NewProfileBuilder], with an identity whose objective is
// [ObjectiveOutputError].
func NewOutputErrorBuilder(id ProfileIdentity, layers, kvHeads int, excluded []int) (*OutputErrorBuilder, error) {
	if id.Objective != ObjectiveOutputError {
		return nil, fmt.Errorf("build profile: objective %q, expected %q", id.Objective, ObjectiveOutputError)
	}
	checked, err := NewProfileBuilder(id, layers, kvHeads, excluded)
	if err != nil {
		return nil, err
	}
	b := &OutputErrorBuilder{id: checked.id, layers: layers, kvHeads: kvHeads, excluded: checked.excluded}
	for l := range layers {
		if !slices.Contains(excluded, l) {
			b.active = append(b.active, l)
		}
	}
	metric, err := NewMetric(b.id.Metric)
	if err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	b.metrics = []Metric{metric}
	if m, ok := metric.(perHead); ok {
		b.metrics = m.parts()
	}
	b.divergence = make([]float64, len(b.States(1)))
	return b, nil
}

// Identity returns the identity of the profile being built.
func (b *OutputErrorBuilder) Identity() ProfileIdentity { return b.id }

// Metrics returns the metrics whose errors are wanted. Effects are measured with
// the first.
func (b *OutputErrorBuilder) Metrics() []Metric { return b.metrics }

// Pairs returns the number of pairs added, which is the index of the next one.
func (b *OutputErrorBuilder) Pairs() int { return b.pairs }

// least returns the number of entries that every head of a context keeps at least.
func (b *OutputErrorBuilder) least(T int) int {
	// A share of 0.07 is 7 of 100 entries, whatever its last bit says.
	share := int(math.Ceil(b.id.MinRetention*float64(T) - 1e-9))
	return min(max(share, b.id.Protection.Count(T), 1), T)
}

// gridOf returns the kept fractions at which a context of T entries is measured.
func (b *OutputErrorBuilder) gridOf(T int) []float64 {
	least := float64(b.least(T)) / float64(T)
	out := []float64{least}
	for _, x := range keptGrid {
		if x > least {
			out = append(out, x)
		}
	}
	return out
}

// Counts returns the numbers of entries kept at which the heads of a context
// of T entries are measured, ascending to T.
func (b *OutputErrorBuilder) Counts(T int) []int {
	least := b.least(T)
	var out []int
	for _, x := range b.gridOf(T) {
		out = append(out, entries(x, T, least))
	}
	return out
}

// States returns the states of the cache of a context of T entries whose
// divergence from the full cache is wanted: how many entries every head of a
// layer keeps, [state][L], in the first metric's order; T: all.
func (b *OutputErrorBuilder) States(T int) [][]int {
	return b.id.Weights.states(T, b.least(T), b.active, b.layers)
}

// Add adds pair number index, counted from 0. On error nothing is added.
func (b *OutputErrorBuilder) Add(index int, a *AnswerErrors) error {
	if index != b.pairs {
		return fmt.Errorf("build profile: pair %d, expected pair %d next", index, b.pairs)
	}
	if a.Steps == 0 {
		b.pairs++
		b.left++
		return nil
	}
	if err := b.check(a); err != nil {
		return fmt.Errorf("build profile: pair %d: %w", index, err)
	}
	own := b.gridOf(a.Tokens)
	grid := own
	if b.grid != nil && b.grid[0] > own[0] {
		grid = b.grid
	}
	sums := make([][][]float64, len(b.metrics))
	for m := range sums {
		sums[m] = make([][]float64, b.layers*b.kvHeads)
		for u := range sums[m] {
			if a.Errors[m][u] == nil {
				continue
			}
			// A sum of such curves is straight between its points, too, so dropping the
			// points below the largest of all leasts loses nothing.
			sums[m][u] = at(grid, own, a.Errors[m][u])
			if b.grid != nil {
				for i, v := range at(grid, b.grid, b.errors[m][u]) {
					sums[m][u][i] += v
				}
			}
		}
	}
	b.grid, b.errors = grid, sums
	for i, v := range a.Divergence {
		b.divergence[i] += v
	}
	if b.minT == 0 || a.Tokens < b.minT {
		b.minT = a.Tokens
	}
	b.maxT = max(b.maxT, a.Tokens)
	b.pairs++
	b.steps += a.Steps
	return nil
}

func (b *OutputErrorBuilder) check(a *AnswerErrors) error {
	if a.Steps < 0 || a.Tokens < 1 {
		return fmt.Errorf("%d answer steps after a context of %d tokens", a.Steps, a.Tokens)
	}
	if len(a.Errors) != len(b.metrics) || len(a.Divergence) != len(b.divergence) {
		return fmt.Errorf("errors of %d metrics and %d effects, expected %d and %d", len(a.Errors), len(a.Divergence), len(b.metrics), len(b.divergence))
	}
	n := len(b.gridOf(a.Tokens))
	for m := range a.Errors {
		if err := checkErrorRows(n, a.Errors[m], b.layers, b.kvHeads, b.excluded); err != nil {
			return err
		}
	}
	return checkErrors(a.Divergence)
}

// checkErrors reports a sum that is negative or not finite.
func checkErrors(x []float64) error {
	for i, v := range x {
		if !(v >= 0) || math.IsInf(v, 1) {
			return fmt.Errorf("error %d is %v, expected finite and not negative", i, v)
		}
	}
	return nil
}

// at evaluates the curve through the points (grid, y), straight between them, at
// xs, all of which lie within the grid, up to rounding.
func at(xs, grid, y []float64) []float64 {
	out := make([]float64, len(xs))
	for i, x := range xs {
		k, found := slices.BinarySearch(grid, x)
		if found {
			out[i] = y[k]
			continue
		}
		k = min(max(k, 1), len(grid)-1)
		share := (x - grid[k-1]) / (grid[k] - grid[k-1])
		out[i] = y[k-1] + float64(share*(y[k]-y[k-1]))
	}
	return out
}

// Profile solves for the pairs added so far. More pairs can be added afterwards.
func (b *OutputErrorBuilder) Profile() (*Profile, error) {
	if b.steps == 0 {
		return nil, errors.New("build profile: no pair has an answer")
	}
	e := &OutputErrors{AnswerSteps: b.steps, Grid: slices.Clone(b.grid)}
	n := float64(b.steps)
	for m := range b.errors {
		mean := make([][]float64, len(b.errors[m]))
		for u, row := range b.errors[m] {
			mean[u] = []float64{}
			for _, v := range row {
				mean[u] = append(mean[u], v/n)
			}
		}
		e.Errors = append(e.Errors, mean)
	}
	divergence := make([]float64, len(b.divergence))
	for i, v := range b.divergence {
		divergence[i] = v / n
	}
	e.Effects = b.id.Weights.effects(divergence, b.active, b.layers)
	ratios, err := e.solve(b.id.Weights, b.layers, b.kvHeads)
	if err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	p, err := NewProfile(b.id, b.layers, b.kvHeads, ratios, slices.Clone(b.excluded))
	if err != nil {
		return nil, fmt.Errorf("build profile: %w", err)
	}
	p.OutputErrors = e
	p.Pairs, p.MinContext, p.MaxContext = b.pairs-b.left, b.minT, b.maxT
	return p, nil
}

// Reweighted solves a profile of output errors again from its own measurements
// with other weights: of the measured kind, around the same ratios, or of kind
// none.
func (p *Profile) Reweighted(w Weights) (*Profile, error) {
	fail := func(format string, args ...any) (*Profile, error) {
		return nil, fmt.Errorf("reweigh profile: "+format, args...)
	}
	measured := p.Identity.Weights
	switch err := w.validate(); {
	case err != nil:
		return fail("%w", err)
	case p.OutputErrors == nil:
		return fail("it has no output errors")
	case w.Kind != WeightsNone && (w.Kind != measured.Kind || !slices.Equal(w.Ratios, measured.Ratios)):
		return fail("found effects of kind %s at %v, expected %s at %v", measured.Kind, measured.Ratios, w.Kind, w.Ratios)
	}
	e := *p.OutputErrors
	if len(e.Errors) == 0 {
		e.Errors = [][][]float64{e.Error}
	}
	if w.Kind == WeightsNone {
		e.Effects = nil
	}
	ratios, err := e.solve(&w, p.layers, p.kvHeads)
	if err != nil {
		return fail("%w", err)
	}
	id := p.Identity
	id.Weights = &w
	out, err := NewProfile(id, p.layers, p.kvHeads, ratios, p.Excluded)
	if err != nil {
		return fail("%w", err)
	}
	out.OutputErrors, out.CalibrationData = &e, p.CalibrationData
	out.Pairs, out.MinContext, out.MaxContext = p.Pairs, p.MinContext, p.MaxContext
	return out, nil
}

// solve fills in what follows from the measurements and returns the removed
// fractions, [99][U], rounded to billionths.
func (e *OutputErrors) solve(w *Weights, layers, kvHeads int) ([]float64, error) {
	e.Error = leastOf(e.Errors)
	if len(e.Errors) == 1 {
		e.Errors = nil
	}
	least := make([]float64, layers) // errors of the layers at their smallest budgets
	for u, row := range e.Error {
		if len(row) > 0 {
			least[u/kvHeads] += row[0] - row[len(row)-1]
		}
	}
	e.LayerWeights = w.layers(e.Effects, least)
	var loss [][]float64
	var units []int
	for u, row := range e.Error {
		if len(row) == 0 {
			continue
		}
		weighted := make([]float64, len(row))
		for i, v := range row {
			weighted[i] = v * e.LayerWeights[u/kvHeads]
		}
		loss, units = append(loss, weighted), append(units, u)
	}
	kept, err := solve.Fractions(e.Grid, loss)
	if err != nil {
		return nil, err
	}
	ratios := make([]float64, solve.Levels*layers*kvHeads)
	for i, level := range kept {
		for k, x := range level {
			ratios[i*layers*kvHeads+units[k]] = math.Round((1-x)*1e9) / 1e9
		}
	}
	if len(e.Errors) > 1 {
		e.MetricOf = e.choose(kept, units)
	}
	return ratios, nil
}

// leastOf returns the least error over all metrics, point by point.
func leastOf(errors [][][]float64) [][]float64 {
	out := make([][]float64, len(errors[0]))
	for u := range out {
		out[u] = slices.Clone(errors[0][u])
		for _, of := range errors[1:] {
			for i, v := range of[u] {
				out[u][i] = min(out[u][i], v)
			}
		}
	}
	return out
}

// choose returns the metric of every level and head: the one whose error is least
// at the head's budget there, the first among equals.
func (e *OutputErrors) choose(kept [][]float64, units []int) [][]int {
	out := make([][]int, len(kept))
	for i, level := range kept {
		out[i] = make([]int, len(e.Error))
		for k, x := range level {
			u, best := units[k], math.Inf(1)
			for m := range e.Errors {
				if v := at([]float64{x}, e.Grid, e.Errors[m][u])[0]; v < best {
					out[i][u], best = m, v
				}
			}
		}
	}
	return out
}

// errorState is the JSON of a builder's state.
type errorState struct {
	fileHead
	LeftOut    int `json:"pairs_left_out"`
	Steps      int `json:"answer_steps"`
	MinContext int `json:"min_context"`
	MaxContext int `json:"max_context"`

	// Sums over the answer steps of all pairs.
	Grid       []float64     `json:"grid"`
	Errors     [][][]float64 `json:"errors"`
	Divergence []float64     `json:"divergence"`
}

// writeState writes everything needed to resume later.
func (b *OutputErrorBuilder) writeState(w io.Writer) error {
	f := &errorState{
		fileHead: fileHead{
			Format: stateFormat, Version: fileVersion, Identity: b.id,
			Layers: b.layers, KVHeads: b.kvHeads, Excluded: b.excluded, Pairs: b.pairs,
		},
		LeftOut: b.left, Steps: b.steps, MinContext: b.minT, MaxContext: b.maxT,
		Grid: b.grid, Errors: b.errors, Divergence: b.divergence,
	}
	var err error
	if f.Checksum, err = checksumOf(f); err != nil {
		return fmt.Errorf("write profile state: %w", err)
	}
	data, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("write profile state: %w", err)
	}
	_, err = w.Write(append(data, '\n'))
	return err
}

// SaveState writes the state to path: completely or not at all.
func (b *OutputErrorBuilder) SaveState(path string) error {
	if err := atomicfile.Write(path, 0o644, b.writeState); err != nil {
		return fmt.Errorf("save profile state: %w", err)
	}
	return nil
}

// readState continues from a state written by a builder of the same identity
// and shape; any other is an error that wraps [ErrProfileMismatch]. On error
// the builder is unchanged.
func (b *OutputErrorBuilder) readState(r io.Reader) error {
	data, err := readState(r, b.id)
	if err != nil {
		return err
	}
	var f errorState
	if err := decodeStrict(data, &f); err != nil {
		return err
	}
	sum := f.Checksum
	f.Checksum = ""
	want, err := checksumOf(&f)
	switch {
	case err != nil:
		return err
	case sum != want:
		return fmt.Errorf("checksum %q, expected %q: the file is damaged or was edited", sum, want)
	case f.Pairs < 0 || f.LeftOut < 0 || f.LeftOut > f.Pairs || f.Steps < f.Pairs-f.LeftOut || len(f.Divergence) != len(b.divergence):
		return fmt.Errorf("%d pairs, %d of them left out, %d steps, %d effects, expected %d effects", f.Pairs, f.LeftOut, f.Steps, len(f.Divergence), len(b.divergence))
	}
	if err := f.matches(b.layers, b.kvHeads, b.excluded); err != nil {
		return err
	}
	if err := b.checkSums(&f); err != nil {
		return err
	}
	b.pairs, b.left, b.steps, b.minT, b.maxT = f.Pairs, f.LeftOut, f.Steps, f.MinContext, f.MaxContext
	b.grid, b.errors, b.divergence = f.Grid, f.Errors, f.Divergence
	return nil
}

// checkSums reports sums of the wrong shape.
func (b *OutputErrorBuilder) checkSums(f *errorState) error {
	if f.Pairs == f.LeftOut {
		if f.Grid != nil || f.Errors != nil {
			return errors.New("errors of no pair")
		}
		return nil
	}
	if len(f.Errors) != len(b.metrics) {
		return fmt.Errorf("errors of %d metrics, expected %d", len(f.Errors), len(b.metrics))
	}
	for _, of := range f.Errors {
		if err := checkErrorTable(f.Grid, of, b.layers, b.kvHeads, b.excluded); err != nil {
			return err
		}
	}
	return checkErrors(f.Divergence)
}

// checkErrorTable reports a table of errors, [U][len(grid)], of the wrong shape.
func checkErrorTable(grid []float64, table [][]float64, layers, kvHeads int, excluded []int) error {
	if len(grid) == 0 || grid[len(grid)-1] != 1 {
		return fmt.Errorf("errors on a grid of %d points, expected one up to 1", len(grid))
	}
	for i, x := range grid {
		if !(x > 0) || i > 0 && x <= grid[i-1] {
			return fmt.Errorf("grid point %d is %v, expected ascending above 0", i, x)
		}
	}
	return checkErrorRows(len(grid), table, layers, kvHeads, excluded)
}

// checkErrorRows reports a table of errors, [U][n], of the wrong shape.
func checkErrorRows(n int, table [][]float64, layers, kvHeads int, excluded []int) error {
	if len(table) != layers*kvHeads {
		return fmt.Errorf("errors of %d heads, expected %d", len(table), layers*kvHeads)
	}
	for u, row := range table {
		want := n
		if slices.Contains(excluded, u/kvHeads) {
			want = 0
		}
		if len(row) != want {
			return fmt.Errorf("%d errors of layer %d head %d, expected %d", len(row), u/kvHeads, u%kvHeads, want)
		}
		if err := checkErrors(row); err != nil {
			return fmt.Errorf("layer %d head %d: %w", u/kvHeads, u%kvHeads, err)
		}
	}
	return nil
}

// LoadState continues from a state that SaveState wrote for a builder of the same
// identity and shape; any other is an error that wraps [ErrProfileMismatch]. On
// error the builder is unchanged.
func (b *OutputErrorBuilder) LoadState(path string) error {
	in, err := inputfile.Open(path)
	if err != nil {
		return fmt.Errorf("load profile state: %w", err)
	}
	defer in.Close()
	if err := b.readState(in); err != nil {
		return fmt.Errorf("read profile state %s: %w", path, err)
	}
	return nil
}

// checkOutputErrors reports measurements whose shape differs from the profile's.
func (p *Profile) checkOutputErrors() error {
	e, w := p.OutputErrors, p.Identity.Weights
	switch {
	case w == nil:
		return fmt.Errorf("profile: output errors beside objective %s", p.Identity.Objective)
	case e.AnswerSteps < 1:
		return fmt.Errorf("profile: %d answer steps, expected at least 1", e.AnswerSteps)
	case len(e.LayerWeights) != p.layers || len(e.Effects) != 0 && len(e.Effects) != p.layers:
		return fmt.Errorf("profile: weights of %d and effects of %d layers, expected %d", len(e.LayerWeights), len(e.Effects), p.layers)
	case (len(e.Effects) == 0) != (w.Kind == WeightsNone):
		return fmt.Errorf("profile: effects of %d layers beside weights of kind %s", len(e.Effects), w.Kind)
	case (len(e.MetricOf) == 0) != (len(e.Errors) == 0) || len(e.Errors) == 1:
		return fmt.Errorf("profile: errors of %d metrics, and a metric of each head on %d levels", len(e.Errors), len(e.MetricOf))
	}
	if err := checkErrors(e.LayerWeights); err != nil {
		return fmt.Errorf("profile: layer weights: %w", err)
	}
	for l, row := range e.Effects {
		if len(row) != w.rounds() {
			return fmt.Errorf("profile: %d effects of layer %d, expected %d", len(row), l, w.rounds())
		}
	}
	for _, table := range append([][][]float64{e.Error}, e.Errors...) {
		if err := checkErrorTable(e.Grid, table, p.layers, p.kvHeads, p.Excluded); err != nil {
			return fmt.Errorf("profile: %w", err)
		}
	}
	if len(e.MetricOf) == 0 {
		return nil
	}
	if len(e.MetricOf) != solve.Levels {
		return fmt.Errorf("profile: a metric of each head on %d levels, expected %d", len(e.MetricOf), solve.Levels)
	}
	for i, row := range e.MetricOf {
		if len(row) != p.layers*p.kvHeads {
			return fmt.Errorf("profile: level %d: metrics of %d heads, expected %d", i+1, len(row), p.layers*p.kvHeads)
		}
		for _, m := range row {
			if m < 0 || m >= len(e.Errors) {
				return fmt.Errorf("profile: level %d: metric %d of %d", i+1, m, len(e.Errors))
			}
		}
	}
	return nil
}
