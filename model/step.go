package model

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lukv/lukv/kernels"
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
	start := time.Now()
	if err := m.step(ctx, sessions, tokens); err != nil {
		return fmt.Errorf("step: %w", err)
	}
	took := time.Since(start)
	for _, s := range sessions {
		s.stats.DecodeTime += took
		s.stats.Decoded++
	}
	return nil
}

func (m *Model) step(ctx context.Context, sessions []*Session, tokens []int32) error {
	if err := m.acquire(); err != nil {
		return err
	}
	defer m.release()
	for i, s := range sessions {
		if s.m != m {
			return fmt.Errorf("session %d belongs to another model", i)
		}
		if err := s.ready(); err != nil {
			return err
		}
		if len(s.pending) > 0 && tokens[i] != s.pending[0] || len(s.pending) > 1 {
			return fmt.Errorf("session %d has generated tokens that were not fed", i)
		}
		if err := s.accepts(tokens[i : i+1]); err != nil {
			return fmt.Errorf("session %d: %w", i, err)
		}
	}
	for _, s := range sessions {
		if s.logits == nil {
			s.logits = make([]float32, m.cfg.Vocab)
		}
	}
	err := m.decode(ctx, sessions, tokens)
	if err != nil {
		for _, s := range sessions {
			err = s.undo(err, s.pos)
		}
		return err
	}
	for i, s := range sessions {
		s.commit(tokens[i : i+1])
		s.hasLogits = true
		for at, win := range m.cfg.Windows {
			if win > 0 {
				s.cache.DropBefore(at, int32(s.pos-win+1))
			}
		}
		if e := s.comp.afterPass(ctx, s, 1, false); e != nil {
			err = errors.Join(err, e)
		}
	}
	return err
}

// decode runs all layers over one token of each session and leaves the logits
// with the sessions.
func (m *Model) decode(ctx context.Context, sessions []*Session, tokens []int32) error {
	page := sessions[0].page()
	alike := true
	for _, s := range sessions {
		alike = alike && (m.acc == nil || s.page() == page)
	}
	if !alike {
		return m.decodeUnlike(ctx, sessions, tokens)
	}
	r, err := m.runs.get(len(sessions), len(sessions), page)
	if err != nil {
		return err
	}
	defer m.runs.put(r)
	for _, s := range sessions {
		r.add(s, 0, 1, s.pos+1, s.comp.watchDecode(s, false))
	}
	if err := r.forward(ctx, tokens, true, nil); err != nil {
		return err
	}
	if len(sessions) == 1 || r.host == nil {
		for i, s := range sessions {
			if err := r.logits(ctx, s.logits, i, 1); err != nil {
				return err
			}
		}
		return nil
	}
	vocab := m.cfg.Vocab
	if n := len(sessions) * vocab; cap(r.batch) < n {
		r.batch = make([]float32, n)
	}
	all := r.batch[:len(sessions)*vocab]
	if err := r.logits(ctx, all, 0, len(sessions)); err != nil {
		return err
	}
	for i, s := range sessions {
		copy(s.logits, all[i*vocab:(i+1)*vocab])
	}
	return nil
}

// decodeUnlike decodes sessions whose caches have different kinds of pages on a
// device: one batch per kind.
func (m *Model) decodeUnlike(ctx context.Context, sessions []*Session, tokens []int32) error {
	type batch struct {
		sessions []*Session
		tokens   []int32
	}
	batches := map[kernels.PageLayout]*batch{}
	before := make([][]float32, len(sessions))
	for i, s := range sessions {
		b := batches[s.page()]
		if b == nil {
			b = &batch{}
			batches[s.page()] = b
		}
		b.sessions, b.tokens = append(b.sessions, s), append(b.tokens, tokens[i])
		before[i] = slices.Clone(s.logits)
	}
	for _, b := range batches {
		if err := m.decode(ctx, b.sessions, b.tokens); err != nil {
			for i, s := range sessions {
				copy(s.logits, before[i])
			}
			return err
		}
	}
	return nil
}

// Append feeds one token and computes the logits after it.
func (s *Session) Append(ctx context.Context, token int32) error {
	s.oneToken[0] = token
	return s.m.Step(ctx, s.one[:], s.oneToken[:])
}
