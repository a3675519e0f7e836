package kvcache

import (
	"fmt"
	"slices"

	"github.com/lukv/lukv/internal/arena"
)

// Keep evicts all entries of a pair but those in slots, which are ascending
// entry numbers. Survivors move together, keep their order and positions, and
// the pages that become empty are given up at once. Pages that forks hold too
// are not written; survivors move to fresh pages then.
//
// Keeping everything changes nothing. Otherwise the pair's logical slots begin
// at 0 again and all marks become void. Keep is never refused for MaxBytes; on
// an error nothing has changed. Different pairs may be cut at the same time.
func (c *Cache) Keep(layer, head int, slots []int32) error {
	if err := c.keep(layer, head, slots); err != nil {
		return fmt.Errorf("keep %d entries of layer %d head %d: %w", len(slots), layer, head, err)
	}
	c.checkAfter(layer, head)
	return nil
}

func (c *Cache) keep(layer, head int, slots []int32) error {
	if c.closed {
		return ErrClosed
	}
	if err := c.checkPair(layer, head); err != nil {
		return err
	}
	p := c.pair(layer, head)
	before := int32(-1)
	for i, s := range slots {
		if s <= before || int(s) >= p.n {
			return fmt.Errorf("slot %d at index %d, expected above %d and below %d", s, i, before, p.n)
		}
		before = s
	}
	if len(slots) == p.n {
		return nil
	}
	if err := c.compact(p, slots); err != nil {
		return err
	}
	p.base = 0
	c.cut(p, len(slots))
	c.markMu.Lock()
	c.marks = nil
	c.markMu.Unlock()
	return nil
}

// compact moves the entries in slots to the front of p.
func (c *Cache) compact(p *pair, slots []int32) error {
	size := c.o.PageEntries
	stay := 0 // leading survivors that are where they belong
	for stay < len(slots) && int(slots[stay]) == stay {
		stay++
	}
	if stay == len(slots) {
		return nil
	}
	from, to := stay/size, pagesFor(len(slots), size)
	want := 0
	for _, b := range p.blocks[from:to] {
		if b.Shared() {
			want++
		}
	}
	var fresh, old []arena.Block
	if want > 0 {
		var err error
		if fresh, err = c.pool.arena.Alloc(nil, want); err != nil {
			return err
		}
		old = make([]arena.Block, 0, want)
	}
	for j := from; j < to; j++ {
		lo, hi, dst := max(stay, j*size), min(len(slots), (j+1)*size), p.pages[j]
		// A block may have lost its other references since it was counted, but
		// nobody else can have added one.
		shared := len(fresh) > 0 && p.blocks[j].Shared()
		if shared {
			lo, dst = j*size, c.page(fresh[0])
		}
		for i := lo; i < hi; i++ {
			s := int(slots[i])
			c.move(dst, i%size, p.pages[s/size], s%size)
		}
		if shared {
			// No later survivor comes from page j: slots[i] ≥ i.
			old = append(old, p.blocks[j])
			p.blocks[j], p.pages[j] = fresh[0], dst
			fresh = fresh[1:]
		}
	}
	c.pool.arena.Unref(old)
	c.pool.arena.Unref(fresh)
	return nil
}

// DropBefore gives up the leading pages of a layer's heads whose entries all
// have positions below pos. It does nothing on a layer without a window. A mark
// becomes void when an entry inside its window goes.
func (c *Cache) DropBefore(layer int, pos int32) {
	if c.closed || c.window(layer) == 0 {
		return
	}
	for head := range c.o.KVHeads {
		c.dropBefore(layer, head, pos)
		c.checkAfter(layer, head)
	}
}

func (c *Cache) dropBefore(layer, head int, pos int32) {
	p, size := c.pair(layer, head), c.o.PageEntries
	n := c.firstAtLeast(p, pos) / size // full pages
	if n == 0 {
		return
	}
	p.dropped = c.position(p, n*size-1)
	c.giveUp(p.blocks[:n])
	// Moving the tables down, instead of slicing, keeps their capacity.
	p.blocks = slices.Delete(p.blocks, 0, n)
	p.pages = slices.Delete(p.pages, 0, n)
	p.n -= n * size
	p.base += n * size
	c.voidMarks(func(m *mark) bool {
		return !c.inWindow(layer, p, m.last[layer*c.o.KVHeads+head])
	})
}

