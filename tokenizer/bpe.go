package tokenizer

import (
	"hash/maphash"
	"math"
	"math/bits"
	"slices"
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
	control      []bool     // by id: a special token, which no ordinary text becomes; or nil
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
// two thirds full. Short pieces are held in their place, so that finding one takes
// one access to memory that is not in the cache.
type pieceTable struct {
	slots []pieceSlot
	shift uint8
	n     int
}

// pieceSlot is 24 bytes long.
type pieceSlot struct {
	id1 int32 // id + 1; 0 where the slot is free
	len uint8 // longPiece: key holds nothing
	key [19]byte
}

const longPiece = 255

func (p *pieceSlot) holds(m *bpe, piece string) bool {
	if p.len == longPiece {
		return m.pieces[p.id1-1] == piece
	}
	return int(p.len) == len(piece) && string(p.key[:p.len]) == piece
}

var hashSeed = maphash.MakeSeed()

func newPieceTable(n int) pieceTable {
	logSize := bits.Len(uint(n + n/2 + 1))
	t := pieceTable{slots: make([]pieceSlot, 1<<logSize), shift: uint8(64 - logSize)}
	clear(t.slots) // new memory that is read before it is written is paged in twice
	return t
}

func pieceHash(piece string) uint64 { return maphash.String(hashSeed, piece) }

// first returns where the search for a piece with hash h begins.
func (t *pieceTable) first(h uint64) *pieceSlot { return &t.slots[h>>t.shift] }

// slot returns the place of a piece with hash h, taken or free.
func (m *bpe) slot(h uint64, piece string) *pieceSlot {
	mask := uint64(len(m.vocab.slots) - 1)
	for i := h >> m.vocab.shift; ; i++ {
		s := &m.vocab.slots[i&mask]
		if s.id1 == 0 || s.holds(m, piece) {
			return s
		}
	}
}

func (m *bpe) lookup(piece string) int32 {
	if len(piece) > m.maxPiece || len(m.vocab.slots) == 0 {
		return none
	}
	return m.lookupHashed(pieceHash(piece), piece)
}

// lookupHashed is lookup for a piece with hash h, in a table with pieces in it.
func (m *bpe) lookupHashed(h uint64, piece string) int32 { return m.slot(h, piece).id1 - 1 }

// insert makes id the id of pieces[id], and reports false if that piece has one.
func (m *bpe) insert(id int32) bool { return m.insertHashed(pieceHash(m.pieces[id]), id) }

// insertHashed is insert for a piece with hash h.
func (m *bpe) insertHashed(h uint64, id int32) bool {
	piece := m.pieces[id]
	m.maxPiece = max(m.maxPiece, len(piece))
	s := m.slot(h, piece)
	if s.id1 != 0 {
		return false
	}
	m.vocab.n++
	s.id1, s.len = id+1, longPiece
	if len(piece) <= len(s.key) {
		s.len = uint8(copy(s.key[:], piece))
	}
	return true
}

// pairTable maps a pair of symbols to its rank and the symbol it merges to; open
// addressing as in pieceTable.
type pairTable struct {
	slots []pairSlot
	shift uint8
	n     int
	// maybe holds a bit per hash, so that most pairs which do not merge are known
	// from memory that stays in the cache.
	maybe      []uint64
	maybeShift uint8
}

type pairSlot struct {
	left, right int32
	rank1       uint32 // rank + 1; 0 where the slot is free
	to          int32
}

const noRank = math.MaxUint32

func newPairTable(n int) pairTable {
	logSize := bits.Len(uint(n + n/2 + 1))
	logBits := max(logSize+4, 6)
	t := pairTable{
		slots: make([]pairSlot, 1<<logSize), shift: uint8(64 - logSize),
		maybe: make([]uint64, 1<<(logBits-6)), maybeShift: uint8(64 - logBits),
	}
	clear(t.slots) // new memory that is read before it is written is paged in twice
	return t
}

func pairHash(left, right int32) uint64 {
	h := (uint64(uint32(left))<<32 | uint64(uint32(right))) * 0x9e3779b97f4a7c15
	h ^= h >> 29
	return h * 0xbf58476d1ce4e5b9
}

// find returns the rank of a pair and what it merges to, or noRank.
func (t *pairTable) find(left, right int32) (rank uint32, to int32) {
	h := pairHash(left, right)
	if b := h >> t.maybeShift; t.maybe[b>>6]>>(b&63)&1 == 0 {
		return noRank, none
	}
	s := t.slot(h, left, right)
	return s.rank1 - 1, s.to
}

// first returns where the search for a pair with hash h begins.
func (t *pairTable) first(h uint64) *pairSlot { return &t.slots[h>>t.shift] }

// slot returns the place of a pair with hash h, taken or free.
func (t *pairTable) slot(h uint64, left, right int32) *pairSlot {
	mask := uint64(len(t.slots) - 1)
	for i := h >> t.shift; ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.rank1 == 0 || s.left == left && s.right == right {
			return s
		}
	}
}

