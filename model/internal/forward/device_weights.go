package model

import (
	"context"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// WithDevice makes the model compute on an accelerator, named driver[:selector] as
// for [kernels.OpenDevice], such as "vulkan" or "vulkan:1". The program must import
// the driver's package. The model opens and closes the device. "" (the default) and
// "cpu" mean the processor alone.
//
// Opening fails with kernels.ErrNoDevice, or with kernels.ErrDeviceMemory where
// the weights do not fit; see WithDeviceLayers.
func WithDevice(name string) Option { return func(o *options) { o.deviceName = name } }

// WithOpenDevice is WithDevice for a device that the caller has opened and
// closes after the model.
func WithOpenDevice(d kernels.Device) Option { return func(o *options) { o.device = d } }

// WithDeviceLayers puts only the first n layers and their caches on the device;
// the processor computes the others and the head. By default, and if n is at
// least the model's number of layers, everything is on the device.
func WithDeviceLayers(n int) Option { return func(o *options) { o.deviceLayers = &n } }

// Device returns the accelerator that the model computes on, nil if there is none.
func (m *Model) Device() kernels.Device {
	if m.acc == nil {
		return nil
	}
	return m.acc.dev
}

// DeviceLayers returns how many of the layers, from the first, are on the device.
func (m *Model) DeviceLayers() int {
	if m.acc == nil {
		return 0
	}
	return len(m.acc.layers)
}

type (
	deviceLinear  = linear[kernels.DeviceMatrix, kernels.Buffer]
	deviceDecoder = decoder[kernels.DeviceMatrix, kernels.Buffer]
)

// deviceWeights is a device with the weights of the model's first layers.
type deviceWeights struct {
	dev    kernels.Device
	owned  bool
	layers []deviceDecoder
	norm   kernels.Buffer // nil unless all layers are on the device
	head   kernels.DeviceMatrix
	held   []interface{ Free() }
}

// whole reports whether all layers, and with them the head, are on the device.
func (a *deviceWeights) whole() bool { return a.head != nil }

func (a *deviceWeights) close() error {
	for _, x := range a.held {
		x.Free()
	}
	a.held = nil
	if a.owned {
		return a.dev.Close()
	}
	return nil
}

// openDevice copies the weights to the device that the options name, if any.
func (m *Model) openDevice(ctx context.Context, w *weights.Weights, o *options) error {
	n := m.cfg.Layers
	if o.deviceLayers != nil {
		n = min(n, *o.deviceLayers)
	}
	switch {
	case n < 0:
		return fmt.Errorf("%d layers on a device: expected 0 or more", n)
	case n == 0 || o.device == nil && (o.deviceName == "" || o.deviceName == "cpu"):
		return nil
	}
	for at := range n {
		if err := m.onDevices(&m.plan[at], &w.Layers[at]); err != nil {
			return fmt.Errorf("layer %d: %w", at, err)
		}
	}
	a := &deviceWeights{dev: o.device}
	if a.dev == nil {
		var err error
		if a.dev, err = kernels.OpenDevice(o.deviceName); err != nil {
			return err
		}
		a.owned = true
	}
	err := m.fits(a.dev, w, n)
	if err == nil {
		err = m.upload(ctx, a, w, n)
	}
	if err != nil {
		a.close()
		return err
	}
	m.acc = a
	return nil
}

// upload copies the first n layers to a device, and the head if those are all.
func (m *Model) upload(ctx context.Context, a *deviceWeights, w *weights.Weights, n int) error {
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
		x, err := kernels.NewVector(ctx, a.dev, m.normWeights(t))
		if err != nil {
			failed = err
			return nil
		}
		a.held = append(a.held, x)
		return x
	}
	for at := range n {
		plan := m.plan[at]
		rows := weights.RowOrder(plan.Order)
		plan.Order = nil // it is that of the rows
		a.layers = append(a.layers, newDecoder(&plan, w.Ordered(at, rows), mat, stackedExperts(stack), vec, norm))
		if failed != nil {
			return fmt.Errorf("copy layer %d to %s: %w", at, a.dev.Info().Name, failed)
		}
	}
	if n == m.cfg.Layers {
		a.norm, a.head = norm(w.Norm), mat(w.Head)
		if failed != nil {
			return fmt.Errorf("copy the head to %s: %w", a.dev.Info().Name, failed)
		}
	}
	return nil
}

