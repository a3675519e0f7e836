package safetensors

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/mapfile"
	"github.com/lukv/lukv/internal/strictjson"
	"github.com/lukv/lukv/tensor"
)

const (
	lengthSize = 8           // bytes of the length field before the header
	maxHeader  = 100_000_000 // limit on the bytes of a header or index, as in the reference reader
	maxDims    = 64
	maxDepth   = 66 // of the objects and arrays in a header or index
	metaName   = "__metadata__"
)

// File is one safetensors file, checked from front to back.
type File struct {
	name    string
	tensors []member // in data order
	byName  map[string]int
	meta    map[string]string
	mapping *mapfile.File // nil for a parsed image
}

type member struct {
	name   string
	tensor tensor.Tensor
}

// Open maps the file at path and checks it. The caller must close the File.
func Open(path string) (*File, error) {
	m, err := mapfile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open safetensors: %w", err)
	}
	f, err := Parse(path, m.Bytes())
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	f.mapping = m
	return f, nil
}

// Parse checks a safetensors image in memory, for instance an embedded one.
// The name is used only in error messages. The data is kept, not copied, and must
// not change while the File is in use.
func Parse(name string, data []byte) (*File, error) {
	f := &File{name: name}
	if err := f.parse(data); err != nil {
		return nil, fmt.Errorf("safetensors file %q: %w", name, err)
	}
	return f, nil
}

// Name returns the path or name that the file was opened with.
func (f *File) Name() string { return f.name }

// Info describes the file as of when it was opened; nil for a parsed image.
func (f *File) Info() fs.FileInfo {
	if f.mapping == nil {
		return nil
	}
	return f.mapping.Info()
}

// Len returns the number of tensors.
func (f *File) Len() int { return len(f.tensors) }

// Tensor returns the tensor with the given name. Its shape must not be changed.
func (f *File) Tensor(name string) (t tensor.Tensor, ok bool) {
	i, ok := f.byName[name]
	if !ok {
		return tensor.Tensor{}, false
	}
	return f.tensors[i].tensor, true
}

// All yields names and tensors in the order of their data in the file.
func (f *File) All() iter.Seq2[string, tensor.Tensor] {
	return func(yield func(string, tensor.Tensor) bool) {
		for _, t := range f.tensors {
			if !yield(t.name, t.tensor) {
				return
			}
		}
	}
}

// Metadata returns a copy of the file's free-form metadata, never nil.
func (f *File) Metadata() map[string]string {
	m := make(map[string]string, len(f.meta))
	maps.Copy(m, f.meta)
	return m
}

// Close unmaps the file; its tensors must not be used afterwards. Closing
// again, and closing a parsed image, does nothing.
func (f *File) Close() error {
	if f.mapping == nil {
		return nil
	}
	return f.mapping.Close()
}

// entry is the description of one tensor in the header.
type entry struct {
	name       string
	typ        tensor.Type
	shape      []int
	begin, end int // byte range in the data
}

func (f *File) parse(file []byte) error {
	if len(file) < lengthSize {
		return fmt.Errorf("found %d bytes, expected at least %d for the header length", len(file), lengthSize)
	}
	// Unsigned, so that neither 2^64-1 nor a set sign bit wraps around.
	length := binary.LittleEndian.Uint64(file)
	if length > maxHeader {
		return fmt.Errorf("header length is %d bytes, expected at most %d: not a safetensors file", length, maxHeader)
	}
	rest := file[lengthSize:]
	if length > uint64(len(rest)) {
		return fmt.Errorf("header length is %d bytes, but only %d follow", length, len(rest))
	}
	header, data := rest[:length], rest[length:]
	entries, meta, err := parseHeader(header)
	if err != nil {
		return fmt.Errorf("header: %w", err)
	}
	// Empty tensors take no bytes and may begin where their successor does.
	slices.SortStableFunc(entries, func(a, b entry) int {
		if a.begin != b.begin {
			return cmp.Compare(a.begin, b.begin)
		}
		return cmp.Compare(a.end, b.end)
	})
	f.meta = meta
	f.tensors = make([]member, 0, len(entries))
	f.byName = make(map[string]int, len(entries))
	pos := 0
	for _, e := range entries {
		if e.begin != pos {
			what := "a hole"
			if e.begin < pos {
				what = "an overlap"
			}
			return fmt.Errorf("tensor %s: data begins at byte %d, expected %d, where the data before it ends (%s)",
				quote(e.name), e.begin, pos, what)
		}
		if e.end > len(data) {
			return fmt.Errorf("tensor %s: data ends at byte %d, but the file has only %d bytes of data (cut short?)",
				quote(e.name), e.end, len(data))
		}
		// The range was checked against type and shape when the entry was read.
		t := tensor.Tensor{Type: e.typ, Shape: e.shape, Data: data[e.begin:e.end:e.end]}
		f.byName[e.name] = len(f.tensors)
		f.tensors = append(f.tensors, member{e.name, t})
		pos = e.end
	}
	if pos != len(data) {
		return fmt.Errorf("%d bytes follow the last tensor, expected none", len(data)-pos)
	}
	return nil
}

