package lukv

import (
	"math"
)

// ada lets the heads of a layer compete for the layer's budget, with a
// safeguard for each (Feng et al., "Ada-KV", 2024; spec 4.3).
type ada struct {
	interpolate bool
	model       bool
	alpha       float64
	normalize   bool
	skip        int
}

func newAda(p *allocParams) Allocator {
	a := ada{
		interpolate: p.choice("form", p.cfg.Form, "pool", "interpolate") == "interpolate",
		model:       p.choice("pool", p.cfg.Pool, "layer", "model") == "model",
		alpha:       p.number("alpha", p.cfg.Alpha, 0.2, 0, 1),
		skip:        p.integer("skip", p.cfg.Skip, 0, 0, maxSlots),
	}
	if p.cfg.Normalize != nil {
		a.normalize = *p.cfg.Normalize
	}
	if a.interpolate && a.model {
		p.fail("pool", `"model"`, `"layer" in the interpolate form`)
	}
	return a
}

func (ada) Name() string { return "adakv" }

func (a ada) Config() AllocatorConfig {
	c := AllocatorConfig{Name: a.Name(), Form: "pool", Pool: "layer", Alpha: new(a.alpha)}
	if a.model {
		c.Pool = "model"
	}
	if a.interpolate {
		c.Form = "interpolate"
		c.Normalize, c.Skip = new(a.normalize), new(a.skip)
	}
	return c
}

func (a ada) Knows() Knowledge {
	if a.model {
		return KnownAtEnd
	}
	return KnownPerLayer
}

func (a ada) Budgets(Demand) ([][]int, error) { return nil, notBefore(a) }

// safe is the safeguard of every head: ⌊α·n⌋, and at least one entry unless
// heads may be empty.
func (a ada) safe(d *Demand, n int) int {
	return max(int(a.alpha*float64(n)), d.Rounding.least())
}

func (a ada) LayerBudgets(d Demand, l int, s Scores) ([]int, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if a.model {
		return nil, notBefore(a)
	}
	out := make([]int, d.KVHeads)
	if l < 0 || l >= d.Layers || d.Untouched() || !d.Takes(l) {
		if l < 0 || l >= d.Layers {
			return nil, d.checkScores(l, s)
		}
		d.fill(out, d.T)
		return out, nil
	}
	if err := d.checkScores(l, s); err != nil {
		return nil, err
	}
	n := d.Share()
	if !a.interpolate {
		return d.clip(poolCounts(s, d.Protection, a.safe(&d, n), d.KVHeads*n)), nil
	}
	fixed := d.Protection.Count(d.T)
	if l < a.skip || n <= fixed {
		d.fill(out, n)
		return out, nil
	}
	lo, hi := d.Protection.Split(d.T)
	open := make(Scores, len(s))
	for h, row := range s {
		open[h] = row[lo:hi]
	}
	for h, b := range AdaInterpolate(open, n-fixed, a.alpha, a.normalize) {
		out[h] = b + fixed
	}
	return d.clip(out), nil
}

// clip bounds one layer's budgets like finish.
func (d *Demand) clip(row []int) []int {
	for h := range row {
		row[h] = min(max(row[h], d.Rounding.least()), d.T)
	}
	return row
}

func (a ada) ModelBudgets(d Demand, s []Scores) ([][]int, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	if d.Untouched() {
		return d.whole(), nil
	}
	if a.model {
		n := d.Share()
		return d.pooled(s, a.safe(&d, n), n*d.Units())
	}
	if err := d.checkModel(s); err != nil {
		return nil, err
	}
	out := d.whole()
	for l := range out {
		if d.Takes(l) {
			row, err := a.LayerBudgets(d, l, s[l])
			if err != nil {
				return nil, err
			}
			copy(out[l], row)
		}
	}
	return out, nil
}

// AdaInterpolate is the repository's form of AdaKV on the scores of one layer
// without its protected entries: how many of the layer's best K·B entries fall
// to each head, mixed with the uniform budget B at weight alpha, rounded half
// to even. With normalize each head's scores are first multiplied by the share
// of its mass that its B best entries hold. The sum may miss K·B by rounding.
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

// topShare is the share of a row's sum that its n best entries hold, 1 for a
// sum that is not positive.
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
