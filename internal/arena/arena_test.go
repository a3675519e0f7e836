package arena

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && (Live() != 0 || Mapped() != 0) {
		fmt.Printf("arenas left open by tests: %d bytes in use, %d mapped\n", Live(), Mapped())
		code = 1
	}
	os.Exit(code)
}

// memories are the sources of slabs that every test runs with.
var memories = map[string]memory{"system": systemMemory, "heap": heapMemory, "huge": hugeMemory}

func newArena(t testing.TB, size int, m memory) *Arena {
	t.Helper()
	a, err := New(size)
	require.NoError(t, err)
	a.mem = m
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}

func each(t *testing.T, run func(t *testing.T, m memory)) {
	for name, m := range memories {
		t.Run(name, func(t *testing.T) { run(t, m) })
	}
}

func TestByHand(t *testing.T) {
	each(t, func(t *testing.T, m memory) {
		a := newArena(t, 192, m)
		require.Equal(t, 192, a.BlockSize())
		require.Zero(t, a.Stats())
		b, err := a.Alloc(nil, 3)
		require.NoError(t, err)
		require.Len(t, b, 3)
		for _, x := range b {
			require.Zero(t, uintptr(a.Ptr(x))%Align)
			require.Len(t, a.Bytes(x), 192)
			require.Equal(t, unsafe.Pointer(unsafe.SliceData(a.Bytes(x))), a.Ptr(x))
			require.Equal(t, make([]byte, 192), a.Bytes(x))
			require.Equal(t, 1, x.Refs())
			for i := range a.Bytes(x) {
				a.Bytes(x)[i] = 0xee
			}
		}
		a.Ref(b[:1])
		require.True(t, b[0].Shared())
		a.Unref(b)
		require.False(t, b[0].Shared())
		s := a.Stats()
		require.Equal(t, Stats{Live: 192, HighWater: 576, Warm: 384, Mapped: s.Mapped}, s)
		require.Equal(t, byte(0xee), a.Bytes(b[0])[191])
		require.NoError(t, a.Check())

		// Freed blocks are reused first, zeroed.
		c, err := a.Alloc(slices.Clone(b[:1]), 2)
		require.NoError(t, err)
		require.True(t, slices.Equal([]Block{b[0], b[2], b[1]}, c))
		require.Equal(t, make([]byte, 192), a.Bytes(c[1]))
		require.Zero(t, a.Stats().Warm)
		a.Unref(c)
		a.ResetHighWater()
		require.Zero(t, a.Stats().HighWater)
		require.Panics(t, func() { a.Ref(c[:1]) })
	})
}

func TestErrors(t *testing.T) {
	for _, size := range []int{0, -64, 63, 100, maxBlock + 64} {
		_, err := New(size)
		require.ErrorContains(t, err, "block size")
	}
	a, err := New(64)
	require.NoError(t, err)
	a.mem.alloc = func(int) ([]byte, error) { return nil, fmt.Errorf("nothing left") }
	b, err := a.Alloc(make([]Block, 1, 5), 4)
	require.ErrorContains(t, err, "allocate 4 blocks of 64 bytes: nothing left")
	require.Len(t, b, 1)
	require.Zero(t, a.Stats())

	// Memory runs out halfway: what was taken is free again.
	a.mem = systemMemory
	a.mem.maxSlab = int64(systemMemory.pageSize)
	real, slabs := a.mem.alloc, 3
	a.mem.alloc = func(n int) ([]byte, error) {
		if slabs--; slabs < 0 {
			return nil, fmt.Errorf("nothing left")
		}
		return real(n)
	}
	_, err = a.Alloc(nil, 1000)
	require.Error(t, err)
	require.Zero(t, a.Stats())
	require.NoError(t, a.Check())
	slabs = 1
	b, err = a.Alloc(nil, 2)
	require.NoError(t, err)
	require.ErrorContains(t, a.Close(), "2 blocks are still in use")
	require.NoError(t, a.Close())
	_, err = a.Alloc(nil, 1)
	require.ErrorContains(t, err, "closed")
	require.ErrorContains(t, a.Expect(1), "closed")
	require.Len(t, b, 2)
}

