package model

import (
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

func (l *lookup) right() { l.credit = min(creditMost, l.credit+creditRight) }
func (l *lookup) wrong() {} // it was paid for

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
		s.lookup = &lookup{credit: creditStart}
	}
	l := s.lookup
	l.credit = min(creditMost, l.credit+creditToken)
	if n = min(n, int(l.credit)); n == 0 {
		return
	}
	l.learn(s.tokens)
	s.ahead.found = l.find(s.ahead.found, s.tokens, token, n)
	n = len(s.ahead.found)
	if s.takeDrafts(l, MaxDrafts); len(s.ahead.found) > 0 {
		l.credit -= float64(n)
	}
}
