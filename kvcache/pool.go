package kvcache

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
)

// Fork returns a cache with the same entries, options and marks. It shares all
// pages: a page is copied when one of the caches first writes to it, which
// Append does to the last page of a pair at most and Keep to the pages that
// survivors move in. Forks may outlive the cache they came from.
func (c *Cache) Fork() (*Cache, error) {
	if c.closed {
		return nil, fmt.Errorf("fork a cache: %w", ErrClosed)
	}
	f := newCache(c.o, c.pool)
	for i := range c.pairs {
		p, q := &c.pairs[i], &f.pairs[i]
		*q = *p
		q.pages, q.blocks = slices.Clone(p.pages), slices.Clone(p.blocks)
		c.pool.arena.Ref(q.blocks)
		f.take(int64(len(q.blocks)))
	}
	c.markMu.Lock()
	f.marks = slices.Clone(c.marks)
	c.markMu.Unlock()
	f.checkAll()
	return f, nil
}

// Stats describes what one cache holds.
type Stats struct {
	Entries     int64 // over all pairs
	Pages       int64 // pages, a shared page counts in each cache that shares it
	PageBytes   int64 // bytes of a page: keys, values and positions
	Bytes       int64 // Pages × PageBytes
	SharedBytes int64 // part of Bytes in pages that forks hold, too
	SlackBytes  int64 // part of Bytes in slots without an entry
	TableBytes  int64 // page tables on the Go heap, not part of Bytes
	HighWater   int64 // largest Bytes since New, Load, Fork or ResetHighWater
}

// Stats returns what the cache holds now.
func (c *Cache) Stats() Stats {
	s := Stats{PageBytes: c.pageBytes(), HighWater: c.HighWater()}
	for i := range c.pairs {
		p := &c.pairs[i]
		s.Entries += int64(p.n)
		s.Pages += int64(len(p.blocks))
		s.TableBytes += int64(cap(p.blocks))*int64(unsafe.Sizeof(arena.Block{})) + int64(cap(p.pages))*int64(unsafe.Sizeof(Page{}))
		for _, b := range p.blocks {
			if b.Shared() {
				s.SharedBytes += s.PageBytes
			}
		}
	}
	s.Bytes = s.Pages * s.PageBytes
	s.SlackBytes = s.Bytes - s.Entries*(s.PageBytes/int64(c.o.PageEntries))
	return s
}

func (c *Cache) pageBytes() int64 { return int64(c.pool.arena.BlockSize()) }

// Bytes returns the bytes of all pages of the cache, slack and positions
// included. It may be called at any time.
func (c *Cache) Bytes() int64 { return c.pages.Load() * c.pageBytes() }

// HighWater returns the largest value that Bytes had since New, Load, Fork or
// ResetHighWater. It may be called at any time.
func (c *Cache) HighWater() int64 { return c.high.Load() * c.pageBytes() }

// ResetHighWater lets the high-water mark start again from Bytes.
func (c *Cache) ResetHighWater() { c.high.Store(c.pages.Load()) }

// PoolStats describes what a family of caches holds together.
type PoolStats struct {
	Caches    int64 // not yet closed
	Bytes     int64 // bytes of pages in use, a page shared by forks once
	HighWater int64 // largest Bytes since the family began or ResetPoolHighWater
	FreeBytes int64 // bytes of free pages kept in memory for reuse
}

// PoolStats returns what the cache's family holds now. It may be called at any
// time.
func (c *Cache) PoolStats() PoolStats {
	s := c.pool.arena.Stats()
	return PoolStats{Caches: c.pool.caches.Load(), Bytes: s.Live, HighWater: s.HighWater, FreeBytes: s.Warm}
}

// ResetPoolHighWater lets the family's high-water mark start again from what is
// in use now.
func (c *Cache) ResetPoolHighWater() { c.pool.arena.ResetHighWater() }
