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

// willNeed asks the system to read ahead a part of a mapping and reports whether to go on.
func willNeed(part []byte) bool { return unix.Madvise(part, unix.MADV_WILLNEED) == nil }
