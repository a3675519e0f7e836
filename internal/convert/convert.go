package convert

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/gguf/checkpoint"
	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// Options configure a conversion.
type Options struct {
	// Type is that of the weights: BF16, F32, or 0 for the type in the file where it is F32,
	// F16 or BF16, and BF16 for blocks of few bits.
	Type tensor.Type

	// ShardBytes bounds the files of weights, except for a single larger
	// tensor; 0 means 2 GiB.
	ShardBytes int64

	// Progress, if not nil, is told how many bytes of weights are written.
	Progress func(done, total int64)
}

// Result describes the folder that was made.
type Result struct {
	Architecture string `json:"architecture"`
	Name         string `json:"name,omitempty"` // of the model, as given in the file
	Tensors      int    `json:"tensors"`
	Parameters   int64  `json:"parameters"`
	Bytes        int64  `json:"bytes"`   // of weights
	Shards       int    `json:"shards"`  // files of weights
	Resumed      int    `json:"resumed"` // shards written by an earlier run
	Vocabulary   int    `json:"vocabulary"`
}

// converter is one conversion.
type converter struct {
	ctx    context.Context
	f      *gguf.File
	o      Options
	dir    string // the unfinished folder
	source string // identity of the files and the options
	done   int64
	total  int64
}

// weight is a tensor of the folder.
type weight struct {
	name string
	from tensor.Tensor
	to   tensor.Type
}

// sourceKey is the metadata key of a shard that says what it was made from.
const sourceKey = "lukv_convert"

// GGUF converts the model in the file at path, or in the several of which it is the first,
// into the folder out, which must not exist.
func GGUF(ctx context.Context, path, out string, o Options) (*Result, error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("convert: %w", err)
	}
	defer f.Close()
	r, err := convert(ctx, f, path, out, o)
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", path, err)
	}
	return r, nil
}

// fusedFamilies are the architectures whose folders hold weights in another form than the
// runtime does: fused matrices, norms less one.
var fusedFamilies = []string{"phi3", "gemma2", "gemma3_text"}

