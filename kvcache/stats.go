package kvcache

import "unsafe"

// Stats describes what one cache holds.
type Stats struct {
	Entries     int64 // over all heads
	Pages       int64 // a shared page counts in each cache that shares it
	PageBytes   int64 // bytes of a page: keys, values and positions
	Bytes       int64 // Pages × PageBytes
	SharedBytes int64 // part of Bytes in pages that forks also hold
	SlackBytes  int64 // part of Bytes in places without an entry
	DeviceBytes int64 // part of Bytes on the device
	TableBytes  int64 // host memory for page lists and for positions of pages on the device; not part of Bytes
	HighWater   int64 // largest Bytes since New, Load or Fork
}

// Stats returns the current contents of the cache.
func (c *Cache) Stats() Stats {
	s := Stats{PageBytes: c.pageBytes(), HighWater: c.high.Load() * c.pageBytes()}
	for i := range c.heads {
		p := &c.heads[i]
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

// PoolStats describes the contents of a family of caches in total, on the host and on
// the device.
type PoolStats struct {
	Caches    int64 // not yet closed
	Bytes     int64 // bytes of pages in use, a page shared by forks counted once
	FreeBytes int64 // bytes of free pages kept in memory for reuse
}

// PoolStats returns the current contents of the cache's family. It may be called at any
// time.
func (c *Cache) PoolStats() PoolStats {
	s := c.pool.host.arena.Stats()
	p := PoolStats{Caches: c.pool.caches.Load(), Bytes: s.Live, FreeBytes: s.Warm}
	if m := c.pool.device; m != nil {
		live := m.device.Bytes()
		p.Bytes += live
		p.FreeBytes += max(m.device.Taken()-live, 0)
	}
	return p
}
