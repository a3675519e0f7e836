//go:build !windows && (!unix || aix || solaris)

package mapfile

import (
	"errors"
	"io"
	"os"
	"unsafe"
)

// mapFile reads the file into memory that starts at a multiple of 8, so that its
// tensors can be viewed in place as on systems with mappings.
func mapFile(f *os.File, size int) ([]byte, error) {
	words := make([]uint64, (size-1)/8+1)
	data := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), size)
	if _, err := io.ReadFull(f, data); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errors.New("file became shorter while it was read")
	} else if err != nil {
		return nil, err
	}
	return data, nil
}

func unmapFile([]byte) error { return nil }

func willNeed([]byte) bool { return false }
