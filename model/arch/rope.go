package arch

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/lukv/lukv/internal/detmath"
)

// Rope computes rotary position embeddings (Su et al., 2021): element i of a
// head of D elements forms a pair with element i + D/2, and the pair is turned
// by position times frequency i. The frequencies are float64 and, like sines and
// cosines, the same on every processor (package detmath). Where only the first R
// elements turn, they come in pairs of i and i + R/2, which order brings to i and
// i + D/2; the frequency of the others is 0.
//
// A rope does not change and may be used by any number of goroutines.
type Rope struct {
	headDim int
	dims    int // elements that turn, R
	theta   float64
	freq    []float64 // [HeadDim/2], for dynamic scaling and longrope up to maxPos
	factor  float64   // of cosine and sine

	long []float64 // [HeadDim/2] beyond maxPos, for longrope

	queryBeta   float64
	queryPeriod int // positions between steps of the factor of queries

	// Dynamic scaling: stretch 0 if not in use.
	stretch float64
	maxPos  int
}

// NoRotation returns the rotation of layers without one: it turns nothing.
func NoRotation(headDim int) *Rope {
	return &Rope{headDim: headDim, freq: make([]float64, headDim/2), factor: 1}
}

// NewRopes returns the rotations of a model, after checking the settings.
func NewRopes(c *Config) ([]*Rope, error) {
	var list []*Rope
	for _, rc := range c.ropeConfigs() {
		of := *c
		of.Rope = rc
		r, err := newRope(&of)
		if err != nil {
			return nil, err
		}
		list = append(list, r)
	}
	return list, nil
}

// newRope returns the rotation that c.Rope describes, after checking the settings.
func newRope(c *Config) (*Rope, error) {
	rc := &c.Rope
	if c.HeadDim < 2 || c.HeadDim%2 != 0 {
		return nil, fmt.Errorf("head dimension: found %d, expected an even number, as rotation works on pairs", c.HeadDim)
	}
	if !(rc.Theta > 1) || math.IsInf(rc.Theta, 0) {
		return nil, fmt.Errorf("rope theta: found %g, expected a finite number above 1", rc.Theta)
	}
	r := &Rope{
		headDim: c.HeadDim, dims: c.HeadDim, theta: rc.Theta,
		freq: make([]float64, c.HeadDim/2), factor: 1,
	}
	if rc.Partial != 0 {
		if r.dims = int(rc.Partial * float64(c.HeadDim)); !(rc.Partial > 0 && rc.Partial <= 1) || r.dims < 2 || r.dims%2 != 0 {
			return nil, fmt.Errorf("partial rotary factor: found %g of %d elements, expected an even number of them", rc.Partial, c.HeadDim)
		}
	}
	for i := range r.dims / 2 {
		r.freq[i] = frequency(rc.Theta, i, r.dims)
	}
	if rc.QueryBeta != 0 {
		if r.queryBeta, r.queryPeriod = rc.QueryBeta, rc.OriginalMax; r.queryPeriod == 0 {
			r.queryPeriod = c.MaxPositions
		}
		if r.queryPeriod < 1 || !(rc.QueryBeta > 0 && rc.QueryBeta <= 1) {
			return nil, fmt.Errorf("query factor: found beta %g over %d positions, expected a beta up to 1 and at least one position", rc.QueryBeta, r.queryPeriod)
		}
	}
	switch rc.Type {
	case "", "default":
		return r, nil
	case "longrope":
		return r, r.longrope(rc, c.MaxPositions)
	case "linear", "dynamic", "llama3", "yarn":
	default:
		return nil, fmt.Errorf("rope type: scaling %s is %w, expected one of default, linear, dynamic, llama3, yarn, longrope",
			short(fmt.Sprintf("%q", rc.Type)), ErrUnsupported)
	}
	if !(rc.Factor >= 1) || math.IsInf(rc.Factor, 0) {
		return nil, fmt.Errorf("rope factor of type %s: found %g, expected a finite number of at least 1", rc.Type, rc.Factor)
	}
	switch rc.Type {
	case "linear":
		for i := range r.freq {
			r.freq[i] /= rc.Factor
		}
	case "dynamic":
		if r.dims == 2 {
			return nil, errors.New("head dimension: found 2, expected at least 4 for dynamic rope scaling")
		}
		if c.MaxPositions < 1 {
			return nil, fmt.Errorf("maximum of positions: found %d, expected at least 1 for dynamic rope scaling", c.MaxPositions)
		}
		r.stretch, r.maxPos = rc.Factor, c.MaxPositions
	case "llama3":
		return r, r.llama3(rc)
	case "yarn":
		return r, r.yarn(rc, c.MaxPositions)
	}
	return r, nil
}

