package model

import (
	"fmt"
	"math/bits"
	"slices"
)

// Lookup decoding exploits that what an answer quotes is already there. After every
// token the session looks for the longest run of its last tokens that occurred before,
// in the prompt or in the answer; what came next there is the draft of what comes next
// here. One pass computes the token and its drafts, at little more than the cost of the
// token alone, since the weights are read once; drafts that turn out right are taken
// without another pass, the others leave no trace. (Saxena, "Prompt Lookup Decoding",
// 2023; the acceptance is that of speculative decoding with a deterministic draft.)
// Every token is drawn from the same logits as without drafts, so the answer is
// bit-identical.

// MaxDrafts is the most tokens that a pass computes ahead for a session. With
// more than five rows, products take noticeably longer than with one.
const MaxDrafts = 4

// A session has credit for drafts, rows of passes that may turn out useless. It
// pays a row for each draft and earns the pass that a right one saves; what every
// other token adds bounds the loss if no draft is ever right: a row costs at most
// about a third of a pass.
const (
	creditStart = 4.0
	creditMost  = 12.0
	creditToken = 0.08 // for every other token
	creditRight = 4.0  // for a draft that was right
)

// lookup indexes where pairs of tokens occurred in a sequence.
type lookup struct {
	known  int     // tokens of the sequence that are indexed
	first  []int32 // [power of two] by the pair's hash: 1 + index of its second token the last time, 0 if none
	before []int32 // [known] the same for the time before
	credit float64
}

// ahead is what a pass computed beyond a session's last token.
type ahead struct {
	tokens []int32   // drafts not taken yet: the cache holds them from Session.pos on
	logits []float32 // [len(tokens)][Vocab] after each
	found  []int32   // drafts for the next pass
	room   []float32 // memory for logits
}

const (
	longestMatch = 32 // most tokens compared
	mostTries    = 64 // most places tried
)

// forget empties the index, as the sequence is about to change.
func (l *lookup) forget() {
	if l != nil {
		l.known = 0
		clear(l.first)
	}
}

// bytes returns the size of the index.
func (l *lookup) bytes() int64 {
	if l == nil {
		return 0
	}
	return 4 * int64(cap(l.first)+cap(l.before))
}

func (l *lookup) slot(a, b int32) *int32 {
	h := (uint32(a)*0x9e3779b1 ^ uint32(b)) * 0x85ebca6b
	return &l.first[h>>(32-bits.Len(uint(len(l.first)-1)))]
}

// learn indexes the tokens that are new since the last call.
func (l *lookup) learn(tokens []int32) {
	if len(tokens) > len(l.first) {
		l.first = make([]int32, max(1024, 2*powerOfTwo(len(tokens))))
		l.known = 0
	}
	l.before = slices.Grow(l.before[:l.known], len(tokens)-l.known)[:len(tokens)]
	for i := l.known; i < len(tokens); i++ {
		if i == 0 {
			l.before[0] = 0
			continue
		}
		at := l.slot(tokens[i-1], tokens[i])
		l.before[i], *at = *at, int32(i+1)
	}
	l.known = len(tokens)
}

// find looks for the longest run of last tokens, ending with next, that occurred
// before, the latest among equals, and appends at most n tokens that followed it to
// dst, but no more than the run is long, since short ones mean little.
func (l *lookup) find(dst, tokens []int32, next int32, n int) []int32 {
	end := len(tokens) // index of next
	if end == 0 {
		return dst
	}
	best, longest := 0, 1
	at := int(*l.slot(tokens[end-1], next))
	for try := 0; at > 0 && try < mostTries && longest < longestMatch; try++ {
		p := at - 1
		at = int(l.before[p])
		if tokens[p] != next || tokens[p-1] != tokens[end-1] {
			continue // another pair with the same hash
		}
		k := 2
		for k < longestMatch && k <= p && tokens[p-k] == tokens[end-k] {
			k++
		}
		if k > longest {
			best, longest = p, k
		}
	}
	if longest < 2 {
		return dst
	}
	for i := range min(n, longest) {
		switch p := best + 1 + i; {
		case p < end:
			dst = append(dst, tokens[p])
		case p == end:
			dst = append(dst, next)
		default: // the run overlaps itself
			dst = append(dst, dst[p-end-1])
		}
	}
	return dst
}

// lookupOff returns why a session that should look up drafts does not, "" if it does.
func (s *Session) lookupOff() string {
	switch {
	case s.comp != nil && s.comp.decode != nil:
		return fmt.Sprintf("lookup decoding is off: compression while decoding (%s) looks at every token before the next is known", s.comp.plan.Decoding().Config().Metric.Name)
	case s.m.dynamicRope():
		return "lookup decoding is off: dynamic rope scaling rotates a token by the length of the sequence when it is fed"
	}
	return ""
}

// draft sets ahead.found to what may follow token, at most n tokens.
func (s *Session) draft(token int32, n int) {
	a := &s.ahead
	a.found = a.found[:0]
	if n = min(n, MaxDrafts, s.opts.MaxTokens-s.pos-1); n <= 0 || !s.opts.Lookup || s.recorder != nil || s.answer != nil || s.lookupOff() != "" {
		return
	}
	if s.lookup == nil {
		s.lookup = &lookup{credit: creditStart}
		a.found, a.tokens = make([]int32, 0, MaxDrafts), make([]int32, 0, MaxDrafts)
	}
	l := s.lookup
	l.credit = min(creditMost, l.credit+creditToken)
	if n = min(n, int(l.credit)); n == 0 {
		return
	}
	l.learn(s.tokens)
	a.found = l.find(a.found, s.tokens, token, n)
	if n = len(a.found); n == 0 {
		return
	}
	if vocab := s.m.cfg.Vocab; a.room == nil {
		a.room = make([]float32, MaxDrafts*vocab)
	}
	if s.takeTokens(1+n) != nil {
		a.found = a.found[:0]
		return
	}
	l.credit -= float64(n)
	s.stats.Drafted += n
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
		// An error here has made the cache unusable, which the next pass reports.
		_ = s.dropAhead()
		return false
	}
	s.commit(a.tokens[:1])
	copy(s.logits, a.logits[:vocab])
	a.tokens, a.logits = append(a.tokens[:0], a.tokens[1:]...), a.logits[vocab:]
	s.dropWindows()
	s.lookup.credit = min(creditMost, s.lookup.credit+creditRight)
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
			s.cache.DropBefore(at, int32(s.pos-win+1))
		}
	}
}
