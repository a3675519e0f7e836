package weights

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"unsafe"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// Weights are the tensors of a model, as stored: views of the mapped checkpoint
// of type F32, F16, BF16 or blocks of integers, which may differ from tensor to tensor. Tensors
// that the configuration does not call for are zero Tensors. All start at a
// multiple of their element size.
type Weights struct {
	Embed  tensor.Tensor // [Vocab, Hidden]
	Layers []Layer
	Norm   tensor.Tensor // [Hidden]
	Head   tensor.Tensor // [Vocab, Hidden], Embed itself when tied
	Rows   RowOrder      // of Q and K and their biases

	names  arch.TensorTable // of the model's family
	unused []string
	source source   // nil for weights made in memory
	copies [][]byte // matrices that were repacked, outside the Go heap
}

// Each calls f for every tensor that is present, in a fixed order, with its name
// in the Hugging Face layout. A tied Head is not visited separately.
func (w *Weights) Each(f func(name string, t tensor.Tensor)) {
	w.each(func(name string, t tensor.Tensor, _ RowOrder) { f(name, t) })
}

// Published is Each with rows in the order in which models are published: a tensor that is
// stored in another is a copy, which f may keep.
func (w *Weights) Published(f func(name string, t tensor.Tensor)) {
	w.each(func(name string, t tensor.Tensor, rows RowOrder) { f(name, rows.apply(t)) })
}

// each is Each with the order of the rows of every tensor.
func (w *Weights) each(f func(name string, t tensor.Tensor, rows RowOrder)) {
	names := w.names
	if names == nil {
		names = new(arch.Config).Tensors() // those of most families
	}
	visit := func(role arch.Role, at int, t *tensor.Tensor) {
		if !t.IsZero() {
			f(names.Name(arch.HuggingFace, role, at), *t, w.Rows.of(role))
		}
	}
	expert := func(at int) func(role arch.Role, x int, t *tensor.Tensor) {
		return func(role arch.Role, x int, t *tensor.Tensor) {
			f(fmt.Sprintf(names.Name(arch.HuggingFace, role, at), x), *t, nil)
		}
	}
	visit(arch.RoleEmbed, 0, &w.Embed)
	for at := range w.Layers {
		w.Layers[at].Each(func(role arch.Role, t *tensor.Tensor) { visit(role, at, t) })
		w.Layers[at].EachExpert(expert(at))
	}
	visit(arch.RoleLastNorm, 0, &w.Norm)
	if !w.Tied() {
		visit(arch.RoleHead, 0, &w.Head)
	}
}

// Tied reports whether Head is the same memory as Embed.
func (w *Weights) Tied() bool {
	return unsafe.SliceData(w.Head.Data) == unsafe.SliceData(w.Embed.Data)
}

// Bytes returns the number of bytes of all tensors, a tied Head counted once.
func (w *Weights) Bytes() int64 {
	n := int64(0)
	w.Each(func(_ string, t tensor.Tensor) { n += int64(len(t.Data)) })
	return n
}

// Stored yields the tensors of the checkpoint by the names and in the forms in which it
// stores them, used or not; none for weights made in memory.
func (w *Weights) Stored() iter.Seq2[string, tensor.Tensor] {
	return func(yield func(string, tensor.Tensor) bool) {
		if w.source == nil {
			return
		}
		for _, name := range w.source.Names() {
			if t, _, ok := w.source.Tensor(name); ok && !yield(name, t) {
				return
			}
		}
	}
}

// Unused returns the names of the checkpoint's tensors that the network does
// not use, sorted.
func (w *Weights) Unused() []string { return slices.Clone(w.unused) }

// Close unmaps the checkpoint; no tensor may be used afterwards. Closing again
// does nothing.
func (w *Weights) Close() error {
	if w.source == nil {
		return nil
	}
	return errors.Join(w.freeCopies(), w.source.Close())
}
