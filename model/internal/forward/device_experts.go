package forward

import (
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// deviceMixture are the buffers of a mixture of experts on a device. As on the processor, rows
// are those of a tile of the pass, and a row's branch is the sum of its experts in ascending
// order, the shared one last.
type deviceMixture struct {
	cap int // rows of a tile, at most

	logits           kernels.Buffer // [cap][experts] of the router
	experts, weights kernels.Buffer // [cap][chosen]
	inner            kernels.Buffer // [cap*chosen][Width] gated products
	out              kernels.Buffer // [cap*chosen][Hidden]

	shared kernels.Buffer // [cap][Shared] gated products of the shared expert, nil if there is none
	gate   kernels.Buffer // [cap][1] its weight, before the logistic function
}

// mixturePlan returns the plan of the layers with experts, which have one shape in every
// family, nil if there are none.
func (net *Network) mixturePlan() *arch.FFNPlan {
	for i := range net.Plan {
		if p := &net.Plan[i].FFN; p.Experts > 0 {
			return p
		}
	}
	return nil
}

// mixtureColumns returns the numbers that a device has for a row of a mixture.
func (net *Network) mixtureColumns() int {
	p := net.mixturePlan()
	if p == nil {
		return 0
	}
	n := p.Experts + p.Chosen*(2+p.Width+net.Config.Hidden)
	if p.Shared > 0 {
		n += p.Shared + 1
	}
	return n
}

// newDeviceMixture makes the buffers for passes of up to rows rows.
func (net *Network) newDeviceMixture(rows int, buffer func(t tensor.Type, rows, cols int) kernels.Buffer) deviceMixture {
	p := net.mixturePlan()
	if p == nil {
		return deviceMixture{}
	}
	x, operand := deviceMixture{cap: min(rows, MixtureRows)}, net.deviceOperand()
	x.logits = buffer(tensor.F32, x.cap, p.Experts)
	x.experts, x.weights = buffer(tensor.F32, x.cap, p.Chosen), buffer(tensor.F32, x.cap, p.Chosen)
	x.inner, x.out = buffer(operand, x.cap*p.Chosen, p.Width), buffer(tensor.F32, x.cap*p.Chosen, net.Config.Hidden)
	if p.Shared > 0 {
		x.shared, x.gate = buffer(operand, x.cap, p.Shared), buffer(tensor.F32, x.cap, 1)
	}
	return x
}

// all returns the buffers, some of which may be nil.
func (x *deviceMixture) all() []kernels.Buffer {
	return []kernels.Buffer{x.logits, x.experts, x.weights, x.inner, x.out, x.shared, x.gate}
}

// stackedExperts returns the experts of a layer as one whose matrices are stacks.
func stackedExperts(stack func(...kernels.Matrix) kernels.DeviceMatrix) func([]weights.Expert) []expert[kernels.DeviceMatrix] {
	return func(list []weights.Expert) []expert[kernels.DeviceMatrix] {
		of := func(role func(*weights.Expert) tensor.Tensor) kernels.DeviceMatrix {
			all := make([]kernels.Matrix, len(list))
			for i := range list {
				all[i] = matrix(role(&list[i]))
			}
			return stack(all...)
		}
		return []expert[kernels.DeviceMatrix]{{
			gate: of(func(x *weights.Expert) tensor.Tensor { return x.Gate }),
			up:   of(func(x *weights.Expert) tensor.Tensor { return x.Up }),
			down: of(func(x *weights.Expert) tensor.Tensor { return x.Down }),
		}}
	}
}

// mixedExperts reports whether matrices of a role have different types among the experts of a
// layer, which a stack cannot hold.
func mixedExperts(l *weights.Layer) bool {
	mixed, types := false, map[arch.Role]tensor.Type{}
	l.EachExpert(func(role arch.Role, _ int, t *tensor.Tensor) {
		first, seen := types[role]
		mixed = mixed || seen && first != t.Type
		types[role] = t.Type
	})
	return mixed
}

func (d *deviceRun) mixture(l *deviceDecoder) {
	for first := 0; first < d.recorded; first += d.mix.cap {
		n := min(d.mix.cap, d.recorded-first)
		d.mixExperts(l, d.act(actBranch).Part(first, n), d.act(actNorm).Part(first, n))
	}
}

// mixExperts sets a tile of the branch to the sum of the experts of rows x.
func (d *deviceRun) mixExperts(l *deviceDecoder, branch, x kernels.Rows) {
	m, p := &d.mix, &l.plan.FFN
	of := func(b kernels.Buffer, rows int) kernels.Rows { return kernels.Rows{Buffer: b, N: rows} }
	logits, experts, weights := of(m.logits, x.N), of(m.experts, x.N), of(m.weights, x.N)
	inner, out := of(m.inner, x.N*p.Chosen), of(m.out, x.N*p.Chosen)

	e := d.e.(kernels.ExpertEncoder)
	d.product(logits, x, l.router)
	e.Route(experts, weights, logits, p.Normalise)
	e.ExpertGateUp(inner, x, experts, p.Activation, l.experts[0].gate, l.experts[0].up)
	e.ExpertMatMul(out, inner, experts, l.experts[0].down)
	e.ExpertSum(branch, out, weights)
	if p.Shared == 0 {
		return
	}
	shared, gate := of(m.shared, x.N), of(m.gate, x.N)
	out = out.Part(0, x.N)
	d.product(gate, x, l.sharedMix)
	d.e.GateUp(shared, x, p.Activation, kernels.Linear{W: l.experts[1].gate}, kernels.Linear{W: l.experts[1].up})
	d.product(out, shared, l.experts[1].down)
	e.AddGated(branch, out, gate)
}

// product sets dst to the product of x and w.
func (d *deviceRun) product(dst, x kernels.Rows, w kernels.DeviceMatrix) {
	d.products = append(d.products[:0], kernels.Product{Linear: kernels.Linear{W: w}, Dst: dst})
	d.e.MatMul(x, false, d.products)
}
