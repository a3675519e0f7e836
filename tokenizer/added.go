package tokenizer

import (
	"cmp"
	"slices"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is cut out of the text before the model sees it.
type addedToken struct {
	id         int32
	content    string
	special    bool // counts as a special token
	normalized bool // is looked for in normalised text, in its normalised form
	singleWord bool // only where no word character stands beside it
	lstrip     bool // takes the white space to its left
	rstrip     bool // takes the white space to its right
}

// tokenFinder finds the longest added token at the leftmost position, by a trie
// whose edges lie in one map.
type tokenFinder struct {
	first  [256]bool        // bytes that start a token
	edges  map[uint64]int32 // node<<8 | byte to node; the root is node 0
	ends   []int32          // by node: index into tokens, or none
	tokens []addedToken
}

// newTokenFinder returns nil if there are no tokens. forms holds what to look for.
func newTokenFinder(tokens []addedToken, forms []string) *tokenFinder {
	f := &tokenFinder{edges: make(map[uint64]int32), ends: []int32{none}}
	for i, form := range forms {
		if form == "" {
			continue
		}
		f.first[form[0]] = true
		node := int32(0)
		for k := range len(form) {
			key := uint64(node)<<8 | uint64(form[k])
			next, ok := f.edges[key]
			if !ok {
				next = int32(len(f.ends))
				f.edges[key] = next
				f.ends = append(f.ends, none)
			}
			node = next
		}
		if f.ends[node] == none {
			f.ends[node] = int32(len(f.tokens))
			f.tokens = append(f.tokens, tokens[i])
		}
	}
	if len(f.tokens) == 0 {
		return nil
	}
	return f
}

// next returns the first token at or behind pos and its place, or a nil token.
func (f *tokenFinder) next(s string, pos int) (tok *addedToken, start, end int) {
	for ; pos < len(s); pos++ {
		if !f.first[s[pos]] {
			continue
		}
		if tok, end := f.at(s, pos); tok != nil {
			return tok, pos, end
		}
	}
	return nil, 0, 0
}

// at returns the longest token that starts at pos.
func (f *tokenFinder) at(s string, pos int) (tok *addedToken, end int) {
	node := int32(0)
	for i := pos; i < len(s); i++ {
		next, ok := f.edges[uint64(node)<<8|uint64(s[i])]
		if !ok {
			break
		}
		node = next
		if k := f.ends[node]; k != none {
			tok, end = &f.tokens[k], i+1
		}
	}
	return tok, end
}

// cut calls text for what stands between tokens, if it is not empty, and found
// for the tokens. specialAsText leaves special tokens in the text.
func (f *tokenFinder) cut(s string, specialAsText bool, text func(start, end int), found func(id int32, start, end int)) {
	done := 0
	if f != nil {
		for at := 0; ; {
			tok, start, end := f.next(s, at)
			if tok == nil {
				break
			}
			at = end
			if specialAsText && tok.special || tok.singleWord && besideWord(s, start, end) {
				continue
			}
			if tok.lstrip {
				start = max(done, trimRight(s, start))
			}
			if tok.rstrip {
				end = trimLeft(s, end)
			}
			if done < start {
				text(done, start)
			}
			found(tok.id, start, end)
			done = end
		}
	}
	if done < len(s) {
		text(done, len(s))
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
