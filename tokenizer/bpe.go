package tokenizer

import (
	"hash/maphash"
	"math"
	"math/bits"
	"unicode/utf8"
)

// none is the id of what is no token.
const none int32 = -1

// bpe is the byte pair encoding shared by all three file formats. Every piece is
// held as the bytes of text it stands for.
//
// A word starts as one symbol per byte (byteLevel) or per character, and
// neighbours are merged, lowest rank first and leftmost first among equals, until
// no pair of neighbours is left that has a rank.
type bpe struct {
	pieces []string // by id; "" for ids that the model cannot produce
	vocab  pieceTable
	merges pairTable

	byteLevel    bool
	ignoreMerges bool       // a word that is a piece is that token, whatever the merges say
	byteID       [256]int32 // symbol of a byte: byteLevel its first symbol, else its fallback; or none
	runeID       map[rune]int32
	asciiID      [utf8.RuneSelf]int32
	fallback     bool // characters outside the vocabulary become their bytes, if all of them are there
	unk          int32
	fuseUnk      bool
	maxPiece     int // length of the longest piece

	// complete says that every character has symbols of its own.
	complete bool
	// joins holds the pairs of characters that stand side by side in the result of
	// a merge. Nothing ever merges across any other pair, so that a text may be cut
	// there before it is encoded.
	joins joinSet

	// SentencePiece only: ids from len(pieces) on stand for single characters that
	// occur in pieces and are none themselves.
	spm    bool
	pseudo []string
}

// pieceTable maps pieces to ids; open addressing, a power of two long, at most
// half full.
type pieceTable struct {
	slots []pieceSlot
	shift uint8
}

type pieceSlot struct {
	hash uint32
	id   int32 // none where the slot is free
}

var hashSeed = maphash.MakeSeed()

func newPieceTable(n int) pieceTable {
	logSize := bits.Len(uint(2*n + 1))
	t := pieceTable{slots: make([]pieceSlot, 1<<logSize), shift: uint8(64 - logSize)}
	for i := range t.slots {
		t.slots[i].id = none
	}
	return t
}

func (m *bpe) lookup(piece string) int32 {
	if len(piece) > m.maxPiece || len(m.vocab.slots) == 0 {
		return none
	}
	h := maphash.String(hashSeed, piece)
	mask := uint64(len(m.vocab.slots) - 1)
	for i := h >> m.vocab.shift; ; i = (i + 1) & mask {
		s := &m.vocab.slots[i]
		if s.id == none || s.hash == uint32(h) && m.pieces[s.id] == piece {
			return s.id
		}
	}
}

// insert makes id the id of pieces[id], and reports false if that piece has one.
func (m *bpe) insert(id int32) bool {
	piece := m.pieces[id]
	m.maxPiece = max(m.maxPiece, len(piece))
	h := maphash.String(hashSeed, piece)
	mask := uint64(len(m.vocab.slots) - 1)
	for i := h >> m.vocab.shift; ; i = (i + 1) & mask {
		s := &m.vocab.slots[i]
		if s.id == none {
			*s = pieceSlot{hash: uint32(h), id: id}
			return true
		}
		if s.hash == uint32(h) && m.pieces[s.id] == piece {
			return false
		}
	}
}

// pairTable maps a pair of symbols to its rank and the symbol it merges to; open
// addressing as in pieceTable.
type pairTable struct {
	slots []pairSlot
	shift uint8
	n     int
}

type pairSlot struct {
	left, right int32
	rank        uint32 // noRank where the slot is free
	to          int32
}

const noRank = math.MaxUint32

func newPairTable(n int) pairTable {
	logSize := bits.Len(uint(2*n + 1))
	t := pairTable{slots: make([]pairSlot, 1<<logSize), shift: uint8(64 - logSize)}
	for i := range t.slots {
		t.slots[i].rank = noRank
	}
	return t
}

func (t *pairTable) slot(left, right int32) *pairSlot {
	h := (uint64(uint32(left))<<32 | uint64(uint32(right))) * 0x9e3779b97f4a7c15
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	mask := uint64(len(t.slots) - 1)
	for i := h >> t.shift; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.rank == noRank || s.left == left && s.right == right {
			return s
		}
	}
}

