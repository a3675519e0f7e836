package tokenizer

import (
	"hash/maphash"
	"math"
	"slices"
	"unicode/utf8"
)

// none is the id of no token.
const none int32 = -1

// bpe is the byte pair encoding shared by all three file formats. Every piece is
// held as the bytes of text it stands for.
//
// A word starts as one symbol per byte (byteLevel) or per character, and
// neighbours are merged, lowest rank first and leftmost first among equals, until
// no pair of neighbours has a rank.
type bpe struct {
	pieces []string // by id; "" for ids that the model cannot produce
	vocab  pieceTable
	merges pairTable

	byteLevel    bool
	ignoreMerges bool       // a word that is a piece becomes that token, whatever the merges say
	control      []bool     // by id: whether it is a special token, which no ordinary text becomes; or nil
	byteID       [256]int32 // symbol of a byte: its initial symbol if byteLevel, else its fallback; or none
	runeID       map[rune]int32
	asciiID      [utf8.RuneSelf]int32
	fallback     bool // characters outside the vocabulary become their bytes, if all of those are in it
	unk          int32
	fuseUnk      bool
	maxPiece     int // length of the longest piece

	// firstPairs holds what symbols firstLow to firstLow+255 merge to. In published
	// vocabularies those are the bytes or the commonest characters; nil if there are
	// none.
	firstPairs *[firstSymbols][firstSymbols]firstPair
	firstLow   int32
	byteJoins  *byteSet // if byteLevel: neighbours in pieces, since nothing merges across any others; or nil

	// complete says that every character, and every byte that is not part of one, has
	// symbols of its own, and that byte symbols merge with nothing: joins does not
	// know which characters they stand for.
	complete bool
	// joins holds the pairs of characters that are adjacent in the result of a
	// merge. Nothing ever merges across any other pair, so a text may be cut there
	// before it is encoded.
	joins joinSet

	// spm: ids from len(pieces) on stand for single characters that occur in pieces
	// but are not pieces themselves.
	spm bool
}

// firstSymbols is the number of symbols that firstPairs covers.
const firstSymbols = 256

// sealWords computes firstPairs and byteJoins.
func (m *bpe) sealWords() {
	first := m.asciiID[:]
	if m.byteLevel {
		first = m.byteID[:]
	}
	m.firstLow = math.MaxInt32
	for _, id := range first {
		if id != none {
			m.firstLow = min(m.firstLow, id)
		}
	}
	if m.firstLow == math.MaxInt32 {
		return
	}
	m.firstPairs = new([firstSymbols][firstSymbols]firstPair)
	for i := range m.firstPairs {
		for j := range m.firstPairs[i] {
			rank, to := m.merges.find(m.firstLow+int32(i), m.firstLow+int32(j))
			m.firstPairs[i][j] = firstPair{rank + 1, to}
		}
	}
	if !m.byteLevel || slices.Contains(m.byteID[:], none) {
		return
	}
	m.byteJoins = new(byteSet)
	for _, piece := range m.pieces {
		m.byteJoins.addPiece(piece)
	}
}

// seal computes the fields that follow from the pieces and merges.
func (m *bpe) seal() {
	if m.byteLevel {
		return
	}
	m.complete = m.fallback
	isByte := make([]bool, len(m.pieces))
	for _, id := range m.byteID {
		if m.complete = m.complete && id != none; m.complete {
			isByte[id] = true
		}
	}
	for r := range m.asciiID {
		m.asciiID[r] = m.lookupRune(rune(r))
	}
	m.joins = newJoinSet()
	for j := range m.merges.all {
		m.joins.addPiece(m.pieces[j.to]) // the text of both
		for _, id := range [2]int32{j.left, j.right} {
			if int(id) < len(isByte) && isByte[id] {
				m.complete = false
			}
		}
	}
}

func (m *bpe) lookupRune(r rune) int32 {
	if id, ok := m.runeID[r]; ok {
		return id
	}
	return none
}

// known reports whether r is a piece of its own.
func (m *bpe) known(r rune) bool {
	id := m.lookupRune(r)
	return id != none && int(id) < len(m.pieces)
}

