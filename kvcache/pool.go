package kvcache

import (
	"fmt"
	"slices"
	"unsafe"
)

// Fork returns a cache with the same entries, options and marks. It shares all
// pages: a page is copied when one of the caches first writes to it, which
// Append does to the last page of a pair at most and Keep to the pages that
// survivors move in. Forks may outlive the cache they came from.
func (c *Cache) Fork() (*Cache, error) {
	if err := c.usable(); err != nil {
		return nil, fmt.Errorf("fork a cache: %w", err)
	}
	f := newCache(c.o, c.pool)
	for i := range c.pairs {
		p, q := &c.pairs[i], &f.pairs[i]
		q.pageList = p.mem.share(p.pageList)
		q.n, q.base, q.dropped = p.n, p.base, p.dropped
		f.book(int64(len(q.blocks)))
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
	DeviceBytes int64 // part of Bytes on the device
	TableBytes  int64 // page lists, and positions of pages on the device, on the host; not part of Bytes
	HighWater   int64 // largest Bytes since New, Load, Fork or ResetHighWater
}

// Stats returns what the cache holds now.
func (c *Cache) Stats() Stats {
	s := Stats{PageBytes: c.pageBytes(), HighWater: c.HighWater()}
	for i := range c.pairs {
		p := &c.pairs[i]
		s.Entries += int64(p.n)
		s.Pages += int64(len(p.blocks))
		s.TableBytes += bytesOf(p.blocks) + bytesOf(p.pages) + bytesOf(p.remote)
		if p.mem.device != nil {
			s.DeviceBytes += int64(len(p.blocks)) * s.PageBytes
			s.TableBytes += int64(len(p.blocks) * p.mem.arena.BlockSize())
		}
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

func bytesOf[T any](s []T) int64 {
	var t T
	return int64(cap(s)) * int64(unsafe.Sizeof(t))
}

func (c *Cache) pageBytes() int64 { return int64(c.pool.pageBytes) }

// Bytes returns the bytes of all pages of the cache, slack and positions
// included. It may be called at any time.
func (c *Cache) Bytes() int64 { return c.pages.Load() * c.pageBytes() }

// HighWater returns the largest value that Bytes had since New, Load, Fork or
// ResetHighWater. It may be called at any time.
func (c *Cache) HighWater() int64 { return c.high.Load() * c.pageBytes() }

// ResetHighWater lets the high-water mark start again from Bytes.
func (c *Cache) ResetHighWater() { c.high.Store(c.pages.Load()) }

// PoolStats describes what a family of caches holds together, on the host and on
// the device.
type PoolStats struct {
	Caches    int64 // not yet closed
	Bytes     int64 // bytes of pages in use, a page shared by forks once
	HighWater int64 // largest Bytes since the family began or ResetPoolHighWater: of the host plus of the device
	FreeBytes int64 // bytes of free pages kept in memory for reuse
}

// PoolStats returns what the cache's family holds now. It may be called at any
// time.
func (c *Cache) PoolStats() PoolStats {
	s := c.pool.host.arena.Stats()
	p := PoolStats{Caches: c.pool.caches.Load(), Bytes: s.Live, HighWater: s.HighWater, FreeBytes: s.Warm}
	if m := c.pool.device; m != nil {
		live := m.device.Bytes()
		p.Bytes += live
		p.HighWater += m.device.HighWater()
		p.FreeBytes += max(m.device.Taken()-live, 0)
	}
	return p
}

// ResetPoolHighWater lets the family's high-water mark start again from what is
// in use now.
func (c *Cache) ResetPoolHighWater() {
	c.pool.host.arena.ResetHighWater()
	if m := c.pool.device; m != nil {
		m.device.ResetHighWater()
	}
}
