package methods

import "github.com/lukv/lukv/lukv"

// tilted gives even layers more than odd ones.
type tilted struct {
	Tilt float64 `json:"tilt"` // fraction of the share that moves
}

func (tilted) BudgetsKnown() lukv.Knowledge { return lukv.KnownBefore }

func (a tilted) Budgets(d lukv.Demand, _ []lukv.Scores) ([][]int, error) {
	out := make([][]int, d.Layers)
	for l := range out {
		out[l] = make([]int, d.KVHeads)
		for h := range out[l] {
			out[l][h] = d.Share() + (1-2*(l%2))*int(a.Tilt*float64(d.Share()))
		}
	}
	return out, nil
}
