package lukv

import "math"

// scoreThreshold keeps the entries that score at least a given number, in whatever
// head, but no more of a layer than the demand allows, and then the best. The demand
// is thus a limit, and texts with little worth keeping stay below it.
type scoreThreshold struct {
	// Least is the lowest score that is kept. Its meaning depends on the
	// metric: a probability for kvzip, a cosine for keydiff.
	Least float64 `json:"least"`
}

func (a scoreThreshold) Validate() error {
	return within("least", a.Least, -math.MaxFloat32, math.MaxFloat32)
}

func (scoreThreshold) BudgetsKnown() Knowledge { return KnownPerLayer }

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

// count returns how many entries of a head pass, protected ones included, but
// no fewer than least.
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
