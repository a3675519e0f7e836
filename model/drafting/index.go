package drafting

import (
	"math/bits"
	"slices"
)

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

// Index finds drafts in the text, where pairs of tokens occurred in it before.
// (Saxena, "Prompt Lookup Decoding", 2023.)
type Index struct {
	known  int     // tokens of the sequence that are indexed
	first  []int32 // [power of two] by the pair's hash: 1 + index of its second token the last time, 0 if none
	before []int32 // [known] the same for the time before
	credit float64
}

// NewIndex returns an index of no tokens.
func NewIndex() *Index { return &Index{credit: creditStart} }

// Earn counts a token and returns how many drafts may now be tried.
func (l *Index) Earn() int {
	l.credit = min(creditMost, l.credit+creditToken)
	return int(l.credit)
}

// Pay takes note of n drafts that are tried.
func (l *Index) Pay(n int) { l.credit -= float64(n) }

// Right takes note of a draft that was right, and Wrong of one that was not.
func (l *Index) Right() { l.credit = min(creditMost, l.credit+creditRight) }
func (l *Index) Wrong() {} // it was paid for

const (
	longestMatch = 32 // most tokens compared
	mostTries    = 64 // most places tried
)

// Forget empties the index, as the sequence is about to change.
func (l *Index) Forget() {
	if l != nil {
		l.known = 0
		clear(l.first)
	}
}

// Bytes returns the size of the index.
func (l *Index) Bytes() int64 {
	if l == nil {
		return 0
	}
	return 4 * int64(cap(l.first)+cap(l.before))
}

func (l *Index) slot(a, b int32) *int32 {
	h := (uint32(a)*0x9e3779b1 ^ uint32(b)) * 0x85ebca6b
	return &l.first[h>>(32-bits.Len(uint(len(l.first)-1)))]
}

// Learn indexes the tokens that are new since the last call.
func (l *Index) Learn(tokens []int32) {
	if len(tokens) > len(l.first) {
		l.first = make([]int32, max(1024, 2<<bits.Len(uint(len(tokens)-1))))
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

// Find looks for the longest run of last tokens, ending with next, that occurred
// before, the latest among equals, and appends at most n tokens that followed it to
// dst, but no more than the run is long, since short ones mean little.
func (l *Index) Find(dst, tokens []int32, next int32, n int) []int32 {
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
