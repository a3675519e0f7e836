package turns

import "slices"

// waiter is a claim that waits for something.
type waiter struct {
	turn  *Turn
	ready chan struct{} // closed when it is there
}

// ring holds those that wait for something, of whom owners are served by turns, and each
// owner's in the order in which they came. The zero value is empty.
type ring struct {
	lines []line // the next first
	n     int    // of all waiters
}

// line is those of an owner that wait, at least one.
type line struct {
	owner   string
	waiting []*waiter
}

func (r *ring) line(owner string) *line {
	i := slices.IndexFunc(r.lines, func(l line) bool { return l.owner == owner })
	if i < 0 {
		i = len(r.lines)
		r.lines = append(r.lines, line{owner: owner})
	}
	return &r.lines[i]
}

// push adds one behind those of its owner, pushFront before them.
func (r *ring) push(owner string, w *waiter) {
	l := r.line(owner)
	l.waiting = append(l.waiting, w)
	r.n++
}

func (r *ring) pushFront(owner string, w *waiter) {
	l := r.line(owner)
	l.waiting = slices.Insert(l.waiting, 0, w)
	r.n++
}

// pop removes the next one. The ring must not be empty.
func (r *ring) pop() *waiter {
	l := r.lines[0]
	w := l.waiting[0]
	r.lines = slices.Delete(r.lines, 0, 1)
	if l.waiting = l.waiting[1:]; len(l.waiting) > 0 {
		r.lines = append(r.lines, l)
	}
	r.n--
	return w
}

// remove removes one that waits.
func (r *ring) remove(owner string, w *waiter) {
	at := slices.IndexFunc(r.lines, func(l line) bool { return l.owner == owner })
	l := &r.lines[at]
	i := slices.Index(l.waiting, w)
	l.waiting = slices.Delete(l.waiting, i, i+1)
	if len(l.waiting) == 0 {
		r.lines = slices.Delete(r.lines, at, at+1)
	}
	r.n--
}
