package lukv

import (
	"fmt"
	"math"
	"slices"
)

// Normalisations of oracle importance: what A·‖v·W_O‖ is divided by (spec
// 5.1). They differ only in whether importances of different layers are
// comparable as they are.
const (
	// NormNone leaves the importance as it is. Profiles use it by default, see
	// [DefaultProfileIdentity].
	NormNone = "none"

	// NormLayer divides by the summed value norms of the layer, over all its
	// query heads and context positions, as the authors' recorder does.
	NormLayer = "layer"

	// NormGlobal divides by the summed value norms of all layers. A single
	// measurement yields the same budgets as under NormNone; only losses that
	// are added over measurements differ.
	NormGlobal = "global"
)

// Normalizations lists the names.
func Normalizations() []string { return []string{NormNone, NormLayer, NormGlobal} }

// Oracle measures what every cached entry of a context is worth to the answer
// of one question: the largest A·‖v·W_O‖₂ over decoding steps and over the
// query heads of the group (spec 5.1). It keeps the raw products and one
// divisor per layer, so that each normalisation can be derived from one
// measurement.
//
// Use: NewOracle, [Oracle.Include] for the layers that take part,
// [Oracle.SetNorms] for every query head of these, [Oracle.Observe] for
// every step and query head, then [Oracle.Importance]. [Oracle.Reset]
// starts the next question on the same context. Memory: 4·L·T·(H+K) bytes.
//
// Calls for different KV heads may run concurrently; the result does not
// depend on the order of calls.
type Oracle struct {
	layers, heads, kvHeads, t int

	norms [][]float32 // [L] nil or [H·T]
	sums  [][]float64 // [L] nil or [H]: sum of a query head's norms
	best  [][]float32 // [L] nil or [K·T]: running maximum
}

// NewOracle makes room for a context of T positions.
func NewOracle(layers, heads, kvHeads, T int) (*Oracle, error) {
	if layers < 1 || kvHeads < 1 || heads < kvHeads || heads%kvHeads != 0 || T < 1 || T > maxSlots {
		return nil, fmt.Errorf("oracle: shape of %d layers, %d query heads, %d KV heads, %d positions", layers, heads, kvHeads, T)
	}
	return &Oracle{
		layers: layers, heads: heads, kvHeads: kvHeads, t: T,
		norms: make([][]float32, layers), sums: make([][]float64, layers), best: make([][]float32, layers),
	}, nil
}

// Include makes room for a layer that takes part. Layers never included are
// left out of the importance.
func (o *Oracle) Include(l int) error {
	if l < 0 || l >= o.layers {
		return fmt.Errorf("oracle: layer %d of %d", l, o.layers)
	}
	if o.norms[l] == nil {
		o.norms[l] = make([]float32, o.heads*o.t)
		o.sums[l] = make([]float64, o.heads)
		for g := range o.sums[l] {
			o.sums[l][g] = math.NaN() // not set yet
		}
		o.best[l] = make([]float32, o.kvHeads*o.t)
	}
	return nil
}

// check reports a layer that is not included, a query head that does not exist
// or a wrong number of positions.
func (o *Oracle) check(what string, l, g, n int) error {
	switch {
	case l < 0 || l >= o.layers || o.norms[l] == nil:
		return fmt.Errorf("oracle: %s: layer %d is not included", what, l)
	case g < 0 || g >= o.heads:
		return fmt.Errorf("oracle: %s: query head %d of %d", what, g, o.heads)
	case n != o.t:
		return fmt.Errorf("oracle: %s of layer %d head %d: %d positions, expected %d", what, l, g, n, o.t)
	}
	return nil
}

// SetNorms copies the value norms ‖v_j·W_O^(g)‖₂ of query head g in layer l,
// [T] (see [OutputGram]).
func (o *Oracle) SetNorms(l, g int, norms []float32) error {
	if err := o.check("value norms", l, g, len(norms)); err != nil {
		return err
	}
	for j, v := range norms {
		if !(v >= 0) || math.IsInf(float64(v), 1) {
			return fmt.Errorf("oracle: value norm %v of layer %d head %d at position %d, expected finite and not negative", v, l, g, j)
		}
	}
	copy(o.norms[l][g*o.t:], norms)
	o.sums[l][g] = sumOf(norms)
	return nil
}

