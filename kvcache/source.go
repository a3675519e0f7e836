package kvcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/internal/inputfile"
)

// source is a saved cache that is being loaded: an image in memory, or a file of
// which tensors are read when they are wanted, each to its place in an image
// that otherwise takes address space only.
type source struct {
	data []byte
	file *os.File // nil for an image in memory
}

// openSource opens a file and reads its header.
func openSource(path string) (*source, error) {
	f, err := inputfile.Open(path)
	if err != nil {
		return nil, err
	}
	s := &source{file: f}
	if err := s.begin(); err != nil {
		s.close()
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	return s, nil
}

func (s *source) begin() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	if size != int64(int(size)) {
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
	// A length that is wrong is found when the header is parsed.
	header := min(binary.LittleEndian.Uint64(s.data), maxHeader, uint64(size-length))
	return s.fetch(s.data[length : length+header])
}

// maxHeader bounds what is read of a header; none is longer.
const maxHeader = 100_000_000

// fetch reads a part of the image from the file.
func (s *source) fetch(part []byte) error {
	if s.file == nil || len(part) == 0 {
		return nil
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(part))) - uintptr(unsafe.Pointer(unsafe.SliceData(s.data)))
	if _, err := s.file.ReadAt(part, int64(at)); errors.Is(err, io.EOF) {
		return errors.New("the file became shorter while it was read")
	} else if err != nil {
		return err
	}
	return nil
}

// release gives the memory of a part back that nobody reads any more.
func (s *source) release(part []byte) {
	if s.file != nil {
		arena.Discard(part)
	}
}

func (s *source) close() {
	if s.file == nil {
		return
	}
	if s.data != nil {
		_ = arena.Unmap(s.data) // fails only if it is no mapping
	}
	s.file.Close()
}
