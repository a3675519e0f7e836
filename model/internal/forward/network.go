// Package forward computes the layers of a model: rows of several sequences through one
// layer or all of them, on the processor, on a device, or on both in turn. It knows caches
// and what watches a pass, but nothing of sessions, policies or who asked.
//
// A [Network] is a checkpoint ready to compute, a [Run] one pass over it with the scratch
// of its backends, a [Span] the rows of one sequence in the pass, a [Stream] the hidden
// states of a whole prompt that goes layer by layer, and a [Watcher] what metrics keep of
// the queries and the attention that pass by.
package forward

import (
	"math"
	"slices"

	"github.com/lukv/lukv/internal/workers"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// Network is what passes compute: the plans of the layers with their weights. It is safe for
// concurrent use. Its matrices are views of the checkpoint, its vectors are widened copies.
type Network struct {
	Config *arch.Config
	Plan   []arch.LayerPlan // of every layer
	CPU    kernels.CPU
	Pool   *workers.Pool // that passes run on; set and closed by the caller
	Ropes  []*arch.Rope  // that layers' plans name
	Device *Device       // nil without one; set by OpenDevice
	Wide   []bool        // layers whose keys need bf16 in a cache of integers, nil: none

	still      *arch.Rope     // of layers without one
	embed      kernels.Matrix // [Vocab, Hidden]
	embedScale float32        // of embeddings
	norm       []float32      // [Hidden]
	head       []hostLinear   // the one from actNorm to actLogits, [Vocab, Hidden]
	layers     []hostDecoder
	bf16       bool // see Options
	inputs     func(layer int, role arch.Role, x []float32)

	// What the operands of products must hold: those of width Hidden or
	// Heads*HeadDim, and actMLP.
	narrowForms, innerForms kernels.Forms
}

// Options say how a network computes.
type Options struct {
	CPU   kernels.CPU
	Forms kernels.Forms // that operands of products may have

	// BF16 rounds rotated queries and attention weights to bf16 for caches of that type.
	BF16 bool

	// Inputs, if not nil, is told what the matrices of layers on the processor read, row by
	// row. Operands must then have the form of f32.
	Inputs func(layer int, role arch.Role, x []float32)
}

// New returns the network of weights that have been checked against a config.
func New(c *arch.Config, w *weights.Weights, o Options) (*Network, error) {
	ropes, err := arch.NewRopes(c)
	if err != nil {
		return nil, err
	}
	net := &Network{
		Config: c, Plan: slices.Clone(c.Plans()), CPU: o.CPU, Ropes: ropes,
		still: arch.NoRotation(c.HeadDim), embed: matrix(w.Embed), embedScale: c.Scalars.EmbeddingScale(w.Embed.Type),
		head: []hostLinear{{w: matrix(w.Head), dst: actLogits}}, bf16: o.BF16, Wide: findLargeBiases(w.Layers), inputs: o.Inputs,
	}
	net.norm = net.normWeights(w.Norm)
	net.makeLayers(w, o.Forms)
	return net, nil
}

// makeLayers makes the processor's form of all layers from stored weights.
func (net *Network) makeLayers(w *weights.Weights, forms kernels.Forms) {
	reads := func(role arch.Role, t *tensor.Tensor) {
		switch form := kernels.FormFor(t.Type, forms); {
		case len(t.Shape) != 2:
		case role == arch.RoleDown || role == arch.RoleExpertDown || role == arch.RoleSharedDown:
			net.innerForms |= form
		default:
			net.narrowForms |= form
		}
	}
	reads(arch.RoleHead, &w.Head)
	net.layers = make([]hostDecoder, net.Config.Layers)
	for i := range net.layers {
		l, p := &w.Layers[i], &net.Plan[i]
		if p.Rope != arch.NoRope && p.Order == nil {
			p.Order = net.Ropes[p.Rope].Order()
		}
		net.layers[i] = newDecoder(p, l, matrix, hostExperts, vector, net.normWeights)
		net.layers[i].rows = w.Rows
		l.Each(reads)
		l.EachExpert(func(role arch.Role, _ int, t *tensor.Tensor) { reads(role, t) })
	}
}

// Rope returns the rotation of a layer. Without one it turns nothing.
func (net *Network) Rope(layer int) *arch.Rope {
	if i := net.Plan[layer].Rope; i != arch.NoRope {
		return net.Ropes[i]
	}
	return net.still
}

// Dynamic reports whether a rotation depends on the length of the sequence.
func (net *Network) Dynamic() bool { return slices.ContainsFunc(net.Ropes, (*arch.Rope).Dynamic) }

// RoundsAttention reports whether rotated queries and attention weights are rounded to bf16 for
// caches of a type, like other operands of products with bf16.
func (net *Network) RoundsAttention(cache tensor.Type) bool { return net.bf16 && cache == tensor.BF16 }

// normWeights widens the weights of a norm, nil if t is absent.
func (net *Network) normWeights(t tensor.Tensor) []float32 {
	w := vector(t)
	if offset := net.Config.Scalars.NormOffset; offset != 0 {
		w = slices.Clone(w)
		for i := range w {
			w[i] += offset
		}
	}
	return w
}

func matrix(t tensor.Tensor) kernels.Matrix {
	return kernels.Matrix{Type: t.Type, Rows: t.Shape[0], Cols: t.Shape[1], Data: t.Data}
}

// vector widens a vector, nil if t is absent.
func vector(t tensor.Tensor) []float32 {
	if t.Data == nil {
		return nil
	}
	return t.Float32s(nil)
}

// largeKeyBias is the magnitude of a bias of the key projection from which on a layer's keys are
// cached in bf16 where others are integers. Such a bias is added to every key: it sets the scale
// of the whole row, and the part that differs from key to key is lost. In Qwen2 and Qwen2.5
// the first and last layers have biases in the hundreds, where elsewhere they are small.
const largeKeyBias = 50

// WideKeys returns the layers whose keys a cache with keys of a type holds in bf16, nil for none.
func (net *Network) WideKeys(keys tensor.Type) []bool {
	if !(kernels.PageLayout{Type: keys}).IntKeys() {
		return nil
	}
	return net.Wide
}

// findLargeBiases returns the layers with a large bias of keys, nil if there are none.
func findLargeBiases(layers []weights.Layer) []bool {
	var wide []bool
	for at := range layers {
		if largestElement(layers[at].Tensors[arch.RoleKBias]) < largeKeyBias {
			continue
		}
		if wide == nil {
			wide = make([]bool, len(layers))
		}
		wide[at] = true
	}
	return wide
}

func largestElement(t tensor.Tensor) float64 {
	if t.Data == nil {
		return 0
	}
	most := 0.0
	for _, x := range t.Float32s(nil) {
		most = max(most, math.Abs(float64(x)))
	}
	return most
}

// attentionInput sets dst to what the attention of a layer reads where the residual stream
// is x, both [Hidden].
func (net *Network) attentionInput(dst, x []float32, layer int) {
	net.normalise(dst, x, net.layers[layer].attnNorm)
}

// InputNorms appends the L2 norms of the inputs to a layer's attention for n rows of a
// stream in host memory, from first on.
func (net *Network) InputNorms(dst []float32, layer int, st *Stream, first, n int) []float32 {
	row := make([]float32, net.Config.Hidden)
	for i := range n {
		net.attentionInput(row, st.hostRows(net, first+i, 1), layer)
		var sum float64
		for _, v := range row {
			sum += float64(float64(v) * float64(v))
		}
		dst = append(dst, float32(math.Sqrt(sum)))
	}
	return dst
}

// OutputRows widens the part of rows [lo,hi) of a layer's output projection that
// reads a query head into dst, [hi-lo][HeadDim].
func (net *Network) OutputRows(layer, head, lo, hi int, dst []float32) []float32 {
	w, d := &net.layers[layer].out[0].w, net.Config.HeadDim
	dst = slices.Grow(dst[:0], (hi-lo)*d)[:(hi-lo)*d]
	for i := lo; i < hi; i++ {
		net.CPU.WidenRow(dst[(i-lo)*d:(i-lo+1)*d], w, i, head*d)
	}
	return dst
}

// FinalNorm sets dst to what the output head reads where the residual stream is x, both
// [Hidden].
func (net *Network) FinalNorm(dst, x []float32) { net.normalise(dst, x, net.norm) }

func (net *Network) normalise(dst, x, w []float32) {
	if w != nil {
		net.CPU.RMSNorm(dst, x, w, net.Config.NormEps)
	} else {
		copy(dst, x)
	}
}

// embedTokens writes the embeddings of tokens to x, [len(tokens)][Hidden].
func (net *Network) embedTokens(x []float32, tokens []int32) {
	h := net.Config.Hidden
	for i, t := range tokens {
		row := x[i*h : (i+1)*h]
		net.CPU.WidenRow(row, &net.embed, int(t), 0)
		if net.embedScale != 1 {
			net.CPU.Scale(row, net.embedScale)
		}
	}
}

// finishLogits applies the model's scale and cap to products of the head.
func (net *Network) finishLogits(x []float32) {
	if s := net.Config.Scalars.LogitScale; s != 0 {
		net.CPU.Scale(x, float32(s))
	}
	if c := net.Config.Scalars.LogitCap; c != 0 {
		net.CPU.SoftCap(x, float32(c))
	}
}

// integerForms are the forms of activations that are rounded when a row is complete.
const integerForms = kernels.FormInt8 | kernels.FormInt8x32

// rounds reports whether products of an activation read it as 8-bit integers.
func (net *Network) rounds(src act) bool {
	if src == actMLP {
		return net.innerForms&integerForms != 0
	}
	return net.narrowForms&integerForms != 0
}
