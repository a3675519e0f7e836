package kvcache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

var (
	// ErrFull reports that a limit, Options.MaxBytes or that of Options.Account,
	// leaves no room. The cache is unchanged; evict, truncate, or end the generation.
	ErrFull = errors.New("cache is full")

	// ErrClosed reports that the cache is closed.
	ErrClosed = errors.New("cache is closed")
)

// Options describes a cache.
type Options struct {
	Layers  int // number of layers, at least 1
	KVHeads int // KV heads per layer, at least 1
	HeadDim int // elements per key and per value: even, 2 to 512

	// Type is the element type of stored keys and values: F32 (the default), F16
	// or BF16, to which Append rounds once, to nearest, ties to even; or a type of integers with
	// scales, as package kernels defines them (int_rows.go). Some of these require a head dimension that is a
	// multiple of 32, and are held on the host only. See [ParseType].
	Type tensor.Type

	// Values is the type of values, if it is not Type.
	Values tensor.Type

	// WideKeys marks layers whose keys are BF16, whatever Type is; nil for none. It
	// requires values of integers.
	WideKeys []bool

	// CPU is the instruction set for conversions; nil: that of the machine. Results do
	// not depend on it.
	CPU *kernels.CPU

	// PageEntries is the number of entries per page: a power of two from 16 to
	// 1024, 64 if 0. A head wastes half a page on average.
	PageEntries int

	// HugePages puts the cache in the system's 2 MiB pages where available (Linux),
	// which speeds up attention over long contexts. Memory is taken and freed in
	// pieces of that size, so it suits caches from which nothing is evicted:
	// eviction frees what Bytes says, but the process keeps more of it.
	HugePages bool

	// LoadHuge lets loading put entries in 2 MiB pages where they fill them (Linux):
	// the system provides these ten times as fast. No more memory is taken than
	// without, and what is freed leaves the process at once; but as long as a page's
	// other parts are in use and memory is not short, the system may keep it. So it
	// suits files from which nothing will be evicted.
	LoadHuge bool

	// Windows holds the attention window W of each layer in tokens, 0 for none: a
	// token at position p reads positions p-W+1 … p. DropBefore acts only on
	// layers with a window. Nil means no windows.
	Windows []int

	// MaxBytes limits the Bytes of each cache of the family, 0 for no limit. An
	// Append beyond it fails with ErrFull.
	MaxBytes int64

	// Account, if not nil, counts the pages of the family, wherever they are,
	// together with those of other caches. A change that exceeds its limit fails
	// with ErrFull.
	Account *Account

	// Device, if not nil, holds the pages of the first DeviceLayers layers, or of
	// all layers if DeviceLayers is 0 or exceeds Layers. The cache does not own
	// it: close a device's caches before the device.
	Device       kernels.Device
	DeviceLayers int
}

const (
	defaultPageEntries = 64
	maxHeadDim         = 512
	maxHeads           = 1 << 20
)

// Layout returns the layout of a layer's pages.
func (o *Options) Layout(layer int) kernels.PageLayout {
	l := kernels.PageLayout{Type: o.Type, Values: o.Values, HeadDim: o.HeadDim, PageEntries: o.PageEntries}
	if o.wideKeys(layer) {
		l = l.WithWideKeys()
	}
	return l
}

func (o *Options) wideKeys(layer int) bool { return o.WideKeys != nil && o.WideKeys[layer] }

