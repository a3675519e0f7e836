package tokenizer

import (
	"hash/maphash"
	"math"
	"math/bits"
	"math/rand/v2"
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

	// bytePairs hold what two bytes merge to where symbols of bytes are numbered
	// from lowByte to lowByte+255, as in every published byteLevel vocabulary; or nil.
	bytePairs *[256][256]byteMerge
	lowByte   int32

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
	// maybe holds a bit per hash, so that what is no piece is mostly known from
	// memory that stays in the cache.
	maybe      []uint64
	maybeShift uint8
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
	logBits := max(logSize+3, 6)
	t := pieceTable{
		slots: make([]pieceSlot, 1<<logSize), shift: uint8(64 - logSize),
		maybe: make([]uint64, 1<<(logBits-6)), maybeShift: uint8(64 - logBits),
	}
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
	h := pieceHash(piece)
	if b := h >> m.vocab.maybeShift; m.vocab.maybe[b>>6]>>(b&63)&1 == 0 {
		return none
	}
	return m.lookupHashed(h, piece)
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
	b := h >> m.vocab.maybeShift
	m.vocab.maybe[b>>6] |= 1 << (b & 63)
	s.id1, s.len = id+1, longPiece
	if len(piece) <= len(s.key) {
		s.len = uint8(copy(s.key[:], piece))
	}
	return true
}

// merge joins two neighbouring symbols to one.
type merge struct {
	left, right int32
	rank        uint32 // the lowest goes first; less than noRank
	to          int32
}

const noRank = math.MaxUint32

// pairTable maps a pair of symbols to its rank and the symbol it merges to. Every
// left symbol has a small table of its own, open addressing and a power of two
// long, for its right ones: the pairs of a text's few commonest symbols lie in few
// lines of memory.
type pairTable struct {
	lefts []leftTable // by left symbol, up to the last that merges
	slots []pairSlot  // slots[0] is free: the table of those that merge with nothing
	seed  uint32
}

type leftTable struct{ start, size uint32 }

// byteMerge is what two bytes merge to.
type byteMerge struct {
	rank1 uint32 // rank + 1
	to    int32
}

// pairSlot is free where it is zero. What a removed merge leaves has no rank.
type pairSlot struct {
	right1 int32  // right + 1
	rank1  uint32 // rank + 1
	to     int32
}

// newPairTable returns the table of merges; of those of one pair the last counts.
func newPairTable(merges []merge) pairTable {
	last := none
	for _, m := range merges {
		last = max(last, m.left)
	}
	t := pairTable{lefts: make([]leftTable, last+1), seed: rand.Uint32() | 1}
	for _, m := range merges {
		t.lefts[m.left].size++
	}
	total := uint32(1)
	for i := range t.lefts {
		if l := &t.lefts[i]; l.size > 0 {
			l.start, l.size = total, 1<<bits.Len32(l.size+l.size/2)
			total += l.size
		}
	}
	t.slots = make([]pairSlot, total)
	clear(t.slots) // new memory that is read before it is written is paged in twice
	for _, m := range merges {
		*t.slot(m.left, m.right) = pairSlot{m.right + 1, m.rank + 1, m.to}
	}
	return t
}

// find returns the rank of a pair and what it merges to, or noRank.
func (t *pairTable) find(left, right int32) (rank uint32, to int32) {
	if uint(left) >= uint(len(t.lefts)) {
		return noRank, none
	}
	s := t.slot(left, right)
	return s.rank1 - 1, s.to
}

// slot returns the place of a pair, taken or free.
func (t *pairTable) slot(left, right int32) *pairSlot {
	l := t.lefts[left]
	i := uint32(uint64(uint32(right)*t.seed) * uint64(l.size) >> 32)
	for {
		s := &t.slots[l.start+i]
		if s.right1 == right+1 || s.right1 == 0 {
			return s
		}
		i = (i + 1) & (l.size - 1)
	}
}

// all calls yield with every merge.
func (t *pairTable) all(yield func(merge) bool) {
	for left, l := range t.lefts {
		for _, s := range t.slots[l.start : l.start+l.size] {
			if s.rank1 != 0 && !yield(merge{int32(left), s.right1 - 1, s.rank1 - 1, s.to}) {
				return
			}
		}
	}
}

// remove takes out the merges that give a token for which drop holds.
func (t *pairTable) remove(drop []bool) {
	for i := range t.slots {
		if s := &t.slots[i]; s.rank1 != 0 && int(s.to) < len(drop) && drop[s.to] {
			s.rank1, s.to = 0, none
		}
	}
}

