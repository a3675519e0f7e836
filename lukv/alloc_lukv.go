package lukv

import "fmt"

// lu looks budgets up in a profile of long-horizon usefulness (spec 5).
type lu struct {
	nearest bool
	profile *Profile
}

func newLU(p *allocParams) Allocator {
	if p.profile == nil {
		p.fail("profile", "none", "the profile of this model and metric")
	}
	return lu{
		nearest: p.choice("lookup", p.cfg.Lookup, "interpolate", "nearest") == "nearest",
		profile: p.profile,
	}
}

func (lu) Name() string { return "lukv" }

func (a lu) Config() AllocatorConfig {
	c := AllocatorConfig{Name: a.Name(), Lookup: "interpolate"}
	if a.nearest {
		c.Lookup = "nearest"
	}
	return c
}

func (lu) Knows() Knowledge { return KnownBefore }

func (a lu) Budgets(d Demand) ([][]int, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if a.profile.Layers() != d.Layers || a.profile.KVHeads() != d.KVHeads {
		return nil, fmt.Errorf("lukv budgets: %w: the profile is for %d layers of %d KV heads, the cache has %d of %d",
			ErrProfileMismatch, a.profile.Layers(), a.profile.KVHeads(), d.Layers, d.KVHeads)
	}
	if d.Untouched() {
		return d.whole(), nil
	}
	row := a.profile.Row(d.Target(), a.nearest)
	var out [][]int
	switch {
	case d.Absolute:
		out = d.apportioned(row)
	case d.Rounding.Reconcile == ReconcileModel:
		var flat []float64
		for l := range row {
			if d.Takes(l) {
				flat = append(flat, row[l]...)
			}
		}
		mode := HeadsRemainder64 // a model's total is beyond the integers of float32
		if d.Rounding.Heads == HeadsFloor {
			mode = HeadsFloor
		}
		out = d.spread(roundGroup(flat, d.T, mode))
	default:
		out = newBudgets(d.Layers, d.KVHeads)
		for l := range out {
			if d.Takes(l) {
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

func (a lu) LayerBudgets(d Demand, l int, _ Scores) ([]int, error) { return rowOf(a, d, l) }
func (a lu) ModelBudgets(d Demand, _ []Scores) ([][]int, error)    { return a.Budgets(d) }

// apportioned divides the absolute budget in proportion to what the row keeps.
func (d *Demand) apportioned(row [][]float64) [][]int {
	var keep []float64
	for l := range row {
		if d.Takes(l) {
			for _, r := range row[l] {
				keep = append(keep, min(max(1-r, 0), 1))
			}
		}
	}
	return d.spread(apportion(keep, d.Entries, d.Rounding.least(), d.T))
}

// spread lays flat counts of the layers that take part out as [L][K].
func (d *Demand) spread(flat []int) [][]int {
	out := newBudgets(d.Layers, d.KVHeads)
	for l := range out {
		if d.Takes(l) {
			copy(out[l], flat)
			flat = flat[d.KVHeads:]
		}
	}
	return out
}
