package arena

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// advise disables huge pages: with them, the first touch of a block would take
// memory for its neighbours, and a freed block could not be released by itself.
func advise(mem []byte) {
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE) // kernels without huge pages refuse
}

func release(mem []byte) {
	_ = unix.Madvise(mem, unix.MADV_DONTNEED) // fails only for locked memory, which then stays
}

// hugePage is the size of the page that a second-level page-table entry maps where pages
// are 4 KiB. Elsewhere it is still a multiple of the page size.
const hugePage = 2 << 20

// hugeMemory is like systemMemory, but aligns slabs to hugePage and asks the system for
// huge pages; a system without them provides ordinary ones.
var hugeMemory = memory{
	maxSlab:  systemMemory.maxSlab,
	pageSize: hugePage,
	alloc: func(n int) ([]byte, error) {
		mem, err := mapAligned(n)
		if err == nil {
			_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
		}
		return mem, err
	},
	free:    unmapMemory,
	release: release,
}

// mapFilled maps memory that takes huge pages where it fills them, until advise.
func mapFilled(n int) ([]byte, error) {
	mem, err := mapAligned(n)
	if err == nil {
		whole := n / hugePage * hugePage
		_ = unix.Madvise(mem[:whole], unix.MADV_HUGEPAGE)
		advise(mem[whole:])
	}
	return mem, err
}

// mapAligned maps n bytes from a multiple of hugePage on.
func mapAligned(n int) ([]byte, error) {
	all, err := mapMemory(n + hugePage)
	if err != nil {
		return nil, err
	}
	// Unmap what surrounds them; if that fails, it is never touched.
	before := int(-uintptr(unsafe.Pointer(unsafe.SliceData(all))) % hugePage)
	if before > 0 {
		_ = unmapMemory(all[:before])
	}
	if after := all[before+n:]; len(after) > 0 {
		_ = unmapMemory(after)
	}
	return all[before : before+n : before+n], nil
}
