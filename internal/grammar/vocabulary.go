package grammar

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// Vocabulary holds the bytes of a model's tokens. It is immutable and safe for
// concurrent use.
type Vocabulary struct {
	size  int
	bytes [][]byte
	all   trie
	odd   trie // the tokens that are not plain

	// plain[n] has the tokens of 1 to n whole characters that stand for themselves in
	// a JSON string.
	plain [][]uint64
}

// NewVocabulary reads the bytes of size tokens; a token without bytes, or with more
// than 4,096, never matches.
func NewVocabulary(size int, text func(id int32) []byte) *Vocabulary {
	v := &Vocabulary{size: size, bytes: make([][]byte, size)}
	var all, odd, plain []int32
	lengths := make([]int, size)
	longest := 0
	for id := range int32(size) {
		b := text(id)
		if len(b) == 0 || len(b) > 1<<12 {
			continue
		}
		v.bytes[id] = b
		all = append(all, id)
		if n := plainLength(b); n > 0 {
			plain = append(plain, id)
			lengths[id] = n
			longest = max(longest, n)
		} else {
			odd = append(odd, id)
		}
	}
	v.all, v.odd = v.trie(all), v.trie(odd)
	slices.SortFunc(plain, func(a, b int32) int { return lengths[a] - lengths[b] })
	v.plain = [][]uint64{v.mask()}
	for n := 1; n <= longest; n++ {
		m := v.plain[n-1]
		if len(plain) > 0 && lengths[plain[0]] == n {
			m = slices.Clone(m)
			for len(plain) > 0 && lengths[plain[0]] == n {
				set(m, plain[0])
				plain = plain[1:]
			}
		}
		v.plain = append(v.plain, m)
	}
	return v
}

// plainLength returns the number of characters of b; 0 if it has any that a JSON
// string escapes, or parts of characters.
func plainLength(b []byte) int {
	for _, c := range b {
		if c < 0x20 || c == '"' || c == '\\' {
			return 0
		}
	}
	if !utf8.Valid(b) {
		return 0
	}
	return utf8.RuneCount(b)
}

func (v *Vocabulary) mask() []uint64 { return make([]uint64, (v.size+63)/64) }

func set(m []uint64, id int32) { m[id>>6] |= 1 << (id & 63) }

// trie is the bytes of tokens as a tree, stored depth first.
type trie struct {
	nodes []trieNode
	same  []int32 // for each token, the next one with the same bytes; -1: none
	depth int
}

type trieNode struct {
	next  int32 // after the subtree
	token int32 // that ends here; -1: none
	depth uint16
	b     byte
}

func (v *Vocabulary) trie(ids []int32) trie {
	slices.SortFunc(ids, func(a, b int32) int { return bytes.Compare(v.bytes[a], v.bytes[b]) })
	t := trie{same: make([]int32, v.size)}
	var open []int32 // nodes on the path to the last token
	last := []byte{}
	for _, id := range ids {
		t.same[id] = -1
		b := v.bytes[id]
		common := 0
		for common < min(len(b), len(last)) && b[common] == last[common] {
			common++
		}
		if common == len(b) && len(last) == len(b) { // the same bytes again
			n := &t.nodes[open[len(open)-1]]
			t.same[id], n.token = n.token, id
			continue
		}
		for len(open) > common {
			t.nodes[open[len(open)-1]].next = int32(len(t.nodes))
			open = open[:len(open)-1]
		}
		for i := common; i < len(b); i++ {
			open = append(open, int32(len(t.nodes)))
			t.nodes = append(t.nodes, trieNode{token: -1, depth: uint16(i), b: b[i]})
		}
		t.nodes[len(t.nodes)-1].token = id
		t.depth = max(t.depth, len(b))
		last = b
	}
	for _, n := range open {
		t.nodes[n].next = int32(len(t.nodes))
	}
	return t
}
