package model

import (
	"fmt"

	"github.com/lukv/lukv/model/drafting"
	"github.com/lukv/lukv/model/sampling"
)

// Tokens ahead: a pass computes, after a session's next token, drafts of those that
// may follow, and the logits after each. Drafts that are then drawn are taken without
// another pass; the others leave no trace. Drafts come from the text ([lookup]) or from a
// compressed cache ([draftCache]).

// MaxDrafts is the most tokens that a pass computes ahead for a session. With
// more than five rows, products take noticeably longer than with one.
const MaxDrafts = 4

// ahead is what a pass computed beyond a session's last token.
type ahead struct {
	tokens []int32   // drafts not taken yet: the cache holds them from Session.pos on
	logits []float32 // [len(tokens)][Vocab] after each
	by     drafter   // whose they are

	most    int               // drafts wanted from the next pass
	found   []int32           // drafts for it
	sampler *sampling.Sampler // that draws what they guess, nil: the most likely token is taken
	room    []float32         // memory for logits
}

// A drafter is told whether its drafts were right.
type drafter interface {
	Right() // one was taken
	Wrong() // another token was
}

// cannotDraft returns why the session cannot compute tokens ahead, "" if it can.
func (s *Session) cannotDraft() string {
	switch {
	case s.comp != nil && s.comp.decode != nil:
		return fmt.Sprintf("compression while decoding (%s) looks at every token before the next is known", s.comp.plan.Decoding().Config().Metric.Name)
	case s.m.net.Dynamic():
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
func (s *Session) wantsDrafts(token int32, n int, sampler *sampling.Sampler) {
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
			a.by.Wrong()
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
		a.by.Right()
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

// Lookup decoding exploits that what an answer quotes is already there. After every
// token the session looks for the longest run of its last tokens that occurred before,
// in the prompt or in the answer; what came next there is the draft of what comes next
// here. One pass computes the token and its drafts, at little more than the cost of the
// token alone, since the weights are read once; drafts that turn out right are taken
// without another pass, the others leave no trace. (Saxena, "Prompt Lookup Decoding",
// 2023; the acceptance is that of speculative decoding with a deterministic draft.)
// Every token is drawn from the same logits as without drafts, so the answer is
// bit-identical.

// lookupOff returns why a session that should look up drafts does not, "" if it does.
func (s *Session) lookupOff() string {
	if why := s.cannotDraft(); why != "" {
		return "lookup decoding is off: " + why
	}
	return ""
}

// lookUp sets ahead.found to what followed token before, at most n tokens.
func (s *Session) lookUp(token int32, n int) {
	if n = s.mayDraft(min(n, MaxDrafts)); n == 0 || !s.opts.Lookup {
		return
	}
	if s.lookup == nil {
		s.lookup = drafting.NewIndex()
	}
	l := s.lookup
	if n = min(n, l.Earn()); n == 0 {
		return
	}
	l.Learn(s.tokens)
	s.ahead.found = l.Find(s.ahead.found, s.tokens, token, n)
	n = len(s.ahead.found)
	if s.takeDrafts(l, MaxDrafts); len(s.ahead.found) > 0 {
		l.Pay(n)
	}
}
