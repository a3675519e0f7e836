package mapfile

import "golang.org/x/sys/unix"

// large asks for reads of 2 MiB where a mapping is touched, and to cache them in pages of that
// size, which take one fault each.
func large(data []byte) { _ = unix.Madvise(data, unix.MADV_HUGEPAGE) } // kernels without huge pages refuse

// enter reads a part of a mapping and creates its page table entries. It reports whether
// it has.
func enter(part []byte) bool { return unix.Madvise(part, unix.MADV_POPULATE_READ) == nil } // since Linux 5.14
