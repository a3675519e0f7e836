//go:build unix

package testmem

import "golang.org/x/sys/unix"

// No guard bytes separate the buffer from the unreadable page.
const tailGuard, headGuard = 0, 0

// reserve maps n bytes (a multiple of page) with unreadable pages on both sides.
func reserve(n int, _ Place) ([]byte, func(), error) {
	all, err := unix.Mmap(-1, 0, n+2*page, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, err
	}
	mem := all[page : page+n : page+n]
	if err := unix.Mprotect(mem, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		_ = unix.Munmap(all)
		return nil, nil, err
	}
	return mem, func() { _ = unix.Munmap(all) }, nil
}
