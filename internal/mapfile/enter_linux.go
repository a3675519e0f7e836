package mapfile

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// enter creates the page table entries of a part of a mapping of f, which begins at byte
// at, if all of it is in memory: otherwise that would wait for the disk and, if memory is
// short, read again what was evicted. It reports whether it has.
func enter(f *os.File, at int64, part []byte) bool {
	return inMemory(f, at, part) && unix.Madvise(part, unix.MADV_POPULATE_READ) == nil // since Linux 5.14
}

// inMemory reports whether a part of a file is in memory.
func inMemory(f *os.File, at int64, part []byte) bool {
	size := os.Getpagesize()
	n := (len(part)-1)/size + 1
	// Linux 6.5 counts pages by extents, some fifty times as fast as it lists them.
	var held unix.Cachestat_t
	if unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{Off: uint64(at), Len: uint64(len(part))}, &held, 0) == nil {
		return held.Cache >= uint64(n)
	}
	var pages [aheadPart / 4096]byte // pages are at least 4 KiB
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&part[0])), uintptr(len(part)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		return false
	}
	for _, p := range pages[:n] {
		if p&1 == 0 {
			return false
		}
	}
	return true
}
