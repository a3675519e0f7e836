package kvcache

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// place is where a test keeps its caches.
type place struct {
	name   string
	device *fakeDevice // nil: host memory
	layers int         // on the device
}

// everywhere runs a test with caches on the host, on a device, and with their
// first layer on a device and the rest on the host.
func everywhere(t *testing.T, run func(t *testing.T, at place)) {
	for _, at := range []place{{name: "host"}, {name: "device", device: newFake()}, {name: "both", device: newFake(), layers: 1}} {
		t.Run(at.name, func(t *testing.T) {
			if at.device != nil {
				// Registered first, so it runs last, when the caches are closed.
				t.Cleanup(func() { at.device.wantEmpty(t) })
			}
			run(t, at)
		})
	}
}

func (at place) options(o Options) Options {
	if at.device != nil {
		o.Device, o.DeviceLayers = at.device, at.layers
	}
	return o
}

func (at place) open(t testing.TB, o Options) *Cache {
	t.Helper()
	return open(t, at.options(o))
}

// fakeDevice is a device in ordinary memory that does what caches need. It takes
// nothing on trust: it panics on use of a page that nobody holds, on a write to a
// page with several holders, and on a page table that missed a change.
type fakeDevice struct {
	kernels.Device // no pass, no weights

	mu     sync.Mutex
	pools  int
	tables int
	pages  map[kernels.DevicePage]*fakePage
	serial kernels.DevicePage
	reads  int // pages read
	writes int // calls of Write

	calls  int   // that can fail
	at     int   // the call that fails, 0 for none
	fault  error // what it fails with; after ErrDeviceLost every later call does, too
	paused bool  // calls neither count nor fail
}

type fakePage struct {
	refs int
	data []byte
}

func newFake() *fakeDevice { return &fakeDevice{pages: make(map[kernels.DevicePage]*fakePage)} }

// failAt makes the n-th of the following calls that can fail do so, counting from 1.
func (d *fakeDevice) failAt(n int, fault error) { d.calls, d.at, d.fault = 0, n, fault }

// failed reports whether the failing call was made, lost whether it lost the device.
func (d *fakeDevice) failed() bool { return d.at > 0 && d.calls >= d.at }
func (d *fakeDevice) lost() bool   { return d.failed() && d.fault == kernels.ErrDeviceLost }

// hit returns the error of a call that can fail.
func (d *fakeDevice) hit() error {
	if d.paused {
		return nil
	}
	d.calls++
	if d.lost() || d.calls == d.at {
		return fmt.Errorf("fake device: call %d: %w", d.calls, d.fault)
	}
	return nil
}

// wantEmpty fails unless everything was released.
func (d *fakeDevice) wantEmpty(t testing.TB) {
	t.Helper()
	require.Zero(t, d.pools, "pools left open")
	require.Zero(t, d.tables, "page tables left")
	require.Empty(t, d.pages, "pages left")
}

func (d *fakeDevice) Pages(l kernels.PageLayout) (kernels.PagePool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.hit(); err != nil {
		return nil, err
	}
	d.pools++
	return &fakePool{d: d, l: l}, nil
}

type fakePool struct {
	d      *fakeDevice
	l      kernels.PageLayout
	live   int
	high   int
	closed bool
}

// held returns a page and panics if nobody holds it.
func (p *fakePool) held(page kernels.DevicePage) *fakePage {
	x := p.d.pages[page]
	if x == nil {
		panic(fmt.Sprintf("fake device: page %d is free", page))
	}
	return x
}

// own returns a page to write to and panics unless it has exactly one holder.
func (p *fakePool) own(page kernels.DevicePage) *fakePage {
	x := p.held(page)
	if x.refs != 1 {
		panic(fmt.Sprintf("fake device: write to page %d, which %d hold", page, x.refs))
	}
	return x
}

func (p *fakePool) Alloc(dst []kernels.DevicePage, n int) ([]kernels.DevicePage, error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err := p.d.hit(); err != nil {
		return dst, err
	}
	for range n {
		p.d.serial++
		// All ones is a NaN in every type: memory never written must not show.
		data := slices.Repeat([]byte{0xff}, p.l.Bytes())
		p.d.pages[p.d.serial] = &fakePage{1, data}
		dst = append(dst, p.d.serial)
	}
	p.live += n
	p.high = max(p.high, p.live)
	return dst, nil
}

func (p *fakePool) Ref(pages []kernels.DevicePage) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for _, x := range pages {
		p.held(x).refs++
	}
}

func (p *fakePool) Unref(pages []kernels.DevicePage) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for _, x := range pages {
		h := p.held(x)
		if h.refs--; h.refs == 0 {
			delete(p.d.pages, x)
			p.live--
		}
	}
}

func (p *fakePool) Read(_ context.Context, blocks []byte, pages []kernels.DevicePage) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err := p.d.hit(); err != nil {
		for i := range blocks { // a failed copy leaves anything
			blocks[i] = 0x55
		}
		return err
	}
	p.d.reads += len(pages)
	if size := p.l.Bytes(); len(blocks) != len(pages)*size {
		panic(fmt.Sprintf("fake device: read of %d pages of %d bytes to %d bytes", len(pages), size, len(blocks)))
	}
	for i, page := range pages {
		copy(blocks[i*p.l.Bytes():], p.held(page).data)
	}
	return nil
}

