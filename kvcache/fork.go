package kvcache

import "fmt"

// Fork returns a cache with the same entries and options. It shares all
// pages: a page is copied when one of the caches first writes to it, which
// Append does to the last page of a head at most and Keep to the pages that
// survivors move in. Forks may outlive the cache they came from.
func (c *Cache) Fork() (*Cache, error) {
	if err := c.usable(); err != nil {
		return nil, fmt.Errorf("fork a cache: %w", err)
	}
	f := newCache(c.o, c.pool)
	for i := range c.heads {
		p, q := &c.heads[i], &f.heads[i]
		q.pageList = p.mem.share(p.pageList)
		q.n, q.base, q.dropped = p.n, p.base, p.dropped
		f.book(int64(len(q.blocks)))
	}
	f.checkAll()
	return f, nil
}
