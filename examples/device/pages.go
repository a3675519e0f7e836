package device

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// page is a page as the host arranges it.
type page struct {
	p       *pool
	holders int
	data    []byte // PageLayout.Bytes, aligned for kernels
}

type pool struct {
	thing
	l          kernels.PageLayout
	live, high int64
}

func (d *Device) Pages(l kernels.PageLayout) (kernels.PagePool, error) {
	for _, t := range []tensor.Type{l.Type, l.ValueType()} {
		switch t {
		case tensor.F32, tensor.F16, tensor.BF16, tensor.I8:
		default:
			return nil, fmt.Errorf("make pages: found type %v, expected F32, F16, BF16 or I8", t)
		}
	}
	return &pool{thing: d.thing(), l: l}, nil
}

func (p *pool) Close() error {
	p.Free()
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for x, h := range p.d.pages {
		if h.p == p {
			delete(p.d.pages, x)
			p.d.live--
		}
	}
	p.live = 0
	return nil
}

// held returns a page, and panics if nobody holds it; owned also panics if several do.
func (d *Device) held(x kernels.DevicePage) *page {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := d.pages[x]
	if p == nil {
		panic(fmt.Sprintf("example device: page %d is free", x))
	}
	return p
}

func (d *Device) owned(x kernels.DevicePage) *page {
	p := d.held(x)
	if p.holders != 1 {
		panic(fmt.Sprintf("example device: write to page %d, which %d hold", x, p.holders))
	}
	return p
}

func (p *pool) Alloc(dst []kernels.DevicePage, n int) ([]kernels.DevicePage, error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for range n {
		const align = 64
		data := slices.Repeat([]byte{0xff}, p.l.Bytes()+align) // NaN: what was never written must not show
		p.d.serial++
		p.d.pages[p.d.serial] = &page{p, 1, data[-uintptr(unsafe.Pointer(unsafe.SliceData(data)))%align:][:p.l.Bytes()]}
		dst = append(dst, p.d.serial)
	}
	p.d.live += n
	p.live += int64(n)
	p.high = max(p.high, p.live)
	return dst, nil
}

func (p *pool) Ref(pages []kernels.DevicePage) {
	for _, x := range pages {
		h := p.d.held(x)
		p.d.mu.Lock()
		h.holders++
		p.d.mu.Unlock()
	}
}

func (p *pool) Unref(pages []kernels.DevicePage) {
	for _, x := range pages {
		h := p.d.held(x)
		p.d.mu.Lock()
		if h.holders--; h.holders == 0 {
			delete(p.d.pages, x)
			p.live--
			p.d.live--
		}
		p.d.mu.Unlock()
	}
}

// blocks checks that there is a block for every page.
func (p *pool) blocks(op string, blocks []byte, pages []kernels.DevicePage) error {
	if len(blocks) != len(pages)*p.l.Bytes() {
		return fmt.Errorf("%s %d pages: found %d bytes, expected %d", op, len(pages), len(blocks), len(pages)*p.l.Bytes())
	}
	return nil
}

func (p *pool) Read(_ context.Context, blocks []byte, pages []kernels.DevicePage) error {
	for i, x := range pages {
		copy(blocks[i*p.l.Bytes():], p.d.held(x).data)
	}
	return p.blocks("read", blocks, pages)
}

func (p *pool) Write(_ context.Context, pages []kernels.DevicePage, blocks []byte) error {
	if err := p.blocks("write", blocks, pages); err != nil {
		return err
	}
	for i, x := range pages {
		copy(p.d.owned(x).data, blocks[i*p.l.Bytes():])
	}
	return nil
}

func (p *pool) Copy(dst, src kernels.DevicePage) error {
	copy(p.d.owned(dst).data, p.d.held(src).data)
	return nil
}

// at returns a page as kernels take it.
func (p *pool) at(data []byte) kernels.Page {
	k := unsafe.Pointer(unsafe.SliceData(data))
	return kernels.Page{K: k, V: unsafe.Add(k, p.l.ValuesAt())}
}

func (p *pool) position(data []byte, entry int) []byte {
	return data[p.l.PositionsAt()+4*entry:][:4]
}

func (p *pool) Compact(dst, src []kernels.DevicePage, slots []int32, from int) error {
	n, keys, values := p.l.PageEntries, p.l.KeyRows(), p.l.ValueRows()
	for i := from; i < len(slots); i++ {
		s := int(slots[i])
		if s < i || i > 0 && slots[i-1] >= slots[i] || dst[i/n] != src[i/n] && slices.Contains(src, dst[i/n]) {
			panic(fmt.Sprintf("example device: entry %d moves to slot %d, or to another page of the source", s, i))
		}
		to, at := p.d.owned(dst[i/n]).data, p.d.held(src[s/n]).data
		keys.Move(p.at(to).K, i%n, p.at(at).K, s%n)
		values.Move(p.at(to).V, i%n, p.at(at).V, s%n)
		copy(p.position(to, i%n), p.position(at, s%n))
	}
	return nil
}

func (p *pool) count(n *int64) int64 {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return *n * int64(p.l.Bytes())
}

func (p *pool) Bytes() int64     { return p.count(&p.live) }
func (p *pool) HighWater() int64 { return p.count(&p.high) }
func (p *pool) Taken() int64     { return p.count(&p.live) }
func (p *pool) ResetHighWater() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.high = p.live
}

// table is a list of pages.
type table struct {
	thing
	p     *pool
	pages []kernels.DevicePage
}

func (p *pool) Table() (kernels.PageTable, error) { return &table{thing: p.d.thing(), p: p}, nil }

func (t *table) Set(pages []kernels.DevicePage, from int) error {
	if from > len(t.pages) || !slices.Equal(t.pages[:from], pages[:from]) {
		panic(fmt.Sprintf("example device: the first %d pages of a table are not those that it holds", from))
	}
	t.pages = append(t.pages[:from], pages[from:]...)
	return nil
}
