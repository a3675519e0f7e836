package engine

import (
	"slices"
	"time"
)

// A request whose events are read more slowly than they are computed pauses again and again.
// It keeps its places and its cache unless others wait for them. Then it yields its places:
// its answers keep their caches and continue when there is room for them again. For bytes it
// is parked: it gives up all it has, and its answers are recomputed once half of its
// events have been read.

// slowPatience is how long a client may read slowly while others wait.
const slowPatience = 2 * time.Second

// backlog is the number of unread events from which on a client reads slowly.
const backlog = streamRoom / 4

// noteReading notes since when a request's client has been slow.
func (e *Engine) noteReading(j *job) {
	switch {
	case len(j.stream.events) < backlog:
		j.slowSince = time.Time{}
	case j.slowSince.IsZero():
		j.slowSince = time.Now()
		e.alarm.Reset(e.patience)
	}
}

// slowest returns the request whose client has been slow for longest, nil if none has for
// long enough. With places, it is one that has places.
func (e *Engine) slowest(places bool) *job {
	var found *job
	for _, j := range e.running {
		e.noteReading(j)
		busy := j.session != nil && !j.req.Echo || j.load != nil || j.write != nil
		if !busy && !j.slowSince.IsZero() && !(places && j.yielded) && (found == nil || j.slowSince.Before(found.slowSince)) {
			found = j
		}
	}
	if found == nil || time.Since(found.slowSince) < e.patience {
		return nil
	}
	return found
}

// yield takes the places of the slowest request for others, and its bytes if it still
// reads its prompt or as many answers as may run have yielded already. It reports whether
// there was one.
func (e *Engine) yield() bool {
	j := e.slowest(true)
	if j == nil {
		return false
	}
	yielded := 0
	for _, x := range e.running {
		if x.yielded {
			yielded += x.places()
		}
	}
	if j.session != nil || yielded+j.places() > e.o.MaxRunning {
		e.park(j)
		return true
	}
	j.yielded, j.readySince = true, time.Time{}
	return true
}

// rejoin gives a request that has yielded its places back if there is room, and reports
// whether it may go on.
func (e *Engine) rejoin(j *job) bool {
	if j.yielded && j.ready() && (e.width() == 0 || e.width()+j.places() <= e.o.MaxRunning) {
		j.yielded = false
	}
	return !j.yielded
}

// ready reports whether a request that has yielded could go on, and notes since when.
func (j *job) ready() bool {
	if j.room() < streamRoom/2 {
		return false
	}
	if j.readySince.IsZero() {
		j.readySince = time.Now()
	}
	return true
}

// before reports whether a request that has yielded waits longer than j for places.
func (e *Engine) before(j *job) bool {
	return slices.ContainsFunc(e.running, func(x *job) bool {
		return x.yielded && x.ready() && x.readySince.Before(j.arrived)
	})
}

// park takes everything away from a request whose client is slow.
func (e *Engine) park(j *job) {
	e.leave(j)
	j.preempted = true
	e.stats.preempted.Add(1)
	e.parked = append(e.parked, j)
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
