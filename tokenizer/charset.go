package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// charSet is a set of characters: a bit map of the basic plane and the ranges
// beyond it.
type charSet struct {
	low  [1 << 16 / 64]uint64
	high []rune // pairs of bounds, ascending, from U+10000 on
}

// newCharSet makes a set from pairs of bounds, in ascending order.
func newCharSet(ranges []rune) *charSet {
	s := &charSet{}
	for i := 0; i < len(ranges); i += 2 {
		lo, hi := ranges[i], ranges[i+1]
		for r := lo; r <= min(hi, 0xffff); r++ {
			s.low[r>>6] |= 1 << (r & 63)
		}
		if hi > 0xffff {
			s.high = append(s.high, max(lo, 0x10000), hi)
		}
	}
	return s
}

func (s *charSet) has(r rune) bool {
	if r <= 0xffff {
		return s.low[r>>6]>>(r&63)&1 != 0
	}
	// An odd index is inside a range or at its upper bound.
	i, found := slices.BinarySearch(s.high, r)
	return found || i&1 != 0
}

// within reports whether all characters of the set are from lo to hi, of the basic plane.
func (s *charSet) within(lo, hi rune) bool {
	for r := range rune(0x10000) {
		if s.has(r) && (r < lo || r > hi) {
			return false
		}
	}
	return len(s.high) == 0
}

// at returns the length of the character at text[pos:] if it is in the set, else 0.
// A byte that is not UTF-8 counts as U+FFFD.
func (s *charSet) at(text string, pos int) int {
	if pos >= len(text) {
		return 0
	}
	if c := text[pos]; c < utf8.RuneSelf {
		return int(s.low[c>>6] >> (c & 63) & 1)
	}
	r, n := utf8.DecodeRuneInString(text[pos:])
	if !s.has(r) {
		return 0
	}
	return n
}

// before reports whether the character that ends at pos is in the set.
func (s *charSet) before(text string, pos int) bool {
	r, n := utf8.DecodeLastRuneInString(text[:pos])
	return n > 0 && s.has(r)
}

// run returns the end of the longest run of up to limit characters of the set at
// text[pos:], and its number of characters.
func (s *charSet) run(text string, pos, limit int) (end, count int) {
	for count < limit {
		n := s.at(text, pos)
		if n == 0 {
			break
		}
		pos += n
		count++
	}
	return pos, count
}
