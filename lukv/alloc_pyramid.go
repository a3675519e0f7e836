package lukv

import (
	"fmt"
	"math"
)

// pyramid gives lower layers more than upper ones, the same to all heads of a layer.
//
// Cai et al., "PyramidKV", 2024, https://arxiv.org/abs/2406.02069; spec 4.2.
type pyramid struct {
	// Form is "ratio" (kvpress) or "absolute" (the method's repository: integer
	// arithmetic on the capacity).
	Form string `json:"form"`

	// Window is the observation window, which bounds the smallest layer; Beta
	// is the steepness.
	Window int     `json:"window"`
	Beta   float64 `json:"beta"`
}

func (a pyramid) Validate() error {
	err := firstOf(oneOf("form", a.Form, "ratio", "absolute"), within("window", a.Window, 0, maxSlots), within("beta", a.Beta, 1, 1e6))
	if err == nil && a.Form == "absolute" && a.Beta != math.Trunc(a.Beta) {
		err = fmt.Errorf("beta: found %v, expected an integer in the absolute form", a.Beta)
	}
	return err
}

func (pyramid) BudgetsKnown() Knowledge { return KnownBefore }

func (a pyramid) Budgets(d Demand, _ []Scores) ([][]int, error) {
	var shares []int
	if a.Form == "absolute" {
		shares = PyramidAbsolute(d.ActiveLayers(), d.T, d.Share(), a.Window, int(a.Beta))
	} else {
		shares, _ = PyramidShares(d.ActiveLayers(), d.T, d.mean(), a.Window, a.Beta)
	}
	if d.Absolute && a.Form == "ratio" {
		for l := range shares {
			shares[l] = min(max(shares[l], d.Rounding.least()), d.T)
		}
		trim(shares, d.Entries/d.KVHeads, d.Rounding.least())
	}
	out := newBudgets(d.Layers, d.KVHeads)
	for l := range out {
		if d.Includes(l) {
			d.fill(out[l], shares[0])
			shares = shares[1:]
		}
	}
	return out, nil
}

// Notes reports when the pyramid is flat for lack of room.
func (a pyramid) Notes(d Demand) []string {
	if a.Form == "absolute" {
		return nil
	}
	if _, flat := PyramidShares(d.ActiveLayers(), d.T, d.mean(), a.Window, a.Beta); flat {
		return []string{"pyramidkv: the budget is too small for a pyramid with this window and beta, every layer got the uniform share"}
	}
	return nil
}

// PyramidShares returns the entries that each head of each layer keeps, window
// included, for the mean budget B = T·(1-ρ) (not truncated): kvpress' linear
// descent from 2B - B/β to B/β, rounded half to even and not clamped. flat
// reports its fallback, the uniform share everywhere, which is also used for
// a single layer.
func PyramidShares(layers, T int, B float64, window int, beta float64) (shares []int, flat bool) {
	// The order of operations is kvpress', to the bit: B is recovered, rounded,
	// from a capacity that includes the window, and the step is divided before
	// it is multiplied.
	B = float64(B+float64(window)) - float64(window)
	lo := B / beta
	hi := float64(2*B) - lo
	if top := float64(T - window); hi >= top {
		hi = top
		lo = float64(2*B) - hi
	}
	shares = make([]int, layers)
	step := (hi - lo) / float64(max(1, layers-1))
	flat = layers == 1 || !(float64(T) >= hi && hi >= lo && lo >= float64(window))
	for l := range shares {
		n := B
		if !flat {
			n = hi - float64(float64(l)*step)
		}
		shares[l] = int(math.RoundToEven(n))
	}
	return shares, flat
}

// PyramidAbsolute is the repository's integer form for a capacity per layer,
// window included. A capacity that the window alone takes is that of every layer,
// where the repository's layers exceed it.
func PyramidAbsolute(layers, T, capacity, window, beta int) []int {
	shares := make([]int, layers)
	rest := max(0, capacity-window)
	lo := rest / max(1, beta)
	hi := 2*rest - lo
	if hi >= T-window {
		hi = T - window
		lo = 2*rest - hi
	}
	step := (hi - lo) / max(1, layers-1)
	if hi < lo && (hi-lo)%max(1, layers-1) != 0 {
		step-- // floor division
	}
	for l := range shares {
		switch {
		case T < capacity:
			shares[l] = T
		case T < 2*rest || layers == 1 || capacity <= window:
			shares[l] = capacity
		default:
			shares[l] = hi - l*step + window
		}
	}
	return shares
}
