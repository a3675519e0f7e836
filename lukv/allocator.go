package lukv

import (
	"context"
	"fmt"
)

// Knowledge is the input that an allocator needs before it can give budgets.
type Knowledge int

const (
	// KnownBefore: budgets follow from the demand alone. Each layer can be cut
	// as soon as it has been scored.
	KnownBefore Knowledge = iota

	// KnownPerLayer: a layer's budgets need that layer's scores.
	KnownPerLayer

	// KnownSoFar: after each layer there are budgets for it and all before it;
	// a new layer may shrink the budgets of earlier ones, never raise them.
	// The scores of all layers are held until the end.
	KnownSoFar

	// KnownAtEnd: budgets need the scores of all layers, hence the whole
	// uncompressed cache until then.
	KnownAtEnd
)

// String returns "before", "per layer", "so far" or "at end".
func (k Knowledge) String() string {
	return [...]string{"before", "per layer", "so far", "at end"}[k]
}

// Allocator divides a demand into budgets: entries kept per head, protected
// ones included. [Keep] then picks those entries, using the same scores and
// protection. An allocator is a struct of parameters: it is immutable and safe
// for concurrent use. [RegisterAllocator] gives it a name.
//
// An allocator may also have these methods:
//
//   - Validate() error checks the parameters once they have been read;
//   - WithProfile, of the interface [ProfileUser], if it reads a profile;
//   - Needs and Weigh, of the interface [LayerWeigher], if it looks at layers;
//   - GuaranteedBudget(d Demand) int, if heads compete above a safeguard;
//   - Notes(d Demand) []string says what a user should know about the outcome.
type Allocator interface {
	BudgetsKnown() Knowledge

	// Budgets returns [L][K] counts. s holds the scores of the layers, [L]: none if the
	// budgets are known before, some if they are known per layer or so far, those of all
	// layers that take part if they are known at the end. Layers without scores are nil;
	// their row of budgets may be nil if it is not known. [Allocate] calls it with a
	// valid demand that is not [Demand.NoOp] and scores that fit it, and clips the
	// result: T in excluded layers, elsewhere at most T and, unless heads may be empty,
	// at least one entry.
	Budgets(d Demand, s []Scores) ([][]int, error)
}

// ProfileUser is an allocator that reads a [Profile].
type ProfileUser interface {
	Allocator

	// WithProfile returns the allocator bound to a profile, or an error if p is
	// nil. An allocator that wraps another passes the profile on with
	// [BindProfile], whether the other needs one or not.
	WithProfile(p *Profile) (Allocator, error)
}

// budgetGuarantor is an allocator that guarantees every head some entries by score,
// whatever the other heads get.
type budgetGuarantor interface {
	Allocator

	// GuaranteedBudget returns how many, protected ones included.
	GuaranteedBudget(d Demand) int
}

// LayerWeigher is an allocator that looks at the layers themselves, not only at
// their scores. Demand.Weights holds what Weigh returned.
type LayerWeigher interface {
	Allocator

	// Needs says what Weigh reads from a layer, as [Metric].Needs does.
	Needs(T, n int) Needs

	// Weigh returns a number for the layer.
	Weigh(ctx context.Context, l *Layer) (float64, error)
}

// ObserverOf returns a metric that ranks nothing but states what the allocator
// needs when a context is observed, or nil if the allocator looks at scores alone.
func ObserverOf(a Allocator) Metric {
	if w, ok := a.(LayerWeigher); ok {
		return observer{w}
	}
	return nil
}

// observer presents a LayerWeigher as a metric.
type observer struct{ LayerWeigher }

func (observer) Protection(T, n int) Protection { return Protection{} }

func (o observer) Score(context.Context, *Layer) (Scores, error) {
	return nil, fmt.Errorf("allocator %s ranks no entries", AllocatorConfigOf(o.LayerWeigher).Name)
}

// Weigh returns the weight that a [LayerWeigher] gives a layer, or 0 for any
// other allocator.
func Weigh(ctx context.Context, a Allocator, l *Layer) (float64, error) {
	w, ok := a.(LayerWeigher)
	if !ok {
		return 0, nil
	}
	if err := l.check(allocators.nameOf(a), w.Needs(l.longest(), l.Share)); err != nil {
		return 0, err
	}
	return w.Weigh(ctx, l)
}

// BindProfile gives a profile to an allocator that reads one and returns any
// other unchanged.
func BindProfile(a Allocator, p *Profile) (Allocator, error) {
	if u, ok := a.(ProfileUser); ok {
		return u.WithProfile(p)
	}
	return a, nil
}

// Allocate returns the budgets of a demand, [L][K]. s holds the scores of the
// layers that have been scored, [L], nil for the others; it may be nil for an
// allocator whose budgets are known before. Rows that cannot be known yet are
// nil. An untouched demand gets T everywhere, and so do excluded layers.
func Allocate(a Allocator, d Demand, s []Scores) ([][]int, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if s == nil {
		s = make([]Scores, d.Layers)
	}
	if d.NoOp() {
		return d.whole(), nil
	}
	s, err := d.takingPart(s, a.BudgetsKnown())
	if err != nil {
		return nil, err
	}
	if _, ok := a.(LayerWeigher); ok && len(d.Weights) != d.Layers {
		return nil, fmt.Errorf("budgets: weights of %d layers, expected %d", len(d.Weights), d.Layers)
	}
	name := allocators.nameOf(a)
	b, err := a.Budgets(d, s)
	if err != nil {
		return nil, fmt.Errorf("allocator %s: %w", name, err)
	}
	if len(b) != d.Layers {
		return nil, fmt.Errorf("allocator %s: found budgets of %d layers, expected %d", name, len(b), d.Layers)
	}
	for l, row := range b {
		switch {
		case !d.Includes(l):
			b[l] = make([]int, d.KVHeads)
		case a.BudgetsKnown() != KnownBefore && s[l] == nil:
			b[l] = nil
		case len(row) != d.KVHeads:
			return nil, fmt.Errorf("allocator %s: layer %d: found budgets of %d heads, expected %d", name, l, len(row), d.KVHeads)
		}
	}
	return d.finish(b), nil
}

// takingPart returns the scores of the layers that take part, nil for the others,
// and checks their shape against the demand's. Rows may be shorter than T: a
// cache that was cut before is ragged.
func (d *Demand) takingPart(s []Scores, k Knowledge) ([]Scores, error) {
	if len(s) != d.Layers {
		return nil, fmt.Errorf("budgets: scores of %d layers, expected %d", len(s), d.Layers)
	}
	out := make([]Scores, d.Layers)
	for l, layer := range s {
		switch {
		case !d.Includes(l):
			continue
		case layer == nil && k == KnownAtEnd:
			return nil, fmt.Errorf("budgets: layer %d has no scores, expected those of all layers", l)
		case layer != nil && len(layer) != d.KVHeads:
			return nil, fmt.Errorf("budgets: layer %d: scores of %d heads, expected %d", l, len(layer), d.KVHeads)
		}
		for h, row := range layer {
			if len(row) > d.T {
				return nil, fmt.Errorf("budgets: layer %d head %d: %d scores, expected at most %d", l, h, len(row), d.T)
			}
		}
		out[l] = layer
	}
	return out, nil
}