// frequency returns theta^(-2i/headDim) radians per position.
func frequency(theta float64, i, headDim int) float64 {
	return detmath.Pow(theta, -float64(2*i)/float64(headDim))
}

// llama3 divides the low frequencies by the factor, keeps the high ones and
// blends those in between (Llama 3.1).
func (r *Rope) llama3(rc *RopeConfig) error {
	if rc.OriginalMax < 1 {
		return fmt.Errorf("rope original maximum of type llama3: found %d, expected at least 1", rc.OriginalMax)
	}
	if !(rc.LowFreq > 0 && rc.LowFreq < rc.HighFreq) || math.IsInf(rc.HighFreq, 0) {
		return fmt.Errorf("rope frequency factors of type llama3: found low %g and high %g, expected 0 < low < high", rc.LowFreq, rc.HighFreq)
	}
	for i, f := range r.freq {
		waves := float64(float64(rc.OriginalMax)*f) / (2 * math.Pi) // in the original context
		switch {
		case waves > rc.HighFreq:
		case waves < rc.LowFreq:
			r.freq[i] = f / rc.Factor
		default:
			s := (waves - rc.LowFreq) / (rc.HighFreq - rc.LowFreq)
			r.freq[i] = float64((1-s)*f)/rc.Factor + float64(s*f)
		}
	}
	return nil
}

// yarn divides the frequencies that turn less than BetaSlow times in the
// original context by the factor, keeps those above BetaFast, ramps in between,
// and scales cosine and sine (Peng et al., 2023).
func (r *Rope) yarn(rc *RopeConfig, maxPositions int) error {
	original := rc.OriginalMax
	if original == 0 {
		original = maxPositions
	}
	fast, slow := rc.BetaFast, rc.BetaSlow
	if fast == 0 {
		fast = 32
	}
	if slow == 0 {
		slow = 1
	}
	switch {
	case original < 1:
		return fmt.Errorf("rope original maximum of type yarn: found %d, expected at least 1", original)
	case !(slow > 0 && slow <= fast) || math.IsInf(fast, 0):
		return fmt.Errorf("rope betas of type yarn: found fast %g and slow %g, expected 0 < slow <= fast", fast, slow)
	case rc.AttentionFactor < 0 || math.IsNaN(rc.AttentionFactor) || math.IsInf(rc.AttentionFactor, 0):
		return fmt.Errorf("rope attention factor of type yarn: found %g, expected a finite number above 0", rc.AttentionFactor)
	}
	// dim returns the index of the frequency that turns this many times in the
	// original context.
	dim := func(turns float64) float64 {
		return float64(float64(r.dims)*detmath.Log(float64(original)/float64(2*math.Pi*turns))) / float64(2*detmath.Log(r.theta))
	}
	low, high := dim(fast), dim(slow)
	if !rc.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.dims-1))
	if low == high {
		high += 0.001
	}
	for i, f := range r.freq {
		ramp := min(max((float64(i)-low)/(high-low), 0), 1)
		r.freq[i] = float64(f/rc.Factor*ramp) + float64(f*(1-ramp))
	}
	mscale := func(m float64) float64 { return float64(0.1*m*detmath.Log(rc.Factor)) + 1 }
	switch {
	case rc.AttentionFactor > 0:
		r.factor = rc.AttentionFactor
	case rc.MScale != 0 && rc.MScaleAllDim != 0:
		r.factor = mscale(rc.MScale) / mscale(rc.MScaleAllDim)
	default:
		r.factor = mscale(1)
	}
	if !(r.factor > 0) || math.IsInf(r.factor, 0) {
		return fmt.Errorf("rope mscale of type yarn: found %g and %g, which give the factor %g, expected one above 0",
			rc.MScale, rc.MScaleAllDim, r.factor)
	}
	return nil
}

