package lukv

import (
	"context"

	"github.com/lukv/lukv/internal/detmath"
)

// cakeLayers gives a layer more, the more its attention is dispersed and the more it
// shifts; all heads of a layer get the same. Budgets are known layer by layer: each new
// layer takes from those before it, so the cache never exceeds the total by more than
// the layer in progress.
//
// Qin et al., "CAKE", 2025, https://arxiv.org/abs/2503.12491; spec 4.5.
type cakeLayers struct {
	Window int     `json:"window"` // last queries observed
	Tau1   float64 `json:"tau1"`   // temperatures of dispersion and shift
	Tau2   float64 `json:"tau2"`

	// Cascade shrinks earlier layers as later ones arrive; without it
	// budgets are known only at the end, and the whole cache is held until
	// then.
	Cascade bool `json:"cascade"`
}

func (a cakeLayers) Validate() error {
	return firstOf(within("window", a.Window, 1, maxSlots), within("tau1", a.Tau1, 1e-3, 1e3), within("tau2", a.Tau2, 1e-3, 1e3))
}

func (a cakeLayers) BudgetsKnown() Knowledge {
	if a.Cascade {
		return KnownSoFar
	}
	return KnownAtEnd
}

// Needs says what Weigh reads.
func (a cakeLayers) Needs(T, n int) Needs {
	return Needs{Keys: true, Window: max(min(a.Window, T-1), 0)}
}

// Weigh is the layer's preference: dispersion^(1/τ₁) · shift^(1/τ₂).
func (a cakeLayers) Weigh(ctx context.Context, l *Layer) (float64, error) {
	dispersions, shifts := make([]float64, l.KVHeads), make([]float64, l.KVHeads)
	err := l.EachHead(ctx, func(h int, ws *Workspace) error {
		T := l.Len(h)
		w := min(max(min(a.Window, T-1), 0), l.Queries.Len())
		n := T - w
		mean, spread := ws.Float64s(n), ws.Float64s(n)
		return l.WindowAttention(ctx, h, w, func(_ int, p []float32) {
			for i := range w {
				for _, v := range p[i*T : i*T+n] {
					dispersions[h] -= float64(float64(v) * detmath.Log(float64(v)+1e-10))
				}
			}
			columnMeans(mean, p, w, T)
			columnVariances(spread, mean, p, w, T)
			for _, v := range spread {
				shifts[h] += v
			}
		})
	})
	var dispersion, shift float64
	for h := range dispersions {
		dispersion += dispersions[h]
		shift += shifts[h]
	}
	return power(dispersion, 1/a.Tau1) * power(shift, 1/a.Tau2), err
}

// power returns x^y for x ≥ 0, the same on every CPU. Low temperatures make y
// large, so the result is capped to keep a product of two and a sum of many
// finite.
func power(x, y float64) float64 {
	if !(x > 0) {
		return 0
	}
	return min(detmath.Exp(y*detmath.Log(x)), 1e140)
}

func (a cakeLayers) Budgets(d Demand, s []Scores) ([][]int, error) {
	fixed := min(d.Protection.Count(d.T), d.Share()) // protected entries must not exceed the budget either
	total := int((d.mean() - float64(fixed)) * float64(d.ActiveLayers()))
	if d.Absolute {
		total = d.Entries/d.KVHeads - fixed*d.ActiveLayers()
	}
	var seen []int
	var weights []float64
	for l := range s {
		if s[l] != nil {
			seen = append(seen, l)
			weights = append(weights, d.Weights[l])
		}
	}
	shares := cakeShares(weights, max(total, 0), d.T-fixed)
	for i, n := range shares {
		shares[i] = min(max(n+fixed, d.Rounding.least()), d.T)
	}
	if d.Absolute { // nor may layers raised to one entry
		trim(shares, d.Entries/d.KVHeads, d.Rounding.least())
	}
	out := make([][]int, d.Layers)
	for i, n := range shares {
		out[seen[i]] = make([]int, d.KVHeads)
		d.fill(out[seen[i]], n)
	}
	return out, nil
}

// cakeShares divides total entries per head in proportion to the preferences,
// none above cap: truncated, then repaired in the order of the reference
// implementation, in single passes, so the sum can still miss the total.
func cakeShares(preferences []float64, total, cap int) []int {
	var sum float64
	for _, p := range preferences {
		sum += p
	}
	out := make([]int, len(preferences))
	for l, p := range preferences {
		if sum > 0 {
			out[l] = int(float64(p / sum * float64(total)))
		} else {
			out[l] = total / len(preferences)
		}
	}
	return cakeRepair(out, total, cap)
}

// cakeRepair repairs truncated counts. The first pass can lift one above cap; the
// caller clips it. The reference implementation also takes back any excess over
// the total, which truncated counts never have.
func cakeRepair(out []int, total, cap int) []int {
	excess, given := 0, 0
	for l := range out {
		if out[l] > cap {
			excess += out[l] - cap
			out[l] = cap
		}
	}
	spreadEvenly(out, excess, cap)
	for _, n := range out {
		given += n
	}
	spreadEvenly(out, total-given, cap)
	return out
}

// spreadEvenly divides amount evenly among the counts below cap; the first of
// them get one more each for the remainder.
func spreadEvenly(out []int, amount, cap int) {
	var at []int
	for l, n := range out {
		if n < cap {
			at = append(at, l)
		}
	}
	for i, l := range at {
		out[l] += amount / len(at)
		if i < amount%len(at) {
			out[l]++
		}
	}
}
