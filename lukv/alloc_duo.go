package lukv

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// duo lets the most important heads keep everything and all others a few entries each.
// The metric chooses these few, streaming_llm in the published form.
//
// Xiao et al., "DuoAttention", 2024, https://arxiv.org/abs/2410.10819; spec 4.8.
type duo struct {
	// Streaming is the number of entries kept by a head that does not keep
	// everything.
	Streaming int `json:"streaming"`

	// Importance holds the importance of every KV head, [L][K]. Without it a
	// profile decides: the more a head keeps there at the requested ratio, the more
	// important it is.
	Importance [][]float64 `json:"importance"`

	profile *Profile
}

func (a duo) Validate() error {
	for l, row := range a.Importance {
		for h, e := range row {
			if math.IsNaN(e) || math.IsInf(e, 0) || len(row) != len(a.Importance[0]) {
				return fmt.Errorf("importance: layer %d, kv head %d: found %v in a row of %d, expected a number in a row of %d", l, h, e, len(row), len(a.Importance[0]))
			}
		}
	}
	return within("streaming", a.Streaming, 1, maxSlots)
}

func (a duo) WithProfile(p *Profile) (Allocator, error) {
	if len(a.Importance) > 0 {
		return a, nil
	}
	if p == nil {
		return nil, errors.New("profile: found none and no importance, expected one of them: which heads keep everything")
	}
	a.profile = p
	return a, nil
}

func (duo) BudgetsKnown() Knowledge { return KnownBefore }

func (a duo) Budgets(d Demand, _ []Scores) ([][]int, error) {
	importance, err := a.heads(&d)
	if err != nil {
		return nil, err
	}
	order := make([]int, d.Units()) // heads of the layers that take part, most important first
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(importance[j], importance[i]) })
	few := min(a.Streaming, d.Share())
	rest := d.Share()*d.Units() - few*d.Units()
	if d.Absolute {
		rest = d.Entries - few*d.Units()
	}
	flat := make([]int, d.Units())
	for _, i := range order {
		more := max(0, min(rest, d.T-few)) // everything, until one head gets the rest
		flat[i] = few + more
		rest -= more
	}
	return d.spread(flat), nil
}

// heads returns the importance of the heads of the layers that take part.
func (a duo) heads(d *Demand) ([]float64, error) {
	rows := a.Importance
	if len(rows) == 0 {
		if a.profile == nil {
			return nil, errors.New("profile: found none and no importance, expected one of them")
		}
		if err := a.profile.CheckShape(d.Layers, d.KVHeads); err != nil {
			return nil, err
		}
		for _, removed := range a.profile.Row(d.Target(), false) {
			row := make([]float64, len(removed))
			for h, r := range removed {
				row[h] = 1 - r
			}
			rows = append(rows, row)
		}
	}
	if len(rows) != d.Layers || len(rows[0]) != d.KVHeads {
		return nil, fmt.Errorf("importance: found %d layers of %d kv heads, expected %d of %d", len(rows), len(rows[0]), d.Layers, d.KVHeads)
	}
	var flat []float64
	for l, row := range rows {
		if d.Includes(l) {
			flat = append(flat, row...)
		}
	}
	return flat, nil
}

// Notes reports when no head can keep everything.
func (a duo) Notes(d Demand) []string {
	if few := min(a.Streaming, d.Share()); d.T-few > d.Units()*(d.Share()-few) {
		return []string{fmt.Sprintf("duo: no head keeps everything: %d entries a head leave no room beside the %d of each streaming head", d.Share(), few)}
	}
	return nil
}
