package model

import (
	"errors"
	"fmt"
	"slices"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/internal/forward"
)

// NewSession returns an empty session. The caller closes it.
func (m *Model) NewSession(o SessionOptions) (*Session, error) {
	s, err := m.newSession(o)
	if err != nil {
		return nil, fmt.Errorf("new session: %w", err)
	}
	s.cache, err = kvcache.New(s.cacheOptions())
	if err != nil {
		return nil, fmt.Errorf("new session: %w", err)
	}
	return s, nil
}

// newSession checks the options and returns a session without a cache.
func (m *Model) newSession(o SessionOptions) (*Session, error) {
	if err := m.hold(); err != nil {
		return nil, err
	}
	defer m.release()
	if o.MaxTokens < 0 || o.ChunkTokens < 0 {
		return nil, fmt.Errorf("max tokens %d and chunk tokens %d: expected 0 for the default or more", o.MaxTokens, o.ChunkTokens)
	}
	if o.ChunkTokens > maxPassRows {
		return nil, fmt.Errorf("chunks of %d tokens, expected at most %d", o.ChunkTokens, maxPassRows)
	}
	if o.MaxTokens > arch.PositionLimit {
		return nil, fmt.Errorf("at most %d tokens, expected at most %d", o.MaxTokens, arch.PositionLimit)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = m.cfg.MaxPositions
	}
	if o.ChunkTokens == 0 {
		o.ChunkTokens = forward.DefaultChunk
	}
	if err := m.resolveCacheType(&o); err != nil {
		return nil, err
	}
	s := &Session{m: m, opts: o}
	s.one[0] = s
	if err := s.cacheOptions().Validate(); err != nil {
		return nil, err
	}
	var err error
	s.comp, err = newCompression(m, o)
	return s, err
}

// Truncate goes back to the first n tokens (n ≤ Len). Entries that compression
// evicted do not come back. Unless n is Len, there are no logits afterwards; feed
// a token first.
// A model with sliding windows can go back only as far as its windows still
// reach; otherwise Truncate returns an error and changes nothing. Truncate(0)
// always works: the session is as good as new and compresses its next prefill.
func (s *Session) Truncate(n int) error {
	if err := s.enter(); err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	defer s.leave()
	err := s.idle()
	if err == nil && n != 0 { // of nothing, nothing is left to cut
		err = s.ready()
	}
	if err != nil {
		return fmt.Errorf("truncate: %w", err)
	}
	if n < 0 || n > s.pos {
		return fmt.Errorf("truncate to %d tokens: the session has %d", n, s.pos)
	}
	if n == s.pos {
		s.pending = nil
		return nil
	}
	if s.renumbered && n > 0 {
		return fmt.Errorf("truncate to %d tokens: the session's positions were renumbered", n)
	}
	if err := s.cache.Truncate(int32(n)); err != nil {
		return fmt.Errorf("truncate to %d tokens: %w", n, err)
	}
	s.comp.rewind(s, n)
	s.lookup.Forget()
	err = s.draftCache.rewound(n)
	s.pos, s.tokens, s.pending, s.hasLogits = n, s.tokens[:n], nil, false
	s.trimReadings()
	if n == 0 {
		s.begin()
	}
	if err != nil {
		return fmt.Errorf("truncate to %d tokens: %w", n, err)
	}
	return nil
}

// Fork returns an independent session that continues from the same state, with the
// same options except those given. The caches share their pages until one of them
// changes them. The caller closes both.
func (s *Session) Fork(opts ...ForkOption) (*Session, error) {
	if err := s.enter(); err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	defer s.leave()
	f, err := s.fork(opts...)
	if err == nil {
		if f.draftCache, err = s.draftCache.forkFor(f, opts...); err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("fork: %w", err)
	}
	return f, nil
}

// ForkOption is an option of [Session.Fork].
type ForkOption func(*SessionOptions)

// ForkMaxTokens bounds the positions of a fork; 0 means the model's context length.
// It must leave room for the tokens that are there.
func ForkMaxTokens(n int) ForkOption { return func(o *SessionOptions) { o.MaxTokens = n } }

// ForkMaxCacheBytes bounds the cache of a fork, shared pages included; 0 means no
// bound. It must leave room for what is there.
func ForkMaxCacheBytes(n int64) ForkOption { return func(o *SessionOptions) { o.MaxCacheBytes = n } }

// forkOptions returns the options of a fork.
func (s *Session) forkOptions(opts []ForkOption) (SessionOptions, error) {
	o := s.opts
	for _, set := range opts {
		set(&o)
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = s.m.cfg.MaxPositions
	}
	switch {
	case o.MaxTokens < 0 || o.MaxTokens > arch.PositionLimit:
		return o, fmt.Errorf("at most %d tokens, expected 0 for the default to %d", o.MaxTokens, arch.PositionLimit)
	case o.MaxTokens < s.pos:
		return o, fmt.Errorf("%w: at most %d tokens, the session has %d", ErrContextFull, o.MaxTokens, s.pos)
	}
	return o, nil
}

func (s *Session) fork(opts ...ForkOption) (*Session, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	o, err := s.forkOptions(opts)
	if err != nil {
		return nil, err
	}
	cache, err := s.cache.Fork()
	if err != nil {
		return nil, err
	}
	if o.MaxCacheBytes != s.opts.MaxCacheBytes {
		if err := cache.SetMaxBytes(o.MaxCacheBytes); err != nil {
			return nil, errors.Join(err, cache.Close())
		}
	}
	f := &Session{
		m: s.m, opts: o, cache: cache, comp: s.comp.clone(),
		pos: s.pos, tokens: slices.Clone(s.tokens), pending: slices.Clone(s.pending),
		renumbered: s.renumbered, long: s.long,
		logits: slices.Clone(s.logits), hasLogits: s.hasLogits, stats: s.stats,
		saved: s.saved, notes: slices.Clone(s.notes),
		readings: slices.Clone(s.readings), probe: s.probe,
	}
	f.one[0] = f
	if err := f.takeTokens(0); err != nil {
		return nil, errors.Join(err, cache.Close())
	}
	return f, nil
}

// Close frees the session's memory. A call in progress is cancelled, and Close
// waits for it; if it is in one of its callbacks, which may be where Close is
// called from, the session is closed when the call returns instead. Closing twice
// is fine. Close may be called from any goroutine.
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
			u.run.Stop(errSessionClosed)
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

// free releases what the session holds. No call may be using it.
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
	return errors.Join(s.closeDrafts(), s.cache.Close())
}

// begin forgets what an empty session must no longer know.
func (s *Session) begin() {
	s.renumbered, s.notes, s.saved, s.probe, s.stats.ContextTokens = false, nil, nil, nil, 0
	if s.comp != nil {
		s.comp.reset()
	}
}
