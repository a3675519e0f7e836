package model

import (
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"unsafe"

	"github.com/lukv/lukv/internal/sysmem"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// Weights are the tensors of a model, as stored: views of the mapped checkpoint
// of type F32, F16 or BF16, which may differ from tensor to tensor. Tensors
// that the configuration does not call for are zero Tensors. All start at a
// multiple of their element size.
type Weights struct {
	Embed  tensor.Tensor // [Vocab, Hidden]
	Layers []LayerWeights
	Norm   tensor.Tensor // [Hidden]
	Head   tensor.Tensor // [Vocab, Hidden], Embed itself when tied

	unused []string
	closer io.Closer // nil for weights made in memory
}

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
}

// place is a place in Weights with the name and shape of the tensor that belongs there.
type place struct {
	name  string
	dst   *tensor.Tensor
	shape []int
}

const (
	basePrefix = "model." // of all names but the head's
	embedName  = basePrefix + "embed_tokens.weight"
	headName   = "lm_head.weight"
)

// places returns all places of w that cfg calls for, in a fixed order, with the
// names of the Hugging Face layout. With tied embeddings there is none for Head.
func (w *Weights) places(cfg *Config) []place {
	var list []place
	prefix := ""
	add := func(want bool, name string, dst *tensor.Tensor, shape ...int) {
		if want {
			list = append(list, place{prefix + name, dst, shape})
		}
	}
	q, kv := cfg.Heads*cfg.HeadDim, cfg.KVHeads*cfg.HeadDim
	add(true, embedName, &w.Embed, cfg.Vocab, cfg.Hidden)
	for i := range w.Layers {
		l := &w.Layers[i]
		prefix = fmt.Sprintf("model.layers.%d.", i)
		add(true, "input_layernorm.weight", &l.AttnNorm, cfg.Hidden)
		add(true, "self_attn.q_proj.weight", &l.Q, q, cfg.Hidden)
		add(cfg.QKVBias, "self_attn.q_proj.bias", &l.QBias, q)
		add(true, "self_attn.k_proj.weight", &l.K, kv, cfg.Hidden)
		add(cfg.QKVBias, "self_attn.k_proj.bias", &l.KBias, kv)
		add(true, "self_attn.v_proj.weight", &l.V, kv, cfg.Hidden)
		add(cfg.QKVBias, "self_attn.v_proj.bias", &l.VBias, kv)
		add(true, "self_attn.o_proj.weight", &l.O, cfg.Hidden, q)
		add(cfg.OutBias, "self_attn.o_proj.bias", &l.OBias, cfg.Hidden)
		add(cfg.QKNorm, "self_attn.q_norm.weight", &l.QNorm, cfg.HeadDim)
		add(cfg.QKNorm, "self_attn.k_norm.weight", &l.KNorm, cfg.HeadDim)
		add(true, "post_attention_layernorm.weight", &l.MLPNorm, cfg.Hidden)
		add(true, "mlp.gate_proj.weight", &l.Gate, cfg.Intermediate, cfg.Hidden)
		add(cfg.MLPBias, "mlp.gate_proj.bias", &l.GateBias, cfg.Intermediate)
		add(true, "mlp.up_proj.weight", &l.Up, cfg.Intermediate, cfg.Hidden)
		add(cfg.MLPBias, "mlp.up_proj.bias", &l.UpBias, cfg.Intermediate)
		add(true, "mlp.down_proj.weight", &l.Down, cfg.Hidden, cfg.Intermediate)
		add(cfg.MLPBias, "mlp.down_proj.bias", &l.DownBias, cfg.Hidden)
	}
	prefix = ""
	add(true, "model.norm.weight", &w.Norm, cfg.Hidden)
	add(!cfg.TiedEmbeddings, headName, &w.Head, cfg.Vocab, cfg.Hidden)
	return list
}

// LoadWeights maps the safetensors checkpoint in folder dir and checks that it
// has every tensor that cfg calls for, with the right shape and a usable type.
// A failure is one error that names the file, the tensor and both shapes.
// Tensors that the network does not use are ignored, see Unused.
//
// The caller closes the weights. Tensors that are not aligned in the file are
// copied; the usual writers align them.
func LoadWeights(dir string, cfg *Config) (*Weights, error) {
	c, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	return loadWeights(fmt.Sprintf("%q", dir), c, cfg)
}

// readAhead brings mapped weights into memory in the background, while the tokenizer
// is read and the prompt encoded, up to seven eighths of the available memory. Reading
// more would push out what the first layers need, and other programs' pages.
func (w *Weights) readAhead() {
	if c, ok := w.closer.(*safetensors.Checkpoint); ok {
		c.WillNeed(sysmem.Available() / 8 * 7)
	}
}

