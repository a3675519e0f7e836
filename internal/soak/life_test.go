package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/lukv/lukv/model"
)

// A life is a session from beginning to end, with random turns.
type life struct {
	*scenario
	m    *model.Model
	rng  *rand.Rand
	file string
	did  []string // for error messages
}

func (l *life) run(ctx context.Context) (err error) {
	if l.rng.IntN(6) == 0 {
		return l.abrupt(ctx)
	}
	s, err := l.m.NewSession(l.options)
	if err != nil {
		return err
	}
	// s changes: whichever session is open at the end is closed, twice.
	defer func() { err = errors.Join(err, s.Close(), s.Close()) }()
	if err := l.prefill(ctx, s); err != nil {
		return err
	}
	for at := 0; at < steps; {
		if err := l.same(s, at); err != nil {
			return err
		}
		var next *model.Session
		switch l.rng.IntN(6) {
		case 0:
			next, err = l.fork(ctx, s, at)
		case 1:
			next, err = l.load(ctx, s)
		case 2:
			at, err = l.generate(ctx, s, at)
		case 3:
			at, err = l.truncate(ctx, s, at)
		case 4:
			l.do("cancelled step")
			cancelled, cancel := context.WithCancel(ctx)
			cancel()
			if err := s.Append(cancelled, l.tokens[at]); !errors.Is(err, context.Canceled) && !errors.Is(err, model.ErrClosed) {
				return fmt.Errorf("cancelled step: %w", err)
			}
		default:
			l.do("step")
			if err = s.Append(ctx, l.tokens[at]); err == nil {
				at++
			}
		}
		if err != nil {
			return err
		}
		if next != nil {
			if err := s.Close(); err != nil {
				return err
			}
			s = next
		}
	}
	return l.same(s, steps)
}

func (l *life) do(what string) { l.did = append(l.did, what) }

// same compares the session with the reference.
func (l *life) same(s *model.Session, at int) error {
	if want := len(l.prompt) + at; s.Len() != want {
		return fmt.Errorf("%d tokens, want %d", s.Len(), want)
	}
	logits := s.Logits()
	if len(logits) == 0 {
		return fmt.Errorf("no logits after %d tokens: %w", at, model.ErrClosed)
	}
	if got := bits(logits); got != l.logits[at] {
		return fmt.Errorf("the logits after %d tokens have other bits", at)
	}
	return nil
}

