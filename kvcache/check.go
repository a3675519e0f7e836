package kvcache

import (
	"fmt"
	"os"
	"sync"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
)

// checking reports whether every change is followed by a check. The environment is
// read when a cache first changes, so that a program's tests can set the variable.
var checking = sync.OnceValue(func() bool { return os.Getenv("LUKV_CHECK") == "1" })

// checkAfter checks a head after a change, if checks are on. A contradiction is a
// bug in this package or in a kernel that writes where it must not.
func (c *Cache) checkAfter(layer, head int) {
	if checking() {
		if err := c.checkOne(layer*c.o.KVHeads + head); err != nil {
			panic("kvcache: " + err.Error())
		}
	}
}

func (c *Cache) checkAll() {
	if checking() {
		if err := c.Check(); err != nil {
			panic("kvcache: " + err.Error())
		}
	}
}

// Check verifies that the structure of the cache is sound: page counts match
// lengths, positions ascend, no page is used twice, counts and tables agree. It
// returns the first contradiction. It reads all positions but no elements, and
// does not access the device.
func (c *Cache) Check() error {
	var held int64
	seen, remote := make(map[arena.Block]int), make(map[kernels.DevicePage]int)
	for i := range c.heads {
		if err := c.checkOne(i); err != nil {
			return err
		}
		for _, b := range c.heads[i].blocks {
			if j, ok := seen[b]; ok {
				return fmt.Errorf("check a cache: heads %d and %d use the same page", j, i)
			}
			seen[b] = i
			held += c.heads[i].mem.pageBytes
		}
		for _, r := range c.heads[i].remote {
			if j, ok := remote[r]; ok {
				return fmt.Errorf("check a cache: heads %d and %d use the same page of the device", j, i)
			}
			remote[r] = i
		}
	}
	if n, high := c.held.Load(), c.high.Load(); n != held || high < n || n > c.maxBytes {
		return fmt.Errorf("check a cache: %d bytes are booked, high-water %d, limit %d; found %d", n, high, c.maxBytes, held)
	}
	if c.closed {
		return nil
	}
	for _, m := range c.pool.all() {
		if err := m.arena.Check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cache) checkOne(i int) error {
	p, size := &c.heads[i], c.o.PageEntries
	fail := func(format string, args ...any) error {
		return fmt.Errorf("check layer %d head %d of a cache: %w", i/c.o.KVHeads, i%c.o.KVHeads, fmt.Errorf(format, args...))
	}
	if n := pagesFor(p.n, size); len(p.blocks) != n || len(p.pages)+len(p.remote) != n {
		return fail("%d entries have %d pages in %d blocks, expected %d", p.n, len(p.pages)+len(p.remote), len(p.blocks), n)
	}
	if p.known < 0 || p.known > len(p.blocks) {
		return fail("%d of %d pages are in the device's table", p.known, len(p.blocks))
	}
	if p.base < 0 || p.base%size != 0 || p.base > int(p.dropped)+1 {
		return fail("base %d: expected a multiple of the %d entries per page that does not exceed the slots below dropped position %d", p.base, size, p.dropped)
	}
	before := p.dropped
	for j, b := range p.blocks {
		if p.mem.device == nil && p.pages[j] != p.mem.page(p.mem.arena.Ptr(b)) {
			return fail("page %d is not where its block lies", j)
		}
		if p.mem.device != nil && p.remote[j] == 0 {
			return fail("page %d is none of the device", j)
		}
		if b.Refs() < 1 {
			return fail("page %d is free", j)
		}
		for e, x := range c.positions(p, j)[:min(size, p.n-j*size)] {
			if x <= before {
				return fail("position %d of entry %d is not above %d", x, j*size+e, before)
			}
			before = x
		}
	}
	return nil
}
