package tokenizer

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is cut out of the text before the model sees it.
type addedToken struct {
	id         int32
	content    string
	special    bool // counts as a special token
	normalized bool // matched in normalised form against normalised text
	singleWord bool // only where no word character is next to it
	lstrip     bool // takes the white space to its left
	rstrip     bool // takes the white space to its right
}

// maxAddedLen bounds the length of an added token in bytes, and thereby the steps
// that looking for tokens at one position takes.
const maxAddedLen = 256

// Limits on the added tokens of a tokenizer: their number and total bytes.
const (
	maxAdded      = 1 << 16
	maxAddedBytes = 1 << 20
)

// checkAdded refuses added tokens of implausible length or number.
func checkAdded(tokens []addedToken) error {
	size := 0
	if len(tokens) > maxAdded {
		return fmt.Errorf("%d added tokens, expected at most %d", len(tokens), maxAdded)
	}
	for _, a := range tokens {
		if len(a.content) > maxAddedLen {
			return fmt.Errorf("added token %.40q has %d bytes, expected at most %d", a.content, len(a.content), maxAddedLen)
		}
		if size += len(a.content); size > maxAddedBytes {
			return fmt.Errorf("added tokens of more than %d bytes", maxAddedBytes)
		}
	}
	return nil
}

// tokenFinder finds the longest added token at the leftmost position, using a
// trie whose edges lie in one open-addressing table, at most half full.
type tokenFinder struct {
	first  [256]bool // bytes that start a token
	edges  []trieEdge
	ends   []int32 // by node: index into tokens, or none; the root is node 0
	tokens []addedToken
}

type trieEdge struct {
	from int32 // node, or none if the slot is free
	char byte
	to   int32
}

// newTokenFinder returns a finder that matches each token by its form, or nil if
// there is nothing to match.
func newTokenFinder(tokens []addedToken, forms []string) *tokenFinder {
	size := 0
	for _, form := range forms {
		size += len(form)
	}
	if size == 0 {
		return nil
	}
	f := &tokenFinder{edges: make([]trieEdge, 1<<bits.Len(uint(2*size))), ends: []int32{none}}
	for i := range f.edges {
		f.edges[i].from = none
	}
	for i, form := range forms {
		if form == "" {
			continue
		}
		f.first[form[0]] = true
		node := int32(0)
		for k := range len(form) {
			e := f.edge(node, form[k])
			if e.from == none {
				*e = trieEdge{node, form[k], int32(len(f.ends))}
				f.ends = append(f.ends, none)
			}
			node = e.to
		}
		if f.ends[node] == none {
			f.ends[node] = int32(len(f.tokens))
			f.tokens = append(f.tokens, tokens[i])
		}
	}
	return f
}

// edge returns the slot of the edge that leaves a node with a byte, taken or free.
func (f *tokenFinder) edge(node int32, char byte) *trieEdge {
	h := (uint32(node)<<8 | uint32(char)) * 0x9e3779b1
	mask := uint32(len(f.edges) - 1)
	for i := h >> 7; ; i++ {
		if e := &f.edges[i&mask]; e.from == none || e.from == node && e.char == char {
			return e
		}
	}
}

// next returns the first token at or after pos and its position, or a nil token.
func (f *tokenFinder) next(s string, pos int, hides func(start, end int) bool) (tok *addedToken, start, end int) {
	for ; pos < len(s); pos++ {
		if !f.first[s[pos]] {
			continue
		}
		if tok, end := f.at(s, pos, hides); tok != nil {
			return tok, pos, end
		}
	}
	return nil, 0, 0
}

// at returns the longest token that starts at pos; hides tells which special tokens
// are ordinary text (nil: none).
func (f *tokenFinder) at(s string, pos int, hides func(start, end int) bool) (tok *addedToken, end int) {
	node := int32(0)
	for i := pos; i < len(s); i++ {
		e := f.edge(node, s[i])
		if e.from == none {
			break
		}
		node = e.to
		if k := f.ends[node]; k != none && !(hides != nil && f.tokens[k].special && hides(pos, i+1)) {
			tok, end = &f.tokens[k], i+1
		}
	}
	return tok, end
}

// cut calls text for every non-empty stretch between tokens and found for
// every token, until the call that s belongs to has to end.
func (f *tokenFinder) cut(s *scratch, cur string, hides func(start, end int) bool, text func(start, end int), found func(id int32, start, end int)) {
	done := 0
	if f != nil {
		for at := 0; ; {
			tok, start, end := f.next(cur, at, hides)
			if tok == nil {
				break
			}
			if s.spent(end - at) {
				return
			}
			at = end
			if tok.singleWord && besideWord(cur, start, end) {
				continue
			}
			// A white-space token may be inside the text of the previous token.
			if tok.rstrip {
				end = trimLeft(cur, max(end, done))
			}
			if tok.lstrip {
				start = done + trimRight(cur[done:max(start, done)], max(start-done, 0))
				if end <= start {
					continue // nothing is left of it
				}
			}
			if done < start {
				text(done, start)
			}
			found(tok.id, start, end)
			done = end
		}
	}
	if done < len(cur) {
		text(done, len(cur))
	}
}

// besideWord reports whether a word character touches s[start:end].
func besideWord(s string, start, end int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:start])
	after, _ := utf8.DecodeRuneInString(s[end:])
	return start > 0 && isWord(before) || end < len(s) && isWord(after)
}

// trimRight returns where the white space that ends at end begins.
func trimRight(s string, end int) int {
	for end > 0 {
		r, n := utf8.DecodeLastRuneInString(s[:end])
		if !unicode.IsSpace(r) {
			break
		}
		end -= n
	}
	return end
}

// trimLeft returns where the white space that starts at start ends.
func trimLeft(s string, start int) int {
	for start < len(s) {
		r, n := utf8.DecodeRuneInString(s[start:])
		if !unicode.IsSpace(r) {
			break
		}
		start += n
	}
	return start
}

// byID sorts added tokens by id.
func byID(tokens []addedToken) {
	slices.SortFunc(tokens, func(a, b addedToken) int { return cmp.Compare(a.id, b.id) })
}
