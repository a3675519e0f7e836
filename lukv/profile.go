package lukv

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/lukv/lukv/lukv/solve"
)

// ErrProfileMismatch reports a profile that does not belong where it is used:
// another model, metric, protection or shape. Callers branch on it to offer a
// new measurement instead of a budget that means nothing.
var ErrProfileMismatch = errors.New("profile does not match")

// Objectives of a profile: the loss that the budgets of all heads together
// minimise.
const (
	// ObjectiveUtility is the oracle importance lost under the metric's actual
	// ranking (default): the published objective, "importance" to the command.
	ObjectiveUtility = "utility"

	// ObjectiveCapacity is the oracle importance lost if the metric ranked
	// perfectly (spec 5.8).
	ObjectiveCapacity = "capacity"

	// ObjectiveOutputError is the squared error of each head's output on the steps
	// of the answers, with [Weights] of the layers. Importance is not measured:
	// normalisation, scope and solver are none, global and greedy.
	ObjectiveOutputError = "output-error"
)

// Solvers of a profile.
const (
	SolverGreedy = "greedy"        // the sweep alone (default)
	SolverRepair = "greedy+repair" // with [solve.Repair] on every level
)

// ProfileIdentity describes the inputs and the method of a profile.
type ProfileIdentity struct {
	// Model is the fingerprint of the checkpoint, Metric the metric with its
	// parameters (a builder writes them all out), Protection the protected
	// set. All three are checked when a profile is used.
	Model      string       `json:"model"`
	Metric     MetricConfig `json:"metric"`
	Protection Protection   `json:"protection"`

	Calibration   string  `json:"calibration"`   // hash of texts and questions
	Normalization string  `json:"normalization"` // of the oracle: NormLayer, NormNone, NormGlobal
	Objective     string  `json:"objective"`     // ObjectiveUtility, ObjectiveCapacity or ObjectiveOutputError
	Scope         string  `json:"scope"`         // solve.ScopeGlobal or solve.ScopePerLayer
	Solver        string  `json:"solver"`        // SolverGreedy or SolverRepair
	MinRetention  float64 `json:"min_retention"` // as in [solve.SweepOptions], but 0 means none
	MaxSteps      int     `json:"max_steps"`     // tokens generated per question, K_max

	// Weights of the layers, for ObjectiveOutputError; nil otherwise.
	Weights *Weights `json:"weights,omitempty"`
}

// DefaultProfileIdentity returns the default of every choice; model,
// metric, protection and calibration are left to the caller.
//
// The normalisation is none, although the authors' recorder normalises per
// layer: with one divisor per layer every layer weighs the same, and budget
// cannot move to the layers whose values matter more to the residual stream.
// On the development set of the embedded model none was better with every
// metric at every ratio (docs/results.md).
func DefaultProfileIdentity() ProfileIdentity {
	return ProfileIdentity{
		Normalization: NormNone, Objective: ObjectiveUtility, Scope: solve.ScopeGlobal,
		Solver: SolverGreedy, MinRetention: 0.01, MaxSteps: 64,
	}
}

