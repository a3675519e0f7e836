package tokenizer

import (
	"hash/maphash"
	"math"
	"math/bits"
	"math/rand/v2"
)

// pieceTable maps pieces to ids. It uses open addressing; its length is a power of
// two and at most two thirds of it is used. Short pieces are stored inline, so
// that finding one takes a single cache miss.
type pieceTable struct {
	slots []pieceSlot
	shift uint8
	n     int
	// maybe holds a bit per hash, so that most text that is not a piece is
	// rejected using only memory that stays in the cache.
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
	clear(t.slots) // fresh memory that is read before it is written is paged in twice
	return t
}

func pieceHash(piece string) uint64 { return maphash.String(hashSeed, piece) }

// first returns where the search for a piece with hash h begins.
func (t *pieceTable) first(h uint64) *pieceSlot { return &t.slots[h>>t.shift] }

// slot returns the slot of a piece with hash h, taken or free.
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

// lookupHashed is lookup for a piece with hash h, in a table that is not empty.
func (m *bpe) lookupHashed(h uint64, piece string) int32 { return m.slot(h, piece).id1 - 1 }

// insert makes id the id of pieces[id], and reports false if that piece already has
// one.
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

// merge joins two neighbouring symbols into one.
type merge struct {
	left, right int32
	rank        uint32 // the lowest merges first; less than noRank
	to          int32
}

const noRank = math.MaxUint32

// pairTable maps a pair of symbols to its rank and the symbol it merges to. Every left
// symbol has its own small table of right ones, so that the pairs of a text's few
// commonest symbols share few cache lines. A pair is in one of two slots of that table
// (cuckoo hashing: Pagh and Rodler, 2001), and both are read at once, without a branch.
type pairTable struct {
	symbols []symbolPairs // by symbol, up to the last that merges
	slots   []pairSlot    // slots[0] is free: the table of symbols that merge with nothing
	seed    uint32
}

// symbolPairs says where a symbol's table is, and holds a bit per hash for the symbols
// that merge with it on its right and on its left, so that most pairs that do not merge
// are recognised without their slots.
type symbolPairs struct {
	rights, lefts uint64
	start, size   uint32
	hash          uint32 // of the symbol
}

// firstPair is what two symbols merge to.
type firstPair struct {
	rank1 uint32 // rank + 1
	to    int32
}

// pairSlot is free if it is zero. A removed merge leaves a slot without a rank.
type pairSlot struct {
	right1 int32  // right + 1
	rank1  uint32 // rank + 1
	to     int32
}

// newPairTable returns the table of merges; if a pair occurs more than once, the
// last one counts.
func newPairTable(merges []merge) pairTable { return seededPairTable(merges, rand.Uint32()) }

// seededPairTable is newPairTable with a given seed. If that seed fails, it tries the
// next one.
func seededPairTable(merges []merge, seed uint32) pairTable {
	for ; ; seed++ {
		if t := (pairTable{seed: seed}); t.fill(merges) {
			return t
		}
	}
}

// fill builds the table of merges. It reports false if the seed gives too many of
// them the same slots.
func (t *pairTable) fill(merges []merge) bool {
	last := none
	for _, m := range merges {
		last = max(last, m.left, m.right)
	}
	t.symbols = make([]symbolPairs, last+1)
	for id := range t.symbols {
		t.symbols[id].hash = t.hash(int32(id))
	}
	for _, m := range merges {
		l, r := &t.symbols[m.left], &t.symbols[m.right]
		l.size++
		l.rights |= 1 << r.bit()
		r.lefts |= 1 << l.bit()
	}
	// byLeft lists merges in the order of their left symbols. start is where a
	// symbol's next merge goes, and in the end where its last one ends.
	byLeft := make([]uint32, len(merges))
	next, total := uint32(0), 1
	for id := range t.symbols {
		l := &t.symbols[id]
		l.start, next = next, next+l.size
		total += firstSize(l.size)
	}
	for i, m := range merges {
		l := &t.symbols[m.left]
		byLeft[l.start] = uint32(i)
		l.start++
	}
	t.slots = make([]pairSlot, 1, total+total/16) // few tables outgrow their first size
	for id := range t.symbols {
		l := &t.symbols[id]
		if !t.fillOne(l, merges, byLeft[l.start-l.size:l.start]) {
			return false
		}
	}
	return true
}

