package weights

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"unsafe"

	"github.com/lukv/lukv/internal/lowbit"
	"github.com/lukv/lukv/internal/sysmem"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// source is an open container of tensors.
type source interface {
	// Names returns the names of all tensors, sorted.
	Names() []string

	// Tensor returns a tensor, valid until Close, and the file that holds it.
	Tensor(name string) (t tensor.Tensor, file string, ok bool)

	// WillNeed starts to read up to so many bytes of tensors into memory.
	WillNeed(bytes int64)

	// Stamps returns the paths of the files, and what they were when they were opened.
	Stamps() []fileStamp

	Close() error
}

// place is a place in Weights with the shape of the tensor that belongs there. stored
// are the ways in which checkpoints hold it, of which the first one found counts.
type place struct {
	dst    *tensor.Tensor
	shape  []int
	stored []arch.StoredTensor
}

// places returns all places of w that cfg calls for, in a fixed order. With tied
// embeddings there is none for Head.
func (w *Weights) places(cfg *arch.Config, n arch.Naming) []place {
	table := cfg.Tensors()
	whole := func(role arch.Role, dst *tensor.Tensor, shape ...int) place {
		return place{dst: dst, shape: shape, stored: []arch.StoredTensor{{Name: table.Name(n, role, 0), Shape: shape}}}
	}
	list := []place{whole(arch.RoleEmbed, &w.Embed, cfg.Vocab, cfg.Hidden)}
	for at, p := range cfg.Plans() {
		w.Layers[at].Each(func(role arch.Role, dst *tensor.Tensor) {
			if shape := p.Shape(cfg, role); shape != nil {
				list = append(list, place{
					dst: dst, shape: shape,
					stored: p.Stored(cfg, role, 0, func(r arch.Role) string { return table.Name(n, r, at) }),
				})
			}
		})
		w.Layers[at].EachExpert(func(role arch.Role, x int, dst *tensor.Tensor) {
			list = append(list, place{
				dst: dst, shape: p.Shape(cfg, role),
				stored: p.Stored(cfg, role, x, func(r arch.Role) string { return table.Name(n, r, at) }),
			})
		})
	}
	list = append(list, whole(arch.RoleLastNorm, &w.Norm, cfg.Hidden))
	if !cfg.TiedEmbeddings {
		list = append(list, whole(arch.RoleHead, &w.Head, cfg.Vocab, cfg.Hidden))
	}
	return list
}

// Load maps the safetensors checkpoint in folder dir and checks that it
// has every tensor that cfg calls for, with the right shape and a usable type.
// A failure is one error that names the file, the tensor and both shapes.
// Tensors that the network does not use are ignored, see Unused.
//
// The caller closes the weights. Tensors that are not aligned in the file are
// copied; the usual writers align them.
func Load(dir string, cfg *arch.Config) (*Weights, error) {
	c, err := safetensors.OpenCheckpoint(dir)
	if err != nil {
		return nil, err
	}
	return open(fmt.Sprintf("%q", dir), folderSource{c}, arch.HuggingFace, cfg)
}

// ReadAhead brings mapped weights into memory in the background, while the tokenizer
// is read and the prompt encoded, up to seven eighths of the available memory. Reading
// more would push out what the first layers need, and other programs' pages.
func (w *Weights) ReadAhead() {
	if w.source != nil {
		readAhead(w.source)
	}
}

func readAhead(files interface{ WillNeed(bytes int64) }) {
	files.WillNeed(sysmem.Available() / 8 * 7)
}

// folderSource is a safetensors checkpoint.
type folderSource struct{ *safetensors.Checkpoint }

func (s folderSource) Stamps() []fileStamp {
	var out []fileStamp
	for _, f := range s.Files() {
		out = append(out, fileStamp{f.Name(), f.Info()})
	}
	return out
}

// LoadFS is Load for a file system rooted at the model folder. The
// files are read into memory.
func LoadFS(fsys fs.FS, cfg *arch.Config) (*Weights, error) {
	c, err := safetensors.OpenCheckpointFS(fsys)
	if err != nil {
		return nil, err
	}
	return open("of the file system", folderSource{c}, arch.HuggingFace, cfg)
}

