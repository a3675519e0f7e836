package lukv

// global keeps the best raw scores of the whole model, wherever they are: the
// ablation of spec 4.7. Every head keeps its protected entries and at least
// one.
type global struct{}

func (global) Knows() Knowledge { return KnownAtEnd }

func (global) Budgets(d Demand, s []Scores) ([][]int, error) {
	total := min(d.Entries, d.T*d.Units())
	if !d.Absolute {
		total = int(d.mean() * float64(d.KVHeads) * float64(d.ActiveLayers()))
		if d.Rounding.Share == ShareExact {
			total = int(float64(d.mean()*float64(d.Units())) + 1e-9)
		}
	}
	return d.pooled(s, d.Rounding.least(), total), nil
}

// pooled lets all layers that take part compete for total entries.
func (d *Demand) pooled(s []Scores, safe, total int) [][]int {
	var rows [][]float32
	for l := range s {
		if d.Takes(l) {
			rows = append(rows, s[l]...)
		}
	}
	return d.spread(poolCounts(rows, d.Protection, safe, total))
}