// fits returns an error that gives the sizes if a device has too little memory for
// n layers. Caches are not counted: their size is not known yet.
func (m *Model) fits(dev kernels.Device, w *weights.Weights, n int) error {
	free := int64(dev.Memory().Free)
	// need[i] is for i layers.
	need := make([]int64, m.cfg.Layers+1)
	need[0] = m.passBytes()
	for i := range w.Layers {
		need[i+1] = need[i] + deviceBytes(&w.Layers[i])
	}
	need[m.cfg.Layers] += int64(len(w.Head.Data) + 4*w.Norm.Len())
	if need[n] <= free {
		return nil
	}
	fit := n - 1
	for fit > 0 && need[fit] > free {
		fit--
	}
	advice := fmt.Sprintf("use %d of %d layers", fit, m.cfg.Layers)
	if fit == 0 {
		advice = "not even one layer fits"
	}
	return fmt.Errorf("%w: %d of %d layers and the memory of a pass need %d bytes, %d are free on %s; %s",
		kernels.ErrDeviceMemory, n, m.cfg.Layers, need[n], free, dev.Info().Name, advice)
}

// deviceBytes returns the size of a layer on a device, where vectors are f32.
func deviceBytes(l *weights.Layer) int64 {
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

// passBytes estimates what a pass over a chunk of default size takes on a device.
func (m *Model) passBytes() int64 {
	c := m.cfg
	row := c.HeadDim * len(m.ropes)
	for a := range actEnd {
		if a != actLogits && m.uses(a) {
			row += a.columns(c)
		}
	}
	return 4 * (int64(defaultChunk)*int64(row) + 2*deviceLogits*int64(c.Vocab) + int64(min(defaultChunk, mixtureRows)*m.mixtureColumns()))
}

// uses reports whether passes on a device need an activation.
func (m *Model) uses(a act) bool {
	return slices.ContainsFunc(m.plan, func(p arch.LayerPlan) bool {
		switch a {
		case actBranch:
			return !p.AddsDirectly() || p.FFN.Experts > 0
		case actMLP:
			return p.FFN.Experts == 0
		case actGate, actUp:
			return p.FFN.Experts == 0 && p.FFN.Activation == arch.GELUTanh
		}
		return true
	})
}

// deviceOperand is the type of the activations that products on the device read: bf16 if
// all products of the model read that.
func (m *Model) deviceOperand() tensor.Type {
	if m.narrowForms|m.innerForms == kernels.FormBF16 {
		return tensor.BF16
	}
	return tensor.F32
}

// attentionShape describes the attention of runs on the device.
func (m *Model) attentionShape(s runShape) kernels.AttentionShape {
	c, layers := m.cfg, len(m.acc.layers)
	wide := m.wideKeys(s.page.Type)
	if wide != nil {
		wide = wide[:layers]
	}
	return kernels.AttentionShape{
		Rows: s.rows, Sequences: s.seqs, Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Windows: slices.Clone(c.Windows[:layers]), Scale: m.plan[0].AttentionScale(), Cap: m.plan[0].AttentionCap(), Page: s.page,
		WideKeys: wide, BF16: m.attentionInBF16(s.page.Type),
	}
}

// onDevices returns an error that wraps ErrUnsupported if accelerators lack an operation of
// the plan.
func (m *Model) onDevices(p *arch.LayerPlan, l *weights.Layer) error {
	what := ""
	switch {
	case p.FFN.Experts > 0 && p.FFN.Activation != arch.SiLU:
		what = "experts with another activation than SiLU"
	case mixedExperts(l):
		what = "experts with weights of different types in a layer"
	case p.ScoreScale != m.plan[0].ScoreScale || p.ScoreCap != m.plan[0].ScoreCap:
		what = "attention scores that are scaled or capped by layer"
	case p.Order != nil && p.QKNorm == arch.HeadNorm:
		what = "partial rotation of normalised queries and keys"
	}
	if what == "" {
		return nil
	}
	return fmt.Errorf("%s on a device: %w", what, ErrUnsupported)
}