// add sets the merge of a pair; a later one replaces an earlier one.
func (t *pairTable) add(left, right int32, rank uint32, to int32) {
	if 2*(t.n+1) > len(t.slots) {
		old := t.slots
		*t = newPairTable(2 * (t.n + 1))
		for _, s := range old {
			if s.rank != noRank {
				t.add(s.left, s.right, s.rank, s.to)
			}
		}
	}
	s := t.slot(left, right)
	if s.rank == noRank {
		t.n++
	}
	*s = pairSlot{left, right, rank, to}
}

// joinSet is a set of pairs of characters, kept as a bit map of hashes: it may
// hold a pair too many, never one too few.
type joinSet []uint64

func joinBit(x, y rune) uint32 {
	return (uint32(x)*0x9e3779b1 ^ uint32(y)*0x85ebca6b) * 0xc2b2ae35 >> 12 // 20 bits
}

func (j joinSet) has(x, y rune) bool {
	b := joinBit(x, y)
	return j[b>>6]>>(b&63)&1 != 0
}

// addPiece enters all neighbours in a piece.
func (j joinSet) addPiece(piece string) {
	prev := rune(-1)
	for _, r := range piece {
		if prev >= 0 {
			b := joinBit(prev, r)
			j[b>>6] |= 1 << (b & 63)
		}
		prev = r
	}
}

func newJoinSet() joinSet { return make(joinSet, 1<<20/64) }

// seal computes what follows from the pieces and merges.
func (m *bpe) seal() {
	if m.byteLevel {
		return
	}
	m.complete = m.fallback
	for _, id := range m.byteID {
		m.complete = m.complete && id != none
	}
	for r := range m.asciiID {
		m.asciiID[r] = m.lookupRune(rune(r))
	}
	m.joins = newJoinSet()
	for i := range m.merges.slots {
		if s := &m.merges.slots[i]; s.rank != noRank {
			m.joins.addPiece(m.symbol(s.left) + m.symbol(s.right))
			m.joins.addPiece(m.symbol(s.to))
		}
	}
}

func (m *bpe) lookupRune(r rune) int32 {
	if id, ok := m.runeID[r]; ok {
		return id
	}
	return none
}

// symbol is the text of a piece or of a pseudo symbol.
func (m *bpe) symbol(id int32) string {
	if int(id) >= len(m.pieces) {
		return m.pseudo[int(id)-len(m.pieces)]
	}
	return m.pieces[id]
}

// known reports whether r is a piece of its own.
func (m *bpe) known(r rune) bool {
	id := m.lookupRune(r)
	return id != none && int(id) < len(m.pieces)
}

// encode appends the tokens of the text s.cur[start:end], which no added token
// and no pre-tokenizer cuts any further.
func (m *bpe) encode(s *scratch, start, end int) {
	text := s.cur[start:end]
	if m.byteLevel {
		m.word(s, text, start)
		return
	}
	if m.ignoreMerges {
		if id := m.lookup(text); id != none {
			s.emit(id, start, end)
			return
		}
	}
	from := 0
	prev, n := utf8.DecodeRuneInString(text)
	for i := n; i < len(text); i += n {
		var r rune
		if c := text[i]; c < utf8.RuneSelf {
			r, n = rune(c), 1
		} else {
			r, n = utf8.DecodeRuneInString(text[i:])
		}
		// U+FFFD may be an invalid byte, whose neighbours joins knows nothing of.
		if r != utf8.RuneError && prev != utf8.RuneError && !m.joins.has(prev, r) &&
			(m.complete || m.known(prev) && m.known(r)) {
			m.word(s, text[from:i], start+from)
			from = i
		}
		prev = r
	}
	if from < len(text) {
		m.word(s, text[from:], start+from)
	}
}

