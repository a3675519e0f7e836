package lukv

import (
	"errors"
	"math"
)

// ada lets the heads of a layer compete for the layer's budget, with a safeguard for
// each.
//
// Feng et al., "Ada-KV", 2024, https://arxiv.org/abs/2407.11550; spec 4.3.
type ada struct {
	// Form is "pool" (kvpress) or "interpolate" (the method's repository).
	Form string `json:"form"`

	// Alpha is the safeguard: the share of the uniform budget that every head
	// is guaranteed.
	Alpha float64 `json:"alpha"`

	// Pool is where heads compete: "layer" or "model".
	Pool string `json:"pool"`

	// Normalize weights each head by the share of its score mass held by its
	// best entries; Skip exempts that many first layers from the competition.
	// Both apply to the interpolate form only.
	Normalize bool `json:"normalize"`
	Skip      int  `json:"skip"`
}

func (a ada) Validate() error {
	err := firstOf(oneOf("form", a.Form, "pool", "interpolate"), within("alpha", a.Alpha, 0, 1),
		oneOf("pool", a.Pool, "layer", "model"), within("skip", a.Skip, 0, maxSlots))
	switch {
	case err != nil:
		return err
	case a.Form == "interpolate" && a.Pool == "model":
		return errors.New(`pool: found "model", expected "layer" in the interpolate form`)
	case a.Form == "pool" && (a.Skip != 0 || a.Normalize):
		return errors.New("skip and normalize: found one in the pool form, expected the interpolate form")
	}
	return nil
}

func (a ada) BudgetsKnown() Knowledge {
	if a.Pool == "model" {
		return KnownAtEnd
	}
	return KnownPerLayer
}

// safe is the safeguard of every head: ⌊α·n⌋, and at least one entry unless
// heads may be empty.
func (a ada) safe(d *Demand, n int) int {
	return max(int(a.Alpha*float64(n)), d.Rounding.least())
}

// GuaranteedBudget is the safeguard of the pool form.
func (a ada) GuaranteedBudget(d Demand) int {
	if a.Form != "pool" {
		return 0
	}
	return a.safe(&d, d.Share())
}

func (a ada) Budgets(d Demand, s []Scores) ([][]int, error) {
	n := d.Share()
	if a.Pool == "model" {
		return d.pooled(s, a.safe(&d, n), n*d.Units()), nil
	}
	out := make([][]int, d.Layers)
	for l, layer := range s {
		if a.Form == "pool" {
			out[l] = poolCounts(layer, d.Protection, a.safe(&d, n), d.KVHeads*n)
		} else {
			out[l] = a.interpolated(&d, l, layer)
		}
	}
	return out, nil
}

// interpolated computes the repository's form, in which protected entries do
// not compete.
func (a ada) interpolated(d *Demand, l int, s Scores) []int {
	out := make([]int, d.KVHeads)
	n, fixed := d.Share(), d.Protection.Count(d.T)
	if l < a.Skip || n <= fixed {
		d.fill(out, n)
		return out
	}
	open := make(Scores, len(s))
	for h, row := range s {
		lo, hi := d.Protection.Split(len(row))
		open[h] = row[lo:hi]
	}
	for h, b := range AdaInterpolate(open, n-fixed, a.Alpha, a.Normalize) {
		out[h] = b + fixed
	}
	return out
}

// AdaInterpolate applies the repository's form of AdaKV to the scores of one
// layer, protected entries excluded: each head's count among the layer's K·B
// best entries, mixed with the uniform budget B at weight alpha, rounded half
// to even. With normalize, each head's scores are first multiplied by the
// share of its mass held by its B best entries. Rounding may make the sum miss
// K·B.
func AdaInterpolate(s Scores, B int, alpha float64, normalize bool) []int {
	rows := s
	if normalize {
		rows = make(Scores, len(s))
		for h, row := range s {
			w := float32(topShare(row, B))
			scaled := make([]float32, len(row))
			for t, v := range row {
				scaled[t] = v * w
			}
			rows[h] = scaled
		}
	}
	total := 0
	for _, row := range rows {
		total += min(B, len(row))
	}
	counts := poolCounts(rows, Protection{}, 0, total)
	base := math.Floor(alpha * float64(B))
	for h, c := range counts {
		counts[h] = int(math.RoundToEven(float64(float64(c)*(1-alpha)) + base))
	}
	return counts
}

// topShare returns the share of a row's sum held by its n best entries, or 1
// if the sum is not positive.
func topShare(row []float32, n int) float64 {
	all := sumOf(row)
	if !(all > 0) {
		return 1
	}
	top := 0.0
	for _, t := range appendTop(nil, row, n, 0) {
		top += float64(row[t])
	}
	return top / all
}
