//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package arena

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// systemMemory maps anonymous memory.
var systemMemory = memory{
	maxSlab:  64 << 20,
	pageSize: os.Getpagesize(),
	alloc: func(n int) ([]byte, error) {
		mem, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return nil, fmt.Errorf("map %d bytes of memory: %w", n, err)
		}
		advise(mem)
		return mem, nil
	},
	free: func(mem []byte) error {
		if err := unix.Munmap(mem); err != nil {
			return fmt.Errorf("unmap %d bytes of memory: %w", len(mem), err)
		}
		return nil
	},
	release: release,
}
