package arch

import (
	"fmt"
	"io"
	"math"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// LayerPlan says what a decoder layer computes. The forward pass walks the plans of a
// model's layers and knows no model family. A layer adds two branches, attention and
// feed-forward, to its input x, the residual stream:
//
//	x += ResidualScale·post(branch(pre(x)))
//
// where pre and post are RMS norms, each of which may be absent.
type LayerPlan struct {
	// Window is the attention window W in tokens: position i sees the W positions up to
	// and including itself. 0 is full attention.
	Window int

	// Rope is the rotation of queries and keys: an index in the list that NewRopes makes, or NoRope.
	Rope int

	QKNorm     NormKind // of queries and keys, before rotation
	ScoreScale float64  // factor of the products of queries and keys
	ScoreCap   float64  // c: scores become c·tanh(score/c); 0: they stay

	qkvBias, outBias bool // biases of the projections

	// Order lists the elements of a query or key head in the order in which rotation takes
	// them; nil: as the projections give them.
	Order []int32

	preNorm, postNorm bool
	ResidualScale     float64

	FFN FFNPlan
}

// NoRope is the rotation of layers without one.
const NoRope = -1

// NormKind says over which elements a norm of queries and keys is taken.
type NormKind uint8

const (
	noNorm   NormKind = iota
	HeadNorm          // each head by itself
	FullNorm          // all heads together
)

// FFNPlan says what the feed-forward branch of a layer computes: one gated unit
// down·(activation(gate·x)·(up·x)), or a mixture of them.
type FFNPlan struct {
	Activation kernels.Activation
	Width      int  // rows of gate and up
	bias       bool // biases of the three projections

	// In a mixture, Width is that of an expert. The experts with the largest of the
	// router's logits are added, weighted by the softmax of all logits.
	Experts   int  // 0: one unit
	Chosen    int  // experts of a token
	Normalise bool // the weights of the chosen experts add up to 1

	// Shared is the width of a unit that is added for every token, weighted by the
	// logistic function of its own product with x; 0: none.
	Shared int
}

// Scalars are the factors of a model outside its layers.
type Scalars struct {
	embedScale float64 // of embeddings; 0: 1

	// embedRounded rounds embedScale to the type of the embeddings, as it was where the
	// model was trained.
	embedRounded bool

	LogitScale float64 // of logits; 0: 1
	LogitCap   float64 // c: logits become c·tanh(logit/c); 0: they stay

	// NormOffset is added to the weights of all norms, in checkpoints that store them so.
	NormOffset float32
}

// ChangesLogits reports whether logits are more than the products of the head.
func (s *Scalars) ChangesLogits() bool { return s.LogitScale != 0 || s.LogitCap != 0 }

// EmbeddingScale returns the factor of embeddings of type t.
func (s *Scalars) EmbeddingScale(t tensor.Type) float32 {
	scale := float32(s.embedScale)
	switch {
	case s.embedScale == 0:
		return 1
	case s.embedRounded && t == tensor.BF16:
		return tensor.BF16ToF32(tensor.F32ToBF16(scale))
	case s.embedRounded && t == tensor.F16:
		return tensor.F16ToF32(tensor.F32ToF16(scale))
	}
	return scale
}

// AddsDirectly reports whether the products of a branch's last projection are added to the
// residual stream as they are.
func (p *LayerPlan) AddsDirectly() bool { return !p.postNorm && p.ResidualScale == 1 }

// AttentionScale returns the factor of scores for the attention kernels, which work in
// units of base 2, and AttentionCap the limit of scores in the same units.
func (p *LayerPlan) AttentionScale() float32 { return float32(math.Log2E * p.ScoreScale) }
func (p *LayerPlan) AttentionCap() float32   { return float32(math.Log2E * p.ScoreCap) }

// writeIdentity writes what layer at computes, for a model's identity.
func (p *LayerPlan) writeIdentity(w io.Writer, at int) {
	fmt.Fprintf(w, "layer %d %d %d %d %v %v %v %v %v", at, p.Window, p.Rope, p.QKNorm, p.ScoreScale, p.ScoreCap, p.preNorm, p.postNorm, p.ResidualScale)
	f := p.FFN
	fmt.Fprintf(w, " %d %d %d %d %v %d\n", f.Activation, f.Width, f.Experts, f.Chosen, f.Normalise, f.Shared)
}

// differs is Differs for layers of models with the given context.
func (p *LayerPlan) differs(q *LayerPlan, context int) (name, values string) {
	window := func(p *LayerPlan) int {
		if p.Window >= context {
			return 0
		}
		return p.Window
	}
	for _, x := range []struct {
		name string
		a, b int
	}{
		{"attention window", window(p), window(q)}, {"width of the feed-forward unit", p.FFN.Width, q.FFN.Width},
		{"width of the shared unit", p.FFN.Shared, q.FFN.Shared}, {"number of experts", p.FFN.Experts, q.FFN.Experts},
		{"number of chosen experts", p.FFN.Chosen, q.FFN.Chosen},
	} {
		if x.a != x.b {
			return x.name, insteadOf(x.b, x.a)
		}
	}
	for _, x := range []struct {
		name string
		a, b float64
	}{
		{"scale of scores", p.ScoreScale, q.ScoreScale}, {"limit of scores", p.ScoreCap, q.ScoreCap},
		{"scale of branches", p.ResidualScale, q.ResidualScale},
	} {
		if !near(x.a, x.b) {
			return x.name, insteadOf(x.b, x.a)
		}
	}
	switch f, g := p.FFN, q.FFN; {
	case p.Rope != q.Rope:
		return "rotation of positions", ""
	case p.QKNorm != q.QKNorm:
		return "norm of queries and keys", ""
	case p.qkvBias != q.qkvBias, p.outBias != q.outBias, f.bias != g.bias:
		return "set of biases", ""
	case p.preNorm != q.preNorm, p.postNorm != q.postNorm:
		return "place of norms", ""
	case f.Activation != g.Activation:
		return "activation", ""
	case f.Normalise != g.Normalise:
		return "weight of experts (norm_topk_prob)", ""
	}
	return "", ""
}