// add sets the merge of a pair; a later one replaces an earlier one.
func (t *pairTable) add(left, right int32, rank uint32, to int32) {
	if 3*(t.n+1) > 2*len(t.slots) {
		old := t.slots
		*t = newPairTable(2 * (t.n + 1))
		for _, s := range old {
			if s.rank1 != 0 {
				t.add(s.left, s.right, s.rank1-1, s.to)
			}
		}
	}
	h := pairHash(left, right)
	s := t.slot(h, left, right)
	if s.rank1 == 0 {
		t.n++
	}
	*s = pairSlot{left, right, rank + 1, to}
	b := h >> t.maybeShift
	t.maybe[b>>6] |= 1 << (b & 63)
}

// remove takes out the merges that give a token for which drop holds.
func (t *pairTable) remove(drop []bool) {
	dropped := func(s pairSlot) bool { return s.rank1 != 0 && int(s.to) < len(drop) && drop[s.to] }
	if !slices.ContainsFunc(t.slots, dropped) {
		return // as in most vocabularies
	}
	kept := newPairTable(t.n)
	for _, s := range t.slots {
		if s.rank1 != 0 && !dropped(s) {
			kept.add(s.left, s.right, s.rank1-1, s.to)
		}
	}
	*t = kept
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
		if s := &m.merges.slots[i]; s.rank1 != 0 {
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
		if id := m.lookup(w); id != none && (m.control == nil || !m.control[id]) {
			s.emit(id, base, base+len(w))
			return
		}
	}
	if m.byteLevel && len(w) <= 2 && m.short(s, w, base) {
		return
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
		r := symbolReader{m: m, w: w, unkAt: -1}
		s.symbols = r.read(s.symbols[:0], math.MaxInt)
		m.giveAll(s, m.mergeList(s, s.symbols), w, base)
	}
	if n := len(s.ids) - before; e != nil && n > 0 && n <= len(e.ids) {
		e.keyLen, e.n = uint8(copy(e.key[:], w)), uint8(copy(e.ids[:], s.ids[before:]))
	}
}

// short appends the tokens of a word of one or two bytes that both have a symbol.
func (m *bpe) short(s *scratch, w string, base int) bool {
	first, second := m.byteID[w[0]], m.byteID[w[len(w)-1]]
	if first == none || second == none {
		return false
	}
	if len(w) == 1 {
		s.emit(first, base, base+1)
	} else if rank, to := m.merges.find(first, second); rank != noRank {
		s.emit(to, base, base+2)
	} else {
		s.emit(first, base, base+1)
		s.emit(second, base+1, base+2)
	}
	return true
}

const (
	cacheSize = 1 << 13
	// listLimit is the number of symbols from which a heap beats scanning a list.
	listLimit = 160
)

// cacheEntry holds the ids of one short word; it is 64 bytes long.
type cacheEntry struct {
	keyLen, n uint8
	key       [30]byte
	ids       [8]int32
}

// symbol is a part of a word that merges have not reached yet; it ends where the next
// one begins.
type symbol struct {
	id  int32
	pos int32 // where it begins in the word
}

// symbolReader reads the symbols that a word starts as.
type symbolReader struct {
	m     *bpe
	w     string
	at    int
	unkAt int // start of a run of unknown characters that has no symbol yet, or -1
}

func (r *symbolReader) done() bool { return r.at == len(r.w) }

// read appends symbols to dst until there are n or more, or the word ends.
func (r *symbolReader) read(dst []symbol, n int) []symbol {
	m, w := r.m, r.w
	if m.byteLevel {
		for ; r.at < len(w) && len(dst) < n; r.at++ {
			if id := m.byteID[w[r.at]]; id != none {
				dst = append(dst, symbol{id, int32(r.at)})
			}
		}
		return dst
	}
	for size := 0; r.at < len(w) && len(dst) < n; r.at += size {
		i := r.at
		var c rune
		id := none
		if b := w[i]; b < utf8.RuneSelf {
			size = 1
			id = m.asciiID[b]
		} else if c, size = utf8.DecodeRuneInString(w[i:]); c != utf8.RuneError || size > 1 {
			id = m.lookupRune(c)
		}
		switch {
		case id != none:
			dst = append(r.flush(dst), symbol{id, int32(i)})
		case m.fallback && m.hasBytes(w[i:i+size]):
			for k := i; k < i+size; k++ {
				dst = append(dst, symbol{m.byteID[w[k]], int32(k)})
			}
			if r.unkAt >= 0 {
				r.unkAt = i + size
			}
		case m.unk != none:
			if !m.fuseUnk {
				dst = r.flush(dst)
			}
			if r.unkAt < 0 {
				r.unkAt = i
			}
		}
	}
	if r.done() {
		dst = r.flush(dst)
	}
	return dst
}

