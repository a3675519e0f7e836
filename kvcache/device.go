package kvcache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/lukv/lukv/kernels"
)

// views holds host copies of the heads of one layer on the device.
type views struct {
	mu    sync.Mutex
	layer int
	of    map[*head][]kernels.Page // nil until the first copy
}

// Err returns the first device error met by a method without an error result,
// or an error if the device is lost, otherwise nil; it is always nil for a cache
// without a device. Once Err is not nil, every method with an error result except
// Close fails with it. It may be called at any time.
func (c *Cache) Err() error {
	if err := c.failed.Load(); err != nil {
		return *err
	}
	return nil
}

func (c *Cache) fail(err error) { c.failed.CompareAndSwap(nil, &err) }

// note returns err, and records it if it says that the device is lost.
func (c *Cache) note(err error) error {
	if errors.Is(err, kernels.ErrDeviceLost) {
		c.fail(err)
	}
	return err
}

// Reserve counts entries with the given positions as appended to a head on the
// device, in pages that may be written, and leaves their keys and values to a
// pass: call SetHead with [Cache.Table] and the head's length before Reserve.
// Truncate removes them again if the pass fails. They must not be read until the
// pass has run.
//
// What Append says about positions, concurrency and errors also holds for
// Reserve. If it needs no new page, it allocates nothing and does not use the
// device, except to copy a shared page once.
func (c *Cache) Reserve(layer, head int, pos []int32) error {
	if err := c.reserve(layer, head, pos); err != nil {
		return fmt.Errorf("reserve %d entries of layer %d head %d: %w", len(pos), layer, head, c.note(err))
	}
	c.checkAfter(layer, head)
	return nil
}

func (c *Cache) reserve(layer, head int, pos []int32) error {
	p, err := c.next(layer, head, pos)
	if err != nil {
		return err
	}
	if p.mem.device == nil {
		return errors.New("the layer is not on a device")
	}
	if err := c.grow(p, len(pos)); err != nil {
		return err
	}
	if err := p.syncTable(); err != nil {
		c.cut(p, p.n)
		return err
	}
	for i := 0; i < len(pos); {
		j, at := p.n/c.o.PageEntries, p.n%c.o.PageEntries
		n := copy(c.positions(p, j)[at:], pos[i:])
		p.n += n
		i += n
	}
	return nil
}

// Table returns the list of a head's pages for passes on the device; nil if the
// layer is not on one, the cache is closed, or the device fails (see Err). After a
// Reserve it is up to date. The table is always the same one, belongs to the cache
// and is correct until the head next changes; then call Table again. The call
// itself counts as a change of the head.
func (c *Cache) Table(layer, head int) kernels.PageTable {
	p := c.head(layer, head)
	if p.mem.device == nil || c.closed {
		return nil
	}
	if err := p.syncTable(); err != nil {
		c.fail(fmt.Errorf("page table of layer %d head %d: %w", layer, head, err))
		return nil
	}
	return p.table
}

// syncTable brings the head's table up to date.
func (p *head) syncTable() (err error) {
	if p.table == nil {
		if p.table, err = p.mem.device.Table(); err != nil {
			p.table = nil
			return err
		}
	}
	if p.known < len(p.remote) {
		if err := p.table.Set(p.remote, p.known); err != nil {
			return err
		}
		p.known = len(p.remote)
	}
	return nil
}

// changed discards the host copy of a head that is about to change.
func (c *Cache) changed(p *head) {
	if p.mem.device == nil {
		return
	}
	c.views.mu.Lock()
	delete(c.views.of, p)
	c.views.mu.Unlock()
}

// batchBytes is about how much a reader copies from a device at a time, or a writer to
// one.
const batchBytes = 8 << 20

// reader gives read access to the pages of a cache's heads, through copies if they are
// on a device.
type reader struct {
	c     *Cache
	of    *head // whose pages are in mem, from first on
	first int
	mem   []byte
}

