package arena

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

const (
	// Align is the alignment of every block in bytes; block sizes are multiples
	// of it.
	Align = 64

	// Reserve is how many bytes of freed blocks an arena may keep in memory for
	// the next Alloc.
	Reserve = 1 << 20

	minSlab = 256 << 10
)

var errClosed = errors.New("allocate from an arena: it is closed")

// liveTotal and mappedTotal count over all arenas of the process.
var liveTotal, mappedTotal atomic.Int64

// Live returns the bytes of all blocks in use, over all arenas of the process.
func Live() int64 { return liveTotal.Load() }

// Mapped returns the bytes of address space of all slabs and Map regions of the process.
func Mapped() int64 { return mappedTotal.Load() }

// Arena hands out blocks of one size. Make one with New.
type Arena struct {
	size int    // bytes of a block
	mem  memory // where slabs come from

	// charge, if not nil, is told of bytes that are taken, which it may refuse, and
	// of bytes that are given back; a block counts as weight bytes.
	charge func(bytes int64) error
	weight int64

	mu     sync.Mutex
	slabs  []*slab
	first  int     // slabs before this one have no free block
	warm   []Block // freed, content stale, still in memory; last freed last
	serial int     // number of slabs ever mapped
	live   int64   // blocks in use
	high   int64   // largest live so far
	mapped int64   // bytes of all slabs
	closed bool
}

// slab is one mapping, cut into len(refs) blocks.
type slab struct {
	serial int
	mem    []byte
	refs   []atomic.Int32 // references per block
	free   []uint64       // bit per block: 1 = neither in use nor warm
	nfree  int            // bits set in free
	hint   int            // words of free before this one are 0
	fresh  int            // blocks from here on were never used and are zero

	unsettled bool // Expect mapped it, and Settle has not been called since
}

// Block names a block of an arena. The zero Block names none.
type Block struct {
	s *slab
	i int32
}

// Stats describes what an arena holds.
type Stats struct {
	Live      int64 // bytes of blocks in use; a block with several references counts once
	HighWater int64 // largest Live since New
	Warm      int64 // bytes of freed blocks kept in memory, at most Reserve
	Mapped    int64 // bytes of address space; untouched and released parts take no memory
}

// New returns an arena with blocks of size bytes, a positive multiple of Align.
// It maps nothing yet.
func New(size int) (*Arena, error) {
	if size <= 0 || size%Align != 0 || size > maxBlock {
		return nil, fmt.Errorf("make an arena: block size %d, expected a multiple of %d up to %d", size, Align, maxBlock)
	}
	return &Arena{size: size, mem: systemMemory}, nil
}

// NewHuge is like New, but with slabs in the system's huge pages where available (Linux):
// the processor translates addresses faster, but memory is taken and freed 2 MiB at a
// time, so that a freed block may stay in memory because of its neighbours.
func NewHuge(size int) (*Arena, error) {
	a, err := New(size)
	if err == nil {
		a.mem = hugeMemory
	}
	return a, err
}

// Expect maps room for n blocks that will all be allocated and written soon. Until
// [Arena.Settle] the system may take memory for them in huge pages where they fill them
// (Linux): with one page fault instead of hundreds. Such blocks, too, leave the process
// when they are freed, but until their neighbours are, or memory is short, the system may
// keep their memory.
func (a *Arena) Expect(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return errClosed
	}
	alloc := a.mem.filled
	if alloc == nil {
		alloc = a.mem.alloc
	}
	for n > 0 {
		s, err := a.addSlab(min(n, max(1, int(a.mem.maxSlab)/a.size)), alloc)
		if err != nil {
			return fmt.Errorf("expect blocks of %d bytes: %w", a.size, err)
		}
		s.unsettled = true
		n -= len(s.refs)
	}
	return nil
}

// Settle says that the blocks that Expect announced have been written: from now on
// memory is taken in the system's ordinary pages.
func (a *Arena) Settle() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.slabs {
		if s.unsettled && a.mem.settle != nil {
			a.mem.settle(s.mem)
		}
		s.unsettled = false
	}
}

