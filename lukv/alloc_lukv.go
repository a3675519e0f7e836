package lukv

import "errors"

// lu looks up budgets in a profile of long-horizon usefulness (spec 5).
type lu struct {
	// Lookup says how to read the profile between its levels: "interpolate" or
	// "nearest".
	Lookup string `json:"lookup"`

	profile *Profile
}

func (a lu) Validate() error { return oneOf("lookup", a.Lookup, "interpolate", "nearest") }

func (a lu) WithProfile(p *Profile) (Allocator, error) {
	if p == nil {
		return nil, errors.New("profile: found none, expected the profile of this model and metric")
	}
	a.profile = p
	return a, nil
}

func (lu) BudgetsKnown() Knowledge { return KnownBefore }

func (a lu) Budgets(d Demand, _ []Scores) ([][]int, error) {
	if a.profile == nil {
		return nil, errors.New("profile: found none, expected the profile of this model and metric")
	}
	if err := a.profile.CheckShape(d.Layers, d.KVHeads); err != nil {
		return nil, err
	}
	row := a.profile.Row(d.Target(), a.Lookup == "nearest")
	var out [][]int
	switch {
	case d.Absolute:
		out = d.apportioned(row)
	case d.Rounding.Reconcile == ReconcileModel:
		var flat []float64
		for l := range row {
			if d.Includes(l) {
				flat = append(flat, row[l]...)
			}
		}
		mode := HeadsRemainder64 // a model's total exceeds the exact integers of float32
		if d.Rounding.Heads == HeadsFloor {
			mode = HeadsFloor
		}
		out = d.spread(roundGroup(flat, d.T, mode))
	default:
		out = newBudgets(d.Layers, d.KVHeads)
		for l := range out {
			if d.Includes(l) {
				copy(out[l], RoundLocal(row[l], d.T, d.Rounding.Heads, d.Rounding.AllowEmpty))
			}
		}
	}
	d.finish(out)
	if d.Rounding.Floor != FloorNone {
		d.raiseToFloor(out)
	}
	return out, nil
}

// apportioned divides the absolute budget in proportion to what the row keeps.
func (d *Demand) apportioned(row [][]float64) [][]int {
	var keep []float64
	for l := range row {
		if d.Includes(l) {
			for _, r := range row[l] {
				keep = append(keep, min(max(1-r, 0), 1))
			}
		}
	}
	return d.spread(apportion(keep, d.Entries, d.Rounding.least(), d.T))
}

// spread lays out the flat counts of the layers that take part as [L][K].
func (d *Demand) spread(flat []int) [][]int {
	out := newBudgets(d.Layers, d.KVHeads)
	for l := range out {
		if d.Includes(l) {
			copy(out[l], flat)
			flat = flat[d.KVHeads:]
		}
	}
	return out
}