// encode appends the tokens of the text s.cur[start:end], which neither added
// tokens nor pre-tokenizers cut any further.
func (m *bpe) encode(s *scratch, start, end int) {
	text := s.cur[start:end]
	if m.byteLevel {
		m.word(s, text, start)
		return
	}
	if m.ignoreMerges {
		if id := m.whole(text); id != none {
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
		// U+FFFD may be an invalid byte, whether or not U+FFFD itself is known.
		if !m.joins.has(prev, r) && (m.complete ||
			r != utf8.RuneError && prev != utf8.RuneError && m.known(prev) && m.known(r)) {
			m.word(s, text[from:i], start+from)
			from = i
		}
		prev = r
	}
	if from < len(text) {
		m.word(s, text[from:], start+from)
	}
}

// whole returns the piece equal to text, if ordinary text may become it, or none.
func (m *bpe) whole(text string) int32 {
	id := m.lookup(text)
	if id != none && m.control != nil && m.control[id] {
		return none
	}
	return id
}

// word appends the tokens of one word; base is where it starts in s.cur.
func (m *bpe) word(s *scratch, w string, base int) {
	s.unkLast = false
	if m.byteJoins != nil && (len(w) == 1 || !m.byteJoins.has(w[0], w[1])) {
		m.cutBytes(s, w, base)
		return
	}
	if m.byteLevel && m.ignoreMerges {
		if id := m.whole(w); id != none {
			s.emit(id, base, base+len(w))
			return
		}
	}
	m.join(s, w, base)
}

// cutBytes is word for a word that is not a piece, or a single byte: it cuts
// wherever nothing merges across. Few ordinary words are of this kind, most random
// bytes are.
func (m *bpe) cutBytes(s *scratch, w string, base int) {
	for from := 0; from < len(w) && !s.spent(0); {
		to := from + 1
		for to < len(w) && m.byteJoins.has(w[to-1], w[to]) {
			to++
		}
		if to == from+1 {
			s.emit(m.byteID[w[from]], base+from, base+to)
		} else {
			m.join(s, w[from:to], base+from)
		}
		from = to
	}
}

// join appends the tokens that merging makes of a word or part of one.
func (m *bpe) join(s *scratch, w string, base int) {
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

// short appends the tokens of a word of one or two bytes, or reports false if these
// are not symbols and pieces.
func (m *bpe) short(s *scratch, w string, base int) bool {
	if len(w) == 1 && w[0] >= utf8.RuneSelf && m.complete {
		s.emit(m.byteID[w[0]], base, base+1)
		return true
	}
	first, second := m.byteSymbol(w[0]), m.byteSymbol(w[len(w)-1])
	if first == none || second == none {
		return false
	}
	if len(w) == 1 {
		s.emit(first, base, base+1)
	} else if rank, to := m.firstMerge(first, second); rank != noRank {
		s.emit(to, base, base+2)
	} else {
		s.emit(first, base, base+1)
		s.emit(second, base+1, base+2)
	}
	return true
}

// firstMerge finds what two initial symbols of a word merge to.
func (m *bpe) firstMerge(left, right int32) (rank uint32, to int32) {
	i, j := uint32(left-m.firstLow), uint32(right-m.firstLow)
	if m.firstPairs == nil || i >= firstSymbols || j >= firstSymbols {
		return m.merges.find(left, right)
	}
	p := &m.firstPairs[i][j]
	return p.rank1 - 1, p.to
}

// byteSymbol returns the piece that is the initial symbol of b alone, or
// none.
func (m *bpe) byteSymbol(b byte) int32 {
	if m.byteLevel {
		return m.byteID[b]
	}
	if b >= utf8.RuneSelf || int(m.asciiID[b]) >= len(m.pieces) {
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

// symbol is a part of a word before any merge; it ends where the next one begins.
type symbol struct {
	id  int32
	pos int32 // where it begins in the word
}

// symbolReader reads the initial symbols of a word.
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

// flush appends the symbol of a run of unknown characters, which goes before the
// next known character, after any bytes in between.
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

// give emits the symbol id that stands for w[start:end].
func (m *bpe) give(s *scratch, id int32, w string, start, end, base int) {
	if m.spm && (id == m.unk || int(id) >= len(m.pieces)) {
		if m.fallback {
			for k := start; k < end; k++ {
				s.emit(m.byteID[w[k]], base+k, base+k+1)
			}
			return
		}
		// Adjacent unknown symbols become one token.
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
