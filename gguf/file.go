package gguf

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/lukv/lukv/internal/mapfile"
	"github.com/lukv/lukv/tensor"
)

const (
	maxCount  = 1 << 20   // of keys and of tensors
	maxHeader = 256 << 20 // bytes
	maxName   = 1 << 16   // bytes of a key or a tensor's name
	maxDims   = 4
)

// File is an open GGUF file. A model in several files is one File, with the keys of
// the first and the tensors of all.
type File struct {
	parts    []string        // paths, as given to Open or made from it
	mappings []*mapfile.File // of the parts, none for a parsed image
	header   int             // bytes before the tensor data of the first part, without padding
	values   map[string]value
	tensors  []*Tensor
	byName   map[string]*Tensor
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int  // outermost first, unlike in the file
	File  string // path of the part that holds it
	Data  []byte // blocks, row after row: a view of the mapped file, not to be changed
}

// Open maps the file at path and checks it. If the file is the first of several that
// make up a model, the others are found by their names and opened, too; opening
// another than the first is an error. The caller must close the File.
func Open(path string) (*File, error) {
	f, err := openPart(path)
	if err != nil {
		return nil, err
	}
	if err := f.openOthers(); err != nil {
		return nil, errors.Join(fmt.Errorf("gguf file %s: %w", path, err), f.Close())
	}
	return f, nil
}

// openPart maps one file.
func openPart(path string) (*File, error) {
	m, err := mapfile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open gguf: %w", err)
	}
	f, err := Parse(path, m.Bytes())
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	f.mappings = []*mapfile.File{m}
	return f, nil
}

// Parse checks the image of a single file in memory, which must not change while the
// File is in use. name appears in errors.
func Parse(name string, data []byte) (*File, error) {
	f := &File{parts: []string{name}, values: map[string]value{}, byName: map[string]*Tensor{}}
	if err := f.parse(data); err != nil {
		return nil, fmt.Errorf("gguf file %s: %w", name, err)
	}
	for _, t := range f.tensors {
		t.File = name
	}
	return f, nil
}

// Parts returns the paths of the files that the File consists of.
func (f *File) Parts() []string { return slices.Clone(f.parts) }

// Infos describes the files as of when they were opened, nil for a parsed image.
func (f *File) Infos() []fs.FileInfo {
	var out []fs.FileInfo
	for _, m := range f.mappings {
		out = append(out, m.Info())
	}
	return out
}

// WillNeed asks the system to read up to limit bytes of the files into memory in the
// background, in their order. It returns at once.
func (f *File) WillNeed(limit int64) {
	for _, m := range f.mappings {
		if limit <= 0 {
			return
		}
		m.WillNeed(limit)
		limit -= m.Size()
	}
}

// Close unmaps the files; tensors must not be used afterwards. Closing
// again, and closing a parsed image, does nothing.
func (f *File) Close() error {
	var errs []error
	for _, m := range f.mappings {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Tensors returns all tensors in the order of the header. They must not be
// changed.
func (f *File) Tensors() []*Tensor { return f.tensors }

// Tensor returns the tensor with the given name, nil if there is none.
func (f *File) Tensor(name string) *Tensor { return f.byName[name] }

// HeaderSize is the number of bytes that describe the file's contents: keys,
// values and tensor descriptions.
func (f *File) HeaderSize() int { return f.header }

func (f *File) parse(data []byte) error {
	r := &reader{data: data}
	if len(data) < 24 {
		return fmt.Errorf("%d bytes, expected at least 24", len(data))
	}
	if magic := r.bytes(4); string(magic) != "GGUF" {
		return fmt.Errorf("found %q, expected the magic \"GGUF\"", magic)
	}
	switch v := r.u32(); {
	case v == 2 || v == 3:
	case v == 2<<24 || v == 3<<24:
		return errors.New("big-endian, expected little-endian")
	default:
		return fmt.Errorf("version %d, expected 2 or 3", v)
	}
	tensors, keys := r.u64(), r.u64()
	if tensors > maxCount || keys > maxCount {
		return fmt.Errorf("%d tensors and %d keys, expected at most %d of each", tensors, keys, maxCount)
	}
	for i := range keys {
		if err := f.key(r); err != nil {
			return fmt.Errorf("key %d: %w", i, err)
		}
	}
	align, err := f.alignment()
	if err != nil {
		return err
	}
	type place struct {
		t      *Tensor
		offset uint64
	}
	var places []place
	for i := range tensors {
		t, offset, err := f.tensor(r)
		if err != nil {
			return fmt.Errorf("tensor %d: %w", i, err)
		}
		if offset%align != 0 {
			return fmt.Errorf("tensor %q: offset %d, expected a multiple of %d", t.Name, offset, align)
		}
		places = append(places, place{t, offset})
	}
	if r.at > maxHeader {
		return fmt.Errorf("header of %d bytes, expected at most %d", r.at, maxHeader)
	}
	f.header = r.at
	start := (uint64(r.at) + align - 1) / align * align
	if start > uint64(len(data)) {
		start = uint64(len(data))
	}
	rest := data[start:]
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.offset, b.offset) })
	end := uint64(0)
	for _, p := range places {
		size, err := p.t.bytes()
		if err != nil {
			return fmt.Errorf("tensor %q: %w", p.t.Name, err)
		}
		if p.offset > uint64(len(rest)) || size > uint64(len(rest))-p.offset {
			return fmt.Errorf("tensor %q: its %d bytes at %d reach beyond the end of the file, which has %d bytes of data: it is truncated or damaged", p.t.Name, size, p.offset, len(rest))
		}
		if p.offset < end {
			return fmt.Errorf("tensor %q: its data at %d overlap another tensor's, which end at %d", p.t.Name, p.offset, end)
		}
		end = p.offset + size
		p.t.Data = rest[p.offset:end:end]
	}
	return nil
}