// flush appends the symbol of a run of unknown characters, which comes before the
// next known character, behind any bytes between.
func (r *symbolReader) flush(dst []symbol) []symbol {
	if r.unkAt >= 0 {
		dst = append(dst, symbol{r.m.unk, int32(r.unkAt)})
		r.unkAt = -1
	}
	return dst
}

func (m *bpe) hasBytes(s string) bool {
	for i := range len(s) {
		if m.byteID[s[i]] == none {
			return false
		}
	}
	return true
}

// part is a part of a word on its way from one symbol to a token.
type part struct {
	id    int32
	first int32  // the symbol that it begins with
	rank  uint32 // of the pair with the next part
	to    int32  // what that pair merges to
}

// mergeList merges symbols by scanning a list for the lowest rank: quadratic, and
// the fastest for words of a usual length. The result is in s.parts.
func (m *bpe) mergeList(s *scratch, symbols []symbol) []part {
	p := s.parts[:0]
	for i, sym := range symbols {
		if i > 0 {
			p[i-1].rank, p[i-1].to = m.merges.find(p[i-1].id, sym.id)
		}
		p = append(p, part{id: sym.id, first: int32(i), rank: noRank})
	}
	pair := func(i int) {
		p[i].rank = noRank
		if i+1 < len(p) {
			p[i].rank, p[i].to = m.merges.find(p[i].id, p[i+1].id)
		}
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
	s.parts = p
	return p
}

// giveAll emits all tokens that s.symbols became.
func (m *bpe) giveAll(s *scratch, tokens []part, w string, base int) {
	for i, t := range tokens {
		end := len(w)
		if i+1 < len(tokens) {
			end = m.pos(s, tokens[i+1])
		}
		m.give(s, t.id, w, m.pos(s, t), end, base)
	}
}

// mergeLong merges a long word through windows on it, so that time grows with the
// length alone and memory with the tokens.
//
// That is exact. Merges inside tokens of the result never depended on what stands
// beside them, so that a word is merged right if and only if each token and each
// pair of neighbours, merged on its own, gives just itself. In a window that holds
// for all its tokens. Those at its end, which what follows might have changed, are
// left to the next window, and the pair on either side of the border is checked. If
// that fails, the window before is merged again together with this one; if it fails
// there too, the word has merges that reach far, and is merged again with larger
// windows.
func (m *bpe) mergeLong(s *scratch, w string, base int) {
	start := s.mark()
	for size := window; !m.mergeWindows(s, w, base, size); size = min(16*size, math.MaxInt32) {
		s.backTo(start)
	}
}

const (
	window = 1 << 5
	// overlap is the part of a window, as 1/overlap, whose tokens are left to the
	// next one.
	overlap = 4
)

// mergeWindows is mergeLong with windows of size symbols, which must be more than
// the word has or large enough for merges that reach far. It reports false if they
// are not.
func (m *bpe) mergeWindows(s *scratch, w string, base, size int) bool {
	r := symbolReader{m: m, w: w, unkAt: -1}
	s.symbols, s.before, s.merged, s.joined = s.symbols[:0], s.before[:0], s.merged[:0], s.joined[:0]
	s.window, s.windowBefore = s.window[:0], s.windowBefore[:0]
	start := s.mark() // of the window before
	for {
		s.symbols = r.read(s.symbols, size)
		if len(s.symbols) == 0 {
			return true
		}
		tokens := m.mergeWindow(s)
		if len(s.before) > 0 && !m.apart(s, tokens) {
			if len(s.window) == 0 {
				return false
			}
			s.backTo(start)
			s.joint = append(append(s.joint[:0], s.window...), s.symbols...)
			s.symbols, s.joint = s.joint, s.symbols
			s.before, s.window = append(s.before[:0], s.windowBefore...), s.window[:0]
			s.symbols = r.read(s.symbols, 4*size)
			if tokens = m.mergeWindow(s); len(s.before) > 0 && !m.apart(s, tokens) {
				return false
			}
		}
		if r.done() {
			m.giveAll(s, tokens, w, base)
			return true
		}
		last := len(s.symbols) - len(s.symbols)/overlap
		keep := 0
		for keep < len(tokens)-1 && int(tokens[keep].first) < last {
			keep++
		}
		if keep == 0 {
			return false
		}
		start = s.mark()
		for i := range keep {
			m.give(s, tokens[i].id, w, m.pos(s, tokens[i]), m.pos(s, tokens[i+1]), base)
		}
		if s.spent(m.pos(s, tokens[keep]) - m.pos(s, tokens[0])) {
			return true
		}
		from, to := tokens[keep-1].first, tokens[keep].first
		s.windowBefore = append(s.windowBefore[:0], s.before...)
		s.window = append(s.window[:0], s.symbols[:to]...)
		s.before = append(s.before[:0], s.symbols[from:to]...)
		s.symbols = s.symbols[:copy(s.symbols, s.symbols[to:])]
	}
}

// mergeWindow merges s.symbols, which in a repetitive text are those of the window
// before.
func (m *bpe) mergeWindow(s *scratch) []part {
	if !sameIDs(s.symbols, s.merged) {
		m.merge(s, s.symbols)
		s.merged = append(s.merged[:0], s.symbols...)
	}
	return s.parts
}

// apart reports whether the token that s.before became and the first of tokens do
// not merge in any way if they stand side by side.
func (m *bpe) apart(s *scratch, tokens []part) bool {
	first, second := tokens[0].id, len(s.symbols)
	if len(tokens) > 1 {
		second = int(tokens[1].first)
	}
	n := len(s.before)
	s.joint = append(append(s.joint[:0], s.before...), s.symbols[:second]...)
	if sameIDs(s.joint, s.joined) {
		return true
	}
	s.joined = append(s.joined[:0], s.joint...)
	spare := s.parts
	s.parts = s.jointParts
	pair := m.merge(s, s.joint)
	s.parts, s.jointParts = spare, s.parts
	return len(pair) == 2 && int(pair[1].first) == n && pair[1].id == first
}

func sameIDs(a, b []symbol) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].id != b[i].id {
			return false
		}
	}
	return true
}

