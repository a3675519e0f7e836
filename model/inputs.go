package model

import (
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
)

// WithInputs calls see with the inputs of the matrices of layers, one row at a time: x, [columns], is
// what a token's product with the matrix of the role in the layer reads, and see must not
// keep it. Matrices that read the same are told once: arch.RoleQ stands for queries, keys
// and values, arch.RoleGate for all that read the norm before a feed-forward unit, experts
// included, and arch.RoleExpertDown for the last matrices of all experts but the shared one.
//
// It is for calibration, and needs PrecisionF32 and the processor. Passes of sessions that
// work at the same time call see at the same time.
func WithInputs(see func(layer int, role arch.Role, x []float32)) Option {
	return func(o *options) { o.inputs = see }
}

// seeProducts shows the rows that a product reads.
func (h *hostRun) seeProducts(src act, dst act) {
	role := arch.RoleQ
	switch {
	case dst == actLogits:
		return
	case src == actAttention:
		role = arch.RoleO
	case src == actMLP:
		role = arch.RoleDown
	}
	h.see(role, h.operand(src), h.linears[0].w.Cols, 0, h.rows)
}

// see shows rows from lo to hi of an operand.
func (h *hostRun) see(role arch.Role, x *kernels.Operand, cols, lo, hi int) {
	for i := lo; i < hi && !h.stop.Load(); i++ {
		h.m.inputs(h.at, role, x.Float32s(i, cols))
	}
}

// seeExperts shows what the last matrices of experts read.
func (h *hostRun) seeExperts() {
	x, p := h.experts, &h.experts.l.plan.FFN
	h.see(arch.RoleExpertDown, &x.inner, p.Width, 0, x.starts[p.Experts])
	if p.Shared > 0 {
		h.see(arch.RoleSharedDown, &x.inner, p.Shared, x.starts[p.Experts], x.assigned())
	}
}
