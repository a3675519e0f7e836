package kvcache

import (
	"fmt"
	"math"
)

// Fork returns a cache with the same entries and options. It shares all pages: a
// page is copied when one of the caches first writes to it. Append writes at most
// to the last page of a head, Keep to the pages into which survivors move. Forks
// may outlive the cache they came from.
func (c *Cache) Fork() (*Cache, error) {
	if err := c.usable(); err != nil {
		return nil, fmt.Errorf("fork a cache: %w", err)
	}
	f := newCache(c.o, c.pool)
	for i := range c.heads {
		p, q := &c.heads[i], &f.heads[i]
		q.pageList = p.mem.share(p.pageList)
		q.n, q.base, q.dropped = p.n, p.base, p.dropped
		f.held.Add(int64(len(q.blocks)) * p.mem.pageBytes)
	}
	f.raiseHigh(f.held.Load())
	f.checkAll()
	return f, nil
}

// SetMaxBytes replaces Options.MaxBytes; 0 means no limit. The limit must leave room
// for the pages that the cache holds, including shared ones.
func (c *Cache) SetMaxBytes(n int64) error {
	if err := c.usable(); err != nil {
		return fmt.Errorf("limit a cache: %w", err)
	}
	if n < 0 {
		return fmt.Errorf("limit a cache: a limit of %d bytes, expected 0 or more", n)
	}
	most := int64(math.MaxInt64)
	if n > 0 {
		most = n
	}
	if c.held.Load() > most {
		return fmt.Errorf("limit a cache: %w: %d bytes are held, the limit is %d", ErrFull, c.Bytes(), n)
	}
	c.o.MaxBytes, c.maxBytes = n, most
	return nil
}
