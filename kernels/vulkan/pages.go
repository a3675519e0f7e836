//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
)

// PagePool hands out pages of one layout to the caches of a family, counts who
// holds them, and keeps no more device memory than they need, but for the
// unused rest of the chunks that it takes them from. Safe for concurrent use.
type PagePool struct {
	d      *Device
	layout Layout
	stride int64 // bytes from page to page
	per    int   // pages of a chunk

	mu     sync.Mutex
	chunks []*pageChunk
	live   int64
	high   int64
	closed bool
}

type pageChunk struct {
	buf  *Buffer
	refs []int32 // [per] holders of each page
	free []int32 // pages that nobody holds
}

// Page is a page of a pool. The zero Page is none.
type Page struct {
	chunk *pageChunk
	index int32
}

// pageChunkBytes is how much memory a pool takes at a time, one page at least.
const pageChunkBytes = 4 << 20

// NewPagePool makes an empty pool. Close it before the device.
func (d *Device) NewPagePool(l Layout) (*PagePool, error) {
	if err := l.Check(); err != nil {
		return nil, err
	}
	stride := (int64(l.PageBytes()) + alignment - 1) &^ (alignment - 1)
	return &PagePool{d: d, layout: l, stride: stride, per: int(max(pageChunkBytes/stride, 1))}, nil
}

// Layout returns the layout of the pages.
func (p *PagePool) Layout() Layout { return p.layout }

// Alloc appends n pages to dst, each held once; their contents are undefined. On
// an error (an [OutOfMemoryError], ErrClosed) nothing was taken.
func (p *PagePool) Alloc(dst []Page, n int) ([]Page, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return dst, fmt.Errorf("take %d pages: %w", n, ErrClosed)
	}
	dst = slices.Grow(dst, n)
	before := len(dst)
	for _, c := range p.chunks {
		dst = c.take(dst, before+n)
	}
	for len(dst) < before+n {
		buf, err := p.d.NewBuffer(int64(p.per) * p.stride)
		if err != nil {
			p.live += int64(len(dst) - before)
			p.drop(dst[before:])
			return dst[:before], fmt.Errorf("take %d pages: %w", n, err)
		}
		c := &pageChunk{buf: buf, refs: make([]int32, p.per), free: make([]int32, p.per)}
		for i := range c.free {
			c.free[i] = int32(p.per - 1 - i)
		}
		p.chunks = append(p.chunks, c)
		dst = c.take(dst, before+n)
	}
	p.live += int64(n)
	p.high = max(p.high, p.live)
	return dst, nil
}

// take appends free pages to dst until it has n.
func (c *pageChunk) take(dst []Page, n int) []Page {
	for len(dst) < n && len(c.free) > 0 {
		i := c.free[len(c.free)-1]
		c.free = c.free[:len(c.free)-1]
		c.refs[i] = 1
		dst = append(dst, Page{c, i})
	}
	return dst
}

// Ref adds a holder to each page.
func (p *PagePool) Ref(pages []Page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range pages {
		g.chunk.refs[g.index]++
	}
}

// Unref takes a holder from each page; pages without one are free for work that is
// submitted later, and so must not be read by work submitted later.
func (p *PagePool) Unref(pages []Page) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.drop(pages)
	}
}

func (p *PagePool) drop(pages []Page) {
	for _, g := range pages {
		c := g.chunk
		if c.refs[g.index]--; c.refs[g.index] > 0 {
			continue
		}
		if c.refs[g.index] < 0 {
			panic("vulkan: a page was given back more often than it was held")
		}
		c.free = append(c.free, g.index)
		p.live--
	}
}

// Trim gives chunks without a held page back to the device. Work that used them
// must be done.
func (p *PagePool) Trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.chunks = slices.DeleteFunc(p.chunks, func(c *pageChunk) bool {
		if len(c.free) < p.per {
			return false
		}
		c.buf.Free()
		return true
	})
}

// Shared reports whether a page has more than one holder.
func (p *PagePool) Shared(g Page) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return g.chunk.refs[g.index] > 1
}

// Bytes returns the bytes of all held pages, HighWater the most that they were,
// Taken the device memory behind them.
func (p *PagePool) Bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live * p.stride
}

// HighWater is the largest value that Bytes had.
func (p *PagePool) HighWater() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.high * p.stride
}

// Taken is the device memory that the pool holds.
func (p *PagePool) Taken() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return int64(len(p.chunks)*p.per) * p.stride
}

// View returns the memory of a page.
func (p *PagePool) View(g Page) View {
	return g.chunk.buf.At(int64(g.index)*p.stride, int64(p.layout.PageBytes()))
}

// PutPages writes the addresses of pages to dst, 8 bytes each: a page table as
// Heads and Compact read it.
func (p *PagePool) PutPages(dst []byte, pages []Page) {
	for i, g := range pages {
		binary.LittleEndian.PutUint64(dst[8*i:], g.chunk.buf.Address()+uint64(int64(g.index)*p.stride))
	}
}

// Close gives all memory back; work that used the pages must be done. A second
// Close does nothing.
func (p *PagePool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.chunks {
		c.buf.Free()
	}
	p.chunks, p.live, p.closed = nil, 0, true
}
