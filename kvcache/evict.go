package kvcache

import (
	"fmt"
	"slices"
)

// Keep evicts all entries of a head except those in kept, which are entry numbers
// in ascending order. Survivors move together, keeping their order and positions,
// and pages that become empty are released at once. Pages that forks also hold
// are not written; survivors then move to fresh pages.
//
// Keeping everything changes nothing. Otherwise the head's logical slots start
// from 0 again. Keep never fails because of MaxBytes; on an error nothing has
// changed. Different heads may be cut concurrently.
func (c *Cache) Keep(layer, head int, kept []int32) error {
	if err := c.keep(layer, head, kept); err != nil {
		return fmt.Errorf("keep %d entries of layer %d head %d: %w", len(kept), layer, head, c.note(err))
	}
	c.checkAfter(layer, head)
	return nil
}

func (c *Cache) keep(layer, head int, kept []int32) error {
	if err := c.usable(); err != nil {
		return err
	}
	if err := c.checkHead(layer, head); err != nil {
		return err
	}
	p := c.head(layer, head)
	before := int32(-1)
	for i, s := range kept {
		if s <= before || int(s) >= p.n {
			return fmt.Errorf("entry %d at index %d, expected above %d and below %d", s, i, before, p.n)
		}
		before = s
	}
	if len(kept) == p.n {
		return nil
	}
	if err := c.compact(p, kept); err != nil {
		return err
	}
	p.base = 0
	c.cut(p, len(kept))
	return nil
}

// compact moves the entries in kept to the front of p.
func (c *Cache) compact(p *head, kept []int32) error {
	size := c.o.PageEntries
	stay := 0 // leading survivors that are already in place
	for stay < len(kept) && int(kept[stay]) == stay {
		stay++
	}
	if stay == len(kept) {
		return nil
	}
	from, to, n := stay/size, pagesFor(len(kept), size), len(p.blocks)
	// Survivors move within the head's pages; fresh pages, from n on, take the place
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
		if err := c.compactRemote(p, kept, shared, stay, n); err != nil {
			p.mem.cut(&p.pageList, n)
			return err
		}
	}
	fresh := n
	for j := from; j < to; j++ {
		lo, hi, dst := max(stay, j*size), min(len(kept), (j+1)*size), j
		if fresh < len(p.blocks) && shared[fresh-n] == j {
			lo, dst = j*size, fresh
			fresh++
		}
		pos := c.positions(p, dst)
		for i := lo; i < hi; i++ {
			s := int(kept[i])
			pos[i%size] = c.position(p, s)
			if p.mem.device == nil {
				to, from := p.pages[dst], p.pages[s/size]
				p.mem.keys.Move(to.K, i%size, from.K, s%size)
				p.mem.values.Move(to.V, i%size, from.V, s%size)
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

// compactRemote moves the entries in kept, from stay on, to the front of a head
// on a device, using the fresh pages after the first n in place of shared ones.
func (c *Cache) compactRemote(p *head, kept []int32, shared []int, stay, n int) error {
	size := c.o.PageEntries
	dst := p.remote[:pagesFor(len(kept), size)]
	if len(shared) > 0 {
		dst = slices.Clone(dst)
		for i, j := range shared {
			dst[j] = p.remote[n+i]
		}
		if shared[0] == stay/size {
			stay = stay / size * size
		}
	}
	return p.mem.device.Compact(dst, p.remote[:n], kept, stay)
}

// DropBefore frees the leading pages of a layer's heads whose entries all have
// positions below pos. It does nothing on a layer without a window.
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
	p, size := c.head(layer, head), c.o.PageEntries
	n := c.firstAtLeast(p, pos) / size // full pages
	if n == 0 {
		return
	}
	c.changed(p)
	p.dropped = c.position(p, n*size-1)
	c.held.Add(-int64(n) * p.mem.pageBytes)
	p.mem.drop(&p.pageList, n)
	p.known = 0
	p.n -= n * size
	p.base += n * size
}
