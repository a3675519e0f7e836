package model

import (
	"context"
	"fmt"
	"sync"

	"github.com/lukv/lukv/model/internal/forward"
)

// inUse lets one call at a time use a session, and lets Close end it.
type inUse struct {
	mu      sync.Mutex
	idle    sync.Cond // on mu, when busy ends or within begins
	busy    bool      // a call is in progress
	within  bool      // that call is in a callback
	closing bool      // Close was called
	closed  bool
	waiting int // calls of Close

	// What Close stops: the call's context, or the pass that computes for this
	// session alone.
	cancel context.CancelCauseFunc
	run    *forward.Pass

	parts []part // of the pass in progress, if other sessions share it
}

// enter begins a call. Drafts that were not followed are dropped.
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

// leave ends a call. If Close was called meanwhile and could not wait, leave closes
// the session.
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

// quiet waits until no call is changing the session and keeps it so until done is
// called. Methods that only read do not disturb a call and may be used in its
// callbacks.
func (s *Session) quiet() (done func()) {
	u := &s.use
	u.mu.Lock()
	u.idle.L = &u.mu
	for u.busy && !u.within {
		u.idle.Wait()
	}
	if !u.busy {
		_ = s.dropAhead() // if it fails the cache is unusable, which the next call reports
	}
	return u.mu.Unlock
}

// enterAll begins a call on several sessions; at says which one an error is about.
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

// cancellable returns a context for the call in progress that Close cancels.
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

// computes sets the pass that computes for the session alone, nil for none.
func (s *Session) computes(r *forward.Pass) {
	u := &s.use
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.run = r; r != nil && u.closing {
		r.Stop(errSessionClosed)
	}
}

// share tells the sessions of a pass which parts share it, nil when it is over.
func share(parts, with []part) {
	for i := range parts {
		u := &parts[i].s.use
		u.mu.Lock()
		u.parts = with
		u.mu.Unlock()
	}
}

// callBack marks all sessions of the call in progress as being in a callback, so that
// Close, which the callback may call, does not wait for itself. The returned function
// removes the mark.
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

// errSessionClosed is the error of a call that Close found in progress.
var errSessionClosed = fmt.Errorf("session: %w", ErrClosed)
