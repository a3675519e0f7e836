package model

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Step feeds one token to each of several sessions of this model, in one pass
// over the weights. Results equal those of single steps. Sessions must be
// distinct and not in use elsewhere. On an error every session is left as it was.
func (m *Model) Step(ctx context.Context, sessions []*Session, tokens []int32) error {
	if len(sessions) != len(tokens) {
		return fmt.Errorf("step: %d sessions and %d tokens", len(sessions), len(tokens))
	}
	if len(sessions) == 0 {
		return nil
	}
	if i := slices.Index(sessions, nil); i >= 0 {
		return fmt.Errorf("step: session %d: no session", i)
	}
	session := func(i int) *Session { return sessions[i] }
	if at, err := enterAll(len(sessions), session); err != nil {
		return fmt.Errorf("step: session %d: %w", at, err)
	}
	defer leaveAll(len(sessions), session)
	return m.step(ctx, sessions, tokens, 0)
}

// step is Step for sessions whose call this is, with at most the given number of
// drafts for each.
func (m *Model) step(ctx context.Context, sessions []*Session, tokens []int32, drafts int) error {
	start := time.Now()
	if err := m.stepParts(ctx, sessions, tokens, drafts); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	took := time.Since(start)
	for _, s := range sessions {
		s.stats.DecodeTime += took
		s.stats.Decoded++
	}
	return nil
}

func (m *Model) stepParts(ctx context.Context, sessions []*Session, tokens []int32, drafts int) error {
	if err := m.acquire(); err != nil {
		return err
	}
	defer m.release()
	for i, s := range sessions {
		if err := m.takes(s, tokens[i]); err != nil {
			return fmt.Errorf("session %d: %w", i, err)
		}
		s.wantsDrafts(tokens[i], drafts, s.sampler)
	}
	if drafts > 0 {
		if err := m.draftAll(ctx, len(sessions), func(i int) (*Session, int32) { return sessions[i], tokens[i] }); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := m.runDrafting(ctx, len(sessions), func(i int) part { return decodes(sessions[i], tokens[i]) }); err != nil {
		return err
	}
	for _, s := range sessions {
		s.draftCache.passed(time.Since(start), len(sessions))
	}
	return nil
}

// Append feeds one token and computes the logits after it.
func (s *Session) Append(ctx context.Context, token int32) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	defer s.leave()
	return s.append(ctx, token, 0)
}

// append is Append within a call, with at most the given number of drafts.
func (s *Session) append(ctx context.Context, token int32, drafts int) error {
	s.oneToken[0] = token
	return s.m.step(ctx, s.one[:], s.oneToken[:], drafts)
}
