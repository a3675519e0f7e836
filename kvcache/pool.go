package kvcache

import (
	"errors"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
)

// pool holds the memory that the caches of a family share.
type pool struct {
	host, wide         *memory      // of layers with wide keys: wide
	device, wideDevice *memory      // the same on a device; nil where there are no such layers
	caches             atomic.Int64 // not yet closed
}

// of returns where the memory of a layer is.
func (p *pool) of(o *Options, layer int) **memory {
	switch device, wide := layer < o.DeviceLayers, o.wideKeys(layer); {
	case device && wide:
		return &p.wideDevice
	case device:
		return &p.device
	case wide:
		return &p.wide
	}
	return &p.host
}

// memory is where pages are stored.
//
// On the host, a page is a block of the arena, see [kernels.PageLayout]. On a device,
// each page of the device is paired with a block that holds its positions, so that
// only keys and values are ever read from the device. Whoever holds the page also
// holds the block: the block's reference count says whether the page is shared.
type memory struct {
	arena     *arena.Arena
	layout    kernels.PageLayout
	pageBytes int64
	keys      kernels.PageRows
	values    kernels.PageRows
	posOff    int              // offset of the positions in a block
	device    kernels.PagePool // nil on the host
}

// pageList lists the pages of a head: slices of equal length, or nil.
type pageList struct {
	blocks []arena.Block
	pages  []kernels.Page       // on the host: where the blocks lie
	remote []kernels.DevicePage // on a device: the pages
}

func newMemory(l kernels.PageLayout) *memory {
	return &memory{layout: l, pageBytes: int64(l.Bytes()), keys: l.KeyRows(), values: l.ValueRows()}
}

// newHostMemory returns memory for pages on the host.
func newHostMemory(o *Options, l kernels.PageLayout) (*memory, error) {
	m := newMemory(l)
	m.posOff = l.PositionsAt()
	pages := arena.New
	if o.HugePages {
		pages = arena.NewHuge
	}
	if err := m.open(o, pages, l.Bytes()); err != nil {
		return nil, err
	}
	return m, nil
}

// newDeviceMemory returns memory for pages on the device.
func newDeviceMemory(o *Options, l kernels.PageLayout) (*memory, error) {
	m := newMemory(l)
	if err := m.open(o, arena.New, 4*o.PageEntries); err != nil {
		return nil, err
	}
	var err error
	if m.device, err = o.Device.Pages(l); err != nil {
		return nil, errors.Join(err, m.arena.Close())
	}
	return m, nil
}

// open makes the arena of blocks and charges a page for each.
func (m *memory) open(o *Options, pages func(blockSize int) (*arena.Arena, error), block int) (err error) {
	if m.arena, err = pages(block); err == nil && o.Account != nil {
		m.arena.Charge(m.pageBytes, o.Account.charge)
	}
	return err
}

func newPool(o Options) (*pool, error) {
	p := &pool{}
	for layer := range o.Layers {
		to, open := p.of(&o, layer), newHostMemory
		if *to != nil {
			continue
		}
		if layer < o.DeviceLayers {
			open = newDeviceMemory
		}
		m, err := open(&o, o.Layout(layer))
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		*to = m
	}
	return p, nil
}

// all returns the memory of the pool.
func (p *pool) all() []*memory {
	return slices.DeleteFunc([]*memory{p.host, p.wide, p.device, p.wideDevice}, func(m *memory) bool { return m == nil })
}

// hosts returns the memory on the host.
func (p *pool) hosts() []*memory {
	return slices.DeleteFunc(p.all(), func(m *memory) bool { return m.device != nil })
}

func (p *pool) close() error {
	var err error
	for _, m := range p.all() {
		err = errors.Join(err, m.arena.Close())
		if m.device != nil {
			err = errors.Join(err, m.device.Close())
		}
	}
	return err
}

// page returns the addresses of the page at b, as kernels expect them.
func (m *memory) page(b unsafe.Pointer) kernels.Page {
	return kernels.Page{K: b, V: unsafe.Add(b, m.layout.ValuesAt())}
}

// positions returns the positions of a block, [PageEntries].
func (m *memory) positions(b arena.Block) []int32 {
	return unsafe.Slice((*int32)(unsafe.Add(m.arena.Ptr(b), m.posOff)), m.layout.PageEntries)
}

// extend adds n pages to l. On an error l is unchanged.
func (m *memory) extend(l *pageList, n int) error {
	if n == 0 {
		return nil
	}
	was := len(l.blocks)
	var err error
	if l.blocks, err = m.arena.Alloc(l.blocks, n); err != nil {
		return err
	}
	if m.device == nil {
		for _, b := range l.blocks[was:] {
			l.pages = append(l.pages, m.page(m.arena.Ptr(b)))
		}
		return nil
	}
	remote, err := m.device.Alloc(l.remote, n)
	if err != nil {
		m.arena.Unref(l.blocks[was:])
		l.blocks = zeroTail(l.blocks, was)
		return err
	}
	l.remote = remote
	return nil
}

// copyPage copies page number from of l to page number to.
func (m *memory) copyPage(l *pageList, to, from int) error {
	if m.device != nil {
		if err := m.device.Copy(l.remote[to], l.remote[from]); err != nil {
			return err
		}
	}
	copy(m.arena.Bytes(l.blocks[to]), m.arena.Bytes(l.blocks[from]))
	return nil
}

// share returns a list of the same pages, which now have one more holder.
func (m *memory) share(l pageList) pageList {
	m.arena.Ref(l.blocks)
	if m.device != nil {
		m.device.Ref(l.remote)
	}
	return pageList{slices.Clone(l.blocks), slices.Clone(l.pages), slices.Clone(l.remote)}
}

// cut releases all pages of l but the first n.
func (m *memory) cut(l *pageList, n int) {
	m.giveUp(l, n, len(l.blocks))
	l.blocks = zeroTail(l.blocks, n)
	if m.device == nil {
		l.pages = zeroTail(l.pages, n)
	} else {
		l.remote = zeroTail(l.remote, n)
	}
}

// drop releases the first n pages of l.
func (m *memory) drop(l *pageList, n int) {
	m.giveUp(l, 0, n)
	// Moving the rest down, instead of slicing, keeps the capacity.
	l.blocks = slices.Delete(l.blocks, 0, n)
	if m.device == nil {
		l.pages = slices.Delete(l.pages, 0, n)
	} else {
		l.remote = slices.Delete(l.remote, 0, n)
	}
}

// giveUp releases pages [from, to) of l.
func (m *memory) giveUp(l *pageList, from, to int) {
	// Release the page before its block: a holder that sees an unshared block then
	// owns the page alone.
	if m.device != nil && from < to {
		m.device.Unref(l.remote[from:to])
	}
	m.arena.Unref(l.blocks[from:to])
}

// swap swaps pages i and j.
func (l *pageList) swap(i, j int) {
	l.blocks[i], l.blocks[j] = l.blocks[j], l.blocks[i]
	if l.pages != nil {
		l.pages[i], l.pages[j] = l.pages[j], l.pages[i]
	} else {
		l.remote[i], l.remote[j] = l.remote[j], l.remote[i]
	}
}

// zeroTail returns s[:n] and clears the rest; if the capacity far exceeds n, it
// returns a copy with less.
func zeroTail[T any](s []T, n int) []T {
	clear(s[n:])
	if cap(s) > 64 && n < cap(s)/4 {
		return append(make([]T, 0, n+n/2), s[:n]...)
	}
	return s[:n]
}
