package model

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/sampling"
)

// Part is what one session does in a pass: it takes its next token, or with
// Prefill the next N tokens of that prefill, which must not be layered.
//
// After a token, a session with [SessionOptions.Lookup] or [Session.DraftCompressed]
// computes the tokens that it expects next, at most Drafts. It does not take them yet:
// [Session.Follow] does. Sampler is the one that will draw them, or nil if the most likely
// tokens will be taken; it is left as it is.
type Part struct {
	Session *Session
	Token   int32
	Drafts  int
	Sampler *sampling.Sampler
	Prefill *PartialPrefill
	N       int
}

// maxPassRows bounds the tokens of a pass; their activations are in memory at once.
const maxPassRows = 1 << 14

// PartError says which part of a pass an error belongs to.
type PartError struct {
	Part int
	Err  error
}

func (e *PartError) Error() string { return fmt.Sprintf("part %d: %v", e.Part, e.Err) }

// Unwrap returns the underlying error.
func (e *PartError) Unwrap() error { return e.Err }

// Pass computes parts of several sessions of this model together, in one pass over
// the weights: tokens of some, and chunks of the prompts of others. Results are
// bit-identical to those of Step and Prefill. Sessions must be distinct and not in
// use elsewhere. Those that took a token, and those whose prefill is done, have
// logits afterwards.
//
// On an error every session is left as it was, and a [PartError] says
// which part caused it, if one did; only a prefill that caused it is over. A pass
// takes at most 16,384 tokens.
func (m *Model) Pass(ctx context.Context, parts []Part) error {
	if len(parts) == 0 {
		return nil
	}
	for i := range parts {
		if parts[i].Session == nil {
			return fmt.Errorf("pass: %w", &PartError{i, errors.New("no session")})
		}
	}
	session := func(i int) *Session { return parts[i].Session }
	if at, err := enterAll(len(parts), session); err != nil {
		return fmt.Errorf("pass: %w", &PartError{at, err})
	}
	defer leaveAll(len(parts), session)
	start := time.Now()
	if err := m.passParts(ctx, parts); err != nil {
		return fmt.Errorf("pass: %w", err)
	}
	took := time.Since(start)
	for _, p := range parts {
		if p.Prefill != nil {
			p.Session.stats.PrefillTime += took
			p.Prefill.finishIfDone(nil)
		} else {
			p.Session.stats.DecodeTime += took
			p.Session.stats.Decoded++
		}
	}
	return nil
}

func (m *Model) passParts(ctx context.Context, parts []Part) error {
	if err := m.acquire(); err != nil {
		return err
	}
	defer m.release()
	rows, each, prefills := 0, false, false
	for _, p := range parts {
		prefills = prefills || p.Prefill != nil
		each = each || p.Prefill != nil && p.Prefill.f.each != nil
	}
	for i, p := range parts {
		var err error
		if p.Prefill == nil {
			if err = m.takes(p.Session, p.Token); err == nil {
				drafts := p.Drafts
				if each { // such a pass cannot be repeated
					drafts = 0
				}
				p.Session.wantsDrafts(p.Token, drafts, p.Sampler)
			}
		} else {
			err = m.takesPiece(p)
		}
		if err != nil {
			return &PartError{i, err}
		}
	}
	err := m.draftAll(ctx, len(parts), func(i int) (*Session, int32) {
		if parts[i].Prefill != nil {
			return nil, 0
		}
		return parts[i].Session, parts[i].Token
	})
	if err != nil {
		return err
	}
	for _, p := range parts {
		if p.Prefill == nil {
			rows += 1 + len(p.Session.ahead.found)
		} else {
			rows += p.N
		}
	}
	if rows > maxPassRows {
		return fmt.Errorf("%d tokens, expected at most %d", rows, maxPassRows)
	}
	start := time.Now()
	err = m.runDrafting(ctx, len(parts), func(i int) part {
		if f := parts[i].Prefill; f != nil {
			return part{s: parts[i].Session, f: &f.f, n: parts[i].N}
		}
		return decodes(parts[i].Session, parts[i].Token)
	})
	for i := range parts {
		if err == nil && !prefills {
			parts[i].Session.draftCache.passed(time.Since(start), len(parts))
		}
	}
	var at *PartError
	if errors.As(err, &at) && parts[at.Part].Prefill != nil {
		parts[at.Part].Prefill.finishIfDone(err)
	}
	return err
}

// takes returns an error if a session cannot take a token now.
func (m *Model) takes(s *Session, token int32) error {
	if s.m != m {
		return errors.New("it belongs to another model")
	}
	if err := s.ready(); err != nil {
		return err
	}
	if len(s.pending) > 0 && token != s.pending[0] || len(s.pending) > 1 {
		return errors.New("it has generated tokens that were not fed")
	}
	if err := s.accepts([]int32{token}); err != nil {
		return err
	}
	return s.takeTokens(1)
}

// takesPiece returns an error if a piece of a prefill cannot be run now.
func (m *Model) takesPiece(p Part) error {
	f := p.Prefill
	switch {
	case p.Session.m != m:
		return errors.New("it belongs to another model")
	case p.Session.prefilling != f:
		return fmt.Errorf("prefill: %w", errPrefillOver)
	case f.Layered():
		return errors.New("a prompt that goes layer by layer cannot share a pass")
	case p.N < 1 || p.N > len(f.f.tokens)-f.f.fed:
		return fmt.Errorf("a piece of %d tokens, expected 1 to %d", p.N, len(f.f.tokens)-f.f.fed)
	}
	return nil
}

// runDrafting is runParts for parts with drafts: if it fails, perhaps because a cache
// has no room for the drafts, it is repeated without them.
func (m *Model) runDrafting(ctx context.Context, n int, at func(i int) part) error {
	drafts := false
	for i := range n {
		p := at(i)
		drafts = drafts || p.f == nil && p.n > 1
	}
	err := m.runParts(ctx, n, at)
	if err == nil || !drafts || ctx.Err() != nil || errors.Is(err, kernels.ErrDeviceLost) {
		return err
	}
	for i := range n {
		if p := at(i); p.f == nil {
			p.s.undraft()
		}
	}
	return m.runParts(ctx, n, at)
}
