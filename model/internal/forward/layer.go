package forward

import (
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// The forward pass is written once, over rows: a row is one token, and rows of
// several sequences may be computed together. forwardLayer gives the sequence of
// operations; a backend carries them out.

// decoder is one decoder layer with weights as a backend holds them: M is its
// matrix type, V its vector type. Absent biases and norms are zero values.
type decoder[M, V any] struct {
	plan *arch.LayerPlan

	attnNorm, mlpNorm         V // [Hidden], before the branches
	postAttnNorm, postMLPNorm V // [Hidden], after them
	qNorm, kNorm              V // [HeadDim], or of all heads

	qkv  []linear[M, V] // of actNorm, [Heads*HeadDim, Hidden], [KVHeads*HeadDim, Hidden] twice
	rows []int32        // order in which a backend holds the rows of Q and K, nil: as published
	out  []linear[M, V] // of actAttention, [Hidden, Heads*HeadDim]
	down []linear[M, V] // of actMLP, [Hidden, Intermediate]

	gate, up         M // [Intermediate, Hidden]
	gateBias, upBias V // [Intermediate]

	router    M           // [experts, Hidden]
	experts   []expert[M] // one by one or, on a device, in one stack; the shared one, if there is one, comes last
	sharedMix M           // [1, Hidden], the weight of the shared one
}

// expert is one unit of a mixture.
type expert[M any] struct {
	gate, up M // [width, Hidden]
	down     M // [Hidden, width]
}

// linear is one matrix product: dst = source·wᵀ + bias.
type linear[M, V any] struct {
	w    M
	bias V
	dst  act
}

// newDecoder makes a layer from stored weights. vector and norm, which makes the weights of
// a norm, are called for absent tensors, too.
func newDecoder[M, V any](p *arch.LayerPlan, l *weights.Layer, matrix func(tensor.Tensor) M, experts func([]weights.Expert) []expert[M], vector, norm func(tensor.Tensor) V) decoder[M, V] {
	add := actX
	if !p.AddsDirectly() {
		add = actBranch
	}
	mat := func(r arch.Role) M { return matrix(l.Tensors[r]) }
	vec := func(r arch.Role) V { return vector(l.Tensors[r]) }
	weight := func(r arch.Role) V { return norm(l.Tensors[r]) }
	d := decoder[M, V]{
		plan:     p,
		attnNorm: weight(arch.RoleAttnNorm), postAttnNorm: weight(arch.RolePostAttnNorm),
		mlpNorm: weight(arch.RoleMLPNorm), postMLPNorm: weight(arch.RolePostMLPNorm),
		qNorm: weight(arch.RoleQNorm), kNorm: weight(arch.RoleKNorm),
		qkv: []linear[M, V]{
			{mat(arch.RoleQ), vec(arch.RoleQBias), actQ}, {mat(arch.RoleK), vec(arch.RoleKBias), actK}, {mat(arch.RoleV), vec(arch.RoleVBias), actV},
		},
		out: []linear[M, V]{{mat(arch.RoleO), vec(arch.RoleOBias), add}},
	}
	if p.FFN.Experts == 0 {
		d.down = []linear[M, V]{{mat(arch.RoleDown), vec(arch.RoleDownBias), add}}
		d.gate, d.up, d.gateBias, d.upBias = mat(arch.RoleGate), mat(arch.RoleUp), vec(arch.RoleGateBias), vec(arch.RoleUpBias)
		return d
	}
	d.router, d.experts = mat(arch.RoleRouter), experts(l.Experts)
	if p.FFN.Shared > 0 {
		d.sharedMix = mat(arch.RoleSharedMix)
		d.experts = append(d.experts, expert[M]{mat(arch.RoleSharedGate), mat(arch.RoleSharedUp), mat(arch.RoleSharedDown)})
	}
	return d
}

// backend computes the operations of a layer on the rows of a pass. They read and
// write the activations that package kernels names.
type backend[M, V any] interface {
	// norm sets actNorm to the RMS-normalised actX, or to actX itself if there is no w.
	norm(w V)
	// multiply computes products of src, adding them to their dst if add is set.
	multiply(src act, add bool, linears []linear[M, V])
	// HeadNorm normalises every head of a in place, FullNorm all heads together.
	headNorm(a act, w V)
	fullNorm(a act, w V)
	// reorder brings the elements of each head of queries and keys into an order.
	reorder(order []int32)
	// ropeAppend rotates queries and keys and appends keys and values to the
	// caches of the spans.
	ropeAppend(at int) error
	// attend sets actAttention.
	attend(at int)
	// gateUp sets actMLP to the products of actNorm with gate and up, joined as the plan's
	// activation says.
	gateUp(p *arch.LayerPlan, gate, up M, gateBias, upBias V)
	// mixture sets actBranch to the weighted sum of the experts that a layer's router
	// chooses.
	mixture(l *decoder[M, V])
	// addBranch adds actBranch, normalised if there is a w, times scale to actX.
	addBranch(w V, scale float32)
	// queriesReady is called when actQ holds a layer's queries before rotation,
	// attentionReady when the layer's attention is complete: the points at which
	// watchers look.
	queriesReady(at int) error
	attentionReady(at int) error
}

// forwardLayer runs layer at over the rows of a pass: actX, the residual
// stream, is updated, and keys and values are appended to the spans' caches.
func forwardLayer[M, V any](b backend[M, V], at int, l *decoder[M, V]) error {
	p := l.plan
	direct := p.AddsDirectly()
	b.norm(l.attnNorm)
	b.multiply(actNorm, false, l.qkv)
	if l.rows != nil {
		b.reorder(l.rows)
	}
	switch p.QKNorm {
	case arch.HeadNorm:
		b.headNorm(actQ, l.qNorm)
		b.headNorm(actK, l.kNorm)
	case arch.FullNorm:
		b.fullNorm(actQ, l.qNorm)
		b.fullNorm(actK, l.kNorm)
	}
	if p.Order != nil {
		b.reorder(p.Order)
	}
	if err := b.queriesReady(at); err != nil {
		return err
	}
	if err := b.ropeAppend(at); err != nil {
		return err
	}
	b.attend(at)
	if err := b.attentionReady(at); err != nil {
		return err
	}
	b.multiply(actAttention, direct, l.out)
	if !direct {
		b.addBranch(l.postAttnNorm, float32(p.ResidualScale))
	}
	b.norm(l.mlpNorm)
	if p.FFN.Experts > 0 {
		b.mixture(l)
		b.addBranch(l.postMLPNorm, float32(p.ResidualScale))
		return nil
	}
	b.gateUp(p, l.gate, l.up, l.gateBias, l.upBias)
	b.multiply(actMLP, direct, l.down)
	if !direct {
		b.addBranch(l.postMLPNorm, float32(p.ResidualScale))
	}
	return nil
}

// watchQueries shows the watchers the queries of layer at before rotation.
func (p *passRows) watchQueries(at int) {
	p.at = at
	for i := range p.spans {
		if g := &p.spans[i]; g.Watch != nil {
			g.Watch.beforeRope(p, g)
		}
	}
}

// watchAttention shows the watchers the rotated queries, once their keys are in the
// cache.
func (p *passRows) watchAttention(at int) {
	p.at = at
	for i := range p.spans {
		if g := &p.spans[i]; g.Watch != nil {
			g.Watch.afterAttention(p, g)
		}
	}
}
