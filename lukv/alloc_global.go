package lukv

// global keeps the best raw scores of the whole model, or of each layer, wherever
// they are: the ablation of spec 4.7, and the native selection of KVzip and
// DefensiveKV. Every head keeps its protected entries and at least one.
type global struct {
	Pool string `json:"pool"` // where entries compete: "model" or "layer"

	// Count is which number is rounded down: that of the entries "kept", or of
	// those "removed" as KVzip has it.
	Count string `json:"count"`
}

func (a global) Validate() error {
	return firstOf(oneOf("pool", a.Pool, "model", "layer"), oneOf("count", a.Count, "kept", "removed"))
}

func (a global) Knows() Knowledge {
	if a.Pool == "layer" {
		return KnownPerLayer
	}
	return KnownAtEnd
}

func (a global) Budgets(d Demand, s []Scores) ([][]int, error) {
	if a.Pool == "layer" {
		out := make([][]int, d.Layers)
		for l := range out {
			if s[l] != nil && d.Takes(l) {
				out[l] = poolCounts(s[l], d.Protection, d.Rounding.least(), a.total(&d, 1))
			}
		}
		return out, nil
	}
	return d.pooled(s, d.Rounding.least(), a.total(&d, d.ActiveLayers())), nil
}

// total is the number of entries that some layers keep together.
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
	for l := range s {
		if d.Takes(l) {
			rows = append(rows, s[l]...)
		}
	}
	return d.spread(poolCounts(rows, d.Protection, safe, total))
}
