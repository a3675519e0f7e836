package model

import (
	"errors"
	"fmt"
	"math"

	"github.com/lukv/lukv/internal/detmath"
)

// RopeConfig describes how queries and keys are rotated. The zero value of each
// field but Theta means that it is not given.
type RopeConfig struct {
	Type  string  // "" or "default", "linear", "dynamic", "llama3", "yarn"
	Theta float64 // base of the frequencies, above 1

	Factor      float64 // by which the context is stretched, at least 1
	OriginalMax int     // positions before stretching: llama3, and yarn (MaxPositions if 0)

	LowFreq, HighFreq float64 // llama3: bounds of the blend, in waves per OriginalMax

	BetaFast, BetaSlow float64 // yarn: bounds of the ramp in turns per OriginalMax (32 and 1 if 0)
	NoTruncate         bool    // yarn: keep the ramp's ends fractional
	AttentionFactor    float64 // yarn: factor of cosine and sine, by formula if 0
	MScale             float64 // yarn: with MScaleAllDim, another formula for the factor
	MScaleAllDim       float64
}

// rope computes rotary position embeddings (Su et al., 2021): element i of a
// head of D elements forms a pair with element i + D/2, and the pair is turned
// by position times frequency i. The frequencies are float64 and, like sines and
// cosines, the same on every processor (package detmath).
//
// A rope does not change and may be used by any number of goroutines.
type rope struct {
	headDim int
	theta   float64
	freq    []float64 // [HeadDim/2], for dynamic scaling up to maxPos
	factor  float64   // of cosine and sine

	// Dynamic scaling: stretch 0 if not in use.
	stretch float64
	maxPos  int
}

// newRope returns the rotation of a model, after checking the settings.
func newRope(c *Config) (*rope, error) {
	rc := &c.Rope
	if c.HeadDim < 2 || c.HeadDim%2 != 0 {
		return nil, fmt.Errorf("head dimension: found %d, expected an even number, as rotation works on pairs", c.HeadDim)
	}
	if !(rc.Theta > 1) || math.IsInf(rc.Theta, 0) {
		return nil, fmt.Errorf("rope theta: found %g, expected a finite number above 1", rc.Theta)
	}
	r := &rope{
		headDim: c.HeadDim, theta: rc.Theta,
		freq: make([]float64, c.HeadDim/2), factor: 1,
	}
	for i := range r.freq {
		r.freq[i] = frequency(rc.Theta, i, c.HeadDim)
	}
	switch rc.Type {
	case "", "default":
		return r, nil
	case "linear", "dynamic", "llama3", "yarn":
	default:
		return nil, fmt.Errorf("rope type: scaling %s is %w, expected one of default, linear, dynamic, llama3, yarn",
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
		if c.HeadDim == 2 {
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
func (r *rope) llama3(rc *RopeConfig) error {
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
func (r *rope) yarn(rc *RopeConfig, maxPositions int) error {
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
		return float64(float64(r.headDim)*detmath.Log(float64(original)/float64(2*math.Pi*turns))) / float64(2*detmath.Log(r.theta))
	}
	low, high := dim(fast), dim(slow)
	if !rc.NoTruncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.headDim-1))
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

// base returns the base of the frequencies for a sequence of seqLen tokens; it
// is theta except for dynamic scaling beyond the model's context.
func (r *rope) base(seqLen int) (theta float64, changed bool) {
	if r.stretch == 0 || seqLen <= r.maxPos {
		return r.theta, false
	}
	d := float64(r.headDim)
	s := float64(r.stretch*float64(seqLen))/float64(r.maxPos) - (r.stretch - 1)
	return r.theta * detmath.Pow(s, d/(d-2)), true
}

// invFreq returns the effective frequencies in radians per position, HeadDim/2
// of them, highest first. seqLen, the number of tokens so far including those
// of the current step, matters for dynamic scaling only.
func (r *rope) invFreq(seqLen int) []float64 {
	f := make([]float64, len(r.freq))
	copy(f, r.freq)
	if theta, changed := r.base(seqLen); changed {
		for i := range f {
			f[i] = frequency(theta, i, r.headDim)
		}
	}
	return f
}

// attentionFactor returns the factor that cosines and sines, and so queries and
// keys, are multiplied by: 1 except for yarn.
func (r *rope) attentionFactor() float64 { return r.factor }

// dynamic reports whether frequencies depend on the length of the sequence.
func (r *rope) dynamic() bool { return r.stretch != 0 }

// row fills cos and sin, HeadDim/2 elements each, for a token at the given
// position; seqLen is as for invFreq. The angle is computed in float64 and each
// result is rounded once. It allocates nothing. Positions up to 12 million are
// exact to a unit in the last place.
func (r *rope) row(pos, seqLen int, cos, sin []float32) {
	theta, changed := r.base(seqLen)
	for i, f := range r.freq {
		if changed {
			f = frequency(theta, i, r.headDim)
		}
		s, c := detmath.SinCos(float64(pos) * f)
		cos[i], sin[i] = float32(c*r.factor), float32(s*r.factor)
	}
}
