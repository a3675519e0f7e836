package kvcache

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

var (
	// ErrFull says that Options.MaxBytes leaves no room for an Append. The cache
	// is unchanged; evict, truncate, or end the generation.
	ErrFull = errors.New("cache is full")

	// ErrClosed says that the cache was closed.
	ErrClosed = errors.New("cache is closed")
)

// Options describe a cache.
type Options struct {
	Layers  int // number of layers, at least 1
	KVHeads int // KV heads per layer, at least 1
	HeadDim int // elements of a key and of a value: even, 2 to 512

	// Type is the element type of stored keys and values: F32 (the default), F16
	// or BF16. Append rounds to it once, to nearest even.
	Type tensor.Type

	// PageEntries is the number of entries per page: a power of two from 16 to
	// 1024, 64 if 0. A pair wastes half a page on average.
	PageEntries int

	// Windows holds the attention window W of each layer in tokens, 0 for none: a
	// token at position p reads positions p-W+1 … p. DropBefore acts only on
	// layers with a window. Nil means no windows.
	Windows []int

	// MaxBytes bounds Bytes of each cache of the family, 0 for no bound. An
	// Append beyond it fails with ErrFull.
	MaxBytes int64
}

const (
	defaultPageEntries = 64
	maxHeadDim         = 512
	maxPairs           = 1 << 20
	tileEntries        = kernels.TileEntries
)

// withDefaults returns o with defaults filled in, or an error for what no cache
// can have.
func (o Options) withDefaults() (Options, error) {
	if o.Type == 0 {
		o.Type = tensor.F32
	}
	if o.PageEntries == 0 {
		o.PageEntries = defaultPageEntries
	}
	o.Windows = slices.Clone(o.Windows)
	switch {
	case o.Layers < 1 || o.KVHeads < 1 || o.Layers > maxPairs/o.KVHeads:
		return o, fmt.Errorf("%d layers × %d KV heads, expected at least one and at most %d pairs", o.Layers, o.KVHeads, maxPairs)
	case o.HeadDim < 2 || o.HeadDim > maxHeadDim || o.HeadDim%2 != 0:
		return o, fmt.Errorf("head dimension %d, expected an even number from 2 to %d", o.HeadDim, maxHeadDim)
	case o.Type != tensor.F32 && o.Type != tensor.F16 && o.Type != tensor.BF16:
		return o, fmt.Errorf("element type %v, expected F32, F16 or BF16", o.Type)
	case o.PageEntries < 16 || o.PageEntries > 1024 || o.PageEntries&(o.PageEntries-1) != 0:
		return o, fmt.Errorf("%d entries per page, expected a power of two from 16 to 1024", o.PageEntries)
	case o.Windows != nil && len(o.Windows) != o.Layers:
		return o, fmt.Errorf("%d windows for %d layers", len(o.Windows), o.Layers)
	case o.MaxBytes < 0:
		return o, fmt.Errorf("a limit of %d bytes, expected 0 or more", o.MaxBytes)
	}
	for l, w := range o.Windows {
		if w < 0 {
			return o, fmt.Errorf("window %d of layer %d, expected 0 or more", w, l)
		}
	}
	return o, nil
}

// Page is a page as attention kernels read it, see [kernels.Page].
type Page = kernels.Page

// Cache is a ragged cache. Make one with New or Load and Close it.
type Cache struct {
	o        Options
	valueOff uintptr // offset of a block's values
	posOff   uintptr // offset of a block's positions
	pool     *pool
	pairs    []pair // [Layers*KVHeads]
	maxPages int64
	pages    atomic.Int64 // pages in the tables of all pairs
	high     atomic.Int64 // largest pages so far
	closed   bool

	markMu sync.Mutex
	marks  []*mark // those that Truncate accepts, ends ascending
}

