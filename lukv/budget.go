package lukv

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Ways of turning a ratio into integers (spec 2 and 5.7).
const (
	ShareLiteral = "literal" // ⌊T·(1-ρ)⌋ as doubles evaluate it
	ShareExact   = "exact"   // ⌊T·(1-ρ) + 1e-9⌋

	HeadsRemainder32 = "remainder32" // largest remainders per layer, float32 as in kvpress
	HeadsRemainder64 = "remainder64" // the same in float64, as in the authors' scripts
	HeadsFloor       = "floor"       // every head rounded down, as in the paper

	ReconcileLayer = "layer" // a layer keeps its own rounded total
	ReconcileModel = "model" // the model keeps its rounded total

	FloorProtected = "protected" // no LU-KV head below 1 % and its protected entries
	FloorNone      = "none"
)

// Rounding says how budgets become integers. Empty fields take the defaults.
type Rounding struct {
	// Share rounds the uniform share n: ShareLiteral (default) or ShareExact.
	Share string `json:"share,omitempty"`

	// Heads rounds LU-KV's budgets: HeadsRemainder32 (default),
	// HeadsRemainder64 or HeadsFloor.
	Heads string `json:"heads,omitempty"`

	// Reconcile says which total the largest remainders preserve:
	// ReconcileLayer (default) or ReconcileModel (then in float64). An
	// absolute budget always preserves the model's. It has no effect with
	// HeadsFloor.
	Reconcile string `json:"reconcile,omitempty"`

	// Floor is FloorProtected (default) or FloorNone: under LU-KV no head gets
	// less than max(⌈0.01·T⌉, protected entries), so that a short text keeps
	// its window even if the profile was made on a long one. What the raised
	// heads gain is taken from the largest heads of the layer or, if the whole
	// layer has too little, of the model. The floor never exceeds the model's
	// mean budget, so totals stay the same.
	Floor string `json:"floor,omitempty"`

	// AllowEmpty lets a budget be 0 (older kvpress). By default every head
	// keeps at least one entry, even where that exceeds the total.
	AllowEmpty bool `json:"allow_empty"`
}

// kvpressRounding returns the rounding of older kvpress, number for number.
func kvpressRounding() Rounding {
	return Rounding{ShareLiteral, HeadsRemainder32, ReconcileLayer, FloorNone, true}
}

// withDefaults returns the rounding with every field written out.
func (r Rounding) withDefaults() Rounding {
	r.Share = cmp.Or(r.Share, ShareLiteral)
	r.Heads = cmp.Or(r.Heads, HeadsRemainder32)
	r.Reconcile = cmp.Or(r.Reconcile, ReconcileLayer)
	r.Floor = cmp.Or(r.Floor, FloorProtected)
	return r
}

// Validate reports the first field with an unknown value.
func (r Rounding) Validate() error {
	for _, f := range []struct {
		name, value string
		allowed     []string
	}{
		{"share", r.Share, []string{ShareLiteral, ShareExact}},
		{"heads", r.Heads, []string{HeadsRemainder32, HeadsRemainder64, HeadsFloor}},
		{"reconcile", r.Reconcile, []string{ReconcileLayer, ReconcileModel}},
		{"floor", r.Floor, []string{FloorProtected, FloorNone}},
	} {
		if f.value != "" && !slices.Contains(f.allowed, f.value) {
			return fmt.Errorf("rounding: %s: found %q, expected one of %q", f.name, f.value, f.allowed)
		}
	}
	return nil
}

// least is the smallest budget of a head.
func (r Rounding) least() int {
	if r.AllowEmpty {
		return 0
	}
	return 1
}

// UniformShare is ⌊T·(1-ratio)⌋ clipped to [0,T], as doubles evaluate it
// (1000·(1-0.8) gives 199) unless exact. It may be 0.
func UniformShare(T int, ratio float64, exact bool) int {
	n := float64(T) * (1 - ratio)
	if exact {
		n = float64(n) + 1e-9
	}
	return min(max(int(n), 0), T)
}

// Demand is the input of one allocation: the shape of the cache and how much
// of it may stay.
type Demand struct {
	T       int // entries per head now
	Layers  int // L, excluded ones included
	KVHeads int // K

	// Excluded marks layers that take no part, [L]: sliding windows, which are
	// bounded already. They get the budget T. nil: all take part.
	Excluded []bool

	// Ratio is the fraction to remove, 0 <= Ratio < 1, when Absolute is false.
	Ratio float64

	// Entries is the number of entries to keep over all layers that take part,
	// when Absolute is true.
	Absolute bool
	Entries  int

	// Weights holds the weights that a [LayerWeigher] gave the layers seen so
	// far, [L].
	Weights []float64

	Protection Protection
	Rounding   Rounding
}

// DemandTokens returns d with an absolute budget of n entries per head on
// average.
func (d Demand) DemandTokens(n int) Demand {
	d.Absolute, d.Ratio = true, 0
	d.Entries = mulClip(n, d.Units())
	return d
}

// DemandBytes returns d with an absolute budget of as many entries as fit into
// bytes, at bytesPerEntry for the key and value of one entry of one head. Page
// slack in the cache and the contents of excluded layers are not counted.
func (d Demand) DemandBytes(bytes int64, bytesPerEntry int) Demand {
	d.Absolute, d.Ratio = true, 0
	d.Entries = int(min(bytes/int64(max(bytesPerEntry, 1)), math.MaxInt))
	return d
}

