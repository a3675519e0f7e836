package arch

import "fmt"

// Role says what a tensor of a checkpoint is for.
type Role uint8

const (
	RoleEmbed    Role = iota // [Vocab, Hidden]
	RoleLastNorm             // [Hidden]
	RoleHead                 // [Vocab, Hidden]

	// Of a layer.
	RoleAttnNorm
	RoleQ
	RoleQBias
	RoleK
	RoleKBias
	RoleV
	RoleVBias
	RoleO
	RoleOBias
	RoleQNorm
	RoleKNorm
	RoleMLPNorm
	RoleGate
	RoleGateBias
	RoleUp
	RoleUpBias
	RoleDown
	RoleDownBias
	RolePostAttnNorm
	RolePostMLPNorm

	// Of a mixture; names of an expert's own tensors have a verb for its number.
	RoleRouter
	RoleExpertGate
	RoleExpertUp
	RoleExpertDown
	RoleSharedMix
	RoleSharedGate
	RoleSharedUp
	RoleSharedDown

	// Tensors that hold those of several roles.
	roleQKV     // rows of RoleQ, RoleK and RoleV
	roleQKVBias // the same of their biases
	roleGateUp  // rows of RoleGate and RoleUp

	// The same of all experts, [experts, …].
	roleExpertsGateUp
	roleExpertsGate
	roleExpertsUp
	roleExpertsDown

	roleRouterBeside // RoleRouter, where it has another name beside those
)

// LayerRoles is above the roles of tensors of the network, a layer or an expert.
const LayerRoles = roleQKV

// IsNorm reports whether the tensor is the weight of a norm.
func (r Role) IsNorm() bool {
	switch r {
	case RoleLastNorm, RoleAttnNorm, RoleQNorm, RoleKNorm, RoleMLPNorm, RolePostAttnNorm, RolePostMLPNorm:
		return true
	}
	return false
}

// OfExpert reports whether each expert of a mixture has such a tensor.
func (r Role) OfExpert() bool { return r >= RoleExpertGate && r <= RoleExpertDown }

// tensorNames names the tensor of a role in the two conventions. Names of layers' tensors
// follow the layer's prefix. "" means that the convention has no such tensor.
type tensorNames struct {
	role     Role
	hf, gguf string
}

// TensorTable lists the names of a family's tensors.
type TensorTable []tensorNames

// with returns the table with rows added; a row replaces the one of its role.
func (t TensorTable) with(rows ...tensorNames) TensorTable {
	var out TensorTable
	for _, old := range t {
		if (TensorTable(rows)).find(old.role) == nil {
			out = append(out, old)
		}
	}
	return append(out, rows...)
}

func (t TensorTable) find(role Role) *tensorNames {
	for i := range t {
		if t[i].role == role {
			return &t[i]
		}
	}
	return nil
}

// Naming is the convention by which the tensors of a checkpoint are named.
type Naming uint8

const (
	HuggingFace Naming = iota
	GGUF
)

// Name returns the name of a role's tensor, of layer at if it belongs to a layer, and ""
// if the family has none.
func (t TensorTable) Name(n Naming, role Role, at int) string {
	row := t.find(role)
	if row == nil {
		return ""
	}
	name, prefix := row.hf, "model.layers.%d."
	if n == GGUF {
		name, prefix = row.gguf, "blk.%d."
	}
	if name == "" || role < RoleAttnNorm {
		return name
	}
	return fmt.Sprintf(prefix, at) + name
}

// Stacked returns the name of the tensor that holds one of the matrices of all experts of
// layer at, "" if the convention has none.
func (t TensorTable) Stacked(n Naming, at int) string { return t.Name(n, roleExpertsDown, at) }

// Shape returns the shape of a layer's tensor, nil if the plan does not call for it.
func (p *LayerPlan) Shape(c *Config, role Role) []int {
	if !p.has(role) {
		return nil
	}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	switch role {
	case RoleQ:
		return []int{q, c.Hidden}
	case RoleK, RoleV:
		return []int{kv, c.Hidden}
	case RoleO:
		return []int{c.Hidden, q}
	case RoleQBias:
		return []int{q}
	case RoleKBias, RoleVBias:
		return []int{kv}
	case RoleQNorm, RoleKNorm:
		switch {
		case p.QKNorm == HeadNorm:
			return []int{c.HeadDim}
		case role == RoleQNorm:
			return []int{q}
		}
		return []int{kv}
	case RoleGate, RoleUp, RoleExpertGate, RoleExpertUp:
		return []int{p.FFN.Width, c.Hidden}
	case RoleDown, RoleExpertDown:
		return []int{c.Hidden, p.FFN.Width}
	case RoleRouter:
		return []int{p.FFN.Experts, c.Hidden}
	case RoleSharedMix:
		return []int{1, c.Hidden}
	case RoleSharedGate, RoleSharedUp:
		return []int{p.FFN.Shared, c.Hidden}
	case RoleSharedDown:
		return []int{c.Hidden, p.FFN.Shared}
	case RoleGateBias, RoleUpBias:
		return []int{p.FFN.Width}
	}
	return []int{c.Hidden} // norms of the residual stream, biases of what is added to it
}