// pos is where a part of s.symbols begins in the word.
func (m *bpe) pos(s *scratch, t part) int { return int(s.symbols[t.first].pos) }

// link is a symbol in the doubly linked list of mergeHeap.
type link struct {
	id         int32 // none once it is merged into the symbol before
	prev, next int32
	rank       uint32 // of the pair with the next symbol
	to         int32  // what that pair merges to
}

// merge merges symbols in O(n log n). The result is in s.parts.
func (m *bpe) merge(s *scratch, symbols []symbol) []part {
	if len(symbols) <= listLimit {
		return m.mergeList(s, symbols)
	}
	return m.mergeHeap(s, symbols)
}

// mergeHeap is merge by a heap of (rank, symbol index).
func (m *bpe) mergeHeap(s *scratch, symbols []symbol) []part {
	l := s.links[:0]
	for i, sym := range symbols {
		l = append(l, link{id: sym.id, prev: int32(i) - 1, next: int32(i) + 1})
	}
	s.links = l
	l[len(l)-1].next = none
	// rank sets the rank of the pair that starts at symbol i.
	rank := func(i int32) bool {
		left := &l[i]
		left.rank = noRank
		if left.next == none {
			return false
		}
		left.rank, left.to = m.merges.find(left.id, l[left.next].id)
		return left.rank != noRank
	}
	h := s.heap[:0]
	for i := range int32(len(l)) {
		if rank(i) {
			h = append(h, uint64(l[i].rank)<<32|uint64(i))
		}
	}
	h.init()
	for len(h) > 0 {
		top := h[0]
		i := int32(top)
		// An entry is stale if its pair is gone; the pair that stands there now has
		// an entry of its own.
		cur := &l[i]
		if cur.id == none || cur.rank != uint32(top>>32) {
			h.pop()
			continue
		}
		next := &l[cur.next]
		cur.id = cur.to
		next.id = none
		cur.next = next.next
		replaced := false
		if cur.next != none {
			l[cur.next].prev = i
		}
		if rank(i) {
			h.replace(uint64(cur.rank)<<32 | uint64(i))
			replaced = true
		}
		if cur.prev != none && rank(cur.prev) {
			k := uint64(l[cur.prev].rank)<<32 | uint64(cur.prev)
			if replaced {
				h.push(k)
			} else {
				h.replace(k)
				replaced = true
			}
		}
		if !replaced {
			h.pop()
		}
	}
	s.heap = h
	out := s.parts[:0]
	for i := int32(0); i != none; i = l[i].next {
		out = append(out, part{id: l[i].id, first: i})
	}
	s.parts = out
	return out
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

// rankHeap is a four-ary min-heap.
type rankHeap []uint64

func (h rankHeap) init() {
	for i := (len(h) - 2) / 4; i >= 0 && len(h) > 1; i-- {
		h.down(i)
	}
}

func (h rankHeap) down(i int) {
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

func (h *rankHeap) push(v uint64) {
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
func (h rankHeap) replace(v uint64) {
	h[0] = v
	h.down(0)
}

func (h *rankHeap) pop() {
	a := *h
	last := len(a) - 1
	a[0] = a[last]
	a = a[:last]
	if last > 0 {
		a.down(0)
	}
	*h = a
}