// parseHeader reads the JSON text of a header. Each entry's byte range fits its
// type and shape; checking that the ranges cover the data is left to the caller.
func parseHeader(header []byte) (entries []entry, meta map[string]string, err error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, fmt.Errorf("text begins with %s, expected '{'", quote(string(header[:min(len(header), 8)])))
	}
	s := strictjson.NewScanner(header, maxDepth)
	err = s.Object("the header, an object", func(name string) error {
		if name == metaName {
			if meta, err = parseMetadata(s); err != nil {
				return fmt.Errorf("%s: %w", metaName, err)
			}
			return nil
		}
		e, err := parseEntry(s)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quote(name), err)
		}
		e.name = strings.Clone(name) // the header is unmapped before names are dropped
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	// The format pads with spaces; the reference reader accepts any white space.
	return entries, meta, s.End()
}

// parseMetadata reads an object of strings, or a null, which counts as an empty
// one.
func parseMetadata(s *strictjson.Scanner) (map[string]string, error) {
	meta := make(map[string]string)
	if s.Null() {
		return meta, nil
	}
	err := s.Object("an object of strings", func(key string) error {
		value, err := s.String("the value of " + quote(key))
		meta[strings.Clone(key)] = value
		return err
	})
	return meta, err
}

func parseEntry(s *strictjson.Scanner) (entry, error) {
	var e entry
	var offsets []int
	err := s.Object("an entry, an object", func(key string) (err error) {
		switch key {
		case "dtype":
			var name string
			if name, err = s.View("an element type"); err == nil {
				if e.typ, err = tensor.ParseType(name); err != nil {
					err = fmt.Errorf("element type %s is not supported", quote(name))
				}
			}
		case "shape":
			e.shape, err = counts(s, "an array of dimensions", maxDims)
		case "data_offsets":
			offsets, err = counts(s, "an array of two offsets", 2)
		default:
			return s.Skip()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		return nil
	})
	if err != nil {
		return e, err
	}
	switch {
	case e.typ == 0:
		return e, errors.New(`field "dtype" is missing`)
	case e.shape == nil:
		return e, errors.New(`field "shape" is missing`)
	case offsets == nil:
		return e, errors.New(`field "data_offsets" is missing`)
	}
	if len(offsets) != 2 {
		return e, fmt.Errorf("data_offsets: found %d numbers, expected 2", len(offsets))
	}
	e.begin, e.end = offsets[0], offsets[1]
	if e.begin > e.end {
		return e, fmt.Errorf("data_offsets: begin %d is larger than end %d", e.begin, e.end)
	}
	size, err := tensor.Bytes(e.typ, e.shape)
	if err != nil {
		return e, err
	}
	if size != e.end-e.begin {
		return e, fmt.Errorf("data_offsets give %d bytes, but %v%s takes %d",
			e.end-e.begin, e.typ, tensor.ShapeString(e.shape), size)
	}
	return e, nil
}

// counts reads an array of at most limit non-negative integers. The result is
// never nil.
func counts(s *strictjson.Scanner, what string, limit int) ([]int, error) {
	v := make([]int, 0, 4)
	err := s.Array(what, func(i int) error {
		if i == limit {
			return s.Fail("found more than %d numbers", limit)
		}
		n, err := s.Int(0, math.MaxInt)
		v = append(v, int(n))
		return err
	})
	return v, err
}

// quote makes a name from a file printable and short.
func quote(name string) string {
	const limit = 120
	if len(name) > limit {
		return fmt.Sprintf("%q... (%d bytes)", name[:limit], len(name))
	}
	return fmt.Sprintf("%q", name)
}