// alignment returns the number that tensor offsets are multiples of.
func (f *File) alignment() (uint64, error) {
	if !f.Has("general.alignment") {
		return 32, nil
	}
	n, err := f.Uint("general.alignment")
	if err != nil {
		return 0, err
	}
	if n < 8 || n > 1<<20 || n&(n-1) != 0 {
		return 0, fmt.Errorf("key \"general.alignment\": %d, expected a power of two from 8 to %d", n, 1<<20)
	}
	return n, nil
}

func (f *File) key(r *reader) error {
	name, err := r.name()
	if err != nil {
		return err
	}
	if f.Has(name) {
		return fmt.Errorf("%q appears twice", name)
	}
	v, err := r.value()
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	f.values[name] = v
	return nil
}

func (f *File) tensor(r *reader) (*Tensor, uint64, error) {
	name, err := r.name()
	if err != nil {
		return nil, 0, err
	}
	if f.byName[name] != nil {
		return nil, 0, fmt.Errorf("%q appears twice", name)
	}
	dims := r.u32()
	if dims < 1 || dims > maxDims {
		return nil, 0, fmt.Errorf("%q: %d dimensions, expected 1 to %d", name, dims, maxDims)
	}
	t := &Tensor{Name: name, Shape: make([]int, dims)}
	for i := range t.Shape {
		d := r.u64()
		if d < 1 || d > math.MaxInt32 {
			return nil, 0, fmt.Errorf("%q: dimension %d, expected 1 to %d", name, d, math.MaxInt32)
		}
		t.Shape[len(t.Shape)-1-i] = int(d)
	}
	t.Type = Type(r.u32())
	offset := r.u64()
	if r.err != nil {
		return nil, 0, r.err
	}
	f.tensors = append(f.tensors, t)
	f.byName[name] = t
	return t, offset, nil
}

// rowLength is the number of elements in a row, the innermost dimension.
func (t *Tensor) rowLength() int { return t.Shape[len(t.Shape)-1] }

// bytes returns the size of the tensor's data.
func (t *Tensor) bytes() (uint64, error) {
	b, ok := blocks[t.Type]
	if !ok {
		return 0, t.Type.unknown()
	}
	if t.rowLength()%b.elements != 0 {
		return 0, fmt.Errorf("rows of %d elements, expected a multiple of %d for the type %s", t.rowLength(), b.elements, t.Type)
	}
	n, err := tensor.Count(t.Shape)
	if err != nil {
		return 0, err
	}
	if n/b.elements > math.MaxInt/b.bytes {
		return 0, fmt.Errorf("shape %s is too large", tensor.ShapeString(t.Shape))
	}
	return uint64(n/b.elements) * uint64(b.bytes), nil
}

// reader takes the header apart. After the first error, everything it reads is
// zero.
type reader struct {
	data []byte
	at   int
	err  error
}

var errEnd = errors.New("the file ends inside its header")

func (r *reader) bytes(n uint64) []byte {
	if r.err != nil || n > uint64(len(r.data)-r.at) {
		if r.err == nil {
			r.err = errEnd
		}
		return nil
	}
	b := r.data[r.at : r.at+int(n)]
	r.at += int(n)
	return b
}

func (r *reader) u32() uint32 {
	if b := r.bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// name reads a key or a tensor name.
func (r *reader) name() (string, error) {
	n := r.u64()
	if r.err == nil && n > maxName {
		return "", fmt.Errorf("a name of %d bytes, expected at most %d", n, maxName)
	}
	b := r.bytes(n)
	switch {
	case r.err != nil:
		return "", r.err
	case !utf8.Valid(b) || len(b) == 0:
		return "", fmt.Errorf("the name %q, expected text", b)
	}
	return string(b), nil
}
