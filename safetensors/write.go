package safetensors

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/tensor"
)

// Named is a tensor to be written, with its name. Its bytes are Tensor.Data or, if
// Stream is set, what Stream writes, so that a large tensor need not be entirely in
// memory. If Stream is set, Tensor.Data is ignored, and Stream must write exactly
// as many bytes as type and shape take; it is called once, when the tensor's turn
// comes in the order that Write documents.
type Named struct {
	Name   string
	Tensor tensor.Tensor
	Stream func(io.Writer) error
}

// Write writes a safetensors file. The tensors' data is ordered by element size,
// largest first, and in the given order among equals: since the header is padded
// to a multiple of 8 bytes, each tensor is aligned for its type. Metadata keys are
// written sorted, so equal input gives equal bytes.
//
// Names must be unique, valid UTF-8 and not "__metadata__". The whole header is
// checked before the first byte is written. Write needs memory only for the
// header. It does not buffer, so w should if tensors are small or streams write
// small pieces.
func Write(w io.Writer, tensors []Named, metadata map[string]string) error {
	order := inOrder(tensors)
	header, sizes, err := buildHeader(order, metadata)
	if err != nil {
		return fmt.Errorf("write safetensors: %w", err)
	}
	if _, err := w.Write(header); err != nil {
		return fmt.Errorf("write safetensors: header: %w", err)
	}
	for i, t := range order {
		if err := writeData(w, t, sizes[i]); err != nil {
			return fmt.Errorf("write safetensors: tensor %s: %w", quote(t.Name), err)
		}
	}
	return nil
}

// Size returns the number of bytes that Write will write. Streams are not called.
func Size(tensors []Named, metadata map[string]string) (int64, error) {
	header, sizes, err := buildHeader(inOrder(tensors), metadata)
	if err != nil {
		return 0, fmt.Errorf("size of safetensors: %w", err)
	}
	n := int64(len(header))
	for _, size := range sizes {
		n += int64(size)
	}
	return n, nil
}

// inOrder returns the tensors in data order.
func inOrder(tensors []Named) []Named {
	order := slices.Clone(tensors)
	slices.SortStableFunc(order, func(a, b Named) int {
		return cmp.Compare(b.Tensor.Type.Align(), a.Tensor.Type.Align())
	})
	return order
}

func writeData(w io.Writer, t Named, size int) error {
	if t.Stream == nil {
		_, err := w.Write(t.Tensor.Data)
		return err
	}
	lw := &limitedWriter{w: w, left: size}
	if err := t.Stream(lw); err != nil {
		return err
	}
	if lw.left != 0 {
		return fmt.Errorf("stream ended %d bytes early, expected %d for %v", lw.left, size, t.Tensor)
	}
	return nil
}

// limitedWriter refuses bytes beyond the size that the header promises.
type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > l.left {
		return 0, fmt.Errorf("stream writes %d bytes more than its type and shape take", len(p)-l.left)
	}
	n, err := l.w.Write(p)
	l.left -= n
	return n, err
}

// buildHeader returns the length field and the padded header, and each tensor's
// size in bytes.
func buildHeader(order []Named, metadata map[string]string) (header []byte, sizes []int, err error) {
	h := make([]byte, lengthSize, 1024)
	h = append(h, '{')
	comma := ""
	if len(metadata) > 0 {
		h = append(h, `"`+metaName+`":{`...)
		for _, key := range slices.Sorted(maps.Keys(metadata)) {
			h = append(h, comma...)
			if h, err = appendString(h, key); err != nil {
				return nil, nil, fmt.Errorf("metadata key: %w", err)
			}
			h = append(h, ':')
			if h, err = appendString(h, metadata[key]); err != nil {
				return nil, nil, fmt.Errorf("metadata value of %s: %w", quote(key), err)
			}
			comma = ","
		}
		h = append(h, '}')
		comma = ","
	}
	seen := make(map[string]bool, len(order))
	pos := 0
	for _, t := range order {
		if t.Name == metaName || seen[t.Name] {
			return nil, nil, fmt.Errorf("tensor name %s is reserved or used twice", quote(t.Name))
		}
		seen[t.Name] = true
		size, err := tensor.Bytes(t.Tensor.Type, t.Tensor.Shape)
		switch {
		case err != nil:
			return nil, nil, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		case t.Tensor.Type.Quantised():
			return nil, nil, fmt.Errorf("tensor %s: found type %v, expected one of the format's", quote(t.Name), t.Tensor.Type)
		case len(t.Tensor.Shape) > maxDims:
			return nil, nil, fmt.Errorf("tensor %s: %d dimensions, expected at most %d", quote(t.Name), len(t.Tensor.Shape), maxDims)
		case t.Stream == nil && len(t.Tensor.Data) != size:
			return nil, nil, fmt.Errorf("tensor %s: %v has %d bytes, expected %d", quote(t.Name), t.Tensor, len(t.Tensor.Data), size)
		case size > math.MaxInt-pos:
			return nil, nil, fmt.Errorf("tensor %s: size of the file is out of range", quote(t.Name))
		}
		h = append(h, comma...)
		comma = ","
		if h, err = appendString(h, t.Name); err != nil {
			return nil, nil, fmt.Errorf("tensor name: %w", err)
		}
		h = append(h, `:{"dtype":"`...)
		h = append(h, t.Tensor.Type.String()...)
		h = append(h, `","shape":[`...)
		for i, d := range t.Tensor.Shape {
			if i > 0 {
				h = append(h, ',')
			}
			h = strconv.AppendInt(h, int64(d), 10)
		}
		h = append(h, `],"data_offsets":[`...)
		h = strconv.AppendInt(h, int64(pos), 10)
		h = append(h, ',')
		h = strconv.AppendInt(h, int64(pos+size), 10)
		h = append(h, `]}`...)
		sizes = append(sizes, size)
		pos += size
	}
	h = append(h, '}')
	for len(h)%8 != 0 {
		h = append(h, ' ')
	}
	if len(h)-lengthSize > maxHeader {
		return nil, nil, fmt.Errorf("header takes %d bytes, at most %d can be read", len(h)-lengthSize, maxHeader)
	}
	binary.LittleEndian.PutUint64(h, uint64(len(h)-lengthSize))
	return h, sizes, nil
}

// appendString appends s as a JSON string. It rejects invalid UTF-8, which the
// encoder would silently replace.
func appendString(h []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return nil, fmt.Errorf("%s is not valid UTF-8", quote(s))
	}
	text, err := json.Marshal(s)
	return append(h, text...), err
}

// WriteFile writes a safetensors file to path as Write does. The file appears
// under its name only when it is complete and on disk, replacing any older one;
// after a failure no new file remains and an older file stays. Tensors may be
// views of the older file's mapping.
func WriteFile(path string, tensors []Named, metadata map[string]string) error {
	err := atomicfile.Write(path, 0o666, func(w io.Writer) error { return Write(w, tensors, metadata) })
	if err != nil {
		return fmt.Errorf("write file %q: %w", path, err)
	}
	return nil
}
