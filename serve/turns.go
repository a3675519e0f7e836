package serve

import (
	"context"
	"runtime"
	"slices"
	"sync"
)

// heavyBody is the size of a body from which on it takes a turn to read its JSON and to make
// tokens of it.
const heavyBody = 256 << 10

// turns bounds how many requests are prepared at once, so that the engines keep at least half
// of the processors. Owners are served in turn.
type turns struct {
	mu      sync.Mutex
	busy    int
	last    string // owner of the last turn
	waiting []*waiter
}

type waiter struct {
	owner string
	ready chan struct{}
}

// most is how many have a turn at once.
func (t *turns) most() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// take waits for a turn. The caller gives it back.
func (t *turns) take(ctx context.Context, owner string) error {
	t.mu.Lock()
	if t.busy < t.most() {
		t.busy, t.last = t.busy+1, owner
		t.mu.Unlock()
		return nil
	}
	w := &waiter{owner: owner, ready: make(chan struct{})}
	t.waiting = append(t.waiting, w)
	t.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.waiting, w); i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	} else {
		t.pass() // it came just now
	}
	return context.Cause(ctx)
}

func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass()
}

// pass gives a turn to who has waited longest of another owner than the last, if there is one.
func (t *turns) pass() {
	if len(t.waiting) == 0 {
		t.busy--
		return
	}
	i := max(0, slices.IndexFunc(t.waiting, func(w *waiter) bool { return w.owner != t.last }))
	w := t.waiting[i]
	t.waiting = slices.Delete(t.waiting, i, i+1)
	t.last = w.owner
	close(w.ready)
}

// enter waits for the request's turn unless it has one. It is over when the request is with
// an engine, or when its answer begins.
func (h *holds) enter(ctx context.Context) error {
	h.mu.Lock()
	has := h.turn
	h.mu.Unlock()
	if has {
		return nil
	}
	if err := h.charge.a.turns.take(ctx, h.charge.owner); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.turn = true
	return nil
}

// leave ends the request's turn, and reports whether it had one.
func (h *holds) leave() bool {
	h.mu.Lock()
	had := h.turn
	h.turn = false
	h.mu.Unlock()
	if had {
		h.charge.a.turns.give()
	}
	return had
}
