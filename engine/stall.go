package engine

import (
	"slices"
	"time"
)

// A request whose events are not read pauses, but keeps its places and its cache. When others
// wait for these, it is parked: it gives up both, and its answers are recomputed once half
// of its events have been read.

// stallPatience is how long a request may pause while others wait.
const stallPatience = 2 * time.Second

// stalled reports whether nothing of the request can be computed before events are read.
func (j *job) stalled() bool {
	return j.room() <= 0 && (j.session == nil || j.req.Echo) && j.load == nil && j.write == nil
}

// noteStall notes when a request begins to pause, and when it no longer does.
func (e *Engine) noteStall(j *job) {
	switch {
	case !j.stalled():
		j.stalledAt = time.Time{}
	case j.stalledAt.IsZero():
		j.stalledAt = time.Now()
		time.AfterFunc(e.patience, e.poke)
	}
}

// park takes places and bytes away from the request that has paused longest, if it has for
// long enough.
func (e *Engine) park() bool {
	var longest *job
	for _, j := range e.running {
		if j.stalled() && !j.stalledAt.IsZero() && (longest == nil || j.stalledAt.Before(longest.stalledAt)) {
			longest = j
		}
	}
	if longest == nil || time.Since(longest.stalledAt) < e.patience {
		return false
	}
	e.leave(longest)
	longest.preempted = true
	e.stats.preempted.Add(1)
	e.parked = append(e.parked, longest)
	return true
}

// unpark puts requests whose events are read again back into the queue. The caller holds the
// mutex.
func (e *Engine) unpark() {
	e.parked = slices.DeleteFunc(e.parked, func(j *job) bool {
		back := len(j.stream.events) <= streamRoom/2
		if back {
			e.queue.push(j)
		}
		return back
	})
}