// firstSize is the initial length of the table of n pairs: for n > 1, less than
// half of it is used, so that nearly every seed has a slot for each pair.
func firstSize(n uint32) int {
	if n <= 1 {
		return int(n)
	}
	return int(n)*9/4 + 1
}

// fillOne builds the table of one left symbol from the listed merges. It reports
// false if even a size far beyond the first is not enough.
func (t *pairTable) fillOne(l *symbolPairs, merges []merge, listed []uint32) bool {
	start, first := len(t.slots), firstSize(l.size)
again:
	for size := first; size <= 4*first+64; size += size/2 + 1 {
		l.start, l.size = uint32(start), uint32(size)
		t.slots = append(t.slots[:start], make([]pairSlot, size)...)
		for _, i := range listed {
			if m := &merges[i]; !t.insert(l, pairSlot{m.right + 1, m.rank + 1, m.to}) {
				continue again
			}
		}
		return true
	}
	return false
}

// insert puts a pair into one of its slots, moves the pair that was there to its other
// slot, and so on. It reports false if that does not end.
func (t *pairTable) insert(l *symbolPairs, p pairSlot) bool {
	at, second := l.places(&t.symbols[p.right1-1])
	for _, i := range [2]uint32{at, second} {
		if s := &t.slots[i]; s.right1 == p.right1 {
			*s = p
			return true
		}
	}
	for range l.size + 1 {
		t.slots[at], p = p, t.slots[at]
		if p.right1 == 0 {
			return true
		}
		first, second := l.places(&t.symbols[p.right1-1])
		at ^= first ^ second
	}
	return false
}

// places returns the two slots of the pair of l and r.
func (l *symbolPairs) places(r *symbolPairs) (first, second uint32) {
	high := uint64(r.hash) * uint64(l.size) >> 32
	low := uint64(bits.RotateLeft32(r.hash, 16)) * uint64(l.size) >> 32
	return l.start + uint32(high), l.start + uint32(low)
}

// bit is the bit of a symbol in rights and lefts.
func (s *symbolPairs) bit() uint32 { return s.hash >> 26 }

// find returns the rank of a pair and the result of merging it, or noRank. In unpredictable
// text, whether a pair merges is unpredictable too, so there is no branch on it: a pair
// that certainly does not merge is looked up in slots[0].
func (t *pairTable) find(left, right int32) (rank uint32, to int32) {
	if uint(left) >= uint(len(t.symbols)) || uint(right) >= uint(len(t.symbols)) {
		return noRank, none
	}
	l, r := &t.symbols[left], &t.symbols[right]
	maybe := uint32(l.rights >> r.bit() & (r.lefts >> l.bit()) & 1)
	first, second := l.places(r)
	a, b := &t.slots[maybe*first], &t.slots[maybe*second]
	inA, inB := equal(a.right1, right+1), equal(b.right1, right+1)
	return (a.rank1&inA | b.rank1&inB) - 1, int32(uint32(a.to)&inA | uint32(b.to)&inB)
}

// equal returns all ones if a and b are equal, else zero.
func equal(a, b int32) uint32 { return uint32(int64(uint64(uint32(a^b))-1) >> 63) }

// hash spreads ids over 32 bits, however regular they are. A product with the seed
// alone would crowd them if the seed is close to a simple fraction of 2³².
func (t *pairTable) hash(id int32) uint32 {
	h := (uint32(id) ^ t.seed) * 0x9e3779b1
	return (h ^ h>>16) * 0x85ebca6b
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

// remove removes the merges that produce a token marked in drop, which is indexed
// by piece.
func (t *pairTable) remove(drop []bool) {
	for i := range t.slots {
		if s := &t.slots[i]; s.rank1 != 0 && drop[s.to] {
			s.rank1, s.to = 0, none
		}
	}
}

// joinSet is a set of pairs of characters, kept as a bit map of hashes: it may
// report a pair that was not added, but never misses one that was.
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
