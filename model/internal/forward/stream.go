package forward

import (
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
)

// Stream is the residual stream of a whole prompt, for passes that go layer by
// layer. It is held where the next layer is computed.
type Stream struct {
	tokens []int32
	x      []float32        // [tokens][Hidden], on the host
	mem    []byte           // of x, outside the Go heap: freed when the prefill ends
	memory *kvcache.Account // charged for it, may be nil
	rows   kernels.Buffer   // the same on a device, nil without one
	turns  []float32        // [rotations][tokens][turnColumns] for the device
}

// takeRows allocates the stream on the host.
func (st *Stream) takeRows(net *Network, account *kvcache.Account) error {
	n := len(st.tokens) * net.Config.Hidden
	if account != nil {
		if err := account.Take(4 * int64(n)); err != nil {
			return err
		}
	}
	mem, err := arena.Map(4 * n)
	if err != nil {
		if account != nil {
			account.Give(4 * int64(n))
		}
		return err
	}
	st.mem, st.memory = mem, account
	st.x = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), n)
	return nil
}

// Close frees the stream.
func (st *Stream) Close() {
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

// Tokens returns the number of tokens.
func (st *Stream) Tokens() int { return len(st.tokens) }

// part returns n rows of the stream on the device from first on.
func (st *Stream) part(first, n int) kernels.Rows {
	return kernels.Rows{Buffer: st.rows, First: first, N: n}
}

// hostRows returns n rows of the stream on the host from first on.
func (st *Stream) hostRows(net *Network, first, n int) []float32 {
	h := net.Config.Hidden
	return st.x[first*h : (first+n)*h]
}