// LoadWeightsFS is LoadWeights for a file system rooted at the model folder. The
// files are read into memory.
func LoadWeightsFS(fsys fs.FS, cfg *Config) (*Weights, error) {
	c, err := safetensors.OpenCheckpointFS(fsys)
	if err != nil {
		return nil, err
	}
	return loadWeights("of the file system", c, cfg)
}

// loadWeights takes over c.
func loadWeights(name string, c *safetensors.Checkpoint, cfg *Config) (*Weights, error) {
	w, err := newWeights(name, c, cfg)
	if err != nil {
		c.Close()
		return nil, err
	}
	return w, nil
}

func newWeights(folder string, c *safetensors.Checkpoint, cfg *Config) (*Weights, error) {
	// Every layer has a tensor of its own, so a count that the checkpoint cannot
	// hold is refused before anything is allocated for the layers.
	names := c.Names()
	if cfg.Layers < 1 || cfg.Layers > len(names) {
		return nil, fmt.Errorf("checkpoint %s: it has %d tensors, too few for the %d layers of the config", folder, len(names), cfg.Layers)
	}
	w := &Weights{Layers: make([]LayerWeights, cfg.Layers), closer: c}
	bare := savedBare(names)
	used := make(map[string]bool, len(names))
	for _, s := range w.places(cfg) {
		name := storedName(c, cfg, s.name, bare)
		t, file, ok := c.Tensor(name)
		if !ok {
			return nil, fmt.Errorf("checkpoint %s: tensor %q of shape %s is missing", folder, name, tensor.ShapeString(s.shape))
		}
		if !t.HasShape(s.shape...) {
			return nil, fmt.Errorf("checkpoint file %q: tensor %q has shape %s, expected %s by the config",
				file, name, tensor.ShapeString(t.Shape), tensor.ShapeString(s.shape))
		}
		switch t.Type {
		case tensor.F32, tensor.F16, tensor.BF16:
		default:
			return nil, fmt.Errorf("checkpoint file %q: tensor %q is of type %v, expected F32, F16 or BF16", file, name, t.Type)
		}
		used[name] = true
		*s.dst = aligned(t)
	}
	if cfg.TiedEmbeddings {
		w.Head = w.Embed
	}
	w.unused = slices.DeleteFunc(names, func(name string) bool { return used[name] })
	return w, nil
}

// savedBare reports whether the names are those of the network without its head, which
// transformers' AutoModel saves: they have no prefix.
func savedBare(names []string) bool {
	starts := func(prefix string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, prefix) })
	}
	return starts("layers.") && !starts(basePrefix)
}

// storedName returns the name under which c holds the tensor of a place. Of matrices
// that share memory the safetensors library's save_model keeps the one that comes first
// by name, and so, of tied embeddings, the head.
func storedName(c *safetensors.Checkpoint, cfg *Config, name string, bare bool) string {
	stored := name
	if bare {
		stored = strings.TrimPrefix(name, basePrefix)
	}
	if name != embedName || !cfg.TiedEmbeddings {
		return stored
	}
	if _, _, ok := c.Tensor(stored); ok {
		return stored
	}
	if _, _, ok := c.Tensor(headName); ok {
		return headName
	}
	return stored
}

// aligned returns t itself if its elements are aligned, and a copy in new memory
// otherwise.
func aligned(t tensor.Tensor) tensor.Tensor {
	if uintptr(unsafe.Pointer(unsafe.SliceData(t.Data)))%uintptr(t.Type.Size()) == 0 {
		return t
	}
	c := tensor.Make(t.Type, t.Shape...)
	copy(c.Data, t.Data)
	return c
}

// Each calls f for every tensor that is present, in a fixed order, with its name
// in the Hugging Face layout. A tied Head is not visited separately.
func (w *Weights) Each(f func(name string, t tensor.Tensor)) {
	every := Config{QKVBias: true, OutBias: true, MLPBias: true, QKNorm: true, TiedEmbeddings: w.tied()}
	for _, s := range w.places(&every) {
		if !s.dst.IsZero() {
			f(s.name, *s.dst)
		}
	}
}

// tied reports whether Head is the same memory as Embed.
func (w *Weights) tied() bool {
	return unsafe.SliceData(w.Head.Data) == unsafe.SliceData(w.Embed.Data)
}

// bytes returns the number of bytes of all tensors, a tied Head counted once.
func (w *Weights) bytes() int64 {
	n := int64(0)
	w.Each(func(_ string, t tensor.Tensor) { n += int64(len(t.Data)) })
	return n
}

// Unused returns the names of the checkpoint's tensors that the network does
// not use, sorted.
func (w *Weights) Unused() []string { return slices.Clone(w.unused) }

// Close unmaps the checkpoint; no tensor may be used afterwards. Closing again
// does nothing.
func (w *Weights) Close() error {
	if w.closer == nil {
		return nil
	}
	return w.closer.Close()
}
