package kvcache

import "unsafe"

// Stats describes what one cache holds.
type Stats struct {
	Entries     int64 // over all heads
	Pages       int64 // a shared page counts in each cache that shares it
	PageBytes   int64 // bytes of a page of the first layer: keys, values and positions
	Bytes       int64 // of all pages: Pages × PageBytes, unless Options.WideKeys makes them differ
	SharedBytes int64 // part of Bytes in pages that forks also hold
	SlackBytes  int64 // part of Bytes in places without an entry
	DeviceBytes int64 // part of Bytes on the device
	TableBytes  int64 // host memory for page lists and for positions of pages on the device; not part of Bytes
	HighWater   int64 // largest Bytes since New, Load or Fork
}

// Stats returns the current contents of the cache.
func (c *Cache) Stats() Stats {
	s := Stats{PageBytes: c.heads[0].mem.pageBytes, HighWater: c.high.Load()}
	for i := range c.heads {
		p := &c.heads[i]
		size := p.mem.pageBytes
		s.Bytes += int64(len(p.blocks)) * size
		s.SlackBytes += int64(len(p.blocks))*size - int64(p.n)*size/int64(c.o.PageEntries)
		s.Entries += int64(p.n)
		s.Pages += int64(len(p.blocks))
		s.TableBytes += bytesOf(p.blocks) + bytesOf(p.pages) + bytesOf(p.remote)
		if p.mem.device != nil {
			s.DeviceBytes += int64(len(p.blocks)) * size
			s.TableBytes += int64(len(p.blocks) * p.mem.arena.BlockSize())
		}
		for _, b := range p.blocks {
			if b.Shared() {
				s.SharedBytes += size
			}
		}
	}
	return s
}

func bytesOf[T any](s []T) int64 {
	var t T
	return int64(cap(s)) * int64(unsafe.Sizeof(t))
}

// Bytes returns the bytes of all pages of the cache, slack and positions
// included. It may be called at any time.
func (c *Cache) Bytes() int64 { return c.held.Load() }

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
	p := PoolStats{Caches: c.pool.caches.Load()}
	for _, m := range c.pool.all() {
		if m.device == nil {
			s := m.arena.Stats()
			p.Bytes += s.Live
			p.FreeBytes += s.Warm
			continue
		}
		live := m.device.Bytes()
		p.Bytes += live
		p.FreeBytes += max(m.device.Taken()-live, 0)
	}
	return p
}
