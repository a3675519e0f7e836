package model

import "github.com/lukv/lukv/tensor"

// LayerWeights are the tensors of one decoder layer. Matrices are [out, in].
type LayerWeights struct {
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
	Experts   []expertWeights
	Shared    expertWeights // of the unit that is added for every token
	SharedMix tensor.Tensor // [1, Hidden] its weight
}

// expertWeights are the matrices of one unit of a mixture of experts.
type expertWeights struct {
	Gate tensor.Tensor // [width, Hidden]
	Up   tensor.Tensor // [width, Hidden]
	Down tensor.Tensor // [Hidden, width]
}

// each calls f for every tensor of a layer, present or not, in a fixed order.
func (l *LayerWeights) each(f func(role tensorRole, t *tensor.Tensor)) {
	f(roleAttnNorm, &l.AttnNorm)
	f(roleQ, &l.Q)
	f(roleQBias, &l.QBias)
	f(roleK, &l.K)
	f(roleKBias, &l.KBias)
	f(roleV, &l.V)
	f(roleVBias, &l.VBias)
	f(roleO, &l.O)
	f(roleOBias, &l.OBias)
	f(roleQNorm, &l.QNorm)
	f(roleKNorm, &l.KNorm)
	f(roleMLPNorm, &l.MLPNorm)
	f(roleGate, &l.Gate)
	f(roleGateBias, &l.GateBias)
	f(roleUp, &l.Up)
	f(roleUpBias, &l.UpBias)
	f(roleDown, &l.Down)
	f(roleDownBias, &l.DownBias)
	f(rolePostAttnNorm, &l.PostAttnNorm)
	f(rolePostMLPNorm, &l.PostMLPNorm)
	f(roleRouter, &l.Router)
	f(roleSharedMix, &l.SharedMix)
	f(roleSharedGate, &l.Shared.Gate)
	f(roleSharedUp, &l.Shared.Up)
	f(roleSharedDown, &l.Shared.Down)
}

// eachExpert calls f for every tensor of the experts chosen by the router, in a fixed
// order.
func (l *LayerWeights) eachExpert(f func(role tensorRole, x int, t *tensor.Tensor)) {
	for x := range l.Experts {
		f(roleExpertGate, x, &l.Experts[x].Gate)
		f(roleExpertUp, x, &l.Experts[x].Up)
		f(roleExpertDown, x, &l.Experts[x].Down)
	}
}