// Charge makes the arena call charge before blocks come into use, which an error
// prevents, and with a negative number when they are freed. A block counts as weight
// bytes. Charge must be called before the first Alloc.
func (a *Arena) Charge(weight int64, charge func(bytes int64) error) {
	a.weight, a.charge = weight, charge
}

// maxBlock bounds block sizes so that no size computed here overflows.
const maxBlock = 1 << 30

// BlockSize returns the bytes of a block.
func (a *Arena) BlockSize() int { return a.size }

// Ptr returns the address of b's first byte.
func (a *Arena) Ptr(b Block) unsafe.Pointer { return unsafe.Pointer(&b.s.mem[int(b.i)*a.size]) }

// Bytes returns the bytes of b. They must not be used after the last Unref of b.
func (a *Arena) Bytes(b Block) []byte {
	off := int(b.i) * a.size
	return b.s.mem[off : off+a.size : off+a.size]
}

// Refs returns the number of references to b.
func (b Block) Refs() int { return int(b.s.refs[b.i].Load()) }

// Shared reports whether b has more than one reference. The holder of the only
// reference may write to the block.
func (b Block) Shared() bool { return b.Refs() > 1 }

// Alloc appends n blocks to dst, each with one reference and all bytes zero. On
// failure (charge refuses, the system is out of memory, the arena is closed) it
// returns dst as it was, and an error.
func (a *Arena) Alloc(dst []Block, n int) ([]Block, error) {
	if a.charge == nil {
		return a.alloc(dst, n)
	}
	if err := a.charge(int64(n) * a.weight); err != nil {
		return dst, fmt.Errorf("allocate %d blocks: %w", n, err)
	}
	dst, err := a.alloc(dst, n)
	if err != nil {
		_ = a.charge(-int64(n) * a.weight)
	}
	return dst, err
}

func (a *Arena) alloc(dst []Block, n int) ([]Block, error) {
	was := len(dst)
	dst = slices.Grow(dst, n)
	a.mu.Lock()
	if a.closed {
		a.mu.Unlock()
		return dst[:was], errClosed
	}
	for len(dst) < was+n && len(a.warm) > 0 {
		b := a.warm[len(a.warm)-1]
		a.warm = a.warm[:len(a.warm)-1]
		dst = append(dst, b)
	}
	stale := len(dst) // blocks before this one must be zeroed
	for len(dst) < was+n {
		b, used, ok := a.takeFree()
		if !ok {
			if err := a.grow(was + n - len(dst)); err != nil {
				a.retire(dst[was:])
				a.mu.Unlock()
				return dst[:was], fmt.Errorf("allocate %d blocks of %d bytes: %w", n, a.size, err)
			}
			continue
		}
		dst = append(dst, b)
		if used {
			// Keep stale blocks at the front, so that one index separates them.
			dst[stale], dst[len(dst)-1] = dst[len(dst)-1], dst[stale]
			stale++
		}
	}
	for _, b := range dst[was:] {
		b.s.refs[b.i].Store(1)
	}
	a.addLive(int64(n))
	a.mu.Unlock()
	for _, b := range dst[was:stale] {
		clear(a.Bytes(b))
	}
	return dst, nil
}

// takeFree returns a free block from the oldest slab that has one, and whether it
// may have been used before.
func (a *Arena) takeFree() (b Block, used, ok bool) {
	for ; a.first < len(a.slabs); a.first++ {
		s := a.slabs[a.first]
		if s.nfree == 0 {
			continue
		}
		for s.free[s.hint] == 0 {
			s.hint++
		}
		i := s.hint*64 + bits.TrailingZeros64(s.free[s.hint])
		s.free[s.hint] &^= 1 << (i % 64)
		s.nfree--
		used = i < s.fresh
		s.fresh = max(s.fresh, i+1)
		return Block{s, int32(i)}, used, true
	}
	return Block{}, false, false
}

// grow maps one more slab: about as much as is mapped already, enough for want
// blocks if possible, but within the memory's limit.
func (a *Arena) grow(want int) error {
	limit := max(a.mem.maxSlab, int64(a.size))
	bytes := min(max(a.mapped, minSlab, int64(want)*int64(a.size)), limit)
	_, err := a.addSlab(int(max(bytes/int64(a.size), 1)), a.mem.alloc)
	return err
}

