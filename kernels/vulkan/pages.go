//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/lukv/lukv/kernels"
)

// pagePool is a kernels.PagePool. A page's number is its address on the device.
// The pool takes memory in chunks of pages and frees a chunk as soon as it holds none:
// work that still reads it runs before any that gets its memory next.
type pagePool struct {
	d      *Device
	layout layout
	bytes  int // of a page
	per    int // pages per chunk

	mu     sync.Mutex   // taken before the locks of the device
	chunks []*pageChunk // by address
	open   []*pageChunk // those with free pages
	live   int
	high   int
	closed bool
}

type pageChunk struct {
	buf  *buffer
	base uint64  // address
	refs []int32 // [per] holders of each page
	free []int32 // pages that nobody holds
	at   int     // index in pagePool.open, if there is a free page
}

// pageChunkBytes is how much memory a pool takes at a time, at least one page.
const pageChunkBytes = 1 << 20

// Pages makes an empty pool of pages.
func (d *Device) Pages(l kernels.PageLayout) (kernels.PagePool, error) {
	return d.newPagePool(layout(l))
}

func (d *Device) newPagePool(l layout) (*pagePool, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	if err := d.ready(); err != nil {
		return nil, err
	}
	return &pagePool{d: d, layout: l, bytes: l.PageBytes(), per: max(pageChunkBytes/l.PageBytes(), 1)}, nil
}

// usable returns why the pool cannot be used, nil if it can. mu must be held.
func (p *pagePool) usable() error {
	if p.closed {
		return fmt.Errorf("pages on %s: the pool is closed", p.d.info.Name)
	}
	return p.d.ready()
}

func (p *pagePool) Alloc(dst []kernels.DevicePage, n int) ([]kernels.DevicePage, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(); err != nil {
		return dst, fmt.Errorf("take %d pages: %w", n, err)
	}
	before := len(dst)
	dst = slices.Grow(dst, n)
	for len(dst) < before+n {
		if len(p.open) == 0 {
			if err := p.grow(); err != nil {
				p.live += len(dst) - before
				p.drop(dst[before:])
				return dst[:before], fmt.Errorf("take %d pages: %w", n, err)
			}
		}
		c := p.open[len(p.open)-1]
		for len(dst) < before+n && len(c.free) > 0 {
			i := c.free[len(c.free)-1]
			c.free = c.free[:len(c.free)-1]
			c.refs[i] = 1
			dst = append(dst, kernels.DevicePage(c.base+uint64(i)*uint64(p.bytes)))
		}
		if len(c.free) == 0 {
			p.open = p.open[:len(p.open)-1]
		}
	}
	p.live += n
	p.high = max(p.high, p.live)
	return dst, nil
}

// grow adds a chunk.
func (p *pagePool) grow() error {
	buf, err := p.d.newLocalBuffer(int64(p.per) * int64(p.bytes))
	if err != nil {
		return err
	}
	// Slots without an entry are read along with the others, so they must be finite.
	if err := p.d.once(func(c *commands) { c.Zero(buf.All()) }); err != nil {
		buf.Free()
		return err
	}
	c := &pageChunk{buf: buf, base: buf.Address(), refs: make([]int32, p.per), free: make([]int32, p.per)}
	for i := range c.free {
		c.free[i] = int32(p.per - 1 - i)
	}
	i, _ := p.search(c.base)
	p.chunks = slices.Insert(p.chunks, i, c)
	p.opened(c)
	return nil
}

func (p *pagePool) opened(c *pageChunk) {
	c.at = len(p.open)
	p.open = append(p.open, c)
}

// search finds the first chunk at addr or after it.
func (p *pagePool) search(addr uint64) (int, bool) {
	return slices.BinarySearchFunc(p.chunks, addr, func(c *pageChunk, a uint64) int { return cmp.Compare(c.base, a) })
}

