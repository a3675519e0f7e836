package model

import (
	"context"
	"fmt"
	"sync"
)

// inUse lets one call at a time use a session, and Close end it.
type inUse struct {
	mu      sync.Mutex
	idle    sync.Cond // on mu, when busy or closed changes and somebody waits
	busy    bool      // a call is in progress
	within  bool      // in it, a function of the caller runs
	closing bool      // Close was called
	closed  bool
	waiting int // calls of Close

	// What Close stops: the call's context, or the pass that computes for this
	// session alone.
	cancel context.CancelCauseFunc
	run    *pass

	parts []part // of the pass in progress, if other sessions have a part in it
}

// enter begins a call. Drafts that nobody followed go.
func (s *Session) enter() error {
	if err := s.enterAhead(); err != nil {
		return err
	}
	if err := s.dropAhead(); err != nil {
		s.leave()
		return err
	}
	return nil
}

// enterAhead begins a call that may follow drafts.
func (s *Session) enterAhead() error {
	u := &s.use
	u.mu.Lock()
	defer u.mu.Unlock()
	switch {
	case u.closing:
		return fmt.Errorf("session: %w", ErrClosed)
	case u.busy:
		return fmt.Errorf("session: %w", ErrBusy)
	}
	u.busy = true
	return nil
}

// leave ends a call. If Close came meanwhile and could not wait, it closes.
func (s *Session) leave() {
	u := &s.use
	u.mu.Lock()
	defer u.mu.Unlock()
	u.busy, u.within, u.cancel, u.run, u.parts = false, false, nil, nil, nil
	if u.closing && u.waiting == 0 {
		s.free()
	}
	u.idle.Broadcast()
}

// quiet waits until no call changes the session and keeps it so until the
// function that it returns is called. What only looks does not disturb a call, and
// may be asked for in its callbacks.
func (s *Session) quiet() (done func()) {
	u := &s.use
	u.mu.Lock()
	u.idle.L = &u.mu
	for u.busy && !u.within {
		u.idle.Wait()
	}
	if !u.busy {
		_ = s.dropAhead() // if it fails the cache is unusable, and the next call says so
	}
	return u.mu.Unlock
}

// enterAll begins a call of several sessions; at says which one is to blame.
func enterAll(n int, session func(i int) *Session) (at int, err error) {
	for i := range n {
		if err := session(i).enter(); err != nil {
			leaveAll(i, session)
			return i, err
		}
	}
	return 0, nil
}

func leaveAll(n int, session func(i int) *Session) {
	for i := range n {
		session(i).leave()
	}
}

// cancellable returns a context of the call in progress that Close cancels.
func (s *Session) cancellable(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	u := &s.use
	u.mu.Lock()
	defer u.mu.Unlock()
	u.cancel = cancel
	if u.closing {
		cancel(errSessionClosed)
	}
	return ctx, cancel
}

// computes tells what computes for the session alone, nil for nothing.
func (s *Session) computes(r *pass) {
	u := &s.use
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.run = r; r != nil && u.closing {
		r.stop.Store(true)
	}
}

// share tells the sessions of a pass of each other; nil: it is over.
func share(parts, with []part) {
	for i := range parts {
		u := &parts[i].s.use
		u.mu.Lock()
		u.parts = with
		u.mu.Unlock()
	}
}

// callBack marks that a function of the caller runs within the call in progress:
// Close, which it may call, does not wait for itself then. That holds for all sessions
// of the call. The function that is returned ends the mark.
func (s *Session) callBack() func() {
	s.setWithin(true)
	return s.notWithin
}

func (s *Session) notWithin() { s.setWithin(false) }

func (s *Session) setWithin(x bool) {
	parts := s.use.parts // set and read by the call in progress
	if parts == nil {
		s.use.setWithin(x)
	}
	for i := range parts {
		parts[i].s.use.setWithin(x)
	}
}

func (u *inUse) setWithin(x bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.within = x; x {
		u.idle.Broadcast()
	}
}

// closing returns an error if Close was called during the call in progress.
func (s *Session) closing() error {
	u := &s.use
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closing {
		return errSessionClosed
	}
	return nil
}

// errSessionClosed is why a call ends that Close found in progress.
var errSessionClosed = fmt.Errorf("session: %w", ErrClosed)

// Close gives the session's memory back. A call in progress is cancelled, and
// Close waits for it; if it is in one of its callbacks, which may be where Close
// is called from, the session is closed when the call returns instead. Closing
// twice is fine. Close may be called by any goroutine.
func (s *Session) Close() error {
	u := &s.use
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closing = true
	if u.busy && !u.closed {
		if u.cancel != nil {
			u.cancel(errSessionClosed)
		}
		if u.run != nil {
			u.run.stop.Store(true)
		}
		if u.within {
			return nil
		}
		u.idle.L = &u.mu
		u.waiting++
		for u.busy {
			u.idle.Wait()
		}
		u.waiting--
	}
	return s.free()
}

// free gives back what a session holds that nobody uses.
func (s *Session) free() error {
	if s.use.closed {
		return nil
	}
	s.use.closed = true
	if s.prefilling != nil {
		s.prefilling.end()
	}
	s.logits, s.tokens, s.hasLogits = nil, nil, false
	s.lookup, s.ahead = nil, ahead{}
	s.giveTokens()
	return s.cache.Close()
}