// addSlab maps a slab of n blocks, or a few more.
func (a *Arena) addSlab(n int, alloc func(n int) ([]byte, error)) (*slab, error) {
	os := a.mem.pageSize
	mem, err := alloc((n*a.size + os - 1) / os * os)
	if err != nil {
		return nil, err
	}
	n = len(mem) / a.size
	s := &slab{serial: a.serial, mem: mem, refs: make([]atomic.Int32, n), free: make([]uint64, (n+63)/64), nfree: n}
	for i := range n {
		s.free[i/64] |= 1 << (i % 64)
	}
	a.serial++
	a.slabs = append(a.slabs, s)
	a.mapped += int64(len(mem))
	mappedTotal.Add(int64(len(mem)))
	return s, nil
}

// Ref adds a reference to each of the blocks.
func (a *Arena) Ref(blocks []Block) {
	for _, b := range blocks {
		if b.s.refs[b.i].Add(1) < 2 {
			panic("arena: reference to a free block")
		}
	}
}

// Unref removes a reference from each of the blocks and frees those left without
// one. Freeing many at once is cheaper than one by one.
func (a *Arena) Unref(blocks []Block) {
	if len(blocks) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	freed := int64(0)
	for _, b := range blocks {
		switch n := b.s.refs[b.i].Add(-1); {
		case n == 0:
			a.warm = append(a.warm, b)
			freed++
		case n < 0:
			panic("arena: block freed twice")
		}
	}
	a.addLive(-freed)
	if a.charge != nil && freed > 0 {
		_ = a.charge(-freed * a.weight)
	}
	if len(a.warm)*a.size > Reserve {
		// Down to half, so that a run of single frees does not release every time.
		a.release(len(a.warm) - Reserve/2/a.size)
	}
}

func (a *Arena) addLive(n int64) {
	a.live += n
	a.high = max(a.high, a.live)
	liveTotal.Add(n * int64(a.size))
}

// release returns to the system the n warm blocks that have been free longest.
func (a *Arena) release(n int) {
	a.retire(a.warm[:n])
	a.warm = slices.Delete(a.warm, 0, n)
	if len(a.warm) == 0 && cap(a.warm) > 1024 {
		a.warm = nil
	}
}

// retire marks blocks, which are no longer in any list, as free and returns their
// memory to the system. It reorders blocks.
func (a *Arena) retire(blocks []Block) {
	slices.SortFunc(blocks, func(x, y Block) int {
		return cmp.Or(cmp.Compare(x.s.serial, y.s.serial), cmp.Compare(x.i, y.i))
	})
	for _, b := range blocks {
		w := int(b.i) / 64
		b.s.free[w] |= 1 << (b.i % 64)
		b.s.hint = min(b.s.hint, w)
		b.s.nfree++
	}
	for lo := 0; lo < len(blocks); {
		s, hi := blocks[lo].s, lo+1
		for hi < len(blocks) && blocks[hi].s == s && blocks[hi].i == blocks[hi-1].i+1 {
			hi++
		}
		if s.nfree < len(s.refs) {
			a.releaseRun(s, int(blocks[lo].i), int(blocks[hi-1].i)+1)
		}
		lo = hi
	}
	for _, b := range blocks {
		if s := b.s; s.mem != nil && s.nfree == len(s.refs) {
			// Unmapping a whole mapping fails only if it is not one.
			_ = a.unmap(s)
		}
	}
	a.first = 0
}

// releaseRun returns the memory of the free blocks [lo, hi) of s to the system,
// including the system's pages at both ends if all blocks on them are free.
func (a *Arena) releaseRun(s *slab, lo, hi int) {
	os := a.mem.pageSize
	from, to := lo*a.size, hi*a.size
	start, end := from/os*os, min((to+os-1)/os*os, len(s.mem))
	for i := lo - 1; i >= 0 && (i+1)*a.size > start; i-- {
		if s.free[i/64]>>(i%64)&1 == 0 {
			start = (from + os - 1) / os * os
			break
		}
	}
	for i := hi; i < len(s.refs) && i*a.size < end; i++ {
		if s.free[i/64]>>(i%64)&1 == 0 {
			end = to / os * os
			break
		}
	}
	if start < end {
		a.mem.release(s.mem[start:end])
	}
}

