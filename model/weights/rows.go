package weights

import (
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// RowOrder lists the stored rows of a query or key head in the order in which models are
// published: row i of the head is row order[i] of those stored. nil: as published.
//
// Files of some architectures have the rows that rotate together side by side. They stay so
// where weights are mapped: the forward pass orders the products, which are few numbers.
type RowOrder []int32

// interleaved returns the order of heads of d rows that rotate as two halves and are stored
// with partners side by side: [2, d/2] as [d/2, 2].
func interleaved(d int) RowOrder {
	order := make(RowOrder, d)
	for i := range order {
		order[i] = int32(2*(i%(d/2)) + i/(d/2))
	}
	return order
}

// of returns the order of the rows of a role's tensor.
func (o RowOrder) of(role arch.Role) RowOrder {
	switch role {
	case arch.RoleQ, arch.RoleK, arch.RoleQBias, arch.RoleKBias:
		return o
	}
	return nil
}

// copy sets dst to the bytes of t from byte at on, as if its rows were in order.
func (o RowOrder) copy(dst []byte, t tensor.Tensor, at int) {
	if o == nil {
		copy(dst, t.Data[at:])
		return
	}
	size, d := len(t.Data)/t.Shape[0], len(o)
	for len(dst) > 0 {
		row, col := at/size, at%size
		from := (row-row%d+int(o[row%d]))*size + col
		n := copy(dst, t.Data[from:from+size-col])
		dst, at = dst[n:], at+n
	}
}

// apply returns t with its rows in order, in new memory if they are not stored so.
func (o RowOrder) apply(t tensor.Tensor) tensor.Tensor {
	if o == nil || t.IsZero() {
		return t
	}
	data := make([]byte, len(t.Data))
	o.copy(data, t, 0)
	t.Data = data
	return t
}

// Ordered returns the tensors of a layer with the rows of each query and key head in order,
// which lists those published; nil is the published order. Tensors whose rows are not stored
// so are copied.
func (w *Weights) Ordered(at int, order RowOrder) *Layer {
	out := w.Layers[at]
	out.Each(func(role arch.Role, t *tensor.Tensor) {
		*t = order.of(role).apply(w.Rows.of(role).apply(*t))
	})
	return &out
}
