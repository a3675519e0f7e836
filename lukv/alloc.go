package lukv

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Knowledge says what an allocator must have seen before it can give budgets.
type Knowledge int

const (
	// KnownBefore: budgets follow from the demand alone. Each layer can be cut
	// as soon as it has been scored.
	KnownBefore Knowledge = iota

	// KnownPerLayer: a layer's budgets need that layer's scores.
	KnownPerLayer

	// KnownAtEnd: budgets need the scores of all layers, hence the whole
	// uncompressed cache until then.
	KnownAtEnd
)

// String returns "before", "per layer" or "at end".
func (k Knowledge) String() string {
	return [...]string{"before", "per layer", "at end"}[k]
}

// Allocator turns a demand into budgets: entries kept per head, protected
// ones included. Which entries those are is [Keep]'s business, with the same
// scores and protection.
//
// An allocator that knows its budgets earlier also answers the later
// questions, ignoring what it does not need. Excluded layers and untouched
// demands ([Demand.Untouched]) get T everywhere. Allocators are immutable and
// safe for concurrent use.
type Allocator interface {
	Name() string

	// Config returns every parameter that the allocator has.
	Config() AllocatorConfig

	Knows() Knowledge

	// Budgets returns [L][K] counts. An error unless Knows is KnownBefore.
	Budgets(d Demand) ([][]int, error)

	// LayerBudgets returns the [K] counts of layer l, whose scores s holds
	// [K][T]. An error if Knows is KnownAtEnd.
	LayerBudgets(d Demand, l int, s Scores) ([]int, error)

	// ModelBudgets returns [L][K] counts from the scores of all layers;
	// entries of excluded layers may be nil.
	ModelBudgets(d Demand, s []Scores) ([][]int, error)
}

// AllocatorConfig names an allocator and its parameters, in code and in JSON.
// A nil or empty field means the default. Setting a parameter that the
// allocator does not have is an error.
//
//	uniform    –
//	pyramidkv  form window beta
//	adakv      form alpha pool normalize skip
//	global     –
//	lukv       lookup
//
// The names pyramid and ada are accepted for pyramidkv and adakv. The forms of
// the repositories (absolute, interpolate) round each layer or head on its own
// and may miss an absolute budget by an entry per head; all others keep it.
type AllocatorConfig struct {
	Name string `json:"name"`

	// Form of pyramidkv: "ratio" (default, kvpress) or "absolute" (the
	// method's repository: integer arithmetic on the capacity). Form of adakv:
	// "pool" (default, kvpress) or "interpolate" (the method's repository).
	Form string `json:"form,omitempty"`

	// Window is PyramidKV's observation window, default 8; it bounds the
	// smallest layer. Beta is its steepness, default 20 (at least 1).
	Window *int     `json:"window,omitempty"`
	Beta   *float64 `json:"beta,omitempty"`

	// Alpha is AdaKV's safeguard: the share of the uniform budget that every
	// head has for certain, default 0.2, 0 to 1.
	Alpha *float64 `json:"alpha,omitempty"`

	// Pool is where AdaKV's heads compete: "layer" (default) or "model".
	Pool string `json:"pool,omitempty"`

	// Normalize weights each head by the share of its score mass that its best
	// entries hold, Skip exempts the first layers from the competition; both
	// for adakv's "interpolate" form only, default false and 0.
	Normalize *bool `json:"normalize,omitempty"`
	Skip      *int  `json:"skip,omitempty"`

	// Lookup reads LU-KV's profile between its levels: "interpolate" (default)
	// or "nearest".
	Lookup string `json:"lookup,omitempty"`
}

// allocators lists every allocator with its constructor.
var allocators = []struct {
	name  string
	build func(*allocParams) Allocator
}{
	{"uniform", func(*allocParams) Allocator { return uniform{} }},
	{"pyramidkv", newPyramid},
	{"adakv", newAda},
	{"global", func(*allocParams) Allocator { return global{} }},
	{"lukv", newLU},
}

var allocatorAliases = map[string]string{"pyramid": "pyramidkv", "ada": "adakv"}

// Allocators lists the names of all allocators.
func Allocators() []string {
	names := make([]string, len(allocators))
	for i, a := range allocators {
		names[i] = a.name
	}
	return names
}

// NewAllocator builds the allocator that cfg describes. profile is needed by
// lukv and ignored by all others; the caller has checked that it belongs to
// model and metric ([Profile.Check]).
func NewAllocator(cfg AllocatorConfig, profile *Profile) (Allocator, error) {
	name := cfg.canonicalName()
	for _, a := range allocators {
		if a.name != name {
			continue
		}
		p := &allocParams{cfg: cfg, name: name, profile: profile}
		allocator := a.build(p)
		if p.err == nil {
			p.err = p.unused(allocator.Config())
		}
		if p.err != nil {
			return nil, p.err
		}
		return allocator, nil
	}
	return nil, fmt.Errorf("allocator %q is unknown, expected one of %s", cfg.Name, strings.Join(Allocators(), ", "))
}

func (c AllocatorConfig) canonicalName() string {
	if to, ok := allocatorAliases[c.Name]; ok {
		return to
	}
	return c.Name
}