func (p *fakePool) Write(_ context.Context, pages []kernels.DevicePage, blocks []byte) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err := p.d.hit(); err != nil {
		return err
	}
	p.d.writes++
	if size := p.l.Bytes(); len(blocks) != len(pages)*size {
		panic(fmt.Sprintf("fake device: write of %d bytes to %d pages of %d", len(blocks), len(pages), size))
	}
	for i, page := range pages {
		copy(p.own(page).data, blocks[i*p.l.Bytes():])
	}
	return nil
}

func (p *fakePool) Copy(dst, src kernels.DevicePage) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err := p.d.hit(); err != nil {
		return err
	}
	copy(p.own(dst).data, p.held(src).data)
	return nil
}

// entry returns the key, element by element, the value and the position of an entry
// of a page, spelling out the layout's formula.
func (p *fakePool) entry(data []byte, e int) (parts [][]byte) {
	size, dim := p.l.Type.Bytes(1), p.l.HeadDim
	half := p.l.PageEntries * dim * size
	for d := range dim {
		at := (e/16*16*dim + d*16 + e%16) * size
		parts = append(parts, data[at:at+size])
	}
	at := half + e*dim*size
	parts = append(parts, data[at:at+dim*size])
	at = 2*half + 4*e
	return append(parts, data[at:at+4])
}

func (p *fakePool) Compact(dst, src []kernels.DevicePage, slots []int32, from int) error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err := p.d.hit(); err != nil {
		return err
	}
	size := p.l.PageEntries
	for i := from; i < len(slots); i++ {
		s := int(slots[i])
		if s < i || i > 0 && slots[i-1] >= slots[i] {
			panic(fmt.Sprintf("fake device: slot %d at index %d", s, i))
		}
		if x := dst[i/size]; x != src[i/size] && slices.Contains(src, x) {
			panic("fake device: survivors move to another page of the source")
		}
		to, parts := p.entry(p.own(dst[i/size]).data, i%size), p.entry(p.held(src[s/size]).data, s%size)
		for j := range to {
			copy(to[j], parts[j])
		}
	}
	return nil
}

func (p *fakePool) Table() (kernels.PageTable, error) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if err := p.d.hit(); err != nil {
		return nil, err
	}
	p.d.tables++
	return &fakeTable{p: p}, nil
}

func (p *fakePool) Bytes() int64     { return p.count(&p.live) }
func (p *fakePool) HighWater() int64 { return p.count(&p.high) }
func (p *fakePool) Taken() int64     { return p.count(&p.live) }

func (p *fakePool) count(n *int) int64 {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return int64(*n * p.l.Bytes())
}

func (p *fakePool) ResetHighWater() {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.high = p.live
}

func (p *fakePool) Close() error {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if !p.closed {
		p.closed = true
		p.d.pools--
		if p.live != 0 {
			return fmt.Errorf("fake device: %d pages are still held", p.live)
		}
	}
	return nil
}

// fakeTable is a page table. Set leaves the entries before from unchanged.
type fakeTable struct {
	p       *fakePool
	pages   []kernels.DevicePage
	written int // entries, over all Sets
	freed   bool
}

func (t *fakeTable) Set(pages []kernels.DevicePage, from int) error {
	t.p.d.mu.Lock()
	defer t.p.d.mu.Unlock()
	if err := t.p.d.hit(); err != nil {
		return err
	}
	if from > len(t.pages) || !slices.Equal(t.pages[:from], pages[:from]) {
		panic(fmt.Sprintf("fake device: the first %d pages of a table are not what it holds", from))
	}
	t.written += len(pages) - from
	t.pages = append(t.pages[:from], pages[from:]...)
	return nil
}

func (t *fakeTable) Free() {
	t.p.d.mu.Lock()
	defer t.p.d.mu.Unlock()
	if !t.freed {
		t.freed = true
		t.p.d.tables--
	}
}

// pass does what a pass on the device does after a Reserve: it stores keys and
// values [n][HeadDim] in a head's entries from first on, through the head's table.
func pass(c *Cache, layer, head, first int, pos []int32, k, v []float32) {
	o, t := c.Options(), c.Table(layer, head).(*fakeTable)
	t.p.d.mu.Lock()
	defer t.p.d.mu.Unlock()
	d := o.HeadDim
	for i, x := range pos {
		e := first + i
		parts := t.p.entry(t.p.own(t.pages[e/o.PageEntries]).data, e%o.PageEntries)
		for j := range d {
			encode(parts[j], o.Type, k[i*d+j])
			encode(parts[d][j*o.Type.Bytes(1):], o.Type, v[i*d+j])
		}
		*(*int32)(unsafe.Pointer(&parts[d+1][0])) = x
	}
}

func encode(dst []byte, typ tensor.Type, x float32) {
	switch p := unsafe.Pointer(&dst[0]); typ {
	case tensor.F32:
		*(*uint32)(p) = math.Float32bits(x)
	case tensor.F16:
		*(*uint16)(p) = tensor.F32ToF16(x)
	case tensor.BF16:
		*(*uint16)(p) = tensor.F32ToBF16(x)
	}
}
