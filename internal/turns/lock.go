package turns

import "context"

// Lock is held by one turn's work at a time, of any owner. Who waits for it lends the
// holder turns: one whose owner has much else to do does not keep the others waiting for
// that. The zero value is free, and belongs to the process's turns.
type Lock struct {
	holder  *Turn // these are guarded by the queue
	waiting ring
}

// Begin is [Begin] for work that needs the lock. The caller ends it with End.
func (l *Lock) Begin(ctx context.Context) (*Turn, error) {
	t := begun(ctx)
	if err := l.take(ctx, t); err != nil {
		t.End()
		return nil, err
	}
	if err := t.Take(ctx); err != nil {
		l.End(t)
		return nil, err
	}
	return t, nil
}

// End ends what Begin began.
func (l *Lock) End(t *Turn) {
	l.give(t)
	t.End()
}

func (l *Lock) take(ctx context.Context, t *Turn) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	q := t.q
	q.mu.Lock()
	if l.holder == nil {
		l.holder = t
		q.mu.Unlock()
		return nil
	}
	w := &waiter{turn: t, ready: make(chan struct{})}
	l.waiting.push(t.owner, w)
	q.lend(l.holder, t.owner)
	q.mu.Unlock()
	t.Give()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if l.holder == t { // it came just now
		l.pass(q)
	} else {
		l.waiting.remove(t.owner, w)
	}
	return context.Cause(ctx)
}

func (l *Lock) give(t *Turn) {
	t.q.mu.Lock()
	defer t.q.mu.Unlock()
	t.pays = t.owner
	l.pass(t.q)
}

// pass gives the lock to the next that waits for it.
func (l *Lock) pass(q *queue) {
	l.holder = nil
	if l.waiting.n == 0 {
		return
	}
	w := l.waiting.pop()
	l.holder = w.turn
	if l.waiting.n > 0 {
		q.lend(l.holder, l.waiting.lines[0].owner)
	}
	close(w.ready)
}

// lend lets a turn's work go on in turns of an owner, before its own.
func (q *queue) lend(t *Turn, owner string) {
	if w := t.waiter; w != nil && t.pays != owner {
		q.waiting.remove(t.pays, w)
		q.waiting.pushFront(owner, w)
	}
	t.pays = owner
}