// inWindow reports whether a pair that goes on behind the position last still
// has everything that the next token's window covers.
func (c *Cache) inWindow(layer int, p *pair, last int32) bool {
	return p.dropped < 0 || int64(p.dropped)+int64(c.window(layer)) <= int64(last)+1
}

// Mark is a point to which Truncate can return: the length of every pair. The
// zero Mark is none.
type Mark struct{ m *mark }

// mark is immutable; forks share it.
type mark struct {
	ends []int   // per pair: Base + Len
	last []int32 // per pair: last position, -1 if none
}

// Mark remembers the lengths of all pairs. A mark stays good, in this cache and
// in forks made later, until a Keep removes entries, a truncation goes below it
// in any pair, or DropBefore removes entries that its windows still need. It
// takes memory (12 bytes per pair) as long as it is good.
func (c *Cache) Mark() Mark {
	m := &mark{ends: make([]int, len(c.pairs)), last: make([]int32, len(c.pairs))}
	for i := range c.pairs {
		p := &c.pairs[i]
		m.ends[i], m.last[i] = p.base+p.n, c.last(p)
	}
	if c.closed {
		return Mark{m}
	}
	c.markMu.Lock()
	defer c.markMu.Unlock()
	if n := len(c.marks); n > 0 && slices.Equal(c.marks[n-1].ends, m.ends) {
		return Mark{c.marks[n-1]}
	}
	c.marks = append(c.marks, m)
	return Mark{m}
}

// voidMarks forgets the marks for which void returns true.
func (c *Cache) voidMarks(void func(*mark) bool) {
	c.markMu.Lock()
	c.marks = slices.DeleteFunc(c.marks, void)
	c.markMu.Unlock()
}

// Truncate removes what was appended since the mark. On an error (the mark is
// no longer good, see Mark) nothing has changed.
func (c *Cache) Truncate(m Mark) error {
	if c.closed {
		return fmt.Errorf("truncate to a mark: %w", ErrClosed)
	}
	c.markMu.Lock()
	good := m.m != nil && slices.Contains(c.marks, m.m)
	c.markMu.Unlock()
	if !good {
		return fmt.Errorf("truncate to a mark: it is not one of this cache, or entries before it were evicted, truncated or dropped since")
	}
	for i := range c.pairs {
		c.cut(&c.pairs[i], m.m.ends[i]-c.pairs[i].base)
	}
	c.afterCut()
	return nil
}

// TruncateTo removes, from all pairs, the entries with position pos and above.
// Entries that were evicted or dropped do not come back; where DropBefore has
// removed positions that the window of a token at pos needs, TruncateTo fails
// and changes nothing.
func (c *Cache) TruncateTo(pos int32) error {
	if c.closed {
		return fmt.Errorf("truncate to position %d: %w", pos, ErrClosed)
	}
	pos = max(pos, 0)
	for i := range c.pairs {
		p, layer := &c.pairs[i], i/c.o.KVHeads
		if c.last(p) >= pos && !c.inWindow(layer, p, pos-1) {
			return fmt.Errorf("truncate to position %d: layer %d has dropped position %d, which its window of %d needs", pos, layer, p.dropped, c.window(layer))
		}
	}
	for i := range c.pairs {
		c.cut(&c.pairs[i], c.firstAtLeast(&c.pairs[i], pos))
	}
	c.afterCut()
	return nil
}

// afterCut forgets the marks that lie above what is left.
func (c *Cache) afterCut() {
	c.voidMarks(func(m *mark) bool {
		for i := range c.pairs {
			if m.ends[i] > c.pairs[i].base+c.pairs[i].n {
				return true
			}
		}
		return false
	})
	c.checkAll()
}
