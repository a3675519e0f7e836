package kvcache

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/internal/inputfile"
)

// source is a saved cache that is being loaded: an image in memory, or a file whose
// parts are read on demand, either through buffers or to their place in an image that
// otherwise takes only address space.
type source struct {
	data []byte
	from io.ReaderAt // nil for an image in memory
	file *os.File    // opened by openSource, else nil
}

// openSource opens a file and reads its header.
func openSource(path string) (*source, error) {
	f, size, err := inputfile.OpenSized(path)
	if err != nil {
		return nil, err
	}
	s := &source{from: f, file: f}
	if err := s.begin(size); err != nil {
		s.close()
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return s, nil
}

// begin makes the image of a file of the given size and reads its header.
func (s *source) begin(size int64) (err error) {
	if size < 0 || size != int64(int(size)) {
		return fmt.Errorf("%d bytes do not fit the address space", size)
	}
	if s.data, err = arena.Map(int(size)); err != nil {
		return err
	}
	const length = 8 // bytes of the length field in front of the header
	if size < length {
		return s.fetch(s.data)
	}
	if err := s.fetch(s.data[:length]); err != nil {
		return err
	}
	// Parsing the header detects a wrong length.
	header := min(binary.LittleEndian.Uint64(s.data), maxHeader, uint64(size-length))
	return s.fetch(s.data[length : length+header])
}

// maxHeader limits how much is read as a header; no valid one is longer.
const maxHeader = 100_000_000

// fetch reads a part of the image from the file.
func (s *source) fetch(part []byte) error {
	if s.from == nil || len(part) == 0 {
		return nil
	}
	return s.read(part, s.offset(part))
}

// offset returns the offset in the file of a part of the image.
func (s *source) offset(part []byte) int {
	return int(uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.data))))
}

// read reads the file from at on.
func (s *source) read(b []byte, at int) error {
	if s.from == nil {
		copy(b, s.data[at:])
		return nil
	}
	if _, err := s.from.ReadAt(b, int64(at)); errors.Is(err, io.EOF) {
		return errors.New("the file became shorter while it was read")
	} else if err != nil {
		return err
	}
	return nil
}

// stream reads a part of the file in pieces of whole units, except at the end, through
// the buffers of sum, which can hold a unit or the whole file. Each piece is hashed while
// use processes it. The image is not touched.
func (s *source) stream(ctx context.Context, part []byte, unit int, sum *checksum, use func(piece []byte)) error {
	for at := 0; at < len(part); {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		b := sum.buffer()
		if left := len(part) - at; left <= len(b) {
			b = b[:left]
		} else {
			b = b[:len(b)/unit*unit]
		}
		if err := s.read(b, s.offset(part)+at); err != nil {
			return err
		}
		sum.add(b)
		use(b)
		at += len(b)
	}
	return nil
}

func (s *source) close() {
	if s.from != nil && s.data != nil {
		_ = arena.Unmap(s.data) // fails only if it is not a mapping
		s.data = nil
	}
	if s.file != nil {
		s.file.Close()
	}
}
