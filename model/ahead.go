package model

import "fmt"

// Tokens ahead: a pass computes, after a session's next token, drafts of those that
// may follow, and the logits after each. Drafts that are then drawn are taken without
// another pass; the others leave no trace. Drafts come from the text ([lookup]) or from a
// compressed cache ([draftCache]).

// ahead is what a pass computed beyond a session's last token.
type ahead struct {
	tokens []int32   // drafts not taken yet: the cache holds them from Session.pos on
	logits []float32 // [len(tokens)][Vocab] after each
	by     drafter   // whose they are

	most    int       // drafts wanted from the next pass
	found   []int32   // drafts for it
	sampler *Sampler  // that draws what they guess, nil: the most likely token is taken
	room    []float32 // memory for logits
}

// A drafter is told whether its drafts were right.
type drafter interface {
	right() // one was taken
	wrong() // another token was
}

// cannotDraft returns why the session cannot compute tokens ahead, "" if it can.
func (s *Session) cannotDraft() string {
	switch {
	case s.comp != nil && s.comp.decode != nil:
		return fmt.Sprintf("compression while decoding (%s) looks at every token before the next is known", s.comp.plan.Decoding().Config().Metric.Name)
	case s.m.dynamicRope():
		return "dynamic rope scaling rotates a token by the length of the sequence when it is fed"
	}
	return ""
}

// mayDraft returns how many drafts, at most n, the next pass may compute.
func (s *Session) mayDraft(n int) int {
	n = min(n, s.ahead.most, s.opts.MaxTokens-s.pos-1)
	if n <= 0 || s.recorder != nil || s.answer != nil || s.cannotDraft() != "" {
		return 0
	}
	return n
}

// wantsDrafts begins a pass that takes token and at most n drafts: those that are in the
// text are found at once.
func (s *Session) wantsDrafts(token int32, n int, sampler *Sampler) {
	s.ahead.found, s.ahead.most, s.ahead.sampler = s.ahead.found[:0], n, sampler
	s.lookUp(token, n)
}

// takeDrafts makes room for the drafts found by a drafter that finds at most so many, or
// gives them up.
func (s *Session) takeDrafts(by drafter, most int) {
	a := &s.ahead
	if len(a.found) == 0 {
		return
	}
	s.aheadRoom(most)
	if s.takeTokens(1+len(a.found)) != nil {
		a.found = a.found[:0]
		return
	}
	a.by = by
	s.stats.Drafted += len(a.found)
}

// aheadRoom makes room for the logits after n drafts.
func (s *Session) aheadRoom(n int) {
	if vocab := s.m.cfg.Vocab; len(s.ahead.room) < n*vocab {
		s.ahead.room = make([]float32, n*vocab)
	}
}

// undraft gives up the drafts of a pass that is to run without them.
func (s *Session) undraft() {
	s.stats.Drafted -= len(s.ahead.found)
	s.ahead.found = s.ahead.found[:0]
}

// foresee makes the drafts of a pass, with the logits after each, available to
// Follow, up to the first whose logits are not finite.
func (s *Session) foresee(drafts []int32, logits []float32) error {
	a, vocab := &s.ahead, s.m.cfg.Vocab
	n := 0
	for n < len(drafts) && finite(logits[n*vocab:(n+1)*vocab]) {
		n++
	}
	a.tokens = append(a.tokens[:0], drafts[:n]...)
	a.logits = a.room[:n*vocab]
	copy(a.logits, logits)
	if n < len(drafts) {
		return s.cache.Truncate(int32(s.pos + n))
	}
	return nil
}

// Follow takes token if the last pass computed it ahead (see [Part.Drafts]), and
// reports whether it did: the session then has the logits after it. If it did not,
// all drafts are dropped, as with any other call.
func (s *Session) Follow(token int32) bool {
	if s.enterAhead() != nil {
		return false
	}
	defer s.leave()
	return s.follow(token)
}

// follow is Follow within a call.
func (s *Session) follow(token int32) bool {
	a, vocab := &s.ahead, s.m.cfg.Vocab
	if len(a.tokens) == 0 {
		return false
	}
	if a.tokens[0] != token || len(s.pending) > 0 && s.pending[0] != token || s.ready() != nil {
		if a.by != nil {
			a.by.wrong()
		}
		// An error here has made the cache unusable, which the next pass reports.
		_ = s.dropAhead()
		return false
	}
	s.commit(a.tokens[:1])
	copy(s.logits, a.logits[:vocab])
	a.tokens, a.logits = append(a.tokens[:0], a.tokens[1:]...), a.logits[vocab:]
	s.dropWindows()
	if a.by != nil {
		a.by.right()
	}
	s.stats.Decoded++
	s.stats.Accepted++
	return true
}

// dropAhead removes the drafts that were not followed from the cache.
func (s *Session) dropAhead() error {
	if len(s.ahead.tokens) == 0 {
		return nil
	}
	s.ahead.tokens = s.ahead.tokens[:0]
	if err := s.cache.Truncate(int32(s.pos)); err != nil {
		return fmt.Errorf("take drafts back: %w", err)
	}
	return nil
}

// dropWindows gives up the entries that no window reaches any more.
func (s *Session) dropWindows() {
	for at, win := range s.m.cfg.Windows {
		if win > 0 {
			s.cache.DropBefore(at, int32(s.pos-s.slack-win+1))
		}
	}
}
