// Package quantize writes models with weights of few bits: [GGUF] files from GGUF files,
// [FolderGGUF], GGUF files from folders of safetensors, and [Folder], folders of
// compressed-tensors from the same. All work on a few rows at a time, and nothing appears
// before it is complete.
package quantize

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/tensor"
)

// Options configure what is written.
type Options struct {
	// Type is that of the matrices, one of Types. The embedding and the output matrix are Q6_K
	// at the least. Where blocks of a type do not divide the rows, Q8_0 takes its
	// place, or F16. FolderGGUF also knows F32, F16 and BF16.
	Type gguf.Type

	// Mixed, with Q4_K, stores as Q6_K what errors harm most: the output matrix (the
	// embedding if it serves as one; else that is Q4_K, too), and in half of the layers the
	// values of attention and the last matrix of the unit. Files of this mixture are called
	// Q4_K_M.
	Mixed bool

	// Again allows matrices that are already in few bits, whose errors then add up.
	Again bool

	// Importance, if not nil, weighs the errors of columns. Q8_0 does not look at it.
	Importance *Importance

	// Progress, if not nil, is told how many elements are done.
	Progress func(done, total int64)
}

// Result describes the file that was written.
type Result struct {
	Tensors int            `json:"tensors"`
	Bytes   int64          `json:"bytes"`  // of tensors
	Before  int64          `json:"before"` // of the same tensors in the source
	Types   map[string]int `json:"types"`  // tensors by type
}

// targets are the types that matrices can be rounded to, with their values of general.file_type.
var targets = []struct {
	typ  gguf.Type
	file uint32
}{{gguf.Q8_0, 7}, {gguf.Q4_0, 2}, {gguf.Q4_K, 14}}

// Types returns the types that Options.Type may be.
func Types() (all []gguf.Type) {
	for _, t := range targets {
		all = append(all, t.typ)
	}
	return all
}

const mixedFileType = 15

// plainTypes are those of FolderGGUF that round no weights of 16 bits, or to 16 bits.
var plainTypes = []struct {
	typ  gguf.Type
	file uint32
}{{gguf.F32, 0}, {gguf.F16, 1}, {gguf.BF16, 32}}

// fileType returns the value of general.file_type.
func (o *Options) fileType(plain bool) (uint32, error) {
	if o.Mixed {
		if o.Type != gguf.Q4_K {
			return 0, fmt.Errorf("a mixture with %s: expected Q4_K", o.Type)
		}
		return mixedFileType, nil
	}
	list := targets
	if plain {
		list = slices.Concat(targets, plainTypes)
	}
	var names []gguf.Type
	for _, t := range list {
		if t.typ == o.Type {
			return t.file, nil
		}
		names = append(names, t.typ)
	}
	return 0, fmt.Errorf("type %s: expected one of %v", o.Type, names)
}

// GGUF writes the model in the GGUF file at path, or in the several of which it is the
// first, to one file out, which must not exist and appears only when it is complete.
// Tensors are read, encoded and written a few rows at a time, by all processors; the bytes
// do not depend on their number.
func GGUF(ctx context.Context, path, out string, o Options) (*Result, error) {
	r, err := run(ctx, path, out, o)
	if err != nil {
		return nil, fmt.Errorf("quantize %s: %w", path, err)
	}
	return r, nil
}

