package tokenizer

import (
	"hash/maphash"
	"math"
	"math/bits"
	"math/rand/v2"
)

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
	if len(piece) > m.maxPiece {
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
	symbols []symbolPairs // by symbol, up to the last that merges
	slots   []pairSlot    // slots[0] is free: the table of those that merge with nothing
	seed    uint32
}

// symbolPairs say where a symbol's table is, and hold a bit per hash of the symbols that
// merge with it on its right and on its left, so that most pairs that do not merge are
// known without their slot.
type symbolPairs struct {
	start, size   uint32
	rights, lefts uint64
}

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
func newPairTable(merges []merge) pairTable { return seededPairTable(merges, rand.Uint32()) }

// seededPairTable is newPairTable with a seed that is not left to chance.
func seededPairTable(merges []merge, seed uint32) pairTable {
	last := none
	for _, m := range merges {
		last = max(last, m.left, m.right)
	}
	t := pairTable{symbols: make([]symbolPairs, last+1), seed: seed}
	for _, m := range merges {
		l := &t.symbols[m.left]
		l.size++
		l.rights |= 1 << t.bit(m.right)
		t.symbols[m.right].lefts |= 1 << t.bit(m.left)
	}
	total := uint32(1)
	for i := range t.symbols {
		if l := &t.symbols[i]; l.size > 0 {
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

// find returns the rank of a pair and what it merges to, or noRank. Whether a pair of a
// text that cannot be foreseen merges cannot be either, so that it is no branch: a pair
// that certainly does not is looked for in slots[0].
func (t *pairTable) find(left, right int32) (rank uint32, to int32) {
	if uint(left) >= uint(len(t.symbols)) || uint(right) >= uint(len(t.symbols)) {
		return noRank, none
	}
	l, h := &t.symbols[left], t.hash(right)
	maybe := uint32(l.rights >> (h >> 26) & (t.symbols[right].lefts >> t.bit(left)) & 1)
	at := uint32(uint64(h) * uint64(l.size) >> 32)
	s := &t.slots[maybe*(l.start+at)]
	// While the slot is taken and is another pair's, in one branch.
	for uint64(uint32(s.right1))*uint64(uint32(s.right1^(right+1))) != 0 {
		at = (at + 1) & (l.size - 1)
		s = &t.slots[l.start+at]
	}
	return s.rank1 - 1, s.to
}

// hash spreads ids of any regularity over 32 bits. A product with the seed alone would
// crowd them where that lies close to a simple fraction of 2³².
func (t *pairTable) hash(id int32) uint32 {
	h := (uint32(id) ^ t.seed) * 0x9e3779b1
	return (h ^ h>>16) * 0x85ebca6b
}

// bit is the place of a symbol in rights and lefts.
func (t *pairTable) bit(id int32) uint32 { return t.hash(id) >> 26 }

// slot returns the place of a pair, taken or free.
func (t *pairTable) slot(left, right int32) *pairSlot {
	l := &t.symbols[left]
	i := uint32(uint64(t.hash(right)) * uint64(l.size) >> 32)
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
	for left, l := range t.symbols {
		for _, s := range t.slots[l.start : l.start+l.size] {
			if s.rank1 != 0 && !yield(merge{int32(left), s.right1 - 1, s.rank1 - 1, s.to}) {
				return
			}
		}
	}
}

// remove takes out the merges that give a token for which drop, by piece, holds.
func (t *pairTable) remove(drop []bool) {
	for i := range t.slots {
		if s := &t.slots[i]; s.rank1 != 0 && drop[s.to] {
			s.rank1, s.to = 0, none
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

// byteSet is a set of pairs of bytes.
type byteSet [1 << 16 / 64]uint64

func (j *byteSet) has(x, y byte) bool { return j[uint(x)<<2|uint(y>>6)]>>(y&63)&1 != 0 }

// addPiece enters all neighbours in a piece.
func (j *byteSet) addPiece(piece string) {
	for i := 1; i < len(piece); i++ {
		x, y := piece[i-1], piece[i]
		j[uint(x)<<2|uint(y>>6)] |= 1 << (y & 63)
	}
}
