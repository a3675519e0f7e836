package arena

import (
	"fmt"
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
		all := uintptr(n + hugePage)
		begin, err := unix.MmapPtr(-1, 0, nil, all, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return nil, fmt.Errorf("map %d bytes of memory: %w", n, err)
		}
		// Unmap what surrounds the slab; if that fails, it is never touched.
		before := -uintptr(begin) % hugePage
		mem := unsafe.Add(begin, before)
		if before > 0 {
			_ = unix.MunmapPtr(begin, before)
		}
		if after := all - before - uintptr(n); after > 0 {
			_ = unix.MunmapPtr(unsafe.Add(mem, n), after)
		}
		slab := unsafe.Slice((*byte)(mem), n)
		_ = unix.Madvise(slab, unix.MADV_HUGEPAGE)
		return slab, nil
	},
	free: func(mem []byte) error {
		if err := unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(mem)), uintptr(len(mem))); err != nil {
			return fmt.Errorf("unmap %d bytes of memory: %w", len(mem), err)
		}
		return nil
	},
	release: release,
}
