//go:build unix && !aix && !solaris

package mapfile

import (
	"os"

	"golang.org/x/sys/unix"
)

func mapFile(f *os.File, size int) ([]byte, error) {
	return unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
}

func unmapFile(data []byte) error { return unix.Munmap(data) }

// The result of the advice changes nothing for the caller, so errors are not
// reported.
func willNeed(data []byte) { _ = unix.Madvise(data, unix.MADV_WILLNEED) }