func mulClip(a, b int) int {
	if a > 0 && b > 0 && a > math.MaxInt/b {
		return math.MaxInt
	}
	return a * b
}

// Validate reports a demand that makes no sense.
func (d *Demand) Validate() error {
	switch {
	case d.T < 0 || d.T > maxSlots || d.Layers < 1 || d.KVHeads < 1:
		return fmt.Errorf("budgets: shape of %d layers, %d heads, %d entries", d.Layers, d.KVHeads, d.T)
	case d.Excluded != nil && len(d.Excluded) != d.Layers:
		return fmt.Errorf("budgets: %d exclusions for %d layers", len(d.Excluded), d.Layers)
	case !d.Absolute && !(d.Ratio >= 0 && d.Ratio < 1):
		return fmt.Errorf("budgets: ratio %v, expected at least 0 and below 1", d.Ratio)
	case d.Absolute && d.Entries < 0:
		return fmt.Errorf("budgets: %d entries, expected at least 0", d.Entries)
	}
	return d.Rounding.Validate()
}

// Includes reports whether layer l takes part.
func (d *Demand) Includes(l int) bool { return d.Excluded == nil || !d.Excluded[l] }

// ActiveLayers is the number of layers that take part.
func (d *Demand) ActiveLayers() int {
	n := 0
	for l := range d.Layers {
		if d.Includes(l) {
			n++
		}
	}
	return n
}

// Units is the number of (layer, KV head) pairs that take part.
func (d *Demand) Units() int { return d.ActiveLayers() * d.KVHeads }

// Target returns the demand's ratio: Ratio, or what Entries amounts to. For
// table look-ups only.
func (d *Demand) Target() float64 {
	if !d.Absolute {
		return d.Ratio
	}
	full := float64(d.T) * float64(d.Units())
	if full == 0 {
		return 0
	}
	return max(0, 1-float64(d.Entries)/full)
}

// NoOp reports whether the cache stays as it is (spec 8): nothing to
// remove, a single entry, or no entry after the sinks.
func (d *Demand) NoOp() bool {
	switch {
	case d.T <= 1 || d.T <= d.Protection.Sinks || d.Units() == 0:
		return true
	case d.Absolute:
		return d.Entries >= mulClip(d.T, d.Units())
	}
	return d.Ratio <= 0 || d.Share() >= d.T
}

// Share is the uniform budget n of a head, at least one unless the rounding
// allows empty heads.
func (d *Demand) Share() int {
	n := 0
	if d.Absolute {
		n = d.Entries / max(1, d.Units())
	} else {
		n = UniformShare(d.T, d.Ratio, d.Rounding.Share == ShareExact)
	}
	return min(max(n, d.Rounding.least()), d.T)
}

// mean is the exact uniform budget B = T·(1-ρ) before rounding.
func (d *Demand) mean() float64 {
	if d.Absolute {
		return min(float64(d.T), float64(d.Entries)/float64(max(1, d.Units())))
	}
	return float64(d.T) * (1 - d.Ratio)
}

// whole returns the budgets of an untouched cache.
func (d *Demand) whole() [][]int {
	out := newBudgets(d.Layers, d.KVHeads)
	for l := range out {
		d.fill(out[l], d.T)
	}
	return out
}

func (d *Demand) fill(row []int, n int) {
	for h := range row {
		row[h] = n
	}
}

// finish gives excluded layers everything and clips all others to
// [least, T].
func (d *Demand) finish(b [][]int) [][]int {
	for l, row := range b {
		for h := range row {
			if d.Includes(l) {
				row[h] = min(max(row[h], d.Rounding.least()), d.T)
			} else {
				row[h] = d.T
			}
		}
	}
	return b
}

// Achieved reports what budgets actually remove.
type Achieved struct {
	Kept     int       `json:"kept"`      // entries kept in the layers that take part
	Full     int       `json:"full"`      // entries there before
	Ratio    float64   `json:"ratio"`     // fraction removed overall
	PerLayer []float64 `json:"per_layer"` // [L] fraction removed; 0 in excluded layers
	Least    int       `json:"least"`     // smallest budget of a head
	Most     int       `json:"most"`      // largest budget of a head
	Short    int       `json:"short"`     // heads that cannot hold their protected entries
}

// Achieved reports what budgets, [L][K], remove under the demand.
func (d *Demand) Achieved(budgets [][]int) Achieved {
	a := Achieved{PerLayer: make([]float64, d.Layers), Least: d.T}
	protected := d.Protection.Count(d.T)
	for l := range d.Layers {
		if !d.Includes(l) {
			continue
		}
		kept := 0
		for _, b := range budgets[l] {
			kept += b
			a.Least, a.Most = min(a.Least, b), max(a.Most, b)
			if b < protected {
				a.Short++
			}
		}
		full := d.T * d.KVHeads
		a.PerLayer[l] = removed(kept, full)
		a.Kept += kept
		a.Full += full
	}
	a.Ratio = removed(a.Kept, a.Full)
	return a
}

func removed(kept, full int) float64 {
	if full == 0 {
		return 0
	}
	return 1 - float64(kept)/float64(full)
}