// TestSimulation checks that blocks never overlap and are zeroed, and that the
// bookkeeping is right, for block sizes below, at and above the system's page size.
func TestSimulation(t *testing.T) {
	each(t, func(t *testing.T, m memory) {
		rapid.Check(t, func(t *rapid.T) {
			size := rapid.SampledFrom([]int{64, 1984, 4096, 33024, 300 << 10, 2 << 20}).Draw(t, "size")
			a, err := New(size)
			require.NoError(t, err)
			a.mem = m
			a.mem.maxSlab = int64(rapid.SampledFrom([]int{4096, 1 << 20, 64 << 20}).Draw(t, "slab"))
			limit := min(800, max(3, 8<<20/size))
			var held []Block
			refs := make(map[Block]int)
			tag := func(b Block) []byte {
				p := uintptr(a.Ptr(b))
				return []byte{byte(p >> 6), byte(p >> 14), byte(p >> 22), 1}
			}
			free := func(bs []Block) {
				for _, b := range bs {
					if refs[b]--; refs[b] == 0 {
						delete(refs, b)
					}
				}
				a.Unref(bs)
			}
			t.Repeat(map[string]func(*rapid.T){
				"alloc": func(t *rapid.T) {
					n := rapid.IntRange(0, limit/3).Draw(t, "n")
					if len(held)+n > limit {
						return
					}
					was := len(held)
					held, err = a.Alloc(held, n)
					require.NoError(t, err)
					for _, b := range held[was:] {
						x := a.Bytes(b)
						require.Zero(t, refs[b])
						refs[b] = 1
						if size <= 64<<10 {
							require.True(t, bytes.Count(x, []byte{0}) == size, "block is not zero")
						} else {
							require.True(t, x[0] == 0 && x[size/2] == 0 && x[size-1] == 0, "block is not zero")
						}
						copy(x, tag(b))
						x[size/2] = 1
						copy(x[size-4:], tag(b))
					}
				},
				"expect": func(t *rapid.T) {
					n := rapid.IntRange(0, limit/3).Draw(t, "n")
					require.NoError(t, a.Expect(n))
				},
				"settle": func(*rapid.T) { a.Settle() },
				"ref": func(t *rapid.T) {
					n := rapid.IntRange(0, min(len(held), 20)).Draw(t, "n")
					more := slices.Clone(held[:n])
					a.Ref(more)
					for _, b := range more {
						refs[b]++
					}
					held = append(held, more...)
				},
				"free": func(t *rapid.T) {
					n := rapid.IntRange(0, len(held)).Draw(t, "n")
					from := rapid.IntRange(0, len(held)-n).Draw(t, "from")
					free(held[from : from+n])
					held = slices.Delete(held, from, from+n)
				},
				"": func(t *rapid.T) {
					require.NoError(t, a.Check())
					for b, n := range refs {
						x := a.Bytes(b)
						require.Equal(t, n, b.Refs())
						require.Equal(t, tag(b), x[:4], "block was overwritten")
						require.Equal(t, tag(b), x[size-4:], "block was overwritten")
					}
					s := a.Stats()
					require.Equal(t, int64(len(refs)*size), s.Live)
					require.LessOrEqual(t, s.Live+s.Warm, s.Mapped)
				},
			})
			free(held)
			require.NoError(t, a.Check())
			require.NoError(t, a.Close())
		})
	})
}

func TestConcurrent(t *testing.T) {
	each(t, func(t *testing.T, m memory) {
		a := newArena(t, 4160, m)
		shared, err := a.Alloc(nil, 8)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for g := range 6 {
			wg.Go(func() {
				for i := range 200 {
					b, err := a.Alloc(nil, 1+i%7)
					if err != nil {
						t.Error(err)
						return
					}
					a.Ref(shared)
					for _, x := range b {
						a.Bytes(x)[0] = byte(g + 1)
					}
					for _, x := range b {
						if a.Bytes(x)[0] != byte(g+1) {
							t.Error("block given out twice")
						}
					}
					a.Unref(b)
					a.Unref(shared)
				}
			})
		}
		wg.Wait()
		require.NoError(t, a.Check())
		a.Unref(shared)
		require.Zero(t, a.Stats().Live)
	})
}

func BenchmarkAllocFree(b *testing.B) {
	for _, n := range []int{1, 1000} {
		b.Run(fmt.Sprintf("blocks=%d", n), func(b *testing.B) {
			a := newArena(b, 33024, systemMemory)
			var blocks []Block
			b.ReportAllocs()
			b.SetBytes(int64(n * a.BlockSize()))
			for b.Loop() {
				blocks, _ = a.Alloc(blocks[:0], n)
				a.Unref(blocks)
			}
		})
	}
}
