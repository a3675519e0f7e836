package model

import (
	"context"
	"fmt"
	"time"
)

// Step feeds one token to each of several sessions of this model, in one pass
// over the weights. Results equal those of single steps. Sessions must be
// distinct and not in use elsewhere. On an error every session stands where it
// stood before.
func (m *Model) Step(ctx context.Context, sessions []*Session, tokens []int32) error {
	if len(sessions) != len(tokens) {
		return fmt.Errorf("step: %d sessions and %d tokens", len(sessions), len(tokens))
	}
	if len(sessions) == 0 {
		return nil
	}
	session := func(i int) *Session { return sessions[i] }
	if at, err := enterAll(len(sessions), session); err != nil {
		return fmt.Errorf("step: session %d: %w", at, err)
	}
	defer leaveAll(len(sessions), session)
	return m.step(ctx, sessions, tokens)
}

// step is Step for sessions whose call this is.
func (m *Model) step(ctx context.Context, sessions []*Session, tokens []int32) error {
	start := time.Now()
	if err := m.stepParts(ctx, sessions, tokens); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	took := time.Since(start)
	for _, s := range sessions {
		s.stats.DecodeTime += took
		s.stats.Decoded++
	}
	return nil
}

func (m *Model) stepParts(ctx context.Context, sessions []*Session, tokens []int32) error {
	if err := m.acquire(); err != nil {
		return err
	}
	defer m.release()
	for i, s := range sessions {
		if err := m.takes(s, tokens[i]); err != nil {
			return fmt.Errorf("session %d: %w", i, err)
		}
	}
	return m.runParts(ctx, len(sessions), func(i int) part { return part{s: sessions[i], token: tokens[i], n: 1} })
}

// Append feeds one token and computes the logits after it.
func (s *Session) Append(ctx context.Context, token int32) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	defer s.leave()
	return s.append(ctx, token)
}

// append is Append within a call.
func (s *Session) append(ctx context.Context, token int32) error {
	s.oneToken[0] = token
	return s.m.step(ctx, s.one[:], s.oneToken[:])
}
