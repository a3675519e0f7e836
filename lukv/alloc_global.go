package lukv

import (
	"errors"
	"fmt"
	"math"
)

// global keeps the entries with the best raw scores of the whole model, or of
// each layer: the ablation of spec 4.7, and the native selection of KVzip and
// DefensiveKV. Every head keeps its protected entries and, unless heads may
// be empty, at least one.
type global struct {
	Pool string `json:"pool"` // where entries compete: "model" or "layer"

	// Count says which number is rounded down: that of the entries "kept", or
	// of those "removed", as in KVzip.
	Count string `json:"count"`

	// Weights holds a factor for the scores of each layer, [L], so that some
	// layers count more than others, for example by the effects in a profile
	// of output errors.
	Weights []float64 `json:"weights,omitempty"`
}

func (a global) Validate() error {
	for l, w := range a.Weights {
		if err := within(fmt.Sprintf("weights: layer %d", l), w, 0, math.MaxFloat32); err != nil {
			return err
		}
	}
	if a.Weights != nil && a.Pool == "layer" {
		return errors.New(`weights: found some with the pool "layer", where layers do not compete, expected none`)
	}
	return firstOf(oneOf("pool", a.Pool, "model", "layer"), oneOf("count", a.Count, "kept", "removed"))
}

func (a global) BudgetsKnown() Knowledge {
	if a.Pool == "layer" {
		return KnownPerLayer
	}
	return KnownAtEnd
}

func (a global) Budgets(d Demand, s []Scores) ([][]int, error) {
	if a.Pool == "layer" {
		out := make([][]int, d.Layers)
		for l, layer := range s {
			out[l] = poolCounts(layer, d.Protection, d.Rounding.least(), a.total(&d, 1))
		}
		return out, nil
	}
	if a.Weights != nil {
		if len(a.Weights) != d.Layers {
			return nil, fmt.Errorf("weights: found those of %d layers, expected %d", len(a.Weights), d.Layers)
		}
		s = a.weighted(s)
	}
	return d.pooled(s, d.Rounding.least(), a.total(&d, d.ActiveLayers())), nil
}

// weighted returns the scores times the weight of their layer.
func (a global) weighted(s []Scores) []Scores {
	out := make([]Scores, len(s))
	for l, layer := range s {
		out[l] = make(Scores, len(layer))
		for h, row := range layer {
			out[l][h] = make([]float32, len(row))
			for t, v := range row {
				if out[l][h][t] = v; finite(v) {
					out[l][h][t] = float32(float64(v) * a.Weights[l])
				}
			}
		}
	}
	return out
}

// total returns the number of entries that the given number of layers keep
// together.
func (a global) total(d *Demand, layers int) int {
	units := layers * d.KVHeads
	switch {
	case d.Absolute:
		if layers == d.ActiveLayers() {
			return min(d.Entries, d.T*units)
		}
		return min(d.Entries/d.ActiveLayers()*layers, d.T*units)
	case a.Count == "removed":
		return d.T*units - int(d.Ratio*float64(d.T*units))
	case d.Rounding.Share == ShareExact:
		return int(float64(d.mean()*float64(units)) + 1e-9)
	}
	return int(d.mean() * float64(d.KVHeads) * float64(layers))
}

// pooled lets all layers that take part compete for total entries.
func (d *Demand) pooled(s []Scores, safe, total int) [][]int {
	var rows [][]float32
	for _, layer := range s {
		rows = append(rows, layer...)
	}
	return d.spread(poolCounts(rows, d.Protection, safe, total))
}
