package arena

import "unsafe"

// memory is a source of slabs.
type memory struct {
	maxSlab  int64 // bytes of the largest slab, unless a single block needs more
	pageSize int   // granularity of release in bytes
	alloc    func(n int) ([]byte, error)
	filled   func(n int) ([]byte, error) // alloc for memory that is soon written throughout; nil: alloc
	settle   func(mem []byte)            // what filled returned has been written
	free     func(mem []byte) error
	release  func(mem []byte) // gives the memory back; mem stays usable but loses its content
}

// heapMemory takes slabs from the Go heap. Released parts stay in memory, so
// slabs are small.
var heapMemory = memory{
	maxSlab:  4 << 20,
	pageSize: 4096,
	alloc: func(n int) ([]byte, error) {
		b := make([]byte, n+Align)
		skip := int(-uintptr(unsafe.Pointer(unsafe.SliceData(b))) % Align)
		return b[skip : skip+n : skip+n], nil
	},
	free:    func([]byte) error { return nil },
	release: func([]byte) {},
}