// Validate reports the first unknown choice.
func (id *ProfileIdentity) Validate() error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{
		{"normalization", id.Normalization, Normalizations()},
		{"objective", id.Objective, []string{ObjectiveUtility, ObjectiveCapacity, ObjectiveOutputError}},
		{"scope", id.Scope, []string{solve.ScopeGlobal, solve.ScopePerLayer}},
		{"solver", id.Solver, []string{SolverGreedy, SolverRepair}},
	} {
		if !slices.Contains(f.allowed, f.value) {
			return fmt.Errorf("profile identity: %s: found %q, expected one of %q", f.name, f.value, f.allowed)
		}
	}
	switch {
	case (id.Weights != nil) != (id.Objective == ObjectiveOutputError):
		return fmt.Errorf("profile identity: weights: found them %t with objective %s, expected them with objective %s alone", id.Weights != nil, id.Objective, ObjectiveOutputError)
	case id.Weights != nil && (id.Normalization != NormNone || id.Scope != solve.ScopeGlobal || id.Solver != SolverGreedy):
		return fmt.Errorf("profile identity: normalization %s, scope %s and solver %s, expected %s, %s and %s with objective %s",
			id.Normalization, id.Scope, id.Solver, NormNone, solve.ScopeGlobal, SolverGreedy, ObjectiveOutputError)
	case !(id.MinRetention >= 0 && id.MinRetention < 1):
		return fmt.Errorf("profile identity: min_retention %v, expected at least 0 and below 1", id.MinRetention)
	case id.Protection.Sinks < 0 || id.Protection.Window < 0:
		return fmt.Errorf("profile identity: protection of %d sinks and a window of %d", id.Protection.Sinks, id.Protection.Window)
	case id.MaxSteps < 0:
		return fmt.Errorf("profile identity: max_steps %d, expected at least 0", id.MaxSteps)
	}
	if id.Metric.Name == "per_head" && id.Objective != ObjectiveOutputError {
		return fmt.Errorf("profile identity: metric per_head with objective %s, expected %s", id.Objective, ObjectiveOutputError)
	}
	if id.Weights != nil {
		if err := id.Weights.validate(); err != nil {
			return fmt.Errorf("profile identity: %w", err)
		}
	}
	return nil
}

// Profile is the table of local compression ratios (spec 5.6): at overall
// compression (i+1)/100 head h of layer l has the fraction Level(i)[l][h] of
// its entries removed. Immutable and safe for concurrent use.
type Profile struct {
	// For a profile from a .npy file, Identity is the one given to the
	// importer.
	Identity ProfileIdentity

	Pairs      int   // (context, question) pairs averaged; 0: not known
	MinContext int   // shortest and longest context, in tokens; 0: not known
	MaxContext int   //
	Excluded   []int // layers that took no part, ascending; their ratios are 0

	// CalibrationData is what the profile's metric reads, empty for most.
	CalibrationData

	// OutputErrors holds the measurements of a profile of output errors, nil for
	// other objectives or if not known. Do not modify.
	OutputErrors *OutputErrors

	// LossMap says what shares of facts lost mean for answers; nil if not measured.
	// Do not modify.
	LossMap *LossMap

	layers, kvHeads int
	ratios          []float64 // [99][L][K]
}

// NewProfile makes a profile from ratios [99][L][K], which it keeps, and checks
// its sanity: range, mean of every level, monotonicity (see
// [Profile.Validate]).
func NewProfile(id ProfileIdentity, layers, kvHeads int, ratios []float64, excluded []int) (*Profile, error) {
	if layers < 1 || kvHeads < 1 || layers > math.MaxInt32/kvHeads/solve.Levels || len(ratios) != solve.Levels*layers*kvHeads {
		return nil, fmt.Errorf("profile: %d ratios for %d levels of %d layers of %d KV heads", len(ratios), solve.Levels, layers, kvHeads)
	}
	p := &Profile{Identity: id, Excluded: excluded, layers: layers, kvHeads: kvHeads, ratios: ratios}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}

// Layers returns L.
func (p *Profile) Layers() int { return p.layers }

// KVHeads returns K.
func (p *Profile) KVHeads() int { return p.kvHeads }

// at returns level i as a flat view, [L·K].
func (p *Profile) at(i int) []float64 {
	n := p.layers * p.kvHeads
	return p.ratios[i*n : (i+1)*n]
}

// Level returns a copy of level i, [L][K], for compression (i+1)/100.
func (p *Profile) Level(i int) [][]float64 { return p.rows(slices.Clone(p.at(i))) }

func (p *Profile) rows(flat []float64) [][]float64 {
	out := make([][]float64, p.layers)
	for l := range out {
		out[l] = flat[l*p.kvHeads : (l+1)*p.kvHeads : (l+1)*p.kvHeads]
	}
	return out
}