// sealBytes computes bytePairs.
func (m *bpe) sealBytes() {
	low, high := slices.Min(m.byteID[:]), slices.Max(m.byteID[:])
	if !m.byteLevel || low == none || high-low != 255 {
		return
	}
	m.lowByte, m.bytePairs = low, new([256][256]byteMerge)
	for i := range m.bytePairs {
		for j := range m.bytePairs[i] {
			rank, to := m.merges.find(low+int32(i), low+int32(j))
			m.bytePairs[i][j] = byteMerge{rank + 1, to}
		}
	}
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
	for j := range m.merges.all {
		m.joins.addPiece(m.symbol(j.left) + m.symbol(j.right))
		m.joins.addPiece(m.symbol(j.to))
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
	if len(w) <= 2 && m.short(s, w, base) {
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
		m.giveAll(s, m.mergeShort(s, s.symbols), w, base)
	}
	if n := len(s.ids) - before; e != nil && n > 0 && n <= len(e.ids) {
		e.keyLen, e.n = uint8(copy(e.key[:], w)), uint8(copy(e.ids[:], s.ids[before:]))
	}
}

// short appends the tokens of a word of one or two bytes that are symbols and pieces.
func (m *bpe) short(s *scratch, w string, base int) bool {
	first, second := m.byteSymbol(w[0]), m.byteSymbol(w[len(w)-1])
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

// byteSymbol returns the piece that stands for b alone where a word starts as
// symbols, or none.
func (m *bpe) byteSymbol(b byte) int32 {
	if m.byteLevel {
		return m.byteID[b]
	}
	if b >= utf8.RuneSelf || int(m.asciiID[b]) >= len(m.pieces) || m.asciiID[b] == m.unk {
		return none
	}
	return m.asciiID[b]
}

const cacheSize = 1 << 13

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

// part is a part of a word that has become a token.
type part struct {
	id    int32
	first int32 // the symbol that it begins with
}

// listLimit is the number of symbols up to which scanning all of them for the lowest
// rank beats a heap.
const listLimit = 64

// mergeList is where mergeShort works. Slot i+1 is for symbol i; merged symbols
// leave theirs empty. Slot 0 and the one behind the last symbol end the list.
type mergeList struct {
	// keys hold the rank of the pair that begins at a slot, over the slot, and least
	// the lowest key of each group of slots.
	keys       [groups * group]uint64
	least      [groups]uint64
	id, to     [groups * group]int32 // what the pair merges to
	next, prev [groups * group]uint8
}

const (
	group  = 8
	groups = listLimit/group + 1
	// noKey is below every key of a pair that does not merge.
	noKey = noRank << 32
)

// mergeShort merges up to listLimit symbols. The result is in s.parts.
//
// Minima are taken without a branch: on text that cannot be foreseen, branches
// would cost more than anything else here.
func (m *bpe) mergeShort(s *scratch, symbols []symbol) []part {
	l := &s.list
	n := len(symbols)
	used := n/group + 1
	for i := range l.keys[:used*group] {
		l.keys[i] = noKey
	}
	l.id[0], l.id[n+1] = none, none
	for i, sym := range symbols {
		l.id[i+1], l.next[i+1], l.prev[i+1] = sym.id, uint8(i+2), uint8(i)
	}
	if m.bytePairs != nil {
		for i := 1; i < n; i++ {
			p := &m.bytePairs[uint8(l.id[i]-m.lowByte)][uint8(l.id[i+1]-m.lowByte)]
			l.to[i], l.keys[i] = p.to, uint64(p.rank1-1)<<32|uint64(i)
		}
	} else {
		for i := 1; i < n; i++ {
			m.rankPair(l, uint8(i), uint8(i+1))
		}
	}
	for g := range used {
		l.lower(g)
	}
	for {
		best := uint64(noKey)
		for _, k := range l.least[:used] {
			best = min(best, k)
		}
		if best >= noKey {
			break
		}
		i := uint8(best)
		gone, before := l.next[i], l.prev[i]
		after := l.next[gone]
		l.id[i], l.next[i], l.prev[after], l.keys[gone] = l.to[i], after, i, noKey
		m.rankPair(l, i, after)
		m.rankPair(l, before, i)
		l.lower(int(i / group))
		if g := gone / group; g != i/group {
			l.lower(int(g))
		}
		if g := before / group; g != i/group {
			l.lower(int(g))
		}
	}
	out := s.parts[:0]
	for i := 1; i <= n; i = int(l.next[i]) {
		out = append(out, part{l.id[i], int32(i - 1)})
	}
	s.parts = out
	return out
}

// rankPair enters the pair of slots i and j.
func (m *bpe) rankPair(l *mergeList, i, j uint8) {
	rank, to := m.merges.find(l.id[i], l.id[j])
	l.to[i], l.keys[i] = to, uint64(rank)<<32|uint64(i)
}

// lower finds the lowest key of a group.
func (l *mergeList) lower(g int) {
	k := (*[group]uint64)(l.keys[g*group:])
	l.least[g] = min(min(min(k[0], k[1]), min(k[2], k[3])), min(min(k[4], k[5]), min(k[6], k[7])))
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
	window = listLimit
	// overlap is the part of a window, as 1/overlap, whose tokens are left to the
	// next one.
	overlap = 8
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
	if n == s.joinedAt && sameIDs(s.joint, s.joined) {
		return true
	}
	spare := s.parts
	s.parts = s.jointParts
	pair := m.merge(s, s.joint)
	s.parts, s.jointParts = spare, s.parts
	if len(pair) != 2 || int(pair[1].first) != n || pair[1].id != first {
		return false
	}
	s.joined, s.joinedAt = append(s.joined[:0], s.joint...), n
	return true
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
		return m.mergeShort(s, symbols)
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
