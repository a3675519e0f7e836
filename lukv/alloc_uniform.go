package lukv

// uniform keeps the share n in every head (spec 4.1).
type uniform struct{}

func (uniform) BudgetsKnown() Knowledge { return KnownBefore }

func (uniform) Budgets(d Demand, _ []Scores) ([][]int, error) {
	out := newBudgets(d.Layers, d.KVHeads)
	for l := range out {
		d.fill(out[l], d.Share())
	}
	return out, nil
}