// ProfileIndex returns the level that kvpress and the authors look up for a
// ratio: clamp(round(100·ratio) - 1, 0, 98), half to even.
func ProfileIndex(ratio float64) int {
	return min(max(int(math.RoundToEven(100*ratio))-1, 0), solve.Levels-1)
}

// Row returns the local ratios for an overall ratio, [L][K], new memory. With
// nearest it is the level of [ProfileIndex]; otherwise it is linear between
// levels, with nothing removed at ratio 0, the last level above 0.99, and the
// levels themselves at multiples of 0.01.
func (p *Profile) Row(ratio float64, nearest bool) [][]float64 {
	if nearest {
		return p.Level(ProfileIndex(ratio))
	}
	x := min(max(100*ratio, 0), solve.Levels)
	if r := math.RoundToEven(x); math.Abs(x-r) < 1e-9 {
		x = r
	}
	i := int(x) // level i-1 lies at or below x
	frac := x - float64(i)
	flat := make([]float64, p.layers*p.kvHeads)
	if i > 0 {
		copy(flat, p.at(i-1))
	}
	if frac > 0 {
		for u, next := range p.at(i) {
			flat[u] += float64(frac * (next - flat[u]))
		}
	}
	return p.rows(flat)
}

// HeatMap is the picture of one row of a profile.
type HeatMap struct {
	Ratio  float64     `json:"ratio"`  // overall ratio asked for
	Mean   float64     `json:"mean"`   // overall ratio of the row
	Min    float64     `json:"min"`    // smallest and largest local ratio
	Max    float64     `json:"max"`    //
	Ratios [][]float64 `json:"ratios"` // [L][K] fraction removed; nil in excluded layers
}

// HeatMap returns the local ratios at an overall ratio.
func (p *Profile) HeatMap(ratio float64, nearest bool) HeatMap {
	m := HeatMap{Ratio: ratio, Min: 1, Ratios: p.Row(ratio, nearest)}
	n := 0
	for l, row := range m.Ratios {
		if slices.Contains(p.Excluded, l) {
			m.Ratios[l] = nil
			continue
		}
		for _, r := range row {
			m.Min, m.Max = min(m.Min, r), max(m.Max, r)
			m.Mean += r
			n++
		}
	}
	m.Mean /= float64(max(1, n))
	return m
}

// mean returns the overall ratio of level i over the layers that take part.
func (p *Profile) mean(i int) float64 {
	level, s, n := p.at(i), 0.0, 0
	for l := range p.layers {
		if slices.Contains(p.Excluded, l) {
			continue
		}
		for _, r := range level[l*p.kvHeads : (l+1)*p.kvHeads] {
			s += r
			n++
		}
	}
	return s / float64(max(1, n))
}

