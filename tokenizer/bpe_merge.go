package tokenizer

import "math"

// part is a part of a word that has become a token.
type part struct {
	id    int32
	first int32 // index of the symbol that it begins with
}

// listLimit is the number of symbols up to which scanning all of them for the lowest
// rank beats a heap.
const listLimit = 64

// mergeList is the working memory of mergeShort. Slot i+1 is for symbol i;
// merged symbols leave theirs empty. Slot 0 and the slot after the last symbol
// end the list.
type mergeList struct {
	// keys holds, for each slot, the rank of the pair that begins there (high bits)
	// and the slot (low bits); least holds the lowest key of each group of slots.
	keys       [groups * group]uint64
	least      [groups]uint64
	id, to     [groups * group]int32 // the result of merging the pair
	next, prev [groups * group]uint8
}

const (
	group  = 8
	groups = listLimit/group + 1 // a multiple of three
	// noKey is the lowest key that a pair that does not merge can have.
	noKey = noRank << 32
)

// mergeShort merges up to listLimit symbols. The result is in s.parts.
//
// Minima are computed without branches: on unpredictable text, branches would
// cost more than anything else here.
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
	for i := 1; i < n; i++ {
		rank, to := m.firstMerge(l.id[i], l.id[i+1])
		l.to[i], l.keys[i] = to, uint64(rank)<<32|uint64(i)
	}
	for g := range used {
		l.lower(g)
	}
	for ; used%3 > 0; used++ {
		l.least[used] = noKey // lowest takes three at a time
	}
	for {
		best := l.lowest(used)
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
		l.lower(int(gone / group))
		l.lower(int(before / group))
	}
	out := s.parts[:0]
	for i := 1; i <= n; i = int(l.next[i]) {
		out = append(out, part{l.id[i], int32(i - 1)})
	}
	s.parts = out
	return out
}

// rankPair enters the key of the pair in slots i and j.
func (m *bpe) rankPair(l *mergeList, i, j uint8) {
	rank, to := m.merges.find(l.id[i], l.id[j])
	l.to[i], l.keys[i] = to, uint64(rank)<<32|uint64(i)
}

// lower updates the lowest key of group g.
func (l *mergeList) lower(g int) {
	k := (*[group]uint64)(l.keys[g*group:])
	l.least[g] = min(min(min(k[0], k[1]), min(k[2], k[3])), min(min(k[4], k[5]), min(k[6], k[7])))
}

// lowest returns the lowest key of the first groups, a multiple of three. It is kept
// out of the loop that calls it: there the compiler would compute the minima with
// branches, since the result determines where memory is read next.
//
//go:noinline
func (l *mergeList) lowest(groups int) uint64 {
	best := uint64(noKey)
	for ; groups > 0; groups -= 3 {
		k := (*[3]uint64)(l.least[groups-3:])
		best = min(best, min(k[0], min(k[1], k[2])))
	}
	return best
}

// giveAll emits all tokens that s.symbols became.
func (m *bpe) giveAll(s *scratch, tokens []part, w string, base int) {
	if !s.want && !m.spm {
		for _, t := range tokens {
			s.ids = append(s.ids, t.id)
		}
		return
	}
	for i, t := range tokens {
		end := len(w)
		if i+1 < len(tokens) {
			end = m.pos(s, tokens[i+1])
		}
		m.give(s, t.id, w, m.pos(s, t), end, base)
	}
}

// mergeLong merges a long word window by window, so that time grows only with the
// length and memory with the tokens.
//
// This is exact. Merges inside the tokens of the result never depend on their
// neighbours, so a word is merged correctly if and only if each token and each pair
// of neighbours, merged on its own, yields just itself. Within a window, this holds
// for all its tokens. Those at its end, which the text that follows might change,
// are left to the next window, and the pair across the border is checked. If the
// check fails, the previous window is merged again together with this one; if it
// fails again, the word has merges that reach far, and is merged again with larger
// windows.
func (m *bpe) mergeLong(s *scratch, w string, base int) {
	start := s.mark()
	for size := window; !m.mergeWindows(s, w, base, size); size = min(16*size, math.MaxInt32) {
		s.backTo(start)
	}
}

const (
	window = listLimit
	// overlap: the tokens in the last 1/overlap of a window are left to the next
	// one.
	overlap = 8
)

// mergeWindows is mergeLong with windows of size symbols, which must be large
// enough to hold the word or any merges that reach far. It reports false if they
// are not.
func (m *bpe) mergeWindows(s *scratch, w string, base, size int) bool {
	r := symbolReader{m: m, w: w, unkAt: -1}
	s.symbols, s.before, s.merged, s.joined = s.symbols[:0], s.before[:0], s.merged[:0], s.joined[:0]
	s.window, s.windowBefore = s.window[:0], s.windowBefore[:0]
	start := s.mark() // of the previous window
	for {
		s.symbols = r.read(s.symbols, size)
		if len(s.symbols) == 0 {
			return true
		}
		tokens := m.mergeWindow(s)
		if !m.apart(s, tokens) {
			s.backTo(start)
			s.joint = append(append(s.joint[:0], s.window...), s.symbols...)
			s.symbols, s.joint = s.joint, s.symbols
			s.before, s.window = append(s.before[:0], s.windowBefore...), s.window[:0]
			s.symbols = r.read(s.symbols, 4*size)
			if tokens = m.mergeWindow(s); !m.apart(s, tokens) {
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

// mergeWindow merges s.symbols, which in repetitive text often equal those of the
// previous window.
func (m *bpe) mergeWindow(s *scratch) []part {
	if !sameIDs(s.symbols, s.merged) {
		m.merge(s, s.symbols)
		s.merged = append(s.merged[:0], s.symbols...)
	}
	return s.parts
}

// apart reports whether the token that s.before became, if there is one, and the first
// of tokens stay as they are when they are adjacent.
func (m *bpe) apart(s *scratch, tokens []part) bool {
	if len(s.before) == 0 {
		return true
	}
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
	id         int32 // none once it is merged into the previous symbol
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

// mergeHeap is merge using a heap of (rank, symbol index).
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
		// An entry is stale if its pair is gone; the pair that is there now has its
		// own entry.
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
