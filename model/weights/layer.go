package weights

import (
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// Layer are the tensors of one decoder layer.
type Layer struct {
	Tensors [arch.LayerRoles]tensor.Tensor // by role; those that the layer's plan does not call for are zero
	Experts []Expert                       // of a mixture, those that the router chooses from
}

// Expert are the matrices of one unit of a mixture of experts.
type Expert struct {
	Gate tensor.Tensor // [width, Hidden]
	Up   tensor.Tensor // [width, Hidden]
	Down tensor.Tensor // [Hidden, width]
}

// Each calls f for every tensor of a layer but those of the experts, present or not, in a
// fixed order.
func (l *Layer) Each(f func(role arch.Role, t *tensor.Tensor)) {
	for role := arch.RoleAttnNorm; role < arch.LayerRoles; role++ {
		if !role.OfExpert() {
			f(role, &l.Tensors[role])
		}
	}
}

// EachExpert calls f for every tensor of the experts chosen by the router, in a fixed
// order.
func (l *Layer) EachExpert(f func(role arch.Role, x int, t *tensor.Tensor)) {
	for x := range l.Experts {
		f(arch.RoleExpertGate, x, &l.Experts[x].Gate)
		f(arch.RoleExpertUp, x, &l.Experts[x].Up)
		f(arch.RoleExpertDown, x, &l.Experts[x].Down)
	}
}
