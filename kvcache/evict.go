package kvcache

import (
	"fmt"
	"slices"
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
		return fmt.Errorf("keep %d entries of layer %d head %d: %w", len(slots), layer, head, c.note(err))
	}
	c.checkAfter(layer, head)
	return nil
}

func (c *Cache) keep(layer, head int, slots []int32) error {
	if err := c.usable(); err != nil {
		return err
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
	from, to, n := stay/size, pagesFor(len(slots), size), len(p.blocks)
	// Survivors move within their pages, or to fresh ones, from n on, in the place
	// of shared ones.
	var shared []int
	for j := from; j < to; j++ {
		if p.blocks[j].Shared() {
			shared = append(shared, j)
		}
	}
	if err := p.mem.extend(&p.pageList, len(shared)); err != nil {
		return err
	}
	if p.mem.device != nil {
		if err := c.compactRemote(p, slots, shared, stay, n); err != nil {
			p.mem.cut(&p.pageList, n)
			return err
		}
	}
	fresh := n
	for j := from; j < to; j++ {
		lo, hi, dst := max(stay, j*size), min(len(slots), (j+1)*size), j
		if fresh < len(p.blocks) && shared[fresh-n] == j {
			lo, dst = j*size, fresh
			fresh++
		}
		pos := c.positions(p, dst)
		for i := lo; i < hi; i++ {
			s := int(slots[i])
			pos[i%size] = c.position(p, s)
			if p.mem.device == nil {
				c.move(p.pages[dst], i%size, p.pages[s/size], s%size)
			}
		}
	}
	for i, j := range shared {
		p.swap(j, n+i)
		p.known = min(p.known, j)
	}
	p.mem.cut(&p.pageList, n)
	return nil
}

// compactRemote moves the entries in slots, from stay on, to the front of a pair
// on a device, to the fresh pages behind the first n where pages are shared.
func (c *Cache) compactRemote(p *pair, slots []int32, shared []int, stay, n int) error {
	size := c.o.PageEntries
	dst := p.remote[:pagesFor(len(slots), size)]
	if len(shared) > 0 {
		dst = slices.Clone(dst)
		for i, j := range shared {
			dst[j] = p.remote[n+i]
		}
		if shared[0] == stay/size {
			stay = stay / size * size
		}
	}
	return p.mem.device.Compact(dst, p.remote[:n], slots, stay)
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
	c.changed(p)
	p.dropped = c.position(p, n*size-1)
	c.pages.Add(-int64(n))
	p.mem.drop(&p.pageList, n)
	p.known = 0
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
	if err := c.usable(); err != nil {
		return fmt.Errorf("truncate to a mark: %w", err)
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
	if err := c.usable(); err != nil {
		return fmt.Errorf("truncate to position %d: %w", pos, err)
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
