package lukv

import "math"

// scoreThreshold keeps the entries that score at least a given number, wherever they
// are, and never more of a layer than the demand leaves it: then the best. So the
// demand is a limit, and texts with little to keep stay below it.
type scoreThreshold struct {
	// Least is the lowest score that is kept. What it means is the metric's: a
	// probability for kvzip, a cosine for keydiff.
	Least float64 `json:"least"`
}

func (a scoreThreshold) Validate() error {
	return within("least", a.Least, -math.MaxFloat32, math.MaxFloat32)
}

func (scoreThreshold) Knows() Knowledge { return KnownPerLayer }

func (a scoreThreshold) Budgets(d Demand, s []Scores) ([][]int, error) {
	out := make([][]int, d.Layers)
	for l := range out {
		kept := 0
		for _, row := range s[l] {
			kept += a.count(row, d.Protection, d.Rounding.least())
		}
		out[l] = poolCounts(s[l], d.Protection, d.Rounding.least(), min(kept, d.KVHeads*d.Share()))
	}
	return out, nil
}

// count is how many entries of a head pass, protected ones and the least that a
// head keeps among them.
func (a scoreThreshold) count(row []float32, prot Protection, least int) int {
	lo, hi := prot.Split(len(row))
	n := lo + len(row) - hi
	for _, v := range row[lo:hi] {
		if float64(v) >= a.Least {
			n++
		}
	}
	return max(n, min(least, len(row)))
}
