package model

import "fmt"

// tensorRole says what a tensor of a checkpoint is for.
type tensorRole uint8

const (
	roleEmbed    tensorRole = iota // [Vocab, Hidden]
	roleLastNorm                   // [Hidden]
	roleHead                       // [Vocab, Hidden]

	// Of a layer.
	roleAttnNorm
	roleQ
	roleQBias
	roleK
	roleKBias
	roleV
	roleVBias
	roleO
	roleOBias
	roleQNorm
	roleKNorm
	roleMLPNorm
	roleGate
	roleGateBias
	roleUp
	roleUpBias
	roleDown
	roleDownBias
	rolePostAttnNorm
	rolePostMLPNorm

	// Of a mixture; names of an expert's own tensors have a verb for its number.
	roleRouter
	roleExpertGate
	roleExpertUp
	roleExpertDown
	roleSharedMix
	roleSharedGate
	roleSharedUp
	roleSharedDown

	// Tensors that hold those of several roles.
	roleQKV     // rows of roleQ, roleK and roleV
	roleQKVBias // the same of their biases
	roleGateUp  // rows of roleGate and roleUp

	// The same of all experts, [experts, …].
	roleExpertsGateUp
	roleExpertsGate
	roleExpertsUp
	roleExpertsDown
)

// isNorm reports whether the tensor is the weight of a norm.
func (r tensorRole) isNorm() bool {
	switch r {
	case roleLastNorm, roleAttnNorm, roleQNorm, roleKNorm, roleMLPNorm, rolePostAttnNorm, rolePostMLPNorm:
		return true
	}
	return false
}

// ofExpert reports whether each expert of a mixture has such a tensor.
func (r tensorRole) ofExpert() bool { return r >= roleExpertGate && r <= roleExpertDown }

// tensorNames names the tensor of a role in the two conventions. Names of layers' tensors
// follow the layer's prefix. "" means that the convention has no such tensor.
type tensorNames struct {
	role     tensorRole
	hf, gguf string
}

// tensorTable lists the names of a family's tensors.
type tensorTable []tensorNames

// with returns the table with rows added; a row replaces the one of its role.
func (t tensorTable) with(rows ...tensorNames) tensorTable {
	var out tensorTable
	for _, old := range t {
		if (tensorTable(rows)).find(old.role) == nil {
			out = append(out, old)
		}
	}
	return append(out, rows...)
}

func (t tensorTable) find(role tensorRole) *tensorNames {
	for i := range t {
		if t[i].role == role {
			return &t[i]
		}
	}
	return nil
}

// naming is the convention by which the tensors of a checkpoint are named.
type naming uint8

const (
	hfNames naming = iota
	ggufNames
)

// name returns the name of a role's tensor, of layer at if it belongs to a layer, and ""
// if the family has none.
func (t tensorTable) name(n naming, role tensorRole, at int) string {
	row := t.find(role)
	if row == nil {
		return ""
	}
	name, prefix := row.hf, "model.layers.%d."
	if n == ggufNames {
		name, prefix = row.gguf, "blk.%d."
	}
	if name == "" || role < roleAttnNorm {
		return name
	}
	return fmt.Sprintf(prefix, at) + name
}

// shape returns the shape of a layer's tensor, nil if the plan does not call for it.
func (p *layerPlan) shape(c *Config, role tensorRole) []int {
	if !p.has(role) {
		return nil
	}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	switch role {
	case roleQ:
		return []int{q, c.Hidden}
	case roleK, roleV:
		return []int{kv, c.Hidden}
	case roleO:
		return []int{c.Hidden, q}
	case roleQBias:
		return []int{q}
	case roleKBias, roleVBias:
		return []int{kv}
	case roleQNorm, roleKNorm:
		switch {
		case p.qkNorm == headNorm:
			return []int{c.HeadDim}
		case role == roleQNorm:
			return []int{q}
		}
		return []int{kv}
	case roleGate, roleUp, roleExpertGate, roleExpertUp:
		return []int{p.ffn.width, c.Hidden}
	case roleDown, roleExpertDown:
		return []int{c.Hidden, p.ffn.width}
	case roleRouter:
		return []int{p.ffn.experts, c.Hidden}
	case roleSharedMix:
		return []int{1, c.Hidden}
	case roleSharedGate, roleSharedUp:
		return []int{p.ffn.shared, c.Hidden}
	case roleSharedDown:
		return []int{c.Hidden, p.ffn.shared}
	case roleGateBias, roleUpBias:
		return []int{p.ffn.width}
	}
	return []int{c.Hidden} // norms of the residual stream, biases of what is added to it
}

