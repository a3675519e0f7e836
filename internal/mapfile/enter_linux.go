package mapfile

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// enter makes the page table entries of a part of a mapping if all of it is in
// memory: else that would wait for the disk, and where memory is short read again
// what has had to go. It reports whether to go on.
func enter(part []byte) bool {
	var pages [aheadPart / 4096]byte // no page is smaller
	n := (len(part)-1)/os.Getpagesize() + 1
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&part[0])), uintptr(len(part)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		return false
	}
	for _, p := range pages[:n] {
		if p&1 == 0 {
			return true
		}
	}
	return unix.Madvise(part, unix.MADV_POPULATE_READ) == nil // not before Linux 5.14
}
