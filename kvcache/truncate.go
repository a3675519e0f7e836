package kvcache

import "fmt"

// Truncate removes the entries at position pos and above from all heads. Entries
// that were evicted or dropped do not come back; if DropBefore has removed
// positions that the window of a token at pos needs, Truncate fails and changes
// nothing. An open, working cache can always be truncated to 0, which leaves it as
// good as new.
func (c *Cache) Truncate(pos int32) error {
	if err := c.usable(); err != nil {
		return fmt.Errorf("truncate to position %d: %w", pos, err)
	}
	pos = max(pos, 0)
	for i := range c.heads {
		p, layer := &c.heads[i], i/c.o.KVHeads
		if pos > 0 && c.last(p) >= pos && !c.inWindow(layer, p, pos-1) {
			return fmt.Errorf("truncate to position %d: layer %d has dropped position %d, which its window of %d needs", pos, layer, p.dropped, c.window(layer))
		}
	}
	for i := range c.heads {
		p := &c.heads[i]
		c.cut(p, c.firstAtLeast(p, pos))
		if pos == 0 {
			p.base, p.dropped = 0, -1
		}
	}
	c.checkAll()
	return nil
}

// inWindow reports whether a head that continues after the position last still
// has everything that the next token's window covers.
func (c *Cache) inWindow(layer int, p *head, last int32) bool {
	return p.dropped < 0 || int64(p.dropped)+int64(c.window(layer)) <= int64(last)+1
}
