package model

import (
	"math"
	"slices"

	"github.com/lukv/lukv/tensor"
)

// layerPlan says what a decoder layer computes. The forward pass walks the plans of a
// model's layers and knows no model family. A layer adds two branches, attention and
// feed-forward, to its input x, the residual stream:
//
//	x += residualScale·post(branch(pre(x)))
//
// where pre and post are RMS norms, each of which may be absent.
type layerPlan struct {
	// window is the attention window W in tokens: position i sees the W positions up to
	// and including itself. 0 is full attention.
	window int

	// rope is the rotation of queries and keys: an index in Config.ropes, or noRope.
	rope int

	qkNorm     normKind // of queries and keys, before rotation
	scoreScale float64  // factor of the products of queries and keys
	scoreCap   float64  // c: scores become c·tanh(score/c); 0: they stay

	qkvBias, outBias bool // biases of the projections

	// order lists the elements of a query or key head in the order in which rotation takes
	// them; nil: as the projections give them.
	order []int32

	preNorm, postNorm bool
	residualScale     float64

	ffn ffnPlan
}

// noRope is the rotation of layers without one.
const noRope = -1

// normKind says over which elements a norm of queries and keys is taken.
type normKind uint8

const (
	noNorm   normKind = iota
	headNorm          // each head by itself
	fullNorm          // all heads together
)

// activation is the nonlinearity of a feed-forward unit.
type activation uint8

const (
	silu activation = iota
	geluTanh
)

// ffnPlan says what the feed-forward branch of a layer computes: one gated unit
// down·(activation(gate·x)·(up·x)), or a mixture of them.
type ffnPlan struct {
	activation activation
	width      int  // rows of gate and up
	bias       bool // biases of the three projections

	// In a mixture, width is that of an expert. The experts with the largest of the
	// router's logits are added, weighted by the softmax of all logits.
	experts   int  // 0: one unit
	chosen    int  // experts of a token
	normalise bool // the weights of the chosen experts add up to 1

	// shared is the width of a unit that is added for every token, weighted by the
	// logistic function of its own product with x; 0: none.
	shared int
}

// scalars are the factors of a model outside its layers.
type scalars struct {
	embedScale float64 // of embeddings; 0: 1

	// embedRounded rounds embedScale to the type of the embeddings, as it was where the
	// model was trained.
	embedRounded bool

	logitScale float64 // of logits; 0: 1
	logitCap   float64 // c: logits become c·tanh(logit/c); 0: they stay

	// normOffset is added to the weights of all norms, in checkpoints that store them so.
	normOffset float32
}

// LayerParams returns how many parameters of the matrices of all layers a pass over the
// given number of tokens reads at most: all, except for those of experts that no token can
// have chosen. 0 tokens stand for any number.
func (c *Config) LayerParams(tokens int) int64 {
	n := int64(0)
	for _, p := range c.layerPlans() {
		of := min(p.ffn.experts, tokens*p.ffn.chosen)
		if tokens == 0 {
			of = p.ffn.experts
		}
		for role := roleAttnNorm; role < roleQKV; role++ {
			if role.ofExpert() {
				n += int64(of) * p.params(c, role)
			} else {
				n += p.params(c, role)
			}
		}
	}
	return n
}

// params returns the number of elements of a layer's matrix, 0 if it has none.
func (p *layerPlan) params(c *Config, role tensorRole) int64 {
	if shape := p.shape(c, role); len(shape) == 2 {
		return int64(shape[0]) * int64(shape[1])
	}
	return 0
}

// finish reports whether logits are more than the products of the head.
func (s *scalars) finish() bool { return s.logitScale != 0 || s.logitCap != 0 }

// embeddingScale returns the factor of embeddings of type t.
func (s *scalars) embeddingScale(t tensor.Type) float32 {
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

// layerPlans returns the plan of every layer: what the config's family made or, in configs
// made by hand, layers of the Llama kind with the biases, norms and windows of c.
func (c *Config) layerPlans() []layerPlan {
	if c.plan != nil {
		return c.plan[:min(len(c.plan), max(c.Layers, 0))]
	}
	plan := make([]layerPlan, c.Layers)
	for i := range plan {
		plan[i] = layerPlan{
			scoreScale: 1 / math.Sqrt(float64(c.HeadDim)),
			qkvBias:    c.QKVBias, outBias: c.OutBias,
			preNorm: true, residualScale: 1,
			ffn: ffnPlan{width: c.Intermediate, bias: c.MLPBias},
		}
		if i < len(c.Windows) {
			plan[i].window = c.Windows[i]
		}
		if c.QKNorm {
			plan[i].qkNorm = headNorm
		}
	}
	return plan
}

// amend sets c.plan to layers of the Llama kind as changed by f.
func (c *Config) amend(f func(at int, p *layerPlan)) {
	plan := slices.Clone(c.layerPlans())
	for at := range plan {
		f(at, &plan[at])
	}
	c.plan = plan
}

// addsDirectly reports whether the products of a branch's last projection are added to the
// residual stream as they are.
func (p *layerPlan) addsDirectly() bool { return !p.postNorm && p.residualScale == 1 }

// attentionScale returns the factor of scores for the attention kernels, which work in
// units of base 2, and attentionCap the limit of scores in the same units.
func (p *layerPlan) attentionScale() float32 { return float32(math.Log2E * p.scoreScale) }
func (p *layerPlan) attentionCap() float32   { return float32(math.Log2E * p.scoreCap) }

// tensors returns the names of the family's tensors.
func (c *Config) tensors() tensorTable {
	if f := familyOf(c.Arch); f != nil {
		return f.tensors
	}
	return llamaTensors
}

// ropeConfigs returns the settings of the rotations that plans name.
func (c *Config) ropeConfigs() []RopeConfig { return append([]RopeConfig{c.Rope}, c.moreRopes...) }
