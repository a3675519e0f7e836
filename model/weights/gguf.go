package weights

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/gguf/checkpoint"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// A GGUF file is used in place: weights are views of the mapped file in the blocks in
// which they are stored. Config and tokenizer are read from the metadata as if it were the
// text files of a checkpoint folder.

// LoadGGUF maps the model in a GGUF file, or in the several of which path is the first,
// with its config and its text files as those of a checkpoint folder, and starts to bring
// it into memory as [Weights.ReadAhead] does. The caller closes the weights.
func LoadGGUF(path string) (*arch.Config, *Weights, fs.FS, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, nil, nil, err
	}
	readAhead(f)
	cfg, files, err := readGGUF(f)
	if err != nil {
		return nil, nil, nil, errors.Join(fmt.Errorf("gguf file %s: %w", path, err), f.Close())
	}
	w, err := open(fmt.Sprintf("%q", path), ggufSource{f}, arch.GGUF, cfg)
	if err != nil {
		return nil, nil, nil, err
	}
	if len(w.unused) > 0 {
		err := fmt.Errorf("gguf file %s: tensor %q has no place in a model of the architecture %s, which makes the model %w",
			path, w.unused[0], cfg.Arch, arch.ErrUnsupported)
		return nil, nil, nil, errors.Join(err, w.Close())
	}
	return cfg, w, files, nil
}

func readGGUF(f *gguf.File) (*arch.Config, fs.FS, error) {
	for _, t := range f.Tensors() {
		if !t.Type.Readable() {
			return nil, nil, fmt.Errorf("tensor %q: the type %s is %w", t.Name, t.Type, arch.ErrUnsupported)
		}
	}
	files, err := TextFiles(f)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := arch.LoadFS(files)
	if err != nil {
		return nil, nil, err
	}
	cfg.Scalars.NormOffset = 0 // the files' norms hold it
	return cfg, files, nil
}

// TextFiles returns the text files of the checkpoint in a GGUF file, as a folder has them.
func TextFiles(f *gguf.File) (fs.FS, error) {
	files, err := checkpoint.Files(f, checkpoint.Options{})
	if errors.Is(err, checkpoint.ErrUnsupported) {
		return nil, arch.Unsupported(err)
	}
	return files, err
}

// ggufSource is a GGUF file as a source of tensors.
type ggufSource struct{ *gguf.File }

// notWeights are tensors that the config has taken in.
func notWeights(name string) bool {
	return name == "rope_freqs.weight" || name == "rope_factors_long.weight" || name == "rope_factors_short.weight"
}

func (s ggufSource) Names() []string {
	var names []string
	for _, t := range s.Tensors() {
		if !notWeights(t.Name) {
			names = append(names, t.Name)
		}
	}
	return names
}

func (s ggufSource) Tensor(name string) (tensor.Tensor, string, bool) {
	t := s.File.Tensor(name)
	if t == nil {
		return tensor.Tensor{}, "", false
	}
	return tensor.Tensor{Type: t.Type.Stored(), Shape: t.Shape, Data: t.Data}, t.File, true
}

func (s ggufSource) Stamps() []fileStamp {
	var out []fileStamp
	for i, info := range s.Infos() {
		out = append(out, fileStamp{s.Parts()[i], info})
	}
	return out
}
