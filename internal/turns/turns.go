package turns

import (
	"context"
	"runtime"
	"sync"
	"time"
)

const (
	// quantum is how long a turn lasts if others wait. Work looks at the clock at its
	// checks only, so that turns are a little longer.
	quantum = time.Millisecond

	// restShare is how many times as long as turns take they rest while an engine computes,
	// and unrested the work that may be done at once before they do: what an answer needs for
	// its next token.
	restShare = 3
	unrested  = 4 * time.Millisecond
)

// queue hands out the turns.
type queue struct {
	mu         sync.Mutex
	places     int // turns at a time
	busy       int // of these, taken
	processors int
	waiting    ring
	engines    int           // that compute
	rested     time.Duration // when turns will have rested for what was done
	debts      debts

	now   func() time.Duration      // of a clock
	alarm func(after time.Duration) // calls look again
}

// process is the queue of the process.
var process = newQueue(runtime.GOMAXPROCS(0))

func newQueue(processors int) *queue {
	start := time.Now()
	q := &queue{places: max(1, processors/2), processors: processors, now: func() time.Duration { return time.Since(start) }}
	timer := time.AfterFunc(time.Hour, q.look)
	timer.Stop()
	q.alarm = func(after time.Duration) { timer.Reset(after) }
	return q
}

// Turn is the claim of one goroutine to turns of an owner.
type Turn struct {
	q     *queue
	owner string

	// Used by the goroutine alone.
	held   bool
	within int // calls of Begin in a turn that was there before

	// Guarded by the queue.
	begun  time.Duration
	pays   string  // whose turns it takes: the owner's, or those of one who waits for its lock
	waiter *waiter // nil if it does not wait for a turn
}

// New returns a claim of an owner, without a turn.
func New(owner string) *Turn { return process.claim(owner) }

func (q *queue) claim(owner string) *Turn { return &Turn{q: q, owner: owner, pays: owner} }

// Take waits for a turn, unless the claim has one. When ctx is done it returns the cause.
func (t *Turn) Take(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if t.held {
		return nil
	}
	q := t.q
	q.mu.Lock()
	w := &waiter{turn: t, ready: make(chan struct{})}
	t.waiter = w
	q.waiting.push(t.pays, w)
	q.grant()
	q.mu.Unlock()
	select {
	case <-w.ready:
		t.held = true
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.waiter == nil { // it came just now
		q.end(t)
	} else {
		q.waiting.remove(t.pays, w)
		t.waiter = nil
	}
	return context.Cause(ctx)
}

// Give gives the turn to the next, if the claim has one, and reports whether it had.
func (t *Turn) Give() bool {
	had := t.held
	if t.held = false; had {
		t.q.mu.Lock()
		defer t.q.mu.Unlock()
		t.q.end(t)
	}
	return had
}

// Check ends the turn, if the claim has one that has lasted long enough, and waits for the
// next one. When ctx is done it returns the cause; the turn, if any, is still to be given.
func (t *Turn) Check(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !t.held || t.q.now()-t.begun < quantum {
		return nil
	}
	t.Give()
	runtime.Gosched() // a step of an engine waits for each of its goroutines, this for nothing
	return t.Take(ctx)
}

// end ends a turn. The caller holds the mutex, here and below.
func (q *queue) end(t *Turn) {
	q.busy--
	now := q.now()
	took := now - t.begun
	q.debts.add(t.pays, took/time.Duration(q.processors), now)
	if q.engines > 0 {
		q.rested = max(q.rested, t.begun) + (1+restShare)*took/time.Duration(q.places)
	}
	q.grant()
}

// grant begins turns of those that wait, if there are places and turns have rested.
func (q *queue) grant() {
	for q.busy < q.places && q.waiting.n > 0 {
		now := q.now()
		if rest := q.rested - unrested - now; q.engines > 0 && rest > 0 {
			q.alarm(rest)
			return
		}
		w := q.waiting.pop()
		w.turn.waiter, w.turn.begun = nil, now
		q.busy++
		close(w.ready)
	}
}

func (q *queue) look() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.grant()
}

// Waiting returns how much work waits for a turn.
func Waiting() int {
	process.mu.Lock()
	defer process.mu.Unlock()
	return process.waiting.n
}

// Computes says that another engine computes, until Waits says that one has nothing to do.
func Computes() { process.engine(1) }

// Waits says that an engine of which Computes was said has nothing to do.
func Waits() { process.engine(-1) }

func (q *queue) engine(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.engines += n; q.engines == 0 {
		q.rested = 0
		q.grant()
	}
}
