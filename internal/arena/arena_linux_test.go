package arena

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// resident returns how many bytes of the arena's slabs are in memory.
func resident(t *testing.T, a *Arena) int64 {
	t.Helper()
	var n int64
	for _, s := range a.slabs {
		vec := make([]byte, len(s.mem)/a.mem.pageSize)
		_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&s.mem[0])), uintptr(len(s.mem)), uintptr(unsafe.Pointer(&vec[0])))
		require.Zero(t, errno)
		for _, x := range vec {
			n += int64(x&1) * int64(a.mem.pageSize)
		}
	}
	return n
}

// TestFreedMemoryLeaves asks the system which of the slabs' pages are in memory.
func TestFreedMemoryLeaves(t *testing.T) {
	for _, size := range []int{64, 960, 4096, 33024, 264192} {
		for _, expected := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/expected=%t", size, expected), func(t *testing.T) { freedMemoryLeaves(t, size, expected) })
		}
	}
}

func freedMemoryLeaves(t *testing.T, size int, expected bool) {
	n := 16 << 20 / size
	a := newArena(t, size, systemMemory)
	if expected {
		require.NoError(t, a.Expect(n))
	}
	blocks, err := a.Alloc(nil, n)
	require.NoError(t, err)
	require.LessOrEqual(t, resident(t, a), int64(len(a.slabs)*systemMemory.pageSize), "untouched memory is not there")
	touch := func(blocks []Block) {
		for _, b := range blocks {
			x := a.Bytes(b)
			for i := 0; i < size; i += 64 {
				x[i] = 1
			}
		}
	}
	touch(blocks)
	a.Settle()
	full := resident(t, a)
	require.InDelta(t, n*size, full, float64(len(a.slabs)*systemMemory.pageSize))

	// Free all but every 20th run of 64 blocks, not in memory order.
	var keep, free []Block
	for i := range blocks {
		if b := blocks[(i*11)%n]; (i*11)%n/64%20 == 0 {
			keep = append(keep, b)
		} else {
			free = append(free, b)
		}
	}
	for len(free) > 0 {
		k := min(len(free), 100)
		a.Unref(free[:k])
		free = free[k:]
	}
	// A kept run shares one page of the system with free blocks at each end.
	runs := len(keep)/64 + 1
	s := a.Stats()
	require.LessOrEqual(t, s.Warm, int64(Reserve))
	require.Equal(t, int64(len(keep)*size), s.Live)
	held := s.Live + s.Warm
	require.LessOrEqual(t, resident(t, a), held+int64(2*runs*systemMemory.pageSize)+warmEdges(a), "size %d", size)
	require.GreaterOrEqual(t, resident(t, a), s.Live, "size %d", size)
	a.Unref(keep)
	require.LessOrEqual(t, resident(t, a), int64(Reserve)+warmEdges(a))
}

// warmEdges bounds what pages shared by reserve blocks and free ones add.
func warmEdges(a *Arena) int64 { return int64(2 * len(a.warm) * systemMemory.pageSize) }

func TestReleaseZeroes(t *testing.T) {
	mem, err := systemMemory.alloc(8 * systemMemory.pageSize)
	require.NoError(t, err)
	for i := range mem {
		mem[i] = 1
	}
	systemMemory.release(mem[systemMemory.pageSize : 2*systemMemory.pageSize])
	require.Equal(t, byte(1), mem[systemMemory.pageSize-1])
	require.Equal(t, byte(0), mem[systemMemory.pageSize])
	require.Equal(t, byte(1), mem[2*systemMemory.pageSize])
	require.NoError(t, systemMemory.free(mem))
}

// TestExpectedBlocksAreHuge asks the system whether expected blocks are in huge pages until
// Settle, and whether no more memory is taken than without.
func TestExpectedBlocksAreHuge(t *testing.T) {
	const enabled = "/sys/kernel/mm/transparent_hugepage/enabled"
	if text, err := os.ReadFile(enabled); err != nil || strings.Contains(string(text), "[never]") {
		t.Skipf("no huge pages: %s %s: %v", enabled, text, err)
	}
	const size = 33024
	a := newArena(t, size, systemMemory)
	few := 3 * hugePage / size
	fill := func(blocks []Block) {
		for _, b := range blocks {
			for i := 0; i < size; i += 64 {
				a.Bytes(b)[i] = 1
			}
		}
	}
	require.NoError(t, a.Expect(few))
	blocks, err := a.Alloc(nil, few)
	require.NoError(t, err)
	require.Len(t, a.slabs, 1)
	a.Bytes(blocks[0])[0] = 1
	if resident(t, a) < hugePage {
		t.Skip("the system has no huge page to spare")
	}
	require.EqualValues(t, hugePage, resident(t, a), "one write takes one huge page")
	fill(blocks)
	require.InDelta(t, few*size, resident(t, a), float64(systemMemory.pageSize))

	a.Settle()
	a.Unref(blocks)
	require.LessOrEqual(t, resident(t, a), int64(Reserve)+warmEdges(a))
	held, warm := resident(t, a), len(a.warm)
	blocks, err = a.Alloc(nil, warm+1)
	require.NoError(t, err)
	defer a.Unref(blocks)
	require.LessOrEqual(t, resident(t, a), held+size+2*int64(systemMemory.pageSize), "one block more")
}
