package lukv

import (
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/internal/detmath"
)

// Kinds of layer weights in a profile of output errors.
const (
	WeightsNone = "none" // every layer weighs the same
	WeightsCut  = "cut"  // by what cutting the layer alone does to the answers (default)
	WeightsSpan = "span" // by its contribution to a cut of all layers
)

// Weights says how the layers of a profile of output errors weigh against
// each other. With kind none the other fields are empty.
type Weights struct {
	Kind string `json:"kind"`

	// Ratios are the removed fractions around which a span is measured.
	Ratios []float64 `json:"ratios,omitempty"`

	// Power is the exponent γ of the normalised weights, Floor their minimum
	// before it is applied: w ← max(w, Floor)^Power.
	Power float64 `json:"power,omitempty"`
	Floor float64 `json:"floor,omitempty"`
}

// DefaultWeights returns the weights of a kind.
func DefaultWeights(kind string) Weights {
	switch kind {
	case WeightsCut:
		return Weights{Kind: kind, Power: 0.5, Floor: 0.01}
	case WeightsSpan:
		return Weights{Kind: kind, Ratios: []float64{0.5, 0.8, 0.9}, Power: 1, Floor: 0.01}
	}
	return Weights{Kind: kind}
}

// validate reports the first thing that makes no sense.
func (w *Weights) validate() error {
	switch {
	case !slices.Contains([]string{WeightsNone, WeightsCut, WeightsSpan}, w.Kind):
		return fmt.Errorf("weights: kind: found %q, expected one of %q", w.Kind, []string{WeightsNone, WeightsCut, WeightsSpan})
	case w.Kind == WeightsNone && (len(w.Ratios) > 0 || w.Power != 0 || w.Floor != 0):
		return fmt.Errorf("weights: found ratios, power or floor beside kind %s, expected none", w.Kind)
	case w.Kind == WeightsNone:
		return nil
	case !(w.Power >= 0 && w.Power <= 100):
		return fmt.Errorf("weights: power: found %v, expected 0 to 100", w.Power)
	case !(w.Floor > 0 && w.Floor <= 1):
		return fmt.Errorf("weights: floor: found %v, expected above 0 and at most 1", w.Floor)
	case (w.Kind == WeightsSpan) != (len(w.Ratios) > 0) || len(w.Ratios) > 99:
		return fmt.Errorf("weights: ratios: found %d beside kind %s", len(w.Ratios), w.Kind)
	}
	for i, r := range w.Ratios {
		if !(r > 0 && r < 1) || i > 0 && r <= w.Ratios[i-1] {
			return fmt.Errorf("weights: ratios: found %v, expected ascending between 0 and 1", w.Ratios)
		}
	}
	return nil
}

// rounds is the number of effects measured per layer.
func (w *Weights) rounds() int {
	if w.Kind == WeightsCut {
		return 1
	}
	return len(w.Ratios)
}

// layers turns measured effects, [L][rounds], and the errors of the layers at
// their smallest budgets, [L], into weights, [L].
func (w *Weights) layers(effects [][]float64, errors []float64) []float64 {
	out := make([]float64, len(errors))
	for l := range out {
		out[l] = 1
	}
	n := w.rounds()
	for i := range n {
		round, most := make([]float64, len(errors)), 0.0
		for l := range round {
			if errors[l] > 0 {
				round[l] = max(0, effects[l][i]) / errors[l]
			}
			most = max(most, round[l])
		}
		if most == 0 { // no measurement tells the layers apart
			continue
		}
		for l, v := range round {
			out[l] *= max(v/most, w.Floor)
		}
	}
	for l, v := range out {
		if v != 1 {
			out[l] = detmath.Pow(v, w.Power/float64(n))
		}
	}
	return out
}

// states returns the states of the cache of a context of T entries whose
// divergences the weights are made from, with the given layers taking part: for cut
// one per layer; for span two per ratio and layer, with the layer cut and whole. A
// state is the number of entries that every head of each layer keeps, [L], in the
// metric's order; T: all.
func (w *Weights) states(T, least int, layers []int, L int) [][]int {
	whole := make([]int, L)
	for l := range whole {
		whole[l] = T
	}
	with := func(base []int, l, n int) []int {
		kept := slices.Clone(base)
		kept[l] = n
		return kept
	}
	var out [][]int
	if w.Kind == WeightsCut {
		for _, l := range layers {
			out = append(out, with(whole, l, least))
		}
	}
	for _, ratio := range w.Ratios {
		base := slices.Clone(whole)
		for _, l := range layers {
			base[l] = entries(1-ratio, T, least)
		}
		for _, l := range layers {
			out = append(out, with(base, l, least), with(base, l, T))
		}
	}
	return out
}

// effects turns the mean divergences of all states into effects, [L][rounds].
func (w *Weights) effects(divergence []float64, layers []int, L int) [][]float64 {
	if w.Kind == WeightsNone {
		return nil
	}
	out := make([][]float64, L)
	for l := range out {
		out[l] = make([]float64, w.rounds())
	}
	for i := range w.rounds() {
		for _, l := range layers {
			out[l][i] = divergence[0]
			divergence = divergence[1:]
			if w.Kind == WeightsSpan {
				out[l][i] -= divergence[0]
				divergence = divergence[1:]
			}
		}
	}
	return out
}

// entries is the number of entries that the fraction x of T amounts to.
func entries(x float64, T, least int) int {
	return min(max(int(math.RoundToEven(x*float64(T))), least), T)
}