// word appends the tokens of one word; base is where it starts in s.cur.
func (m *bpe) word(s *scratch, w string, base int) {
	s.unkLast = false
	if m.byteLevel && m.ignoreMerges {
		if id := m.lookup(w); id != none {
			s.emit(id, base, base+len(w))
			return
		}
	}
	var e *cacheEntry
	if !s.want && len(w) <= len(e.key) {
		if s.cache == nil {
			s.cache = make([]cacheEntry, cacheSize)
		}
		e = &s.cache[maphash.String(hashSeed, w)&(cacheSize-1)]
		if string(e.key[:e.keyLen]) == w && e.n > 0 {
			s.ids = append(s.ids, e.ids[:e.n]...)
			return
		}
	}
	before := len(s.ids)
	if len(w) > listLimit {
		m.mergeLong(s, w, base)
	} else {
		m.mergeShort(s, w, base)
	}
	if n := len(s.ids) - before; e != nil && n > 0 && n <= len(e.ids) {
		e.keyLen, e.n = uint8(copy(e.key[:], w)), uint8(copy(e.ids[:], s.ids[before:]))
	}
}

const (
	cacheSize = 1 << 13
	// listLimit is the length in bytes from which a heap beats scanning a list.
	listLimit = 160
)

// cacheEntry holds the ids of one short word; it is 64 bytes long.
type cacheEntry struct {
	keyLen, n uint8
	key       [30]byte
	ids       [8]int32
}

// start gives the symbols that w starts as to put, with the position where each
// begins; a symbol ends where the next one begins.
func (m *bpe) start(w string, put func(id int32, pos int)) {
	if m.byteLevel {
		for i := range len(w) {
			if id := m.byteID[w[i]]; id != none {
				put(id, i)
			}
		}
		return
	}
	unkAt := -1 // start of a run of unknown characters that has no symbol yet
	// That symbol comes before the next known character, behind any bytes between.
	flush := func() {
		if unkAt >= 0 {
			put(m.unk, unkAt)
			unkAt = -1
		}
	}
	for i, n := 0, 0; i < len(w); i += n {
		var r rune
		id := none
		if c := w[i]; c < utf8.RuneSelf {
			n = 1
			id = m.asciiID[c]
		} else if r, n = utf8.DecodeRuneInString(w[i:]); r != utf8.RuneError || n > 1 {
			id = m.lookupRune(r)
		}
		if id != none {
			flush()
			put(id, i)
			continue
		}
		if m.fallback && m.hasBytes(w[i:i+n]) {
			for k := i; k < i+n; k++ {
				put(m.byteID[w[k]], k)
			}
			if unkAt >= 0 {
				unkAt = i + n
			}
			continue
		}
		if m.unk == none {
			continue
		}
		if !m.fuseUnk {
			flush()
		}
		if unkAt < 0 {
			unkAt = i
		}
	}
	flush()
}

func (m *bpe) hasBytes(s string) bool {
	for i := range len(s) {
		if m.byteID[s[i]] == none {
			return false
		}
	}
	return true
}

// part is a symbol in the list of mergeShort.
type part struct {
	id   int32
	pos  int32  // where it begins in the word
	rank uint32 // of the pair with the next symbol
	to   int32  // what that pair merges to
}

// mergeShort merges by scanning the list for the lowest rank: quadratic, and the
// fastest for words of a usual length.
func (m *bpe) mergeShort(s *scratch, w string, base int) {
	p := s.parts[:0]
	if m.byteLevel {
		for i := range len(w) {
			if id := m.byteID[w[i]]; id != none {
				p = append(p, part{id: id, pos: int32(i)})
			}
		}
	} else {
		m.start(w, func(id int32, pos int) { p = append(p, part{id: id, pos: int32(pos)}) })
	}
	s.parts = p
	pair := func(i int) {
		p[i].rank = noRank
		if i+1 < len(p) {
			t := m.merges.slot(p[i].id, p[i+1].id)
			p[i].rank, p[i].to = t.rank, t.to
		}
	}
	for i := range p {
		pair(i)
	}
	for {
		best, at := uint32(noRank), 0
		for i := range p {
			if p[i].rank < best {
				best, at = p[i].rank, i
			}
		}
		if best == noRank {
			break
		}
		p[at].id = p[at].to
		copy(p[at+1:], p[at+2:])
		p = p[:len(p)-1]
		pair(at)
		if at > 0 {
			pair(at - 1)
		}
	}
	for i := range p {
		end := len(w)
		if i+1 < len(p) {
			end = int(p[i+1].pos)
		}
		m.give(s, p[i].id, w, int(p[i].pos), end, base)
	}
}

