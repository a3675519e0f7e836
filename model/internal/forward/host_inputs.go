package forward

import (
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
)

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
		h.net.inputs(h.at, role, x.Float32s(i, cols))
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