// has reports whether the plan calls for a layer's tensor.
func (p *LayerPlan) has(role Role) bool {
	switch role {
	case RoleQBias, RoleKBias, RoleVBias:
		return p.qkvBias
	case RoleOBias:
		return p.outBias
	case RoleQNorm, RoleKNorm:
		return p.QKNorm != noNorm
	case RoleGate, RoleUp, RoleDown:
		return p.FFN.Experts == 0
	case RoleGateBias, RoleUpBias, RoleDownBias:
		return p.FFN.bias
	case RoleAttnNorm, RoleMLPNorm:
		return p.preNorm
	case RolePostAttnNorm, RolePostMLPNorm:
		return p.postNorm
	case RoleRouter, RoleExpertGate, RoleExpertUp, RoleExpertDown:
		return p.FFN.Experts > 0
	case RoleSharedMix, RoleSharedGate, RoleSharedUp, RoleSharedDown:
		return p.FFN.Shared > 0
	}
	return true
}

// StoredTensor says where a checkpoint holds the tensor of a place: as a tensor of its own,
// or as rows of a larger one from row on, counted over all leading dimensions (elements of a
// vector).
type StoredTensor struct {
	Name  string
	Shape []int
	Row   int
}

// Stored returns the ways in which checkpoints hold a layer's tensor, of expert x if it
// belongs to one; name returns the name of a role's tensor, "" where the family has none.
func (p *LayerPlan) Stored(c *Config, role Role, x int, name func(Role) string) []StoredTensor {
	var list []StoredTensor
	add := func(in Role, row int, shape ...int) {
		if n := name(in); n != "" {
			list = append(list, StoredTensor{Name: n, Shape: shape, Row: row})
		}
	}
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	e, w := p.FFN.Experts, p.FFN.Width
	switch role {
	case RoleQ:
		add(roleQKV, 0, q+2*kv, c.Hidden)
	case RoleK:
		add(roleQKV, q, q+2*kv, c.Hidden)
	case RoleV:
		add(roleQKV, q+kv, q+2*kv, c.Hidden)
	case RoleQBias:
		add(roleQKVBias, 0, q+2*kv)
	case RoleKBias:
		add(roleQKVBias, q, q+2*kv)
	case RoleVBias:
		add(roleQKVBias, q+kv, q+2*kv)
	case RoleGate:
		add(roleGateUp, 0, 2*w, c.Hidden)
	case RoleUp:
		add(roleGateUp, w, 2*w, c.Hidden)
	case RoleExpertGate:
		add(roleExpertsGateUp, x*2*w, e, 2*w, c.Hidden)
		add(roleExpertsGate, x*w, e, w, c.Hidden)
	case RoleExpertUp:
		add(roleExpertsGateUp, x*2*w+w, e, 2*w, c.Hidden)
		add(roleExpertsUp, x*w, e, w, c.Hidden)
	case RoleExpertDown:
		add(roleExpertsDown, x*c.Hidden, e, c.Hidden, w)
	case RoleRouter:
		add(roleRouterBeside, 0, e, c.Hidden)
	}
	if n := name(role); n != "" {
		if role.OfExpert() {
			n = fmt.Sprintf(n, x)
		}
		list = append(list, StoredTensor{Name: n, Shape: p.Shape(c, role)})
	}
	return list
}

// LayerParams returns how many parameters of the matrices of all layers a pass over the
// given number of tokens reads at most: all, except for those of experts that no token can
// have chosen. 0 tokens stand for any number.
func (c *Config) LayerParams(tokens int) int64 {
	n := int64(0)
	for _, p := range c.Plans() {
		of := min(p.FFN.Experts, tokens*p.FFN.Chosen)
		if tokens == 0 {
			of = p.FFN.Experts
		}
		for role := RoleAttnNorm; role < LayerRoles; role++ {
			if role.OfExpert() {
				n += int64(of) * p.params(c, role)
			} else {
				n += p.params(c, role)
			}
		}
	}
	return n
}

// params returns the number of elements of a layer's matrix, 0 if it has none.
func (p *LayerPlan) params(c *Config, role Role) int64 {
	if shape := p.Shape(c, role); len(shape) == 2 {
		return int64(shape[0]) * int64(shape[1])
	}
	return 0
}