// checkTypes returns an error if the cache cannot hold the types.
func (o *Options) checkTypes() error {
	l := kernels.PageLayout{Type: o.Type, Values: o.Values}
	onHost := false
	for _, t := range []tensor.Type{l.Type, l.ValueType()} {
		e := elementOf(t)
		switch {
		case e == nil:
			return fmt.Errorf("element type %v, expected those of cache types %s", t, strings.Join(TypeNames(), ", "))
		case o.HeadDim%e.whole != 0:
			return fmt.Errorf("cache type %s with a head dimension of %d, expected a multiple of %d", TypeName(o.Type, o.Values), o.HeadDim, e.whole)
		}
		onHost = onHost || e.host
	}
	keys, values := l.IntKeys(), l.IntValues()
	switch {
	case keys && !values:
		return fmt.Errorf("keys of type %v with values of type %v, expected values of integers", l.Type, l.ValueType())
	case !keys && o.Values != 0 && o.Values != o.Type && !values:
		return fmt.Errorf("keys of type %v with values of type %v, expected the same", l.Type, l.ValueType())
	case o.WideKeys != nil && (len(o.WideKeys) != o.Layers || !values):
		return fmt.Errorf("wide keys in %d of %d layers with values of type %v, expected all layers and values of integers", len(o.WideKeys), o.Layers, l.ValueType())
	case o.Device != nil && onHost:
		return fmt.Errorf("cache type %s with layers on a device, which holds f32, f16, bf16 or int8", TypeName(o.Type, o.Values))
	}
	return nil
}

// withDefaults returns o with defaults filled in, or an error if an option is
// invalid.
func (o Options) withDefaults() (Options, error) {
	if o.Type == 0 {
		o.Type = tensor.F32
	}
	if o.PageEntries == 0 {
		o.PageEntries = defaultPageEntries
	}
	if o.CPU == nil {
		cpu := kernels.Detect()
		o.CPU = &cpu
	}
	o.Windows = slices.Clone(o.Windows)
	switch {
	case o.Device == nil:
		o.DeviceLayers = 0
	case o.DeviceLayers == 0 || o.DeviceLayers > o.Layers:
		o.DeviceLayers = o.Layers
	}
	switch {
	case o.Layers < 1 || o.KVHeads < 1 || o.Layers > maxHeads/o.KVHeads:
		return o, fmt.Errorf("%d layers × %d KV heads, expected at least one and at most %d heads in all", o.Layers, o.KVHeads, maxHeads)
	case o.HeadDim < 2 || o.HeadDim > maxHeadDim || o.HeadDim%2 != 0:
		return o, fmt.Errorf("head dimension %d, expected an even number from 2 to %d", o.HeadDim, maxHeadDim)
	case o.PageEntries < 16 || o.PageEntries > 1024 || o.PageEntries&(o.PageEntries-1) != 0:
		return o, fmt.Errorf("%d entries per page, expected a power of two from 16 to 1024", o.PageEntries)
	case o.Windows != nil && len(o.Windows) != o.Layers:
		return o, fmt.Errorf("%d windows for %d layers", len(o.Windows), o.Layers)
	case o.DeviceLayers < 0:
		return o, fmt.Errorf("%d layers on a device, expected 0 or more", o.DeviceLayers)
	case o.MaxBytes < 0:
		return o, fmt.Errorf("a limit of %d bytes, expected 0 or more", o.MaxBytes)
	}
	for l, w := range o.Windows {
		if w < 0 {
			return o, fmt.Errorf("window %d of layer %d, expected 0 or more", w, l)
		}
	}
	return o, o.checkTypes()
}

// Cache is a ragged cache. Make one with New or LoadFile, and Close it after use.
type Cache struct {
	o        Options
	pool     *pool
	heads    []head // [Layers*KVHeads]
	maxBytes int64
	held     atomic.Int64 // bytes of the pages in the lists of all heads
	high     atomic.Int64 // high-water mark of held
	closed   bool

	views  views                 // of heads on the device
	failed atomic.Pointer[error] // of the device, see Err
}

// head holds the entries of one (layer, KV head): page j holds entries
// j*PageEntries and up. A page that others also hold is never written.
type head struct {
	mem *memory
	pageList
	n       int   // entries
	base    int   // logical slot of entry 0, a multiple of PageEntries
	dropped int32 // highest position that DropBefore removed, -1 if none

	table kernels.PageTable // made by the first Reserve or Table
	known int               // leading pages that are up to date in table
}

// New returns an empty cache. It takes no pages before the first Append.
func New(o Options) (*Cache, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("make a cache: %w", err)
	}
	p, err := newPool(o)
	if err != nil {
		return nil, fmt.Errorf("make a cache: %w", err)
	}
	return newCache(o, p), nil
}