// find returns the chunk of a page and its index there; it panics if nobody holds the
// page in this pool, which is always a bug in the caller.
func (p *pagePool) find(g kernels.DevicePage) (*pageChunk, int) {
	i, exact := p.search(uint64(g))
	if !exact {
		i--
	}
	if i >= 0 {
		c := p.chunks[i]
		if off := uint64(g) - c.base; off%uint64(p.bytes) == 0 && off/uint64(p.bytes) < uint64(p.per) && c.refs[off/uint64(p.bytes)] > 0 {
			return c, int(off / uint64(p.bytes))
		}
	}
	panic(fmt.Sprintf("vulkan: nobody holds page %#x", g))
}

func (p *pagePool) Ref(pages []kernels.DevicePage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for _, g := range pages {
		c, i := p.find(g)
		c.refs[i]++
	}
}

func (p *pagePool) Unref(pages []kernels.DevicePage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.drop(pages)
	}
}

func (p *pagePool) drop(pages []kernels.DevicePage) {
	for _, g := range pages {
		c, i := p.find(g)
		if c.refs[i]--; c.refs[i] > 0 {
			continue
		}
		p.live--
		c.free = append(c.free, int32(i))
		if len(c.free) == 1 {
			p.opened(c)
		}
		if len(c.free) < p.per {
			continue
		}
		last := p.open[len(p.open)-1]
		p.open[c.at], last.at = last, c.at
		p.open = p.open[:len(p.open)-1]
		at, _ := p.search(c.base)
		p.chunks = slices.Delete(p.chunks, at, at+1)
		c.buf.Free()
	}
}

func (p *pagePool) Bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.live) * int64(p.bytes)
}

func (p *pagePool) HighWater() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(p.high) * int64(p.bytes)
}

func (p *pagePool) ResetHighWater() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.high = p.live
}

func (p *pagePool) Taken() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.chunks)) * int64(p.per) * int64(p.bytes)
}

// view returns the memory of a page.
func (p *pagePool) view(g kernels.DevicePage) (view, error) {
	v, err := p.views([]kernels.DevicePage{g})
	if err != nil {
		return view{}, err
	}
	return v[0], nil
}

// views returns the memory of pages.
func (p *pagePool) views(pages []kernels.DevicePage) ([]view, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	v := make([]view, len(pages))
	for j, g := range pages {
		c, i := p.find(g)
		v[j] = c.buf.At(int64(i)*int64(p.bytes), int64(p.bytes))
	}
	return v, nil
}

// block checks the total length of n blocks.
func (p *pagePool) block(op string, block []byte, n int) error {
	if want := n * p.layout.hostBytes(); len(block) != want {
		return fmt.Errorf("%s: found %d bytes for %d pages, expected %d", op, len(block), n, want)
	}
	return nil
}