// link is a symbol in the doubly linked list of mergeLong.
type link struct {
	id         int32 // none once it is merged into the symbol before
	pos        int32
	prev, next int32
}

// mergeLong merges by a heap of (rank, symbol index): O(n log n).
func (m *bpe) mergeLong(s *scratch, w string, base int) {
	l := s.links[:0]
	m.start(w, func(id int32, pos int) {
		l = append(l, link{id: id, pos: int32(pos), prev: int32(len(l)) - 1, next: int32(len(l)) + 1})
	})
	s.links = l
	if len(l) == 0 {
		return
	}
	l[len(l)-1].next = none
	h := s.heap[:0]
	for i := range len(l) - 1 {
		if t := m.merges.slot(l[i].id, l[i+1].id); t.rank != noRank {
			h = append(h, uint64(t.rank)<<32|uint64(i))
		}
	}
	h.init()
	for len(h) > 0 {
		top := h[0]
		i := int32(top)
		// An entry is stale if its pair is gone; the pair that stands there now has
		// an entry of its own.
		cur := &l[i]
		if cur.id == none || cur.next == none {
			h.pop()
			continue
		}
		next := &l[cur.next]
		t := m.merges.slot(cur.id, next.id)
		if t.rank != uint32(top>>32) {
			h.pop()
			continue
		}
		cur.id = t.to
		next.id = none
		cur.next = next.next
		replaced := false
		if cur.next != none {
			l[cur.next].prev = i
			if t := m.merges.slot(cur.id, l[cur.next].id); t.rank != noRank {
				h.replace(uint64(t.rank)<<32 | uint64(i))
				replaced = true
			}
		}
		if cur.prev != none {
			if t := m.merges.slot(l[cur.prev].id, cur.id); t.rank != noRank {
				k := uint64(t.rank)<<32 | uint64(cur.prev)
				if replaced {
					h.push(k)
				} else {
					h.replace(k)
					replaced = true
				}
			}
		}
		if !replaced {
			h.pop()
		}
	}
	s.heap = h
	for i := int32(0); i != none; i = l[i].next {
		end := len(w)
		if l[i].next != none {
			end = int(l[l[i].next].pos)
		}
		m.give(s, l[i].id, w, int(l[i].pos), end, base)
	}
}

// give emits the symbol id that stands for w[start:end].
func (m *bpe) give(s *scratch, id int32, w string, start, end, base int) {
	if m.spm && (id == m.unk || int(id) >= len(m.pieces)) {
		if m.fallback {
			for k := start; k < end; k++ {
				s.emit(m.byteID[w[k]], base+k, base+k+1)
			}
			return
		}
		// Unknown neighbours are one token.
		if !s.unkLast {
			s.emit(m.unk, base+start, base+end)
		} else if s.want {
			s.spans[len(s.spans)-1].End = s.origin(base+start, base+end).End
		}
		s.unkLast = true
		return
	}
	s.unkLast = false
	s.emit(id, base+start, base+end)
}

// mergeHeap is a four-ary min-heap.
type mergeHeap []uint64

func (h mergeHeap) init() {
	for i := (len(h) - 2) / 4; i >= 0 && len(h) > 1; i-- {
		h.down(i)
	}
}

func (h mergeHeap) down(i int) {
	v := h[i]
	for {
		c := 4*i + 1
		if c >= len(h) {
			break
		}
		best := c
		for k := c + 1; k < min(c+4, len(h)); k++ {
			if h[k] < h[best] {
				best = k
			}
		}
		if h[best] >= v {
			break
		}
		h[i] = h[best]
		i = best
	}
	h[i] = v
}

func (h *mergeHeap) push(v uint64) {
	*h = append(*h, v)
	a := *h
	i := len(a) - 1
	for i > 0 {
		up := (i - 1) / 4
		if a[up] <= v {
			break
		}
		a[i] = a[up]
		i = up
	}
	a[i] = v
}

// replace is pop and push in one.
func (h mergeHeap) replace(v uint64) {
	h[0] = v
	h.down(0)
}

func (h *mergeHeap) pop() {
	a := *h
	last := len(a) - 1
	a[0] = a[last]
	a = a[:last]
	if last > 0 {
		a.down(0)
	}
	*h = a
}