// pair holds the entries of one (layer, KV head). Its block j contains entries
// j*PageEntries …: keys in tiles [PageEntries/16][HeadDim][16], values
// [PageEntries][HeadDim], positions [PageEntries] int32. A block with more than
// one reference is never written.
type pair struct {
	pages   []Page
	blocks  []arena.Block
	n       int   // entries
	base    int   // logical slot of entry 0, a multiple of PageEntries
	dropped int32 // highest position that DropBefore removed, -1 if none
}

// pool is what the caches of a family have in common.
type pool struct {
	arena  *arena.Arena
	caches atomic.Int64 // not yet closed
}

// New returns an empty cache. It takes no page before the first Append.
func New(o Options) (*Cache, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("make a cache: %w", err)
	}
	half := o.PageEntries * o.HeadDim * o.Type.Size()
	a, err := arena.New(2*half + 4*o.PageEntries)
	if err != nil {
		return nil, fmt.Errorf("make a cache: %w", err)
	}
	c := newCache(o, &pool{arena: a})
	for i := range c.pairs {
		c.pairs[i].dropped = -1
	}
	return c, nil
}

// newCache returns a cache of the pool's family, without its pairs' state.

func newCache(o Options, p *pool) *Cache {
	half := uintptr(o.PageEntries * o.HeadDim * o.Type.Size())
	c := &Cache{o: o, valueOff: half, posOff: 2 * half, pool: p, pairs: make([]pair, o.Layers*o.KVHeads), maxPages: math.MaxInt64}
	if o.MaxBytes > 0 {
		c.maxPages = o.MaxBytes / int64(p.arena.BlockSize())
	}
	p.caches.Add(1)
	return c
}

// Options returns the options of the cache, defaults filled in. The slice in it
// must not be changed.
func (c *Cache) Options() Options { return c.o }

// pair returns the pair of a layer and a head; it panics if there is none.
func (c *Cache) pair(layer, head int) *pair {
	if err := c.checkPair(layer, head); err != nil {
		panic("kvcache: " + err.Error())
	}
	return &c.pairs[layer*c.o.KVHeads+head]
}