// has reports whether the plan calls for a layer's tensor.
func (p *layerPlan) has(role tensorRole) bool {
	switch role {
	case roleQBias, roleKBias, roleVBias:
		return p.qkvBias
	case roleOBias:
		return p.outBias
	case roleQNorm, roleKNorm:
		return p.qkNorm != noNorm
	case roleGate, roleUp, roleDown:
		return p.ffn.experts == 0
	case roleGateBias, roleUpBias, roleDownBias:
		return p.ffn.bias
	case roleAttnNorm, roleMLPNorm:
		return p.preNorm
	case rolePostAttnNorm, rolePostMLPNorm:
		return p.postNorm
	case roleRouter, roleExpertGate, roleExpertUp, roleExpertDown:
		return p.ffn.experts > 0
	case roleSharedMix, roleSharedGate, roleSharedUp, roleSharedDown:
		return p.ffn.shared > 0
	}
	return true
}

// storedTensor says where a checkpoint holds the tensor of a place: as a tensor of its own,
// or as rows of a larger one from row on, counted over all leading dimensions (elements of a
// vector).
type storedTensor struct {
	name  string
	shape []int
	row   int
}

// stored returns the ways in which checkpoints hold a layer's tensor, of expert x if it
// belongs to one; name returns the name of a role's tensor, "" where the family has none.
func (p *layerPlan) stored(c *Config, role tensorRole, x int, name func(tensorRole) string) []storedTensor {
	var list []storedTensor
	add := func(in tensorRole, row int, shape ...int) {
		if n := name(in); n != "" {
			list = append(list, storedTensor{name: n, shape: shape, row: row})
		}
	}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	e, w := p.ffn.experts, p.ffn.width
	switch role {
	case roleQ:
		add(roleQKV, 0, q+2*kv, c.Hidden)
	case roleK:
		add(roleQKV, q, q+2*kv, c.Hidden)
	case roleV:
		add(roleQKV, q+kv, q+2*kv, c.Hidden)
	case roleQBias:
		add(roleQKVBias, 0, q+2*kv)
	case roleKBias:
		add(roleQKVBias, q, q+2*kv)
	case roleVBias:
		add(roleQKVBias, q+kv, q+2*kv)
	case roleGate:
		add(roleGateUp, 0, 2*w, c.Hidden)
	case roleUp:
		add(roleGateUp, w, 2*w, c.Hidden)
	case roleExpertGate:
		add(roleExpertsGateUp, x*2*w, e, 2*w, c.Hidden)
		add(roleExpertsGate, x*w, e, w, c.Hidden)
	case roleExpertUp:
		add(roleExpertsGateUp, x*2*w+w, e, 2*w, c.Hidden)
		add(roleExpertsUp, x*w, e, w, c.Hidden)
	case roleExpertDown:
		add(roleExpertsDown, x*c.Hidden, e, c.Hidden, w)
	}
	if n := name(role); n != "" {
		if role.ofExpert() {
			n = fmt.Sprintf(n, x)
		}
		list = append(list, storedTensor{name: n, shape: p.shape(c, role)})
	}
	return list
}

// interleaved returns the number of heads whose rows a checkpoint stores in the order of
// interleaved rotation, 0 if they are in order.
func (c *Config) interleaved(n naming, role tensorRole) int {
	if f := familyOf(c.Arch); n != ggufNames || f == nil || !f.interleaved {
		return 0
	}
	switch role {
	case roleQ, roleQBias:
		return c.Heads
	case roleK, roleKBias:
		return c.KVHeads
	}
	return 0
}
