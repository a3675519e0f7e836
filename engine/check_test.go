package engine

import (
	"fmt"
	"testing"

	"github.com/lukv/lukv/internal/arena"
)

// verify compares, after a step, the accounts of an engine with the things that they count. A
// failure ends the test binary: the engine's goroutine belongs to no test.
func verify(e *Engine) {
	fail := func(format string, args ...any) { panic("engine accounts: " + fmt.Sprintf(format, args...)) }
	reserved := e.detached
	for _, j := range e.running {
		reserved += j.reserved
		if j.reserved < j.need {
			fail("%s has %d bytes reserved and needs %d", j.req.ID, j.reserved, j.need)
		}
		sessions, held := 0, int64(0)
		add := func(n int64) { sessions, held = sessions+1, held+n }
		if j.session != nil {
			add(j.session.Stats().CacheBytes)
		}
		for _, c := range j.choices {
			if c.session != nil {
				add(c.session.Stats().CacheBytes)
			}
		}
		if sessions == 1 && held > j.reserved { // several share pages
			fail("%s holds %d bytes and has %d reserved", j.req.ID, held, j.reserved)
		}
		if j.held <= 0 || j.held > e.account.Used() {
			fail("%s takes %d of %d bytes besides caches", j.req.ID, j.held, e.account.Used())
		}
	}
	e.mu.Lock()
	waiting := append(e.queue.all(), e.parked...)
	e.mu.Unlock()
	for _, j := range waiting {
		if j.reserved != 0 {
			fail("%s waits with %d bytes reserved", j.req.ID, j.reserved)
		}
	}
	if reserved != e.reserved || e.detached < 0 || e.detached > 0 && e.pendingIO == 0 {
		fail("%d bytes reserved, %d of them for files: requests and files have %d", e.reserved, e.detached, reserved)
	}
	cached := int64(0)
	for at := e.cache.used.Front(); at != nil; at = at.Next() {
		cached += at.Value.(*entry).bytes
	}
	if cached != e.cache.bytes || cached > e.cache.limit {
		fail("%d bytes in the prefix cache of %d: its entries have %d", e.cache.bytes, e.cache.limit, cached)
	}
	if limit := e.o.MaxBytes; limit > 0 && reserved+cached > limit {
		fail("%d bytes reserved and %d in the prefix cache of %d", reserved, cached, limit)
	}
	drawn := map[*choice]bool{}
	for _, c := range e.draws {
		if drawn[c] || c.done || c.session == nil || c.session.Logits() == nil {
			fail("a choice of %s waits for its token without being able to", c.j.req.ID)
		}
		drawn[c] = true
	}
}

// verifyHeld is verify where no other sessions are in the process: all bytes that caches hold
// are accounted for.
func verifyHeld(e *Engine) {
	verify(e)
	if live := arena.Live(); live > e.reserved+e.cache.bytes {
		panic(fmt.Sprintf("engine accounts: caches hold %d bytes, %d are reserved and %d in the prefix cache", live, e.reserved, e.cache.bytes))
	}
}

// verifyWith has the engines that a test makes from now on call fn after each step.
func verifyWith(t testing.TB, fn func(*Engine)) {
	before := verifySteps
	verifySteps = fn
	t.Cleanup(func() { verifySteps = before })
}