func (c *Cache) checkPair(layer, head int) error {
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

// page returns the addresses of a block as a kernel wants them.
func (c *Cache) page(b arena.Block) Page {
	p := c.pool.arena.Ptr(b)
	return Page{K: p, V: unsafe.Add(p, c.valueOff)}
}

// positions returns the positions of a page, [PageEntries].
func (c *Cache) positions(p Page) []int32 {
	return unsafe.Slice((*int32)(unsafe.Add(p.K, c.posOff)), c.o.PageEntries)
}

func (c *Cache) position(p *pair, entry int) int32 {
	return c.positions(p.pages[entry/c.o.PageEntries])[entry%c.o.PageEntries]
}

// last returns the highest position that p holds or has dropped, -1 if none.
func (c *Cache) last(p *pair) int32 {
	if p.n == 0 {
		return p.dropped
	}
	return c.position(p, p.n-1)
}

// firstAtLeast returns the first entry of p whose position is at least pos, p.n if none.
func (c *Cache) firstAtLeast(p *pair, pos int32) int {
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

// Append adds len(pos) entries to a pair. Entry i has the position pos[i], the
// key k[i*stride : i*stride+HeadDim] (after RoPE) and the value at the same
// place of v. Positions ascend strictly, beginning above the pair's last one.
// The slices are read only during the call.
//
// Different pairs may be appended to at the same time. Appending allocates on
// the Go heap only when a page table grows, by doubling. On an error (ErrFull,
// ErrClosed, an argument that does not fit, no memory) nothing has changed.
func (c *Cache) Append(layer, head int, pos []int32, k, v []float32, stride int) error {
	if err := c.append(layer, head, pos, k, v, stride); err != nil {
		return fmt.Errorf("append %d entries to layer %d head %d: %w", len(pos), layer, head, err)
	}
	c.checkAfter(layer, head)
	return nil
}

func (c *Cache) append(layer, head int, pos []int32, k, v []float32, stride int) error {
	if c.closed {
		return ErrClosed
	}
	if err := c.checkPair(layer, head); err != nil {
		return err
	}
	if len(pos) == 0 {
		return nil
	}
	d := c.o.HeadDim
	if stride < d {
		return fmt.Errorf("stride %d, expected at least the head dimension %d", stride, d)
	}
	if have := min(len(k), len(v)); have < d || (have-d)/stride < len(pos)-1 {
		return fmt.Errorf("%d key and %d value elements, expected (%d-1)·%d+%d of each", len(k), len(v), len(pos), stride, d)
	}
	p := c.pair(layer, head)
	before := c.last(p)
	for i, x := range pos {
		if x <= before {
			return fmt.Errorf("position %d of entry %d is not above %d", x, i, before)
		}
		before = x
	}
	if err := c.grow(p, len(pos)); err != nil {
		return err
	}
	for i := 0; i < len(pos); {
		page, at := p.pages[p.n/c.o.PageEntries], p.n%c.o.PageEntries
		n := min(len(pos)-i, c.o.PageEntries-at)
		copy(c.positions(page)[at:at+n], pos[i:])
		for j := range n {
			off := (i + j) * stride
			c.storeKey(page, at+j, k[off:off+d])
			c.storeValue(page, at+j, v[off:off+d])
		}
		p.n += n
		i += n
	}
	return nil
}

// grow gives p room for n more entries in pages that it may write.
func (c *Cache) grow(p *pair, n int) error {
	size := c.o.PageEntries
	fresh := pagesFor(p.n+n, size) - len(p.pages)
	copied := 0
	if p.n%size != 0 && p.blocks[len(p.blocks)-1].Shared() {
		copied = 1
	}
	if fresh+copied == 0 {
		return nil
	}
	if !c.take(int64(fresh)) {
		return fmt.Errorf("%w: %d bytes are held, %d more are needed, the limit is %d", ErrFull, c.Bytes(), int64(fresh)*c.pageBytes(), c.o.MaxBytes)
	}
	last := len(p.blocks) - 1
	blocks, err := c.pool.arena.Alloc(p.blocks, fresh+copied)
	p.blocks = blocks
	if err != nil {
		c.pages.Add(-int64(fresh))
		return err
	}
	if copied == 1 {
		old := [1]arena.Block{blocks[last]}
		end := len(blocks) - 1
		blocks[last], blocks[end] = blocks[end], arena.Block{}
		p.blocks = blocks[:end]
		copy(c.pool.arena.Bytes(blocks[last]), c.pool.arena.Bytes(old[0]))
		p.pages[last] = c.page(blocks[last])
		c.pool.arena.Unref(old[:])
	}
	for _, b := range p.blocks[len(p.pages):] {
		p.pages = append(p.pages, c.page(b))
	}
	return nil
}

func pagesFor(entries, size int) int { return (entries + size - 1) / size }

// take counts n more pages, if the limit allows.
func (c *Cache) take(n int64) bool {
	for {
		now := c.pages.Load()
		if n > c.maxPages-now {
			return false
		}
		if c.pages.CompareAndSwap(now, now+n) {
			c.raiseHigh(now + n)
			return true
		}
	}
}

func (c *Cache) raiseHigh(pages int64) {
	for {
		high := c.high.Load()
		if pages <= high || c.high.CompareAndSwap(high, pages) {
			return
		}
	}
}

// cut shortens p to n entries and gives up the pages behind them.
func (c *Cache) cut(p *pair, n int) {
	keep := pagesFor(n, c.o.PageEntries)
	c.giveUp(p.blocks[keep:])
	p.blocks = zeroTail(p.blocks, keep)
	p.pages = zeroTail(p.pages, keep)
	p.n = n
}

// giveUp takes blocks that leave a page table off the books.
func (c *Cache) giveUp(blocks []arena.Block) {
	c.pages.Add(-int64(len(blocks)))
	c.pool.arena.Unref(blocks)
}

// zeroTail returns s[:n] and clears the rest; a table much longer than needed
// is replaced.
func zeroTail[T any](s []T, n int) []T {
	clear(s[n:])
	if cap(s) > 64 && n < cap(s)/4 {
		return append(make([]T, 0, n+n/2), s[:n]...)
	}
	return s[:n]
}

// Len returns the number of entries of a pair.
func (c *Cache) Len(layer, head int) int { return c.pair(layer, head).n }

// Base returns the logical slot of a pair's entry 0: the number of entries that
// DropBefore removed in front of it, a multiple of PageEntries, 0 in layers
// without a window.
func (c *Cache) Base(layer, head int) int { return c.pair(layer, head).base }

// Positions returns the positions of a pair's entries, ascending, in dst if its
// capacity suffices.
func (c *Cache) Positions(layer, head int, dst []int32) []int32 {
	p := c.pair(layer, head)
	dst = slices.Grow(dst[:0], p.n)
	for i, page := range p.pages {
		dst = append(dst, c.positions(page)[:min(c.o.PageEntries, p.n-i*c.o.PageEntries)]...)
	}
	return dst
}

// LastPosition returns the highest position of a pair's entries, or what
// DropBefore removed last if there are none, -1 if there never were any. The
// next Append must begin above it.
func (c *Cache) LastPosition(layer, head int) int32 { return c.last(c.pair(layer, head)) }

// Pages returns the pages of a pair for a kernel to read: entry i is slot
// i%PageEntries of page i/PageEntries. Nothing is copied. The slice and the
// memory behind it belong to the cache, must not be written, and are valid
// until the next change of this pair. Slots without an entry hold zeros or
// what an earlier entry left.
func (c *Cache) Pages(layer, head int) []Page { return c.pair(layer, head).pages }

// View returns a pair as attention kernels read it. What holds for Pages holds
// for the view.
func (c *Cache) View(layer, head int) kernels.KV {
	p := c.pair(layer, head)
	return kernels.KV{Type: c.o.Type, HeadDim: c.o.HeadDim, PageEntries: c.o.PageEntries, Base: p.base, Pages: p.pages}
}

// Keys returns the keys of entries [from, to) of a pair, widened exactly to
// float32, row by row [to-from][HeadDim], in dst if its capacity suffices. It
// panics, as a slice expression does, unless 0 ≤ from ≤ to ≤ Len.
func (c *Cache) Keys(layer, head, from, to int, dst []float32) []float32 {
	return c.gather(layer, head, from, to, dst, false)
}

// Values returns the values of entries [from, to) of a pair as Keys does the keys.
func (c *Cache) Values(layer, head, from, to int, dst []float32) []float32 {
	return c.gather(layer, head, from, to, dst, true)
}

func (c *Cache) gather(layer, head, from, to int, dst []float32, values bool) []float32 {
	p, d := c.pair(layer, head), c.o.HeadDim
	if from < 0 || from > to || to > p.n {
		panic(fmt.Sprintf("kvcache: entries [%d, %d) of layer %d head %d, which has %d", from, to, layer, head, p.n))
	}
	dst = slices.Grow(dst[:0], (to-from)*d)[:(to-from)*d]
	for i := from; i < to; i++ {
		page, e, row := p.pages[i/c.o.PageEntries], i%c.o.PageEntries, dst[(i-from)*d:(i-from+1)*d]
		if values {
			c.loadValue(page, e, row)
		} else {
			c.loadKey(page, e, row)
		}
	}
	return dst
}

// Close gives the pages of the cache back; the last cache of a family gives back
// all memory. A second Close does nothing. A closed cache is empty, and what
// changes it fails with ErrClosed.
func (c *Cache) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	for i := range c.pairs {
		p := &c.pairs[i]
		c.giveUp(p.blocks)
		*p = pair{dropped: -1}
	}
	c.marks = nil
	if c.pool.caches.Add(-1) > 0 {
		return nil
	}
	if err := c.pool.arena.Close(); err != nil {
		return fmt.Errorf("close a cache: %w", err)
	}
	return nil
}
