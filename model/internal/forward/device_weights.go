package forward

import (
	"context"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

type (
	deviceLinear  = linear[kernels.DeviceMatrix, kernels.Buffer]
	deviceDecoder = decoder[kernels.DeviceMatrix, kernels.Buffer]
)

// Device is a device with the weights of the model's first layers.
type Device struct {
	dev    kernels.Device
	owned  bool
	layers []deviceDecoder
	norm   kernels.Buffer // nil unless all layers are on the device
	head   kernels.DeviceMatrix
	held   []interface{ Free() }
}

// Kernels returns the device itself.
func (a *Device) Kernels() kernels.Device { return a.dev }

// Layers returns how many of the layers, from the first, are on the device.
func (a *Device) Layers() int { return len(a.layers) }

// whole reports whether all layers, and with them the head, are on the device.
func (a *Device) whole() bool { return a.head != nil }

// Close frees the weights, and closes the device if it came with the network.
func (a *Device) Close() error {
	for _, x := range a.held {
		x.Free()
	}
	a.held = nil
	if a.owned {
		return a.dev.Close()
	}
	return nil
}

// OpenDevice copies the first n layers to a device, which the network closes if it owns it, and the
// head if those are all. On an error nothing is left there.
func (net *Network) OpenDevice(ctx context.Context, dev kernels.Device, owned bool, w *weights.Weights, n int) error {
	a := &Device{dev: dev, owned: owned}
	err := net.fits(dev, w, n)
	if err == nil {
		err = net.hasExperts(dev, n)
	}
	if err == nil {
		err = net.upload(ctx, a, w, n)
	}
	if err != nil {
		a.Close()
		return err
	}
	net.Device = a
	return nil
}

// hasExperts returns an error that wraps [arch.ErrUnsupported] if the first n layers need
// operations of experts and a device lacks them.
func (net *Network) hasExperts(dev kernels.Device, n int) error {
	if !slices.ContainsFunc(net.Plan[:n], func(p arch.LayerPlan) bool { return p.FFN.Experts > 0 }) {
		return nil
	}
	e, err := dev.Encoder()
	if err != nil {
		return err
	}
	defer e.Close()
	if _, ok := e.(kernels.ExpertEncoder); !ok {
		return fmt.Errorf("experts on %s: %w", dev.Info().Name, arch.ErrUnsupported)
	}
	return nil
}

// upload copies the first n layers to a device, and the head if those are all.
func (net *Network) upload(ctx context.Context, a *Device, w *weights.Weights, n int) error {
	var failed error
	stack := func(list ...kernels.Matrix) kernels.DeviceMatrix {
		if failed != nil {
			return nil
		}
		x, err := a.dev.Matrix(ctx, list...)
		if err != nil {
			failed = err
			return nil
		}
		a.held = append(a.held, x)
		return x
	}
	mat := func(t tensor.Tensor) kernels.DeviceMatrix { return stack(matrix(t)) }
	vec := func(t tensor.Tensor) kernels.Buffer {
		if failed != nil || t.Data == nil {
			return nil
		}
		x, err := kernels.NewVector(ctx, a.dev, vector(t))
		if err != nil {
			failed = err
			return nil
		}
		a.held = append(a.held, x)
		return x
	}
	norm := func(t tensor.Tensor) kernels.Buffer {
		if failed != nil || t.Data == nil {
			return nil
		}
		x, err := kernels.NewVector(ctx, a.dev, net.normWeights(t))
		if err != nil {
			failed = err
			return nil
		}
		a.held = append(a.held, x)
		return x
	}
	for at := range n {
		plan := net.Plan[at]
		rows := weights.RowOrder(plan.Order)
		plan.Order = nil // it is that of the rows
		a.layers = append(a.layers, newDecoder(&plan, w.Ordered(at, rows), mat, stackedExperts(stack), vec, norm))
		if failed != nil {
			return fmt.Errorf("copy layer %d to %s: %w", at, a.dev.Info().Name, failed)
		}
	}
	if n == net.Config.Layers {
		a.norm, a.head = norm(w.Norm), mat(w.Head)
		if failed != nil {
			return fmt.Errorf("copy the head to %s: %w", a.dev.Info().Name, failed)
		}
	}
	return nil
}

// fits returns an error that gives the sizes if a device has too little memory for
// n layers. Caches are not counted: their size is not known yet.
func (net *Network) fits(dev kernels.Device, w *weights.Weights, n int) error {
	free := int64(dev.Memory().Free)
	// need[i] is for i layers.
	need := make([]int64, net.Config.Layers+1)
	need[0] = net.PassBytes()
	for i := range w.Layers {
		need[i+1] = need[i] + DeviceBytes(&w.Layers[i])
	}
	need[net.Config.Layers] += int64(len(w.Head.Data) + 4*w.Norm.Len())
	if need[n] <= free {
		return nil
	}
	fit := n - 1
	for fit > 0 && need[fit] > free {
		fit--
	}
	advice := fmt.Sprintf("use %d of %d layers", fit, net.Config.Layers)
	if fit == 0 {
		advice = "not even one layer fits"
	}
	return fmt.Errorf("%w: %d of %d layers and the memory of a pass need %d bytes, %d are free on %s; %s",
		kernels.ErrDeviceMemory, n, net.Config.Layers, need[n], free, dev.Info().Name, advice)
}

// DeviceBytes returns the size of a layer on a device, where vectors are f32.
func DeviceBytes(l *weights.Layer) int64 {
	n := 0
	l.EachExpert(func(_ arch.Role, _ int, t *tensor.Tensor) { n += len(t.Data) })
	l.Each(func(_ arch.Role, t *tensor.Tensor) {
		if len(t.Shape) == 2 {
			n += len(t.Data)
		} else {
			n += 4 * t.Len()
		}
	})
	return int64(n)
}

// DefaultChunk is the number of tokens that a prefill computes together unless told otherwise.
const DefaultChunk = 512

// PassBytes estimates what a pass over a chunk of default size takes on a device.
func (net *Network) PassBytes() int64 {
	c := net.Config
	row := c.HeadDim * len(net.Ropes)
	for a := range actEnd {
		if a != actLogits && net.uses(a) {
			row += a.columns(c)
		}
	}
	return 4 * (int64(DefaultChunk)*int64(row) + 2*deviceLogits*int64(c.Vocab) + int64(min(DefaultChunk, MixtureRows)*net.mixtureColumns()))
}

// uses reports whether passes on a device need an activation.
func (net *Network) uses(a act) bool {
	return slices.ContainsFunc(net.Plan, func(p arch.LayerPlan) bool {
		switch a {
		case actBranch:
			return !p.AddsDirectly() || p.FFN.Experts > 0
		case actMLP:
			return p.FFN.Experts == 0
		}
		return true
	})
}

// deviceOperand is the type of the activations that products on the device read: bf16 if
// all products of the model read that.
func (net *Network) deviceOperand() tensor.Type {
	if net.narrowForms|net.innerForms == kernels.FormBF16 {
		return tensor.BF16
	}
	return tensor.F32
}

// attentionShape describes the attention of runs on the device.
func (net *Network) attentionShape(s Shape) kernels.AttentionShape {
	c, layers := net.Config, len(net.Device.layers)
	wide := net.WideKeys(s.Page.Type)
	if wide != nil {
		wide = wide[:layers]
	}
	return kernels.AttentionShape{
		Rows: s.Rows, Sequences: s.Seqs, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Windows: slices.Clone(c.Windows[:layers]), Scale: net.Plan[0].AttentionScale(), Cap: net.Plan[0].AttentionCap(), Page: s.Page,
		WideKeys: wide, BF16: net.RoundsAttention(s.Page.Type),
	}
}

// OnDevices returns an error that wraps [arch.ErrUnsupported] if accelerators lack an operation of
// the first n layers.
func (net *Network) OnDevices(w *weights.Weights, n int) error {
	for at := range n {
		if err := net.onDevices(&net.Plan[at], &w.Layers[at]); err != nil {
			return fmt.Errorf("layer %d: %w", at, err)
		}
	}
	return nil
}

func (net *Network) onDevices(p *arch.LayerPlan, l *weights.Layer) error {
	what := ""
	switch {
	case mixedExperts(l):
		what = "experts with weights of different types in a layer"
	case p.ScoreScale != net.Plan[0].ScoreScale || p.ScoreCap != net.Plan[0].ScoreCap:
		what = "attention scores that are scaled or capped by layer"
	case p.Order != nil && p.QKNorm == arch.HeadNorm:
		what = "partial rotation of normalised queries and keys"
	}
	if what == "" {
		return nil
	}
	return fmt.Errorf("%s on a device: %w", what, arch.ErrUnsupported)
}
