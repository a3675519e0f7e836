//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package arena

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func advise([]byte) {}

var mapFilled func(n int) ([]byte, error)

// release maps fresh memory over the old. MADV_DONTNEED is only a hint on these
// systems, and with MADV_FREE the memory stays counted until it is needed elsewhere.
func release(mem []byte) {
	addr := unsafe.Pointer(unsafe.SliceData(mem))
	// On failure the old memory stays, which only wastes memory.
	_, _ = unix.MmapPtr(-1, 0, addr, uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_FIXED)
}
