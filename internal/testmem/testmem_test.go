package testmem

import (
	"runtime"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestSize(t *testing.T) {
	for _, place := range Places {
		for _, n := range []int{0, 1, 63, 64, 4096, page, page + 1} {
			b := New(t, n, place, 3)
			require.Len(t, b.Bytes, n)
			for i := range b.Bytes {
				require.Zero(t, b.Bytes[i])
				b.Bytes[i] = 1
			}
			require.NoError(t, b.Check())
		}
	}
}

func TestCheck(t *testing.T) {
	b := New(t, 10, Between, 0)
	p := unsafe.Pointer(&b.Bytes[0])
	*(*byte)(unsafe.Add(p, -1)) = 0
	require.ErrorContains(t, b.Check(), "byte 1 before")
	*(*byte)(unsafe.Add(p, -1)) = guardValue
	*(*byte)(unsafe.Add(p, 11)) = 7
	require.EqualError(t, b.Check(), "byte 2 after the buffer was overwritten with 0x7")
}

func TestUnreadable(t *testing.T) {
	if tailGuard != 0 {
		t.Skipf("no page protection on %s", runtime.GOOS)
	}
	faults := func(p unsafe.Pointer, off int) (yes bool) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { yes = recover() != nil }()
		sink = *(*byte)(unsafe.Add(p, off))
		return false
	}
	end := New(t, 10, End, 0)
	require.False(t, faults(unsafe.Pointer(&end.Bytes[0]), 9))
	require.True(t, faults(unsafe.Pointer(&end.Bytes[0]), 10))
	start := New(t, 10, Start, 0)
	require.False(t, faults(unsafe.Pointer(&start.Bytes[0]), 0))
	require.True(t, faults(unsafe.Pointer(&start.Bytes[0]), -1))
}

var sink byte