// page returns page j of a head, valid until the next call. From a device it also
// reads following pages, up to end, that will be wanted next.
func (r *reader) page(p *head, j, end int) (kernels.Page, error) {
	if p.mem.device == nil {
		return p.pages[j], nil
	}
	size := int(p.mem.pageBytes)
	if r.of != p || j < r.first || (j-r.first)*size >= len(r.mem) {
		n := min(end-j, max(batchBytes/size, 1))
		if cap(r.mem) < n*size {
			r.mem = make([]byte, n*size)
		}
		r.of, r.first, r.mem = nil, j, r.mem[:n*size]
		if err := p.mem.device.Read(context.Background(), r.mem, p.remote[j:j+n]); err != nil {
			return kernels.Page{}, err
		}
		r.of = p
	}
	return p.mem.page(unsafe.Pointer(&r.mem[(j-r.first)*size])), nil
}

// writer gives write access to the pages of a cache's heads. Pages on a device are
// written as copies, gathered and sent many at a time: what is not flushed is lost.
type writer struct {
	c     *Cache
	of    *head // whose pages are in mem, from first on
	first int
	mem   []byte
}

// page returns page j of a head, valid until the next call. Positions are not part of
// it: they are written to the head's block. For a device, the page is zero, or a copy of
// the device's if fetch is set.
func (w *writer) page(p *head, j int, fetch bool) (kernels.Page, error) {
	if p.mem.device == nil {
		return p.pages[j], nil
	}
	size := int(p.mem.pageBytes)
	if w.of != p || j != w.first+len(w.mem)/size || len(w.mem)+size > batchBytes {
		if err := w.flush(); err != nil {
			return kernels.Page{}, err
		}
		w.of, w.first = p, j
	}
	at := len(w.mem)
	w.mem = slices.Grow(w.mem, size)[:at+size]
	block := w.mem[at:]
	if !fetch {
		clear(block)
	} else if err := p.mem.device.Read(context.Background(), block, p.remote[j:j+1]); err != nil {
		return kernels.Page{}, err
	}
	return p.mem.page(unsafe.Pointer(unsafe.SliceData(block))), nil
}

// flush writes the gathered pages to the device.
func (w *writer) flush() error {
	p, mem := w.of, w.mem
	w.of, w.mem = nil, mem[:0]
	if len(mem) == 0 {
		return nil
	}
	size := int(p.mem.pageBytes)
	n := len(mem) / size
	for i := range n {
		copy(mem[i*size+p.mem.layout.PositionsAt():], p.mem.arena.Bytes(p.blocks[w.first+i]))
	}
	return p.mem.device.Write(context.Background(), p.remote[w.first:w.first+n], mem)
}

// download returns the host copy of a head on the device, making it if there is none.
func (c *Cache) download(layer, index int, p *head) []kernels.Page {
	v := &c.views
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.of == nil || v.layer != layer {
		v.layer, v.of = layer, make(map[*head][]kernels.Page, c.o.KVHeads)
	}
	if pages, ok := v.of[p]; ok {
		return pages
	}
	const align = 64 // of the pages on the host
	size := int(p.mem.pageBytes)
	mem := make([]byte, len(p.remote)*size+align)
	mem = mem[-uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%align:][:len(p.remote)*size]
	if len(p.remote) > 0 {
		if err := p.mem.device.Read(context.Background(), mem, p.remote); err != nil {
			c.fail(fmt.Errorf("read the pages of layer %d head %d: %w", layer, index, err))
			clear(mem)
		}
	}
	pages := make([]kernels.Page, len(p.remote))
	for j := range pages {
		pages[j] = p.mem.page(unsafe.Pointer(&mem[j*size]))
		c.clearFrom(p, pages[j], p.n-j*c.o.PageEntries)
	}
	v.of[p] = pages
	return pages
}

// clearFrom zeroes the places of a page from entry n on: memory that a device has
// never written may hold anything.
func (c *Cache) clearFrom(p *head, page kernels.Page, n int) {
	if n >= c.o.PageEntries {
		return
	}
	zero := make([]float32, c.o.HeadDim)
	for e := n; e < c.o.PageEntries; e++ {
		p.mem.keys.Store(*c.o.CPU, page.K, e, zero)
		p.mem.values.Store(*c.o.CPU, page.V, e, zero)
	}
}
