//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package arena

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// systemMemory maps anonymous memory.
var systemMemory = memory{
	maxSlab:  64 << 20,
	pageSize: os.Getpagesize(),
	alloc: func(n int) ([]byte, error) {
		mem, err := mapMemory(n)
		if err == nil {
			advise(mem)
		}
		return mem, err
	},
	filled:  mapFilled,
	settle:  advise,
	free:    unmapMemory,
	release: release,
}

func mapMemory(n int) ([]byte, error) {
	mem, err := unix.MmapPtr(-1, 0, nil, uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of memory: %w", n, err)
	}
	return unsafe.Slice((*byte)(mem), n), nil
}

func unmapMemory(mem []byte) error {
	if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))); err != nil {
		return fmt.Errorf("unmap %d bytes of memory: %w", len(mem), err)
	}
	return nil
}
