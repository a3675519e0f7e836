package weights

import (
	"context"
	"encoding/binary"
	"math"
	"sync"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// Random returns weights of type t (BF16, F16, F32 or one of blocks that [gguf.Encode] writes) for cfg:
// uniform in ±√3/√columns, norms 1, biases small. Matrices of quantised types repeat the
// same values, embedding and head have Q6_K in place of fewer bits, Q8_0 takes the place of
// types whose blocks do not divide the columns, and all else is F32. Equal seeds give equal
// weights. When ctx is done it returns its cause.
func Random(ctx context.Context, cfg *arch.Config, t tensor.Type, seed uint64) (*Weights, error) {
	g := &randomTensors{ctx: ctx, t: t, seed: seed}
	ends := t
	if t.Quantised() {
		g.t = tensor.F32
		if t.Bytes(256) < tensor.Q6_K.Bytes(256) {
			ends = tensor.Q6_K
		}
	}
	w := &Weights{Norm: g.constant(cfg.Hidden, 1-cfg.Scalars.NormOffset), Layers: make([]Layer, cfg.Layers), names: cfg.Tensors()}
	var err error
	matrix := func(dst *tensor.Tensor, of tensor.Type, rows, cols int) {
		if err == nil {
			*dst, err = g.matrix(of, rows, cols)
		}
	}
	matrix(&w.Embed, ends, cfg.Vocab, cfg.Hidden)
	w.Head = w.Embed
	if !cfg.TiedEmbeddings {
		matrix(&w.Head, ends, cfg.Vocab, cfg.Hidden)
	}
	for at, p := range cfg.Plans() {
		l := &w.Layers[at]
		l.Experts = make([]Expert, p.FFN.Experts)
		l.Each(func(role arch.Role, dst *tensor.Tensor) {
			switch shape := p.Shape(cfg, role); {
			case len(shape) != 2:
			case role == arch.RoleRouter && t.Quantised():
				matrix(dst, tensor.F32, shape[0], shape[1])
			default:
				matrix(dst, t, shape[0], shape[1])
			}
		})
		l.EachExpert(func(role arch.Role, _ int, dst *tensor.Tensor) {
			shape := p.Shape(cfg, role)
			matrix(dst, t, shape[0], shape[1])
		})
		l.Each(func(role arch.Role, dst *tensor.Tensor) {
			switch shape := p.Shape(cfg, role); {
			case len(shape) != 1:
			case role.IsNorm():
				*dst = g.constant(shape[0], 1-cfg.Scalars.NormOffset)
			default:
				*dst = g.vector(shape[0])
			}
		})
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return w, err
}

// randomTensors makes one tensor after another, each from its own stream.
type randomTensors struct {
	ctx  context.Context // tensors are empty when it is done
	t    tensor.Type     // of all but quantised ones
	seed uint64
	n    uint64
}

// matrix returns a matrix of type t, which is g.t or quantised.
func (g *randomTensors) matrix(t tensor.Type, rows, cols int) (tensor.Tensor, error) {
	scale := math.Sqrt(3 / float64(cols))
	switch {
	case !t.Quantised() || cols%tensor.Q8_0.Block() != 0:
		return g.uniform([]int{rows, cols}, scale), nil
	case cols%t.Block() != 0:
		t = tensor.Q8_0
	}
	values := g.uniform([]int{1 << 16}, scale)
	typ, _ := gguf.TypeOf(t)
	blocks, err := gguf.Encode(nil, typ, values.Float32s(nil), values.Shape[0], nil)
	if err != nil {
		return tensor.Tensor{}, err
	}
	data := make([]byte, rows*t.Bytes(cols))
	for at := 0; at < len(data); {
		at += copy(data[at:], blocks)
	}
	return tensor.Tensor{Type: t, Shape: []int{rows, cols}, Data: data}, nil
}

func (g *randomTensors) vector(n int) tensor.Tensor { return g.uniform([]int{n}, 0.1) }

func (g *randomTensors) constant(n int, v float32) tensor.Tensor {
	return g.fill([]int{n}, func(uint64) float32 { return v })
}

func (g *randomTensors) uniform(shape []int, scale float64) tensor.Tensor {
	g.n++
	key := g.seed*0x9e3779b97f4a7c15 + g.n*0xbf58476d1ce4e5b9
	return g.fill(shape, func(i uint64) float32 {
		// SplitMix64 (Steele et al., 2014) of the element's index.
		z := key + (i+1)*0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return float32((float64(z>>11)*0x1p-52 - 1) * scale)
	})
}

func (g *randomTensors) fill(shape []int, at func(i uint64) float32) tensor.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	if g.ctx.Err() != nil {
		n = 0
	}
	size := g.t.Bytes(1)
	data := make([]byte, n*size)
	const part = 1 << 20
	var wg sync.WaitGroup
	for from := 0; from < n; from += part {
		wg.Go(func() {
			if g.ctx.Err() != nil {
				return
			}
			for i := from; i < min(from+part, n); i++ {
				bits := kernels.RoundTo(g.t, at(uint64(i)))
				if size == 4 {
					binary.LittleEndian.PutUint32(data[4*i:], bits)
				} else {
					binary.LittleEndian.PutUint16(data[2*i:], uint16(bits))
				}
			}
		})
	}
	wg.Wait()
	return tensor.Tensor{Type: g.t, Shape: shape, Data: data}
}