// longrope divides each frequency by a factor of its own, one for short sequences and one
// for those longer than the model's original context, and scales cosine and sine
// (Ding et al., 2024).
func (r *Rope) longrope(rc *RopeConfig, maxPositions int) error {
	if r.maxPos = rc.OriginalMax; r.maxPos == 0 {
		r.maxPos = maxPositions
	}
	if r.maxPos < 2 {
		return fmt.Errorf("rope original maximum of type longrope: found %d, expected at least 2", r.maxPos)
	}
	for _, f := range []struct {
		name    string
		factors []float64
	}{{"short_factor", rc.ShortFactors}, {"long_factor", rc.LongFactors}} {
		if len(f.factors) != r.dims/2 {
			return fmt.Errorf("rope %s of type longrope: found %d factors, expected %d, one for each pair that turns", f.name, len(f.factors), r.dims/2)
		}
		for _, x := range f.factors {
			if !(x > 0) || math.IsInf(x, 0) {
				return fmt.Errorf("rope %s of type longrope: found %g, expected finite numbers above 0", f.name, x)
			}
		}
	}
	r.long = make([]float64, len(r.freq))
	for i := range r.dims / 2 {
		r.freq[i], r.long[i] = r.freq[i]/rc.ShortFactors[i], r.freq[i]/rc.LongFactors[i]
	}
	switch stretch := rc.Factor; {
	case rc.AttentionFactor > 0:
		r.factor = rc.AttentionFactor
	default:
		if stretch == 0 {
			stretch = float64(maxPositions) / float64(r.maxPos)
		}
		if stretch > 1 {
			r.factor = math.Sqrt(1 + detmath.Log(stretch)/detmath.Log(float64(r.maxPos)))
		}
	}
	if math.IsInf(r.factor, 0) || math.IsNaN(r.factor) {
		return fmt.Errorf("rope factor of type longrope: found %g, expected a finite number", rc.Factor)
	}
	return nil
}

// base returns the base of the frequencies for a sequence of seqLen tokens; it
// is theta except for dynamic scaling beyond the model's context.
func (r *Rope) base(seqLen int) (theta float64, changed bool) {
	if r.stretch == 0 || seqLen <= r.maxPos {
		return r.theta, false
	}
	d := float64(r.dims)
	s := float64(r.stretch*float64(seqLen))/float64(r.maxPos) - (r.stretch - 1)
	return r.theta * detmath.Pow(s, d/(d-2)), true
}

// InvFreq returns the effective frequencies in radians per position, HeadDim/2
// of them, highest first. seqLen, the number of tokens so far including those
// of the current step, matters for dynamic scaling only.
func (r *Rope) InvFreq(seqLen int) []float64 {
	f := slices.Clone(r.table(seqLen))
	if theta, changed := r.base(seqLen); changed {
		for i := range r.dims / 2 {
			f[i] = frequency(theta, i, r.dims)
		}
	}
	return f
}

// table returns the frequencies for a sequence of seqLen tokens, before dynamic scaling.
func (r *Rope) table(seqLen int) []float64 {
	if r.long != nil && seqLen > r.maxPos {
		return r.long
	}
	return r.freq
}

// AttentionFactor returns the factor that cosines and sines, and so queries and
// keys, are multiplied by: 1 except for yarn.
func (r *Rope) AttentionFactor() float64 { return r.factor }

// Dynamic reports whether frequencies depend on the length of the sequence.
func (r *Rope) Dynamic() bool { return r.stretch != 0 || r.long != nil }

// LongFrom returns the length above which sequences have other frequencies, as longrope has
// them, 0 if there is none.
func (r *Rope) LongFrom() int {
	if r.long == nil {
		return 0
	}
	return r.maxPos
}

// Order returns the elements of a head in the order in which the pairs that turn are half a
// head apart; nil: as they are.
func (r *Rope) Order() []int32 {
	if r.dims == r.headDim {
		return nil
	}
	half, pairs := r.headDim/2, r.dims/2
	order := make([]int32, r.headDim)
	next := int32(r.dims) // of those that do not turn
	for i := range half {
		if i < pairs {
			order[i], order[half+i] = int32(i), int32(pairs+i)
			continue
		}
		order[i], order[half+i] = next, next+1
		next += 2
	}
	return order
}

// QueryFactor returns the factor of a query at a position.
func (r *Rope) QueryFactor(pos int) float32 {
	if r.queryBeta == 0 {
		return 1
	}
	return float32(1 + float64(r.queryBeta*detmath.Log(float64(1+pos/r.queryPeriod))))
}

// Row fills cos and sin, HeadDim/2 elements each, for a token at the given
// position; seqLen is as for InvFreq. The angle is computed in float64 and each
// result is rounded once. It allocates nothing. Positions up to 12 million are
// exact to a unit in the last place.
func (r *Rope) Row(pos, seqLen int, cos, sin []float32) {
	theta, changed := r.base(seqLen)
	for i, f := range r.table(seqLen) {
		if 2*i >= r.dims {
			cos[i], sin[i] = 1, 0
			continue
		}
		if changed {
			f = frequency(theta, i, r.dims)
		}
		s, c := detmath.SinCos(float64(pos) * f)
		cos[i], sin[i] = float32(c*r.factor), float32(s*r.factor)
	}
}