// prefill reads the prompt, sometimes after being cancelled on the way.
func (l *life) prefill(ctx context.Context, s *model.Session) error {
	for l.rng.IntN(3) == 0 {
		l.do("cancelled prefill")
		limited, cancel := context.WithTimeout(ctx, time.Duration(l.rng.IntN(20))*time.Millisecond)
		err := s.Prefill(limited, l.prompt[s.Len():])
		cancel()
		if err == nil {
			return nil
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if l.options.Compression != nil && s.Len() != 0 {
			return fmt.Errorf("a cancelled prefill that compresses left %d tokens", s.Len())
		}
	}
	if l.rng.IntN(2) == 0 {
		return l.intruded(ctx, s)
	}
	l.do("prefill")
	return s.Prefill(ctx, l.prompt[s.Len():])
}

// intruded reads the prompt while another goroutine tries to fork and save the
// session: either side may get ErrBusy, and then nothing has happened.
func (l *life) intruded(ctx context.Context, s *model.Session) error {
	l.do("prefill with an intruder")
	intruder := make(chan error, 1)
	over := make(chan struct{})
	file := l.file + ".intruder"
	go func() {
		for {
			child, err := s.Fork()
			if err == nil {
				err = child.Close()
			}
			if err == nil || errors.Is(err, model.ErrBusy) {
				err = s.Save(ctx, file)
			}
			if err != nil && !errors.Is(err, model.ErrBusy) {
				intruder <- fmt.Errorf("intruder: %w", err)
				return
			}
			select {
			case <-over:
				intruder <- nil
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	err := model.ErrBusy
	for errors.Is(err, model.ErrBusy) {
		if err = s.Prefill(ctx, l.prompt); err == nil && s.Len() != len(l.prompt) {
			err = fmt.Errorf("%d tokens after a prefill of %d", s.Len(), len(l.prompt))
		}
	}
	close(over)
	return errors.Join(err, <-intruder)
}

// abrupt closes a session from another goroutine while it is at work.
func (l *life) abrupt(ctx context.Context) error {
	s, err := l.m.NewSession(l.options)
	if err != nil {
		return err
	}
	l.do("closed while at work")
	closed := make(chan error, 1)
	after := time.Duration(l.rng.IntN(30)) * time.Millisecond
	go func() {
		time.Sleep(after)
		closed <- s.Close()
	}()
	err = s.Prefill(ctx, l.prompt)
	for err == nil {
		for _, failed := range s.Generate(ctx, model.Sampling{MaxTokens: steps, IgnoreEOS: true}) {
			err = failed
		}
		if err == nil { // everything was generated before it was closed
			err = s.Truncate(0)
		}
		if err == nil {
			err = s.Prefill(ctx, l.prompt)
		}
	}
	if !errors.Is(err, model.ErrClosed) {
		return errors.Join(fmt.Errorf("a session that was closed while at work: %w", err), <-closed)
	}
	return errors.Join(<-closed, s.Close())
}

// fork forks the session, appends to the parent, and returns the child; the caller
// closes the parent.
func (l *life) fork(ctx context.Context, s *model.Session, at int) (*model.Session, error) {
	l.do("fork")
	child, err := s.Fork()
	if err != nil {
		return nil, err
	}
	// The parent goes on first, so that it copies pages that it shares with the child.
	if err := s.Append(ctx, l.tokens[at]); err != nil {
		return nil, errors.Join(err, child.Close())
	}
	if err := l.same(s, at+1); err != nil {
		return nil, errors.Join(fmt.Errorf("parent: %w", err), child.Close())
	}
	return child, nil
}

// load saves the session and returns the loaded one.
func (l *life) load(ctx context.Context, s *model.Session) (*model.Session, error) {
	if p := l.options.Compression; p != nil && p.Decode.Enabled() {
		return nil, nil // the rows that periodic compression has buffered are not saved
	}
	l.do("save and load")
	if err := s.Save(ctx, l.file); err != nil {
		return nil, err
	}
	return l.m.LoadSession(ctx, l.file, model.SessionOptions{Compression: l.options.Compression})
}

// generate asks for a few tokens and sometimes stops early.
func (l *life) generate(ctx context.Context, s *model.Session, at int) (int, error) {
	n := 1 + l.rng.IntN(steps-at)
	l.do(fmt.Sprintf("generate %d", n))
	stop := l.rng.IntN(2 * steps)
	var ids []int32
	for token, err := range s.Generate(ctx, model.Sampling{MaxTokens: n, IgnoreEOS: true}) {
		if err != nil {
			return at, err
		}
		if ids = append(ids, token.ID); len(ids) > stop {
			break
		}
	}
	if want := l.tokens[at : at+len(ids)]; !slices.Equal(ids, want) {
		return at, fmt.Errorf("generated %v, want %v", ids, want)
	}
	// The last token is not in the cache yet.
	return at + len(ids), s.Prefill(ctx, nil)
}

// truncate goes back to a random step after the prompt and forward again by one,
// unless compression while decoding may have evicted entries.
func (l *life) truncate(ctx context.Context, s *model.Session, at int) (int, error) {
	if p := l.options.Compression; at == 0 || p != nil && p.Decode.Enabled() {
		return at, nil
	}
	to := l.rng.IntN(at)
	l.do(fmt.Sprintf("truncate %d to %d", at, to))
	if err := s.Truncate(len(l.prompt) + to); err != nil {
		return at, err
	}
	return to + 1, s.Append(ctx, l.tokens[to])
}
