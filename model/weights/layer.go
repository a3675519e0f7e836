package weights

import (
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// Layer are the tensors of one decoder layer. Matrices are [out, in].
type Layer struct {
	AttnNorm tensor.Tensor // [Hidden]
	Q        tensor.Tensor // [Heads*HeadDim, Hidden]
	K        tensor.Tensor // [KVHeads*HeadDim, Hidden]
	V        tensor.Tensor // [KVHeads*HeadDim, Hidden]
	O        tensor.Tensor // [Hidden, Heads*HeadDim]
	QBias    tensor.Tensor // [Heads*HeadDim] if QKVBias
	KBias    tensor.Tensor // [KVHeads*HeadDim] if QKVBias
	VBias    tensor.Tensor // [KVHeads*HeadDim] if QKVBias
	OBias    tensor.Tensor // [Hidden] if OutBias
	QNorm    tensor.Tensor // [HeadDim] if QKNorm
	KNorm    tensor.Tensor // [HeadDim] if QKNorm

	MLPNorm  tensor.Tensor // [Hidden]
	Gate     tensor.Tensor // [Intermediate, Hidden]
	Up       tensor.Tensor // [Intermediate, Hidden]
	Down     tensor.Tensor // [Hidden, Intermediate]
	GateBias tensor.Tensor // [Intermediate] if MLPBias
	UpBias   tensor.Tensor // [Intermediate] if MLPBias
	DownBias tensor.Tensor // [Hidden] if MLPBias

	PostAttnNorm tensor.Tensor // [Hidden] in families with norms after the branches
	PostMLPNorm  tensor.Tensor // [Hidden]

	// In a mixture of experts, instead of Gate, Up and Down.
	Router    tensor.Tensor // [experts, Hidden]
	Experts   []Expert
	Shared    Expert        // of the unit that is added for every token
	SharedMix tensor.Tensor // [1, Hidden] its weight
}

// Expert are the matrices of one unit of a mixture of experts.
type Expert struct {
	Gate tensor.Tensor // [width, Hidden]
	Up   tensor.Tensor // [width, Hidden]
	Down tensor.Tensor // [Hidden, width]
}

// Each calls f for every tensor of a layer, present or not, in a fixed order.
func (l *Layer) Each(f func(role arch.Role, t *tensor.Tensor)) {
	f(arch.RoleAttnNorm, &l.AttnNorm)
	f(arch.RoleQ, &l.Q)
	f(arch.RoleQBias, &l.QBias)
	f(arch.RoleK, &l.K)
	f(arch.RoleKBias, &l.KBias)
	f(arch.RoleV, &l.V)
	f(arch.RoleVBias, &l.VBias)
	f(arch.RoleO, &l.O)
	f(arch.RoleOBias, &l.OBias)
	f(arch.RoleQNorm, &l.QNorm)
	f(arch.RoleKNorm, &l.KNorm)
	f(arch.RoleMLPNorm, &l.MLPNorm)
	f(arch.RoleGate, &l.Gate)
	f(arch.RoleGateBias, &l.GateBias)
	f(arch.RoleUp, &l.Up)
	f(arch.RoleUpBias, &l.UpBias)
	f(arch.RoleDown, &l.Down)
	f(arch.RoleDownBias, &l.DownBias)
	f(arch.RolePostAttnNorm, &l.PostAttnNorm)
	f(arch.RolePostMLPNorm, &l.PostMLPNorm)
	f(arch.RoleRouter, &l.Router)
	f(arch.RoleSharedMix, &l.SharedMix)
	f(arch.RoleSharedGate, &l.Shared.Gate)
	f(arch.RoleSharedUp, &l.Shared.Up)
	f(arch.RoleSharedDown, &l.Shared.Down)
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