func convert(ctx context.Context, f *gguf.File, path, out string, o Options) (r *Result, err error) {
	if o.Type != tensor.BF16 && o.Type != tensor.F32 && o.Type != 0 {
		return nil, fmt.Errorf("weights as %s, expected bf16, f32 or auto", o.Type)
	}
	if o.ShardBytes <= 0 {
		o.ShardBytes = 2 << 30
	}
	if _, err := os.Lstat(out); err == nil {
		return nil, fmt.Errorf("%s exists already", out)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	cfg, w, _, err := weights.LoadGGUF(path)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if slices.Contains(fusedFamilies, cfg.Arch) {
		return nil, fmt.Errorf("writing folders of the architecture %s is %w; the file can be used as it is", cfg.Arch, model.ErrUnsupported)
	}
	c := &converter{ctx: ctx, f: f, o: o, dir: filepath.Clean(out) + ".partial"}
	weights := c.weights(w)
	files, err := checkpoint.Files(f, checkpoint.Options{Type: declaredType(weights), Text: true, Llama3: true})
	if err != nil {
		return nil, err
	}
	if c.source, err = c.identity(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(c.dir, 0o777); err != nil {
		return nil, err
	}
	if err := c.texts(files); err != nil {
		return nil, err
	}
	r = &Result{Architecture: cfg.Arch, Tensors: len(weights)}
	if f.Has("general.name") {
		r.Name, _ = f.Text("general.name")
	}
	if err := c.shards(weights, r); err != nil {
		return nil, err
	}
	if r.Vocabulary, err = c.check(); err != nil {
		return nil, fmt.Errorf("the folder that was made cannot be used: %w", err)
	}
	return r, os.Rename(c.dir, out)
}

// identity says what the weights are made from and how: a shard with another
// identity does not count as finished work.
func (c *converter) identity() (string, error) {
	h := sha256.New()
	for i, path := range c.f.Parts() {
		if i == 0 {
			file, err := inputfile.Open(path)
			if err != nil {
				return "", err
			}
			defer file.Close()
			if _, err := io.CopyN(h, file, int64(c.f.HeaderSize())); err != nil {
				return "", err
			}
		}
		info := c.f.Infos()[i]
		fmt.Fprintf(h, "%d %d ", info.Size(), info.ModTime().UnixNano())
	}
	fmt.Fprintf(h, "%s %d", c.o.Type, c.o.ShardBytes)
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// texts writes everything but the weights.
func (c *converter) texts(files fs.FS) error {
	for _, name := range checkpoint.Names {
		b, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if err := c.write(name, b); err != nil {
			return err
		}
	}
	for _, name := range checkpoint.EmbeddingNames {
		b, err := fs.ReadFile(files, name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = c.write(name, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *converter) write(name string, b []byte) error {
	path := filepath.Join(c.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return atomicfile.Write(path, 0o666, func(w io.Writer) error {
		_, err := w.Write(b)
		return err
	})
}

// weights returns the tensors of the folder in the order of the network.
func (c *converter) weights(w *weights.Weights) []weight {
	var out []weight
	w.Published(func(name string, t tensor.Tensor) {
		to := c.o.Type
		switch {
		case to != 0:
		case t.Type == tensor.F32 || t.Type == tensor.F16:
			to = t.Type
		default:
			to = tensor.BF16
		}
		out = append(out, weight{name, t, to})
	})
	return out
}

// declaredType returns the name in the config of the type that most elements have.
func declaredType(weights []weight) string {
	elements := map[tensor.Type]int{}
	for _, w := range weights {
		elements[w.to] += w.from.Len()
	}
	switch f16, f32, bf16 := elements[tensor.F16], elements[tensor.F32], elements[tensor.BF16]; {
	case f16 > max(f32, bf16):
		return "float16"
	case f32 > bf16:
		return "float32"
	}
	return "bfloat16"
}

// size is the number of bytes of a tensor in the folder.
func (w *weight) size() (int64, error) {
	n, err := tensor.Bytes(w.to, w.from.Shape)
	if err != nil {
		return 0, fmt.Errorf("tensor %q: %w", w.name, err)
	}
	return int64(n), nil
}

// shards writes the weights, except for files that an earlier run has finished.
func (c *converter) shards(weights []weight, r *Result) error {
	var files [][]weight
	held := int64(0)
	for _, w := range weights {
		n, err := w.size()
		if err != nil {
			return err
		}
		if len(files) == 0 || held+n > c.o.ShardBytes {
			files, held = append(files, nil), 0
		}
		files[len(files)-1] = append(files[len(files)-1], w)
		r.Parameters += int64(w.from.Len())
		held += n
		c.total += n
	}
	r.Bytes, r.Shards = c.total, len(files)
	names := []string{safetensors.SingleName}
	if len(files) > 1 {
		names = names[:0]
		for i := range files {
			names = append(names, fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(files)))
		}
	}
	if err := c.sweep(names); err != nil {
		return err
	}
	index := map[string]string{}
	for i, ws := range files {
		name := names[i]
		for _, w := range ws {
			index[w.name] = name
		}
		if c.finished(name, ws) {
			r.Resumed++
			continue
		}
		var named []safetensors.Named
		for _, w := range ws {
			named = append(named, safetensors.Named{
				Name: w.name, Tensor: tensor.Tensor{Type: w.to, Shape: w.from.Shape},
				Stream: func(out io.Writer) error { return c.stream(out, w) },
			})
		}
		err := safetensors.WriteFile(filepath.Join(c.dir, name), named, map[string]string{"format": "pt", sourceKey: c.source})
		if err != nil {
			return err
		}
	}
	if len(files) == 1 {
		return nil
	}
	b, err := json.MarshalIndent(map[string]any{"metadata": map[string]int64{"total_size": c.total}, "weight_map": index}, "", "  ")
	if err != nil {
		return err
	}
	return c.write(safetensors.IndexName, b)
}

// weightFile matches the names of files that this package writes weights to.
var weightFile = regexp.MustCompile(`^model(-\d+-of-\d+)?\.safetensors$`)

// sweep removes the weights left by a stopped run with other options or another
// source, except for the files in names, which will be replaced. Its single file would
// be read in place of an index.
func (c *converter) sweep(names []string) error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name := e.Name(); name == safetensors.IndexName || weightFile.MatchString(name) && !slices.Contains(names, name) {
			if err := os.Remove(filepath.Join(c.dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// finished reports whether an earlier run of the same conversion has written a
// shard, and counts it as done.
func (c *converter) finished(name string, ws []weight) bool {
	f, err := safetensors.Open(filepath.Join(c.dir, name))
	if err != nil {
		return false
	}
	defer f.Close()
	if f.Metadata()[sourceKey] != c.source || f.Len() != len(ws) {
		return false
	}
	bytes := int64(0)
	for _, w := range ws {
		t, ok := f.Tensor(w.name)
		if !ok || t.Type != w.to || !slices.Equal(t.Shape, w.from.Shape) {
			return false
		}
		bytes += int64(len(t.Data))
	}
	c.advance(bytes)
	return true
}

func (c *converter) advance(n int64) {
	c.done += n
	if c.o.Progress != nil {
		c.o.Progress(c.done, c.total)
	}
}

// streamElements is how many elements are converted at a time, about.
const streamElements = 1 << 18

// stream writes one tensor, some rows at a time.
func (c *converter) stream(out io.Writer, w weight) error {
	width := w.from.Shape[len(w.from.Shape)-1]
	rows := w.from.Len() / width
	step := max(1, streamElements/width)
	values := make([]float32, min(step, rows)*width)
	var raw []byte
	for from := 0; from < rows; from += step {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		x := values[:min(step, rows-from)*width]
		w.from.Type.Widen(x, w.from.Data[w.from.Type.Bytes(from*width):])
		raw = raw[:0]
		for i, v := range x {
			if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
				return fmt.Errorf("tensor %q: element %d is %v, expected a finite number", w.name, from*width+i, v)
			}
			switch w.to {
			case tensor.F32:
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(v))
			case tensor.F16:
				raw = binary.LittleEndian.AppendUint16(raw, tensor.F32ToF16(v))
			default:
				raw = binary.LittleEndian.AppendUint16(raw, tensor.F32ToBF16(v))
			}
		}
		if _, err := out.Write(raw); err != nil {
			return err
		}
		c.advance(int64(len(raw)))
	}
	return nil
}

// check opens the result the way a model is opened, and returns the size of its
// vocabulary.
func (c *converter) check() (vocabulary int, err error) {
	cfg, err := arch.Load(c.dir)
	if err != nil {
		return 0, err
	}
	w, err := weights.Load(c.dir, cfg)
	if err != nil {
		return 0, err
	}
	if err := w.Close(); err != nil {
		return 0, err
	}
	tok, err := tokenizer.Open(c.dir)
	if err != nil {
		return 0, err
	}
	return tok.VocabSize(), nil
}