func run(ctx context.Context, path, out string, o Options) (*Result, error) {
	kind, err := o.fileType(false)
	if err != nil {
		return nil, err
	}
	if err := absent(out); err != nil {
		return nil, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var inputs []*input
	for _, t := range f.Tensors() {
		inputs = append(inputs, &input{name: t.Name, typ: t.Type, shape: t.Shape, bytes: int64(len(t.Data)), raw: t.Data, rows: t.Rows})
	}
	w := newWriter(ctx, o)
	entries, err := w.entries(inputs)
	if err != nil {
		return nil, err
	}
	if err := gguf.WriteFile(out, pairs(f, kind), entries); err != nil {
		return nil, err
	}
	return w.result, nil
}

// pairs returns the keys of the file without those of its parts, and with the type of
// its weights.
func pairs(f *gguf.File, kind uint32) []gguf.Pair {
	list := slices.DeleteFunc(f.Pairs(), func(p gguf.Pair) bool {
		return strings.HasPrefix(p.Key, "split.") || p.Key == "general.file_type" || p.Key == "general.quantization_version" || p.Key == "general.alignment"
	})
	return append(list, gguf.Pair{Key: "general.file_type", Value: kind}, gguf.Pair{Key: "general.quantization_version", Value: uint32(2)})
}

// input is a tensor to be written.
type input struct {
	name  string
	typ   gguf.Type
	shape []int
	bytes int64  // where it is read
	raw   []byte // the data of its type, nil if they must be made from rows
	rows  func(dst []float32, from, n int) error
}

func (s *input) width() int { return s.shape[len(s.shape)-1] }

func (s *input) elements() int {
	n := 1
	for _, d := range s.shape {
		n *= d
	}
	return n
}

// writer writes tensors.
type writer struct {
	ctx         context.Context
	o           Options
	result      *Result
	tied        bool // the embedding serves as output matrix
	layers      int
	importance  map[string][]float32 // by tensor
	done, total int64
}

func newWriter(ctx context.Context, o Options) *writer {
	w := &writer{ctx: ctx, o: o, result: &Result{Types: map[string]int{}}}
	if o.Importance != nil {
		w.importance = o.Importance.tensors()
	}
	return w
}

// entries says how all tensors of a model are written.
func (w *writer) entries(inputs []*input) (list []gguf.Entry, err error) {
	w.tied = true
	for _, t := range inputs {
		w.layers = max(w.layers, layerOf(t.name)+1)
		w.tied = w.tied && t.name != outputName
	}
	for _, t := range inputs {
		e, err := w.entry(t)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

const (
	embeddingName = "token_embd.weight"
	outputName    = "output.weight"
)

// layerOf returns the layer to which a tensor belongs, -1 if it belongs to none.
func layerOf(name string) int {
	at := -1
	if n, err := fmt.Sscanf(name, "blk.%d.", &at); n != 1 || err != nil || at < 0 || at > math.MaxInt16 {
		return -1
	}
	return at
}

// sensitive reports whether a mixture gives more bits to a tensor: the values of attention and
// the last matrices of the unit, in the first and the last eighth of the layers, and in every
// third of those between.
func (w *writer) sensitive(name string) bool {
	at, n := layerOf(name), w.layers
	if at < 0 || !strings.Contains(name, ".attn_v.") && !strings.Contains(name, ".attn_qkv.") && !strings.Contains(name, ".ffn_down") {
		return false
	}
	return at < n/8 || at >= 7*n/8 || (at-n/8)%3 == 2
}

// entry says how a tensor is written.
func (w *writer) entry(t *input) (gguf.Entry, error) {
	typ := w.typeOf(t)
	if typ != t.typ {
		switch {
		case !t.typ.Readable():
			return gguf.Entry{}, fmt.Errorf("tensor %q: the type %s is not supported", t.name, t.typ)
		case t.typ.Stored().Quantised() && !w.o.Again:
			return gguf.Entry{}, fmt.Errorf("tensor %q is of type %s: rounding it again adds to its errors; start from a file of F16, BF16 or F32, or allow it", t.name, t.typ)
		}
	}
	w.result.Tensors++
	w.result.Types[typ.String()]++
	w.result.Before += t.bytes
	w.total += int64(t.elements())
	return gguf.Entry{Name: t.name, Type: typ, Shape: t.shape, Stream: func(out io.Writer) error { return w.stream(out, t, typ) }}, nil
}

// typeOf chooses the type of a tensor: vectors, routers and factors of positions stay.
func (w *writer) typeOf(t *input) gguf.Type {
	if len(t.shape) < 2 || strings.Contains(t.name, "ffn_gate_inp") || strings.HasPrefix(t.name, "rope_") {
		return t.typ
	}
	want := w.o.Type
	switch {
	case want.Stored().Bytes(256) >= tensor.Q6_K.Bytes(256):
	case t.name == outputName, t.name == embeddingName && (w.tied || !w.o.Mixed), w.o.Mixed && w.sensitive(t.name):
		want = gguf.Q6_K
	}
	for _, typ := range []gguf.Type{want, gguf.Q8_0} {
		if t.width()%typ.Stored().Block() == 0 {
			return typ
		}
	}
	if t.typ == gguf.F32 {
		return gguf.F16
	}
	return t.typ
}

// batchElements is how many elements are encoded at a time, about: enough to divide among
// the processors.
const batchElements = 1 << 20

// stream encodes a tensor, some rows at a time.
func (w *writer) stream(out io.Writer, t *input, typ gguf.Type) error {
	if typ == t.typ && t.raw != nil {
		n, err := out.Write(t.raw)
		w.advance(int64(t.elements()), int64(n))
		return err
	}
	width := t.width()
	rows, step := t.elements()/width, max(1, batchElements/width)
	for from := 0; from < rows; from += step {
		if err := w.ctx.Err(); err != nil {
			return context.Cause(w.ctx)
		}
		n := min(step, rows-from)
		data, err := encode(t, typ, from, n, w.importance[t.name])
		if err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
		w.advance(int64(n)*int64(width), int64(len(data)))
	}
	return nil
}

func (w *writer) advance(elements, bytes int64) {
	w.done += elements
	w.result.Bytes += bytes
	if w.o.Progress != nil {
		w.o.Progress(w.done, w.total)
	}
}

// encode returns n rows of a tensor from row from on as blocks of type typ.
func encode(t *input, typ gguf.Type, from, n int, importance []float32) ([]byte, error) {
	width, workers := t.width(), min(runtime.GOMAXPROCS(0), n)
	parts, errs := make([][]byte, workers), make([]error, workers)
	var wait sync.WaitGroup
	for i := range workers {
		lo, hi := from+n*i/workers, from+n*(i+1)/workers
		wait.Go(func() {
			errs[i] = guarded(func() (err error) {
				x := make([]float32, (hi-lo)*width)
				if err = t.rows(x, lo, hi-lo); err == nil {
					parts[i], err = gguf.Encode(nil, typ, x, width, importance)
				}
				return err
			})
		})
	}
	wait.Wait()
	return slices.Concat(parts...), errors.Join(errs...)
}