// newCache returns an empty cache of the pool's family.
func newCache(o Options, p *pool) *Cache {
	c := &Cache{o: o, pool: p, heads: make([]head, o.Layers*o.KVHeads), maxBytes: math.MaxInt64}
	if o.MaxBytes > 0 {
		c.maxBytes = o.MaxBytes
	}
	for i := range c.heads {
		c.heads[i] = head{mem: *p.of(&o, i/o.KVHeads), dropped: -1}
	}
	p.caches.Add(1)
	return c
}

// Options returns the cache's options with defaults filled in. The Windows slice
// must not be modified.
func (c *Cache) Options() Options { return c.o }

// head returns a KV head of a layer; it panics if either is out of range.
func (c *Cache) head(layer, index int) *head {
	if err := c.checkHead(layer, index); err != nil {
		panic("kvcache: " + err.Error())
	}
	return &c.heads[layer*c.o.KVHeads+index]
}

func (c *Cache) checkHead(layer, head int) error {
	if layer < 0 || layer >= c.o.Layers || head < 0 || head >= c.o.KVHeads {
		return fmt.Errorf("no layer %d head %d in a cache of %d layers × %d KV heads", layer, head, c.o.Layers, c.o.KVHeads)
	}
	return nil
}

func (c *Cache) window(layer int) int {
	if c.o.Windows == nil {
		return 0
	}
	return c.o.Windows[layer]
}

// positions returns the positions of a head's page j, [PageEntries].
func (c *Cache) positions(p *head, j int) []int32 {
	return p.mem.positions(p.blocks[j])
}

func (c *Cache) position(p *head, entry int) int32 {
	return c.positions(p, entry/c.o.PageEntries)[entry%c.o.PageEntries]
}

// usable returns the error that prevents changes to the cache, nil if none.
func (c *Cache) usable() error {
	if c.closed {
		return ErrClosed
	}
	return c.Err()
}

// last returns the highest position that p holds or has dropped, -1 if none.
func (c *Cache) last(p *head) int32 {
	if p.n == 0 {
		return p.dropped
	}
	return c.position(p, p.n-1)
}