// Validate checks what every profile must satisfy: ratios within [0,1], means
// non-decreasing and within 0.02 of their level, except that from some level
// on they may fall short (protection and minimum retention saturate); each
// head non-decreasing, except after repair; nothing removed in excluded
// layers.
func (p *Profile) Validate() error {
	const slack = 1e-9
	for k, l := range p.Excluded {
		if l < 0 || l >= p.layers || k > 0 && l <= p.Excluded[k-1] || len(p.Excluded) >= p.layers {
			return fmt.Errorf("profile: excluded layers %v of %d, expected ascending and not all", p.Excluded, p.layers)
		}
	}
	short := -1
	last := 0.0
	for i := range solve.Levels {
		for u, r := range p.at(i) {
			l, h := u/p.kvHeads, u%p.kvHeads
			if !(r >= 0 && r <= 1) {
				return fmt.Errorf("profile: level %d layer %d head %d: ratio %v, expected 0 to 1", i+1, l, h, r)
			}
			if r != 0 && slices.Contains(p.Excluded, l) {
				return fmt.Errorf("profile: level %d layer %d head %d: ratio %v in an excluded layer, expected 0", i+1, l, h, r)
			}
			if i > 0 && p.Identity.Solver != SolverRepair && r < p.at(i - 1)[u]-slack {
				return fmt.Errorf("profile: level %d layer %d head %d: ratio %v, expected at least the %v of the level below", i+1, l, h, r, p.at(i - 1)[u])
			}
		}
		mean, want := p.mean(i), float64(i+1)/100
		switch {
		case mean < last-slack:
			return fmt.Errorf("profile: level %d: mean ratio %v, expected at least the %v of the level below", i+1, mean, last)
		case mean > want+0.02:
			return fmt.Errorf("profile: level %d: mean ratio %v, expected %v", i+1, mean, want)
		case mean < want-0.02:
			if short < 0 {
				short = i
			}
		case short >= 0:
			return fmt.Errorf("profile: level %d: mean ratio %v, expected %v within 0.02", short+1, p.mean(short), float64(short+1)/100)
		}
		last = mean
	}
	return nil
}

// Check compares the profile with the run that is about to use it. The error
// wraps [ErrProfileMismatch] and names both sides. Metrics are compared with
// all parameters written out; a parameter that is not set is the default.
func (p *Profile) Check(model string, metric MetricConfig, prot Protection) error {
	mismatch := func(what string, profile, here any) error {
		return fmt.Errorf("%w: %s: the profile was made for %v, this run has %v", ErrProfileMismatch, what, profile, here)
	}
	id := &p.Identity
	switch {
	case id.Model != model:
		return mismatch("model", id.Model, model)
	case canonicalMetric(id.Metric).String() != canonicalMetric(metric).String():
		return mismatch("metric", canonicalMetric(id.Metric), canonicalMetric(metric))
	case id.Protection.Sinks != prot.Sinks:
		return mismatch("sinks", id.Protection.Sinks, prot.Sinks)
	case id.Protection.Window != prot.Window:
		return mismatch("protected window", id.Protection.Window, prot.Window)
	}
	return nil
}

// canonicalMetric writes out every parameter, if the metric is known here.
func canonicalMetric(c MetricConfig) MetricConfig {
	if m, err := NewMetric(c); err == nil {
		return MetricConfigOf(m)
	}
	return c
}

// CheckShape compares the profile with a model of L layers of K KV heads.
func (p *Profile) CheckShape(layers, kvHeads int) error {
	if p.layers != layers || p.kvHeads != kvHeads {
		return fmt.Errorf("%w: the profile has %d layers of %d KV heads, the model %d of %d",
			ErrProfileMismatch, p.layers, p.kvHeads, layers, kvHeads)
	}
	return nil
}

// WriteNPY writes the ratios in the published layout: float64 [99,L,K]. The
// identity is lost.
func (p *Profile) WriteNPY(w io.Writer) error {
	return WriteNPY(w, []int{solve.Levels, p.layers, p.kvHeads}, p.ratios)
}

// ReadProfileNPY reads the published layout. A .npy file does not say what it
// was made for: id is the caller's word for it, and is what [Profile.Check]
// will compare.
func ReadProfileNPY(r io.Reader, id ProfileIdentity) (*Profile, error) {
	shape, data, err := ReadNPY(r)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	if len(shape) != 3 || shape[0] != solve.Levels || shape[1] < 1 || shape[2] < 1 {
		return nil, fmt.Errorf("read profile: shape %v, expected [%d, layers, KV heads]", shape, solve.Levels)
	}
	p, err := NewProfile(id, shape[1], shape[2], data, nil)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	return p, nil
}

// identityText returns the identity on one line, for comparison and for messages.
func identityText(id ProfileIdentity) string {
	data, err := json.Marshal(id)
	if err != nil { // a number that is not finite, which Validate rejects
		return err.Error()
	}
	return string(data)
}