// Observe adds one decoding step: the attention probabilities of query head g
// in layer l on the T context positions, taken from the softmax over
// everything cached at that step. NaNs are ignored.
func (o *Oracle) Observe(l, g int, attention []float32) error {
	if err := o.check("attention", l, g, len(attention)); err != nil {
		return err
	}
	h := g / (o.heads / o.kvHeads)
	norms := o.norms[l][g*o.t : (g+1)*o.t]
	best := o.best[l][h*o.t : (h+1)*o.t]
	for j, a := range attention {
		if v := a * norms[j]; v > best[j] {
			best[j] = v
		}
	}
	return nil
}

// Reset forgets all steps but keeps the norms.
func (o *Oracle) Reset() {
	for _, b := range o.best {
		clear(b)
	}
}

// Divisor returns what normalisation norm divides layer l by.
func (o *Oracle) Divisor(norm string, l int) (float64, error) {
	layer := func(l int) float64 {
		s := 0.0
		for _, v := range o.sums[l] {
			s += v
		}
		return s
	}
	const tiny = 1e-9 // as in the authors' recorder
	switch norm {
	case NormNone, "":
		return 1, nil
	case NormLayer:
		return layer(l) + tiny, nil
	case NormGlobal:
		s := 0.0
		for i := range o.sums {
			s += layer(i)
		}
		return s + tiny, nil
	}
	return 0, fmt.Errorf("oracle: normalisation %q is unknown, expected one of %q", norm, Normalizations())
}

// Importance returns the measurement, [L][K][T], nil for layers not included.
// The slices belong to the caller.
func (o *Oracle) Importance(norm string) ([][][]float32, error) {
	out := make([][][]float32, o.layers)
	for l, best := range o.best {
		if best == nil {
			continue
		}
		if g := slices.IndexFunc(o.sums[l], math.IsNaN); g >= 0 {
			return nil, fmt.Errorf("oracle: layer %d lacks the value norms of query head %d", l, g)
		}
		div, err := o.Divisor(norm, l)
		if err != nil {
			return nil, err
		}
		flat := make([]float32, len(best))
		for i, v := range best {
			flat[i] = float32(float64(v) / div)
		}
		out[l] = make([][]float32, o.kvHeads)
		for h := range out[l] {
			out[l][h] = flat[h*o.t : (h+1)*o.t : (h+1)*o.t]
		}
	}
	return out, nil
}

// OutputGram computes ‖v·W_O^(g)‖₂ for many values v of one query head. It
// holds the Gram matrix W·Wᵀ of the head's slice of the output projection,
// [D][D] in float64, so that a norm costs D² instead of D·M: the head's norms
// over a context of T positions cost T·D²/2 multiplications.
//
// Add every row first; Norms may then run concurrently.
type OutputGram struct {
	d int
	g []float64 // upper triangle, row by row
}

// NewOutputGram starts the matrix of a head of dimension D.
func NewOutputGram(headDim int) *OutputGram {
	return &OutputGram{d: headDim, g: make([]float64, headDim*(headDim+1)/2)}
}

// Add accumulates one output row of the projection: the D weights of a row of
// o_proj [M, H·D] that read this query head, columns g·D … g·D+D-1.
func (m *OutputGram) Add(row []float32) {
	at := 0
	for i, x := range row[:m.d] {
		wide := float64(x)
		dst := m.g[at : at+m.d-i]
		for j, y := range row[i:m.d] {
			dst[j] += float64(wide * float64(y))
		}
		at += m.d - i
	}
}

// Norms appends the norms of values [n][D] to dst[:0].
func (m *OutputGram) Norms(dst, values []float32) []float32 {
	dst = dst[:0]
	for ; len(values) >= m.d && m.d > 0; values = values[m.d:] {
		v := values[:m.d]
		sq, at := 0.0, 0
		for i, x := range v {
			row := m.g[at : at+m.d-i]
			cross := 0.0
			for j := 1; j < len(row); j++ {
				cross += float64(row[j] * float64(v[i+j]))
			}
			wide := float64(x)
			sq += float64(wide * (float64(row[0]*wide) + float64(2*cross)))
			at += m.d - i
		}
		dst = append(dst, float32(math.Sqrt(max(0, sq))))
	}
	return dst
}
