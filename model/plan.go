package model

import "math"

// layerPlan says what a decoder layer computes. The forward pass walks the plans of a
// model's layers and knows no model family. A layer adds two branches, attention and
// feed-forward, to its input, the residual stream; each branch begins with an RMS norm.
type layerPlan struct {
	// window is the attention window W in tokens: position i sees the W positions up to
	// and including itself. 0 is full attention.
	window int

	qkNorm     normKind // of queries and keys, before rotation
	scoreScale float64  // factor of the products of queries and keys

	qkvBias, outBias bool // biases of the projections

	ffn ffnPlan
}

// attentionScale returns the factor of scores for the attention kernels, which work in
// units of base 2.
func (p *layerPlan) attentionScale() float32 { return float32(math.Log2E * p.scoreScale) }

// normKind says over which elements a norm of queries and keys is taken.
type normKind uint8

const (
	noNorm   normKind = iota
	headNorm          // each head by itself
)

// ffnPlan says what the feed-forward branch of a layer computes:
// down·(silu(gate·x)·(up·x)).
type ffnPlan struct {
	width int  // rows of gate and up
	bias  bool // biases of the three projections
}

// layerPlans returns the plan of every layer: what the config's family made or, in configs
// made by hand, layers of the Llama kind with the biases, norms and windows of c.
func (c *Config) layerPlans() []layerPlan {
	if c.plan != nil {
		return c.plan
	}
	plan := make([]layerPlan, c.Layers)
	for i := range plan {
		plan[i] = layerPlan{
			scoreScale: 1 / math.Sqrt(float64(c.HeadDim)),
			qkvBias:    c.QKVBias, outBias: c.OutBias,
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

// tensors returns the names of the family's tensors.
func (c *Config) tensors() tensorTable {
	if f := familyOf(c.Arch); f != nil {
		return f.tensors
	}
	return llamaTensors
}