// firstAtLeast returns the first entry of p at position pos or later, p.n if there is none.
func (c *Cache) firstAtLeast(p *head, pos int32) int {
	lo, hi := 0, p.n
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); c.position(p, mid) < pos {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// Append adds len(pos) entries to a head. Entry i has the position pos[i], the
// key k[i*stride : i*stride+HeadDim] (after RoPE) and the value at the same
// place in v. Positions must be strictly ascending and begin above the head's
// last one. The slices are read only during the call.
//
// Different heads may be appended to concurrently. Appending allocates on the
// Go heap only when a page list grows, by doubling. On an error (ErrFull,
// ErrClosed, an invalid argument, out of memory) nothing has changed. For a head
// on a device it copies whole pages and waits for them; passes use Reserve.
func (c *Cache) Append(layer, head int, pos []int32, k, v []float32, stride int) error {
	if err := c.append(layer, head, pos, k, v, stride); err != nil {
		return fmt.Errorf("append %d entries to layer %d head %d: %w", len(pos), layer, head, c.note(err))
	}
	c.checkAfter(layer, head)
	return nil
}

func (c *Cache) append(layer, head int, pos []int32, k, v []float32, stride int) error {
	p, err := c.next(layer, head, pos)
	if err != nil || len(pos) == 0 {
		return err
	}
	d := c.o.HeadDim
	if stride < d {
		return fmt.Errorf("stride %d, expected at least the head dimension %d", stride, d)
	}
	if have := min(len(k), len(v)); have < d || (have-d)/stride < len(pos)-1 {
		return fmt.Errorf("%d key and %d value elements, expected (%d-1)·%d+%d of each", len(k), len(v), len(pos), stride, d)
	}
	if err := c.grow(p, len(pos)); err != nil {
		return err
	}
	w := writer{c: c}
	n := p.n
	for i := 0; i < len(pos); {
		j, at := n/c.o.PageEntries, n%c.o.PageEntries
		m := min(len(pos)-i, c.o.PageEntries-at)
		page, err := w.page(p, j, at > 0)
		if err != nil {
			c.cut(p, p.n)
			return err
		}
		for e := range m {
			off := (i + e) * stride
			p.mem.keys.Store(*c.o.CPU, page.K, at+e, k[off:off+d])
			p.mem.values.Store(*c.o.CPU, page.V, at+e, v[off:off+d])
		}
		copy(c.positions(p, j)[at:], pos[i:i+m])
		n += m
		i += m
	}
	if err := w.flush(); err != nil {
		c.cut(p, p.n)
		return err
	}
	p.n = n
	return nil
}

// next returns the head, after checking that entries with the given positions may
// be appended to it.
func (c *Cache) next(layer, head int, pos []int32) (*head, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	if err := c.checkHead(layer, head); err != nil {
		return nil, err
	}
	p := c.head(layer, head)
	before := c.last(p)
	for i, x := range pos {
		if x <= before {
			return nil, fmt.Errorf("position %d of entry %d is not above %d", x, i, before)
		}
		before = x
	}
	return p, nil
}

// grow makes room in p for n more entries, in pages that may be written.
func (c *Cache) grow(p *head, n int) error {
	c.changed(p)
	size, was := c.o.PageEntries, len(p.blocks)
	fresh, copied, last := pagesFor(p.n+n, size)-was, 0, was-1
	if p.n%size != 0 && p.blocks[last].Shared() {
		copied = 1
	}
	if fresh+copied == 0 {
		return nil
	}
	more := int64(fresh) * p.mem.pageBytes
	held, ok := c.book(more)
	if !ok {
		return fmt.Errorf("%w: %d bytes are held, %d more are needed, the limit is %d", ErrFull, c.Bytes(), more, c.o.MaxBytes)
	}
	err := p.mem.extend(&p.pageList, fresh+copied)
	if err == nil && copied == 1 {
		// The copy replaces the shared page, which is released.
		end := len(p.blocks) - 1
		if err = p.mem.copyPage(&p.pageList, end, last); err == nil {
			p.swap(last, end)
			p.known = min(p.known, last)
			was = end
		}
		p.mem.cut(&p.pageList, was)
	}
	if err != nil {
		c.held.Add(-more)
		return err
	}
	c.raiseHigh(held)
	return nil
}

func pagesFor(entries, size int) int { return (entries + size - 1) / size }

// book adds n bytes to the count, if the limit allows, and returns the new count.
func (c *Cache) book(n int64) (held int64, ok bool) {
	for {
		now := c.held.Load()
		if n > c.maxBytes-now {
			return now, false
		}
		if c.held.CompareAndSwap(now, now+n) {
			return now + n, true
		}
	}
}

// raiseHigh raises the high-water mark to n bytes. Pages that were booked but could not
// be allocated do not count.
func (c *Cache) raiseHigh(n int64) {
	for {
		high := c.high.Load()
		if n <= high || c.high.CompareAndSwap(high, n) {
			return
		}
	}
}

// cut shortens p to n entries and releases the pages after them.
func (c *Cache) cut(p *head, n int) {
	c.changed(p)
	keep := pagesFor(n, c.o.PageEntries)
	c.held.Add(int64(keep-len(p.blocks)) * p.mem.pageBytes)
	p.mem.cut(&p.pageList, keep)
	p.known = min(p.known, keep)
	p.n = n
}

// Len returns the number of entries of a head.
func (c *Cache) Len(layer, head int) int { return c.head(layer, head).n }

// Base returns the logical slot of a head's entry 0: the number of entries that
// DropBefore removed before it, a multiple of PageEntries, 0 in layers without
// a window.
func (c *Cache) Base(layer, head int) int { return c.head(layer, head).base }

// Positions returns the positions of a head's entries in ascending order, in dst
// if its capacity suffices.
func (c *Cache) Positions(layer, head int, dst []int32) []int32 {
	p := c.head(layer, head)
	dst = slices.Grow(dst[:0], p.n)
	for j := range p.blocks {
		dst = append(dst, c.positions(p, j)[:min(c.o.PageEntries, p.n-j*c.o.PageEntries)]...)
	}
	return dst
}

// LastPosition returns the highest position of a head's entries or, if there are
// none, the highest that DropBefore removed, -1 if none. The next Append must
// begin above it.
func (c *Cache) LastPosition(layer, head int) int32 { return c.last(c.head(layer, head)) }

// View returns a head in the form that attention kernels read: entry i is at
// place i%PageEntries of page i/PageEntries. Nothing is copied. The page list and
// its memory belong to the cache, must not be written, and are valid
// until the head next changes. Places without an entry hold zeros or what an
// earlier entry left.
//
// For a head on a device, View returns a copy on the host, which takes the time
// to copy and as much memory as the head, not counted in Bytes. The cache keeps
// the copies of one layer for later calls, until the head changes or View is
// called for another layer. Do not call it between Reserve and the pass that
// fills the entries. If the device fails, Err says so, and the pages hold zeros.
func (c *Cache) View(layer, head int) kernels.KV {
	p := c.head(layer, head)
	pages := p.pages
	if p.mem.device != nil {
		pages = c.download(layer, head, p)
	}
	l := p.mem.layout
	return kernels.KV{Type: l.Type, Values: l.Values, HeadDim: c.o.HeadDim, PageEntries: c.o.PageEntries, Base: p.base, Pages: pages}
}

// Keys returns the keys of entries [from, to) of a head, widened to
// float32 (exactly, unless they are integers), as rows [to-from][HeadDim], in dst if its capacity suffices. Like a
// slice expression, it panics unless 0 ≤ from ≤ to ≤ Len. If the head's device
// fails, Err says so, and the missing rows hold zeros.
func (c *Cache) Keys(layer, head, from, to int, dst []float32) []float32 {
	return c.gather(layer, head, from, to, dst, false)
}

// Values is like Keys, but returns the values.
func (c *Cache) Values(layer, head, from, to int, dst []float32) []float32 {
	return c.gather(layer, head, from, to, dst, true)
}

func (c *Cache) gather(layer, head, from, to int, dst []float32, values bool) []float32 {
	p, d := c.head(layer, head), c.o.HeadDim
	if from < 0 || from > to || to > p.n {
		panic(fmt.Sprintf("kvcache: entries [%d, %d) of layer %d head %d, which has %d", from, to, layer, head, p.n))
	}
	dst = slices.Grow(dst[:0], (to-from)*d)[:(to-from)*d]
	pages := reader{c: c}
	for i := from; i < to; {
		j, at := i/c.o.PageEntries, i%c.o.PageEntries
		n := min(to-i, c.o.PageEntries-at)
		page, err := pages.page(p, j, pagesFor(to, c.o.PageEntries))
		if err != nil {
			c.fail(fmt.Errorf("read page %d of layer %d head %d: %w", j, layer, head, err))
			clear(dst[(i-from)*d:])
			return dst
		}
		for e := at; e < at+n; e++ {
			row := dst[(i-from)*d : (i-from+1)*d]
			if values {
				p.mem.values.Load(*c.o.CPU, page.V, e, row)
			} else {
				p.mem.keys.Load(*c.o.CPU, page.K, e, row)
			}
			i++
		}
	}
	return dst
}

// Close frees the pages of the cache; the last cache of a family frees all
// memory. A second Close does nothing. A closed cache is empty, and changing it
// fails with ErrClosed.
func (c *Cache) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	for i := range c.heads {
		p := &c.heads[i]
		c.cut(p, 0)
		if p.table != nil {
			p.table.Free()
		}
		*p = head{mem: p.mem, dropped: -1}
	}
	if c.pool.caches.Add(-1) > 0 {
		return nil
	}
	if err := c.pool.close(); err != nil {
		return fmt.Errorf("close a cache: %w", err)
	}
	return nil
}
