package lukv

// uniform gives every head the same share n (spec 2.1).
type uniform struct{}

func (uniform) Name() string            { return "uniform" }
func (uniform) Config() AllocatorConfig { return AllocatorConfig{Name: "uniform"} }
func (uniform) Knows() Knowledge        { return KnownBefore }

func (uniform) Budgets(d Demand) ([][]int, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if d.Untouched() {
		return d.whole(), nil
	}
	out := newBudgets(d.Layers, d.KVHeads)
	for l := range out {
		d.fill(out[l], d.Share())
	}
	return d.finish(out), nil
}

func (a uniform) LayerBudgets(d Demand, l int, _ Scores) ([]int, error) { return rowOf(a, d, l) }
func (a uniform) ModelBudgets(d Demand, _ []Scores) ([][]int, error)    { return a.Budgets(d) }