func (p *pagePool) Read(ctx context.Context, blocks []byte, pages []kernels.DevicePage) error {
	const op = "read pages"
	if err := p.block(op, blocks, len(pages)); err != nil {
		return err
	}
	v, err := p.views(pages)
	if err == nil {
		size := p.layout.hostBytes()
		err = p.d.downloadViews(ctx, v, p.bytes, func(page []byte, i int) { p.layout.ToHost(blocks[i*size:(i+1)*size], page) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (p *pagePool) Write(ctx context.Context, pages []kernels.DevicePage, blocks []byte) error {
	const op = "write pages"
	if err := p.block(op, blocks, len(pages)); err != nil {
		return err
	}
	v, err := p.views(pages)
	if err == nil {
		size := p.layout.hostBytes()
		err = p.d.uploadViews(ctx, v, p.bytes, func(page []byte, i int) { p.layout.FromHost(page, blocks[i*size:(i+1)*size]) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (p *pagePool) Copy(dst, src kernels.DevicePage) error {
	const op = "copy a page"
	to, err := p.view(dst)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	from, err := p.view(src)
	if err == nil {
		err = p.d.once(func(c *commands) { c.Copy(to, from) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (p *pagePool) Compact(dst, src []kernels.DevicePage, slots []int32, from int) error {
	const op = "compact pages"
	n, pe := len(slots), p.layout.PageEntries
	switch {
	case from < 0 || from > n || n > len(dst)*pe:
		return fmt.Errorf("%s: found %d entries, the first %d in place, for %d pages of %d", op, n, from, len(dst), pe)
	case n > 0 && int(slots[n-1]) >= len(src)*pe:
		return fmt.Errorf("%s: found entry %d in %d pages of %d", op, slots[n-1], len(src), pe)
	}
	for i, s := range slots {
		if i > 0 && s <= slots[i-1] || s < 0 {
			return fmt.Errorf("%s: found entry %d as number %d, expected ascending ones", op, s, i)
		}
	}
	p.mu.Lock()
	err := p.usable()
	p.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	p.d.stage.mu.Lock()
	defer p.d.stage.mu.Unlock()
	// A slot of the ring holds the move, both tables and as many kept entries as fit.
	head := moveBytes + 8*(len(src)+len(dst))
	room := (stagingSlotBytes - head) / 4
	if room < stagingSlotBytes/8 {
		return fmt.Errorf("%s: found %d pages, expected at most %d", op, len(src)+len(dst), stagingSlotBytes/16)
	}
	for at := from; at < n; at += room {
		end := min(at+room, n)
		s, err := p.d.slot(context.Background())
		if err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		m := s.buf.Bytes()
		putPages(m[moveBytes:], src)
		putPages(m[moveBytes+8*len(src):], dst)
		for i, e := range slots[at:end] {
			binary.LittleEndian.PutUint32(m[head+4*i:], uint32(e))
		}
		// The shader indexes entries from 0.
		putMove(m, s.buf.Address()+moveBytes, s.buf.Address()+moveBytes+8*uint64(len(src)), s.buf.Address()+uint64(head)-4*uint64(at), end, at)
		if err := p.d.hand(s, func(c *commands) { c.Compact(p.layout, s.buf.All(), 1) }); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	return nil
}

// putPages writes a page table: the addresses of pages, 8 bytes each.
func putPages(dst []byte, pages []kernels.DevicePage) {
	for i, g := range pages {
		binary.LittleEndian.PutUint64(dst[8*i:], uint64(g))
	}
}

func (p *pagePool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.chunks {
		c.buf.Free()
	}
	p.chunks, p.open, p.live, p.closed = nil, nil, 0, true
	return nil
}

// pageTable is a kernels.PageTable in parameter memory.
type pageTable struct {
	d     *Device
	mem   *buffer // nil once it is freed
	pages int
}

// firstTable is the number of pages for which a new table has room.
const firstTable = 32

func (p *pagePool) Table() (kernels.PageTable, error) {
	b, err := p.d.newParamBuffer(8 * firstTable)
	if err != nil {
		return nil, fmt.Errorf("make a page table: %w", err)
	}
	return &pageTable{d: p.d, mem: b}, nil
}

func (t *pageTable) Set(pages []kernels.DevicePage, from int) error {
	if err := t.d.ready(); err != nil {
		return fmt.Errorf("set a page table: %w", err)
	}
	if t.mem == nil {
		return fmt.Errorf("set a page table: it was freed")
	}
	from = min(max(from, 0), t.pages)
	if have := int(t.mem.Size() / 8); have < len(pages) {
		b, err := t.d.newParamBuffer(8 * int64(max(2*have, len(pages))))
		if err != nil {
			return fmt.Errorf("set a page table of %d pages: %w", len(pages), err)
		}
		t.mem.Free()
		t.mem, from = b, 0
	}
	from = min(from, len(pages))
	putPages(t.mem.Bytes()[8*from:], pages[from:])
	t.pages = len(pages)
	return nil
}

func (t *pageTable) Free() {
	t.mem.Free()
	t.mem, t.pages = nil, 0
}
