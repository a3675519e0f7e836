package mapfile

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// enter creates the page table entries of a part of a mapping if all of it is in
// memory: otherwise that would wait for the disk and, if memory is short, read
// again what was evicted. It reports whether to go on.
func enter(part []byte) bool {
	var pages [aheadPart / 4096]byte // pages are at least 4 KiB
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
	return unix.Madvise(part, unix.MADV_POPULATE_READ) == nil // since Linux 5.14
}
