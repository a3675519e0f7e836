// Package quantize writes models with weights of few bits: [GGUF] files from GGUF files, and
// [Folder], folders of compressed-tensors from folders of safetensors. Both work on a few rows
// at a time, and nothing appears before it is complete.
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
	// place, or F16.
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
	at := slices.Index(Types(), o.Type)
	if at < 0 {
		return nil, fmt.Errorf("type %s: expected one of %v", o.Type, Types())
	}
	kind := targets[at].file
	if o.Mixed {
		if o.Type != gguf.Q4_K {
			return nil, fmt.Errorf("a mixture with %s: expected Q4_K", o.Type)
		}
		kind = mixedFileType
	}
	if err := absent(out); err != nil {
		return nil, err
	}
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w := &writer{ctx: ctx, o: o, result: &Result{Types: map[string]int{}}, tied: f.Tensor(outputName) == nil}
	var entries []gguf.Entry
	if o.Importance != nil {
		w.importance = o.Importance.tensors()
	}
	for _, t := range f.Tensors() {
		w.layers = max(w.layers, layerOf(t.Name)+1)
	}
	for _, t := range f.Tensors() {
		e, err := w.entry(t)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
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
func (w *writer) entry(t *gguf.Tensor) (gguf.Entry, error) {
	typ := w.typeOf(t)
	if typ != t.Type {
		switch {
		case !t.Type.Readable():
			return gguf.Entry{}, fmt.Errorf("tensor %q: the type %s is not supported", t.Name, t.Type)
		case t.Type.Stored().Quantised() && !w.o.Again:
			return gguf.Entry{}, fmt.Errorf("tensor %q is of type %s: rounding it again adds to its errors; start from a file of F16, BF16 or F32, or allow it", t.Name, t.Type)
		}
	}
	w.result.Tensors++
	w.result.Types[typ.String()]++
	w.result.Before += int64(len(t.Data))
	w.total += int64(elements(t))
	return gguf.Entry{Name: t.Name, Type: typ, Shape: t.Shape, Stream: func(out io.Writer) error { return w.stream(out, t, typ) }}, nil
}

func elements(t *gguf.Tensor) int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// typeOf chooses the type of a tensor: vectors, routers and factors of positions stay.
func (w *writer) typeOf(t *gguf.Tensor) gguf.Type {
	if len(t.Shape) < 2 || strings.Contains(t.Name, "ffn_gate_inp") || strings.HasPrefix(t.Name, "rope_") {
		return t.Type
	}
	want := w.o.Type
	switch {
	case want.Stored().Bytes(256) >= tensor.Q6_K.Bytes(256):
	case t.Name == outputName, t.Name == embeddingName && (w.tied || !w.o.Mixed), w.o.Mixed && w.sensitive(t.Name):
		want = gguf.Q6_K
	}
	for _, typ := range []gguf.Type{want, gguf.Q8_0} {
		if t.RowLength()%typ.Stored().Block() == 0 {
			return typ
		}
	}
	if t.Type == gguf.F32 {
		return gguf.F16
	}
	return t.Type
}

// batchElements is how many elements are encoded at a time, about: enough to divide among
// the processors.
const batchElements = 1 << 20

// stream encodes a tensor, some rows at a time.
func (w *writer) stream(out io.Writer, t *gguf.Tensor, typ gguf.Type) error {
	if typ == t.Type {
		n, err := out.Write(t.Data)
		w.advance(int64(elements(t)), int64(n))
		return err
	}
	width := t.RowLength()
	rows, step := elements(t)/width, max(1, batchElements/width)
	for from := 0; from < rows; from += step {
		if err := w.ctx.Err(); err != nil {
			return context.Cause(w.ctx)
		}
		n := min(step, rows-from)
		data, err := encode(t, typ, from, n, w.importance[t.Name])
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
func encode(t *gguf.Tensor, typ gguf.Type, from, n int, importance []float32) ([]byte, error) {
	width, workers := t.RowLength(), min(runtime.GOMAXPROCS(0), n)
	parts, errs := make([][]byte, workers), make([]error, workers)
	var wait sync.WaitGroup
	for i := range workers {
		lo, hi := from+n*i/workers, from+n*(i+1)/workers
		wait.Go(func() {
			x := make([]float32, (hi-lo)*width)
			if errs[i] = t.Rows(x, lo, hi-lo); errs[i] == nil {
				parts[i], errs[i] = gguf.Encode(nil, typ, x, width, importance)
			}
		})
	}
	wait.Wait()
	return slices.Concat(parts...), errors.Join(errs...)
}