// open takes over src, whose tensors are named by the convention n. name is that of
// the checkpoint, for errors.
func open(name string, src source, n arch.Naming, cfg *arch.Config) (*Weights, error) {
	w := &Weights{source: src}
	if err := w.load(name, n, cfg); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// load finds all tensors that cfg calls for.
func (w *Weights) load(checkpoint string, n arch.Naming, cfg *arch.Config) error {
	src := w.source
	// Every layer has a tensor of its own, so a count that the checkpoint cannot
	// hold is refused before anything is allocated for the layers.
	names := src.Names()
	if cfg.Layers < 1 || cfg.Layers > len(names) {
		return fmt.Errorf("checkpoint %s: found %d tensors, too few for the %d layers of the config", checkpoint, len(names), cfg.Layers)
	}
	w.Layers, w.names = make([]Layer, cfg.Layers), cfg.Tensors()
	if cfg.Interleaved(n) {
		w.Rows = interleaved(cfg.HeadDim)
	}
	if err := w.makeExperts(checkpoint, names, n, cfg); err != nil {
		return err
	}
	used := make(map[string]bool, len(names))
	l := loader{checkpoint: checkpoint, src: src, naming: n, rename: renaming(names, n), used: used,
		lowbit: cfg.Lowbit, repacked: map[string]tensor.Tensor{}, w: w}
	for _, p := range w.places(cfg, n) {
		if p.dst == &w.Embed && cfg.TiedEmbeddings {
			// Of matrices that share memory the safetensors library's save_model keeps the
			// one that comes first by name, and so, of tied embeddings, the head.
			p.stored = append(p.stored, arch.StoredTensor{Name: w.names.Name(n, arch.RoleHead, 0), Shape: p.shape})
		}
		var err error
		if *p.dst, err = l.load(&p); err != nil {
			return err
		}
	}
	if cfg.TiedEmbeddings {
		w.Head = w.Embed
	}
	w.unused = slices.DeleteFunc(names, func(name string) bool { return used[name] })
	if l.lowbit != nil && len(l.repacked) == 0 {
		return fmt.Errorf("checkpoint %s: \"quantization_config\": matrices stored as %s are expected by the config, found none", checkpoint, l.lowbit.Name)
	}
	return l.noBiases(w.unused)
}

// makeExperts makes room for the experts of each layer, unless the checkpoint cannot hold
// so many.
func (w *Weights) makeExperts(checkpoint string, names []string, n arch.Naming, cfg *arch.Config) error {
	rename := renaming(names, n)
	for at, p := range cfg.Plans() {
		if p.FFN.Experts == 0 {
			continue
		}
		stacked := slices.Contains(names, rename(w.names.Stacked(n, at)))
		if p.FFN.Experts > len(names) && !stacked {
			return fmt.Errorf("checkpoint %s: found %d tensors, too few for the %d experts of layer %d", checkpoint, len(names), p.FFN.Experts, at)
		}
		w.Layers[at].Experts = make([]Expert, p.FFN.Experts)
	}
	return nil
}

// loader finds the tensors of places in a source.
type loader struct {
	checkpoint string
	src        source
	naming     arch.Naming
	rename     func(string) string
	used       map[string]bool // by the source's names

	lowbit   *lowbit.Scheme // of matrices to repack, nil for none
	repacked map[string]tensor.Tensor
	w        *Weights // that owns their memory
}

// load returns the tensor of a place, a view of the source if its elements are aligned.
func (l *loader) load(p *place) (tensor.Tensor, error) {
	if err := l.twice(p); err != nil {
		return tensor.Tensor{}, err
	}
	for _, s := range p.stored {
		name := l.rename(s.Name)
		t, file, ok, err := l.tensor(name, s.Shape)
		if err != nil {
			return t, err
		}
		if !ok {
			continue
		}
		if !t.HasShape(s.Shape...) && !(len(s.Shape) == 2 && s.Shape[0] == 1 && t.HasShape(s.Shape[1])) {
			return t, fmt.Errorf("checkpoint file %q: tensor %q has shape %s, expected %s by the config",
				file, name, tensor.ShapeString(t.Shape), tensor.ShapeString(s.Shape))
		}
		if !t.Type.Weights() {
			return t, fmt.Errorf("checkpoint file %q: tensor %q is of type %v, expected F32, F16 or BF16", file, name, t.Type)
		}
		l.used[name] = true
		if t = aligned(rows(&s, t, p.shape)); len(p.shape) == 1 && t.Type.Float() {
			err = finiteVector(t, file, name)
		}
		return t, err
	}
	s := p.stored[0]
	if i := slices.IndexFunc(p.stored, func(s arch.StoredTensor) bool { return slices.Equal(s.Shape, p.shape) }); i >= 0 {
		s = p.stored[i] // as a tensor of its own
	}
	return tensor.Tensor{}, fmt.Errorf("checkpoint %s: tensor %q of shape %s is missing", l.checkpoint, l.rename(s.Name), tensor.ShapeString(s.Shape))
}

// finiteVector returns an error if a norm or a bias, without which no answer can be right, is
// damaged. Matrices are not read when a checkpoint is opened.
func finiteVector(t tensor.Tensor, file, name string) error {
	for i, v := range t.Float32s(nil) {
		if v-v != 0 {
			return fmt.Errorf("checkpoint file %q: tensor %q: element %d is %v, expected a finite number", file, name, i, v)
		}
	}
	return nil
}

// twice returns an error if a GGUF file has a tensor in two forms.
func (l *loader) twice(p *place) error {
	if l.naming != arch.GGUF {
		return nil
	}
	found := ""
	for _, s := range p.stored {
		if _, file, ok := l.src.Tensor(s.Name); !ok || s.Name == found {
			continue
		} else if found != "" {
			return fmt.Errorf("checkpoint file %q: found both tensors %q and %q, expected one of them", file, found, s.Name)
		}
		found = s.Name
	}
	return nil
}

// rows returns the rows of a stored tensor t that make up a place's of the given shape.
func rows(s *arch.StoredTensor, t tensor.Tensor, shape []int) tensor.Tensor {
	if slices.Equal(s.Shape, shape) {
		t.Shape = shape // a vector may stand for a matrix of one row
		return t
	}
	all := s.Shape[0]
	for _, d := range s.Shape[1:max(1, len(s.Shape)-1)] {
		all *= d
	}
	size, n := len(t.Data)/all, shape[0]
	return tensor.Tensor{Type: t.Type, Shape: shape, Data: t.Data[s.Row*size : (s.Row+n)*size : (s.Row+n)*size]}
}

// prefixes are the ways in which the Hugging Face names of a checkpoint begin: those of the
// network and those of its head. The first is the plain one; transformers' AutoModel saves
// a network without its head and without a prefix; the others hold the text model of a
// multimodal one.
var prefixes = [][2]string{
	{"model.", "lm_head."},
	{"", "lm_head."},
	{"language_model.model.", "language_model.lm_head."},
	{"model.language_model.", "lm_head."},
}

// renaming returns what turns the plain name of a tensor into that of a checkpoint with the
// given names.
func renaming(names []string, n arch.Naming) func(string) string {
	plain := prefixes[0]
	if n != arch.HuggingFace {
		return func(name string) string { return name }
	}
	of := plain
	for _, p := range prefixes {
		if slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, p[0]+"layers.") }) {
			of = p
			break
		}
	}
	return func(name string) string {
		if rest, ok := strings.CutPrefix(name, plain[0]); ok {
			return of[0] + rest
		}
		if rest, ok := strings.CutPrefix(name, plain[1]); ok {
			return of[1] + rest
		}
		return name
	}
}

// aligned returns t itself if its elements are aligned, and a copy in new memory
// otherwise.
func aligned(t tensor.Tensor) tensor.Tensor {
	if uintptr(unsafe.Pointer(unsafe.SliceData(t.Data)))%uintptr(t.Type.Align()) == 0 {
		return t
	}
	c := tensor.Make(t.Type, t.Shape...)
	copy(c.Data, t.Data)
	return c
}
