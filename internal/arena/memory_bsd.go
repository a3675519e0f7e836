//go:build darwin || dragonfly || freebsd || netbsd || openbsd

package arena

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func advise([]byte) {}

// release maps fresh memory over the old. MADV_DONTNEED is only a hint on these
// systems and MADV_FREE leaves the memory counted until it is wanted elsewhere.
func release(mem []byte) {
	addr := unsafe.Pointer(unsafe.SliceData(mem))
	// On failure the old memory stays, which is only more memory than needed.
	_, _ = unix.MmapPtr(-1, 0, addr, uintptr(len(mem)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_FIXED)
}
