package model

import (
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
)

// stream is the residual stream of a whole prompt, for passes that go layer by
// layer. It is held where the next layer is computed.
type stream struct {
	tokens []int32
	x      []float32        // [tokens][Hidden], on the host
	mem    []byte           // of x, outside the Go heap: freed when the prefill ends
	memory *kvcache.Account // charged for it, may be nil
	rows   kernels.Buffer   // the same on a device, nil without one
	turns  []float32        // [rotations][tokens][turnColumns] for the device
}

// takeRows allocates the stream on the host.
func (st *stream) takeRows(m *Model) error {
	n := len(st.tokens) * m.cfg.Hidden
	if m.memory != nil {
		if err := m.memory.Take(4 * int64(n)); err != nil {
			return err
		}
	}
	mem, err := arena.Map(4 * n)
	if err != nil {
		if m.memory != nil {
			m.memory.Give(4 * int64(n))
		}
		return err
	}
	st.mem, st.memory = mem, m.memory
	st.x = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), n)
	return nil
}

func (st *stream) close() {
	if st.rows != nil {
		st.rows.Free()
	}
	if st.mem == nil {
		return
	}
	if st.memory != nil {
		st.memory.Give(int64(len(st.mem)))
	}
	// Unmapping a whole mapping fails only if it is not one.
	_ = arena.Unmap(st.mem)
	st.mem, st.x = nil, nil
}

// part returns n rows of the stream on the device from first on.
func (st *stream) part(first, n int) kernels.Rows {
	return kernels.Rows{Buffer: st.rows, First: first, N: n}
}

// hostRows returns n rows of the stream on the host from first on.
func (st *stream) hostRows(m *Model, first, n int) []float32 {
	h := m.cfg.Hidden
	return st.x[first*h : (first+n)*h]
}
