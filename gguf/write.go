package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/lukv/lukv/internal/atomicfile"
)

// Pair is a key of a file to be written. The Go type of the value gives the type in the
// file: bool, string, uint16, uint32, int32, uint64, float32, []string, []int32, []bool or
// []float32; or it is a value of [File.Pairs], written as it was read.
type Pair struct {
	Key   string
	Value any
}

// Entry is a tensor of a file to be written.
type Entry struct {
	Name  string
	Type  Type
	Shape []int // outermost first

	// Stream writes the tensor's data, which must have the length that type and shape
	// give. It is called in the order of the entries, once by each function that calls it.
	Stream func(w io.Writer) error
}

// alignment is that of the data of written files, the default of the format.
const alignment = 32

// WriteFile writes a file of version 3 under the name path, which appears only when the
// file is complete.
func WriteFile(path string, pairs []Pair, entries []Entry) error {
	header, sizes, err := header(pairs, entries)
	if err != nil {
		return fmt.Errorf("write gguf %s: %w", path, err)
	}
	err = atomicfile.Write(path, 0o666, func(w io.Writer) error {
		if _, err := w.Write(header); err != nil {
			return err
		}
		for i, e := range entries {
			c := &counter{w: w}
			if err := e.Stream(c); err != nil {
				return fmt.Errorf("tensor %q: %w", e.Name, err)
			}
			if c.n != sizes[i] {
				return fmt.Errorf("tensor %q: %d bytes were written, expected %d", e.Name, c.n, sizes[i])
			}
			if _, err := w.Write(make([]byte, aligned(c.n)-c.n)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("write gguf: %w", err)
	}
	return nil
}

// Preview returns the File that [WriteFile] would write, before anything is written. Only
// vectors have data, which are taken from their streams.
func Preview(pairs []Pair, entries []Entry) (*File, error) {
	image, _, err := header(pairs, nil)
	if err != nil {
		return nil, fmt.Errorf("preview gguf: %w", err)
	}
	f, err := Parse("preview", image)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		t := &Tensor{Name: e.Name, Type: e.Type, Shape: e.Shape, File: "preview"}
		if f.byName[t.Name] != nil {
			return nil, fmt.Errorf("preview gguf: tensor %q appears twice", t.Name)
		}
		if len(t.Shape) == 1 {
			var data bytes.Buffer
			if err := e.Stream(&data); err != nil {
				return nil, fmt.Errorf("preview gguf: tensor %q: %w", e.Name, err)
			}
			t.Data = data.Bytes()
		}
		f.tensors = append(f.tensors, t)
		f.byName[t.Name] = t
	}
	return f, nil
}

func aligned(n uint64) uint64 { return (n + alignment - 1) / alignment * alignment }

// counter counts bytes on their way.
type counter struct {
	w io.Writer
	n uint64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += uint64(n)
	return n, err
}

// header returns everything before the tensor data, and the bytes of each tensor.
func header(pairs []Pair, entries []Entry) ([]byte, []uint64, error) {
	u32, u64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	b := u32([]byte("GGUF"), 3)
	b = u64(u64(b, uint64(len(entries))), uint64(len(pairs)))
	for _, p := range pairs {
		b = appendText(b, p.Key)
		var err error
		if b, err = appendValue(b, p.Value); err != nil {
			return nil, nil, fmt.Errorf("key %q: %w", p.Key, err)
		}
	}
	sizes := make([]uint64, len(entries))
	at := uint64(0)
	for i, e := range entries {
		b = u32(appendText(b, e.Name), uint32(len(e.Shape)))
		for j := range e.Shape {
			b = u64(b, uint64(e.Shape[len(e.Shape)-1-j]))
		}
		b = u64(u32(b, uint32(e.Type)), at)
		n, err := (&Tensor{Name: e.Name, Type: e.Type, Shape: e.Shape}).bytes()
		if err != nil {
			return nil, nil, fmt.Errorf("tensor %q: %w", e.Name, err)
		}
		sizes[i] = n
		at += aligned(n)
	}
	return append(b, make([]byte, aligned(uint64(len(b)))-uint64(len(b)))...), sizes, nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

func appendValue(b []byte, v any) ([]byte, error) {
	u32, u64 := binary.LittleEndian.AppendUint32, binary.LittleEndian.AppendUint64
	of := func(k kind) []byte { return u32(b, uint32(k)) }
	switch v := v.(type) {
	case value:
		if v.array {
			return append(u64(u32(of(kindArray), uint32(v.kind)), uint64(v.count)), v.data...), nil
		}
		return append(of(v.kind), v.data...), nil
	case bool:
		return appendBool(of(kindBool), v), nil
	case string:
		return appendText(of(kindText), v), nil
	case uint16:
		return binary.LittleEndian.AppendUint16(of(kindU16), v), nil
	case uint32:
		return u32(of(kindU32), v), nil
	case int32:
		return u32(of(kindI32), uint32(v)), nil
	case uint64:
		return u64(of(kindU64), v), nil
	case float32:
		return u32(of(kindF32), math.Float32bits(v)), nil
	case []string:
		return appendArray(b, kindText, v, appendText), nil
	case []bool:
		return appendArray(b, kindBool, v, appendBool), nil
	case []int32:
		return appendArray(b, kindI32, v, func(b []byte, x int32) []byte { return u32(b, uint32(x)) }), nil
	case []float32:
		return appendArray(b, kindF32, v, func(b []byte, x float32) []byte { return u32(b, math.Float32bits(x)) }), nil
	}
	return nil, fmt.Errorf("a value of type %T cannot be written", v)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func appendArray[T any](b []byte, k kind, values []T, one func([]byte, T) []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(kindArray))
	b = binary.LittleEndian.AppendUint32(b, uint32(k))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(values)))
	for _, v := range values {
		b = one(b, v)
	}
	return b
}