// unmap removes the slab and unmaps its memory.
func (a *Arena) unmap(s *slab) error {
	i := slices.Index(a.slabs, s)
	a.slabs = slices.Delete(a.slabs, i, i+1)
	a.mapped -= int64(len(s.mem))
	mappedTotal.Add(-int64(len(s.mem)))
	mem := s.mem
	s.mem = nil
	return a.mem.free(mem)
}

// Stats returns what the arena holds now.
func (a *Arena) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := int64(a.size)
	return Stats{Live: a.live * size, HighWater: a.high * size, Warm: int64(len(a.warm)) * size, Mapped: a.mapped}
}

// ResetHighWater resets the high-water mark to what is in use now.
func (a *Arena) ResetHighWater() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.high = a.live
}

// Close returns all memory to the system. Blocks still in use become invalid, and
// Close then returns an error. A second Close does nothing.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil
	}
	a.closed = true
	var err error
	if a.live != 0 {
		err = fmt.Errorf("close an arena: %d blocks are still in use", a.live)
		a.addLive(-a.live)
	}
	a.warm = nil
	for len(a.slabs) > 0 {
		err = errors.Join(err, a.unmap(a.slabs[len(a.slabs)-1]))
	}
	return err
}

// Check verifies the arena's bookkeeping and returns the first contradiction.
func (a *Arena) Check() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	warm := make(map[Block]bool, len(a.warm))
	for _, b := range a.warm {
		if warm[b] {
			return fmt.Errorf("check an arena: block %d of slab %d is in the reserve twice", b.i, b.s.serial)
		}
		warm[b] = true
	}
	if len(a.warm)*a.size > Reserve {
		return fmt.Errorf("check an arena: reserve holds %d bytes, expected at most %d", len(a.warm)*a.size, Reserve)
	}
	var live, mapped int64
	for at, s := range a.slabs {
		mapped += int64(len(s.mem))
		nfree := 0
		for i := range s.refs {
			free, refs := s.free[i/64]>>(i%64)&1 == 1, s.refs[i].Load()
			states := 0
			if free {
				nfree++
				states++
			}
			if warm[Block{s, int32(i)}] {
				states++
			}
			if refs > 0 {
				live++
				states++
			}
			if states != 1 || refs < 0 {
				return fmt.Errorf("check an arena: block %d of slab %d: free %t, in reserve %t, %d references", i, s.serial, free, warm[Block{s, int32(i)}], refs)
			}
			if free && i/64 < s.hint {
				return fmt.Errorf("check an arena: free block %d of slab %d lies before the search hint %d", i, s.serial, s.hint*64)
			}
		}
		if nfree != s.nfree {
			return fmt.Errorf("check an arena: slab %d counts %d free blocks, found %d", s.serial, s.nfree, nfree)
		}
		if nfree > 0 && at < a.first {
			return fmt.Errorf("check an arena: slab %d has free blocks but is not searched", s.serial)
		}
	}
	if live != a.live || mapped != a.mapped || a.high < a.live {
		return fmt.Errorf("check an arena: counted %d blocks in use, %d bytes mapped, high-water %d; found %d and %d", a.live, a.mapped, a.high, live, mapped)
	}
	return nil
}

// Map returns n bytes of zeroed memory, outside the Go heap where the system
// supports that. They are valid until passed to Unmap.
func Map(n int) ([]byte, error) {
	page := systemMemory.pageSize
	mem, err := systemMemory.alloc((max(n, 1) + page - 1) / page * page)
	if err != nil {
		return nil, err
	}
	mappedTotal.Add(int64(len(mem)))
	return mem[:n], nil
}

// Unmap returns to the system memory that Map returned.
func Unmap(mem []byte) error {
	mem = mem[:cap(mem)]
	mappedTotal.Add(-int64(len(mem)))
	return systemMemory.free(mem)
}