// NeedsProfile reports whether the allocator looks budgets up in a profile.
func (c AllocatorConfig) NeedsProfile() bool { return c.canonicalName() == "lukv" }

// Validate reports what [NewAllocator] would refuse, a missing profile aside.
func (c AllocatorConfig) Validate() error {
	_, err := NewAllocator(c, &Profile{})
	return err
}

// String returns the configuration as compact JSON with a fixed order of
// fields.
func (c AllocatorConfig) String() string {
	data, err := json.Marshal(c)
	if err != nil { // a number that is not finite, which NewAllocator refuses
		return fmt.Sprintf("{%q: %q}", c.Name, err)
	}
	return string(data)
}

// ParseAllocatorConfig reads a configuration from JSON, or a bare name.
// Unknown fields are errors.
func ParseAllocatorConfig(text string) (AllocatorConfig, error) {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return AllocatorConfig{Name: strings.TrimSpace(text)}, nil
	}
	var c AllocatorConfig
	if err := decodeStrict([]byte(text), &c); err != nil {
		return AllocatorConfig{}, fmt.Errorf("read allocator configuration: %w", err)
	}
	return c, nil
}

// decodeStrict reads one JSON value without unknown fields or trailing text.
func decodeStrict(data []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return fmt.Errorf("found more text after the value")
	}
	return nil
}

// allocParams resolves the fields of a configuration and remembers the first
// error.
type allocParams struct {
	cfg     AllocatorConfig
	name    string
	profile *Profile
	err     error
}

func (p *allocParams) fail(field string, found any, expected string) {
	if p.err == nil {
		p.err = fmt.Errorf("allocator %s: %s: found %v, expected %s", p.name, field, found, expected)
	}
}

func (p *allocParams) integer(field string, v *int, def, lo, hi int) int {
	if v == nil {
		return def
	}
	if *v < lo || *v > hi {
		p.fail(field, *v, fmt.Sprintf("%d to %d", lo, hi))
	}
	return *v
}

func (p *allocParams) number(field string, v *float64, def, lo, hi float64) float64 {
	if v == nil {
		return def
	}
	if !(*v >= lo && *v <= hi) {
		p.fail(field, *v, fmt.Sprintf("%g to %g", lo, hi))
	}
	return *v
}

// choice returns v, or the first option when v is empty.
func (p *allocParams) choice(field, v string, options ...string) string {
	if v == "" {
		return options[0]
	}
	if !slices.Contains(options, v) {
		p.fail(field, fmt.Sprintf("%q", v), "one of "+strings.Join(options, ", "))
	}
	return v
}

// unused reports a parameter that was set although the allocator, whose full
// configuration is full, does not have it.
func (p *allocParams) unused(full AllocatorConfig) error {
	has := full.set()
	for i, f := range p.cfg.set() {
		if f.set && !has[i].set {
			return fmt.Errorf("allocator %s: it has no parameter %s", p.name, f.name)
		}
	}
	return nil
}

type allocField struct {
	name string
	set  bool
}

func (c AllocatorConfig) set() []allocField {
	return []allocField{
		{"form", c.Form != ""}, {"window", c.Window != nil}, {"beta", c.Beta != nil},
		{"alpha", c.Alpha != nil}, {"pool", c.Pool != ""}, {"normalize", c.Normalize != nil},
		{"skip", c.Skip != nil}, {"lookup", c.Lookup != ""},
	}
}

// rowOf answers LayerBudgets for an allocator that knows all budgets before.
func rowOf(a Allocator, d Demand, l int) ([]int, error) {
	if l < 0 || l >= d.Layers {
		return nil, fmt.Errorf("budgets: layer %d of %d", l, d.Layers)
	}
	all, err := a.Budgets(d)
	if err != nil {
		return nil, err
	}
	return all[l], nil
}

// notBefore is the answer of allocators whose budgets depend on scores.
func notBefore(a Allocator) error {
	return fmt.Errorf("allocator %s: budgets are known %s, not before scoring", a.Name(), a.Knows())
}

// checkScores compares the shape of one layer's scores with the demand's.
func (d *Demand) checkScores(l int, s Scores) error {
	if l < 0 || l >= d.Layers {
		return fmt.Errorf("budgets: layer %d of %d", l, d.Layers)
	}
	if len(s) != d.KVHeads {
		return fmt.Errorf("budgets: layer %d: scores of %d heads, expected %d", l, len(s), d.KVHeads)
	}
	for h, row := range s {
		if len(row) != d.T {
			return fmt.Errorf("budgets: layer %d head %d: %d scores, expected %d", l, h, len(row), d.T)
		}
	}
	return nil
}

// checkModel compares the shape of all scores with the demand's.
func (d *Demand) checkModel(s []Scores) error {
	if len(s) != d.Layers {
		return fmt.Errorf("budgets: scores of %d layers, expected %d", len(s), d.Layers)
	}
	for l := range s {
		if d.Takes(l) {
			if err := d.checkScores(l, s[l]); err != nil {
				return err
			}
		}
	}
	return nil
}
