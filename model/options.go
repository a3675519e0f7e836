package model

import (
	"log/slog"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// Precision says how activations enter products with weights of bf16 and of blocks of
// integers.
type Precision string

const (
	// PrecisionAuto is int8 for checkpoints with weights of blocks of integers, bf16 for those
	// whose weights are bf16, otherwise f32.
	PrecisionAuto Precision = "auto"
	// PrecisionBF16 rounds activations to bf16 before products with bf16 weights
	// or with cached keys and values in bf16; sums are f32. Other weights and
	// caches are treated as with PrecisionF32.
	PrecisionBF16 Precision = "bf16"
	// PrecisionInt8 rounds activations to 8-bit integers, with a scale for every block of 32 or
	// 256, before products with weights of blocks of integers, whose sums within a block are
	// then exact. Everything else is as with PrecisionBF16.
	PrecisionInt8 Precision = "int8"
	// PrecisionF32 leaves activations as they are.
	PrecisionF32 Precision = "f32"
)

// autoPrecision returns what PrecisionAuto stands for with weights w.
func autoPrecision(w *weights.Weights) Precision {
	p := PrecisionF32
	if w.Layers[0].Tensors[arch.RoleQ].Type == tensor.BF16 {
		p = PrecisionBF16
	}
	w.Each(func(_ string, t tensor.Tensor) {
		if t.Type.Quantised() {
			p = PrecisionInt8
		}
	})
	return p
}

// forms returns the forms of activations that products may read.
func (p Precision) forms() kernels.Forms {
	switch p {
	case PrecisionInt8:
		return kernels.FormF32 | kernels.FormBF16 | kernels.FormInt8 | kernels.FormInt8x32
	case PrecisionBF16:
		return kernels.FormF32 | kernels.FormBF16
	}
	return kernels.FormF32
}

// roundsBF16 reports whether activations are rounded before products with bf16.
func (p Precision) roundsBF16() bool { return p == PrecisionBF16 || p == PrecisionInt8 }

// Option configures [Open] and its siblings.
type Option func(*options)

type options struct {
	threads   int
	precision Precision
	cpu       *kernels.CPU
	logger    *slog.Logger
	maxMemory int64
	digests   string
	inputs    func(layer int, role arch.Role, x []float32)

	device       kernels.Device
	deviceName   string
	deviceLayers *int
}

// WithThreads sets the number of threads of the model, shared by its sessions.
// The default, also for n < 1, is GOMAXPROCS.
func WithThreads(n int) Option { return func(o *options) { o.threads = n } }

// WithPrecision sets the precision; the default is PrecisionAuto.
func WithPrecision(p Precision) Option { return func(o *options) { o.precision = p } }

// WithCPU forces an instruction set; the default is kernels.Detect.
func WithCPU(c kernels.CPU) Option { return func(o *options) { o.cpu = &c } }

// WithMaxMemory bounds the memory of all sessions of the model together, in bytes:
// the pages of their caches, wherever they are, with shared ones counted once, the
// hidden states and scores of prefills that compress, tokens and logits. What does
// not fit is refused with kvcache.ErrFull, a prefill before it begins. The default
// is no bound.
func WithMaxMemory(bytes int64) Option { return func(o *options) { o.maxMemory = bytes } }

// WithDigestCache makes [Model.Digest] keep its results in a folder, created if it does
// not exist, so that the weights are read only once as long as their files stay the same
// by path, size, modification time and inode. A file rewritten with the same size and its
// time set back is not recognised as changed. If the cache is damaged or cannot be
// written, the weights are simply read again. The default is no such folder.
func WithDigestCache(dir string) Option { return func(o *options) { o.digests = dir } }

// WithLogger sets where the model logs; the default is nowhere.
func WithLogger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }
