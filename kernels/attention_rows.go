//go:build (amd64 || arm64) && !purego

package kernels

import "unsafe"

const (
	intRows = 48 // the most in a tile of attention over integers

	fewRows = 16 // up to this many rows read the cache directly; more read panels

	panelColumns = 64  // keys, or columns of values, of a panel
	panelSlots   = 128 // of a panel of values, whose 32 KiB stay in the first-level cache for all rows
	valueSlots   = 64  // the same for values that are read directly
)

type (
	scoresFunc func(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
	valuesFunc func(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
	panelFunc  func(dst *float32, src unsafe.Pointer, stride, step, n, cols int)
)

// attentionKernels holds the kernels of one instruction set for one type of cache,
// or for attention in bf16.
//
// Kernels of attention in bf16 (dot) work on pairs: they require even numbers of
// components and slots, add the second of each pair first and flush. Those with bf16
// product instructions are packed: queries and weights are then bf16 at the start of
// their rows, and an element of a panel holds two numbers, of neighbouring components
// or slots. Those that report take, in place of an address to prefetch, the address of
// a word that they set to 1 where the processor may have flushed a number that the
// contract rounds to the smallest normal one.
type attentionKernels struct {
	dot, packed, reports bool

	// steady holds kernels for 4 rows that request one line at a time, evenly, or is nil.
	steady *attentionKernels

	// Scores of 4 rows with n tiles; with n groups of four tiles, or nil. scores16 takes
	// the address of a hint for next.
	scores4, scores16 scoresFunc

	// Weighted values of n slots for one row, for four, and for four with a multiple of
	// 64 columns, or nil. All require a multiple of 16 columns. values64 takes the address
	// of a hint for next.
	values1, values4, values64 valuesFunc

	// Panels of n rows of a multiple of 16 columns, up to 64; rows of src (pairs of rows
	// if packed) are stride bytes apart, and groups of 16 columns in a row step bytes.
	panelK, panelV panelFunc

	// scores6 computes the scores of groups of 6 rows with the 64 keys of a panel.
	// It may prefetch from nextK and nextV, pace bytes (an even number) with every
	// component of a group. values6 adds the weighted values of n slots to a
	// multiple of 16 components of groups of 6 rows, panelValues1 to those of one row.
	scores6      func(p, q, k *float32, d, groups int, nextK, nextV unsafe.Pointer, pace int, scale float32)
	values6      func(acc, p, v *float32, n, groups, cols int, next unsafe.Pointer)
	panelValues1 valuesFunc

	// softmax replaces the first n scores of each of an even number of rows with their
	// weights relative to the largest; n is a positive multiple of 16 and p is in lane 0.
	softmax func(p *float32, n, rows int, st *Softmax)
}

// attentionAsm computes attention in tiles of at most attentionRows rows. For each
// block of the cache it computes the scores of all rows, turns them into weights and
// adds the weighted values. Groups of rows share what is loaded: 4 rows where there are
// few and reading the cache dominates; otherwise 6, after the keys or values have been
// widened to panels, once for all groups.
func (c CPU) attentionAsm(a *AttentionArgs, s *AttentionScratch) bool {
	if !c.hasAttention(&a.KV) {
		return false
	}
	if a.N*a.Group == 0 {
		return true
	}
	t := a.rows(c, s)
	for rows := t.padded; t.from < a.N*a.Group; t.from += rows {
		t.take(rows)
		t.run()
	}
	return t.exact()
}

// hasAttention reports whether there are kernels for a head.
func (c CPU) hasAttention(kv *KV) bool {
	d := kv.HeadDim
	return c.vector() && d%16 == 0 && d >= 1 && d <= maxHeadDim
}

// rows chooses the kernels for the rows of a call, and sets padded to the size of its tiles.
func (a *AttentionArgs) rows(c CPU, s *AttentionScratch) queryRows {
	rows := a.N * a.Group
	if c.SlowDot && rows > fewRows || c.Streaming == streamNear && rows <= 4 {
		// For 4 rows on AMD's cores: kernels that widen request memory about as fast as it
		// delivers. Those with dot products are a third faster and lose by it, since the
		// processor drops requests that it cannot make at once.
		c.AVX512BF16 = false
	}
	t := queryRows{
		AttentionArgs: a, s: s, c: c, k: c.attentionKernels(a.KV.floatType(), a.BF16), group: 4,
		// Whether keys and values are integers.
		intKeyed: isInt(a.KV.Type), intValued: isInt(a.KV.valueType()),
	}
	if c.Streaming == streamFar && rows <= 4 && t.k.steady != nil {
		t.k = t.k.steady
	}
	most := attentionRows
	switch {
	case t.intKeyed || t.intValued:
		most = intRows
	case rows > fewRows:
		t.group = 6
	}
	if rows > fewRows {
		// Tiles of about the same size.
		tiles := (rows + most - 1) / most
		rows = (rows + tiles - 1) / tiles
	}
	rows = (rows + t.group - 1) / t.group * t.group
	s.grow(rows, a.KV.HeadDim)
	if t.group == 6 {
		s.growPanels(a.KV.HeadDim)
	}
	t.padded = rows
	t.growInts()
	return t
}

// take makes t the tile of at most rows rows that begins at t.from.
func (t *queryRows) take(rows int) {
	t.n = min(rows, t.N*t.Group-t.from)
	t.padded = (t.n + t.group - 1) / t.group * t.group
}

// exact reports whether kernels flushed nothing that the contract keeps.
func (t *queryRows) exact() bool {
	if t.k.reports && t.s.tiny[0] != 0 {
		t.s.tiny[0] = 0
		return false
	}
	return true
}

// blocksAsm is [CPU.AttentionBlocks] for the slots [from, to).
func (c CPU) blocksAsm(a *AttentionArgs, from, to int, b *AttentionBlocks, s *AttentionScratch) bool {
	d := a.KV.HeadDim
	if !c.hasAttention(&a.KV) {
		return false
	}
	t := a.rows(c, s)
	for rows := t.padded; t.from < a.Group; t.from += rows {
		t.take(rows)
		t.begin()
		t.end = to
		for at := from; at < to; {
			end := min(to, (at/BlockEntries+1)*BlockEntries)
			t.block(at, end)
			values, stats := b.block(a, at)
			for r := range t.n {
				acc := s.acc[r*attentionStride:][:d]
				copy(values[(t.from+r)*d:], acc)
				clear(acc)
			}
			copy(stats[t.from:], s.part[:t.n])
			at = end
		}
	}
	return t.exact()
}

// mergeAsm is [CPU.MergeAttention].
func (c CPU) mergeAsm(a *AttentionArgs, b *AttentionBlocks, s *AttentionScratch) bool {
	d := a.KV.HeadDim
	if !c.hasAttention(&a.KV) {
		return false
	}
	s.grow(1, d)
	lo, hi := a.slots(0)
	for g := range a.Group {
		sum, all := s.out[:d], &s.all[0]
		clear(sum)
		*all = Softmax{Max: minusInf}
		for at := lo; at < hi; at = (at/BlockEntries + 1) * BlockEntries {
			values, stats := b.block(a, at)
			c.mergeRows(&sum[0], &values[g*d], d, 1, all, &stats[g])
		}
		if out := a.Out[g*d:][:d]; all.Sum == 0 {
			clear(out)
		} else {
			divideAsm(&out[0], &sum[0], d, all.Sum)
			a.KV.rotateBack(c, out)
		}
		if a.Stats != nil {
			a.Stats[g] = *all
		}
	}
	return true
}

// queryRows is n rows of an attention call; row r is head (from+r)%Group of
// token (from+r)/Group. Rows from n to padded fill the last group: they have the
// limits of the last row, and their results are ignored.
type queryRows struct {
	*AttentionArgs
	s                   *AttentionScratch
	c                   CPU
	k                   *attentionKernels
	group               int // rows that share a register tile
	intKeyed, intValued bool
	from, n             int
	padded              int // n rounded up to whole groups
	end                 int // slots that the last row sees
}

// row returns the offset of row r in Q and Out, and its token.
func (t *queryRows) row(r int) (off, i int) {
	i, g := (t.from+r)/t.Group, (t.from+r)%t.Group
	return i*t.Stride + g*t.KV.HeadDim, i
}

// weight points to the weight of row r in column j, or to a pair of them.
func (t *queryRows) weight(r, j int) *float32 {
	size := 4
	if t.k.packed {
		size = 2
	}
	return (*float32)(unsafe.Add(unsafe.Pointer(&t.s.p[r*attentionStride]), j*size))
}

// ahead returns what a kernel takes for next: next itself, or the word that it reports in.
func (t *queryRows) ahead(next unsafe.Pointer) unsafe.Pointer {
	if t.k.reports {
		return unsafe.Pointer(&t.s.tiny[0])
	}
	return next
}

// stream is ahead for kernels of few rows, which are memory-bound: an odd address tells
// them to prefetch into the second-level cache.
func (t *queryRows) stream(next unsafe.Pointer) unsafe.Pointer {
	if t.c.Streaming != streamNear {
		next = unsafe.Add(next, 1)
	}
	return t.ahead(next)
}

// hintSlots is the number of slots that kernels of 64 columns process at once.
const hintSlots = 4 * TileEntries

// upcoming returns what to prefetch while the keys or values of the columns from at on are
// read: keys or values of the slots from slot on. With keys, these are the values of the same
// slots; with values, the keys of the next block. Where the first-level cache has room for it,
// kernels of 64 columns instead prefetch what is half a block further on, in the order in which
// pages hold it: that is not the order of reading, but the processor's own look-ahead continues
// with neighbouring lines.
func (t *queryRows) upcoming(base, at int, keys bool) (slot int, ofKeys bool) {
	slot, ofKeys = base+at, !keys
	switch {
	case t.c.Streaming == streamNear && t.k.scores16 != nil:
		const half = BlockEntries / hintSlots // kernel calls in half of the work on a block
		i := at/hintSlots + half
		if !keys {
			i += half
		}
		slot, ofKeys = max(slot, base+i/2*hintSlots), i%2 == 0
	case !keys:
		slot += BlockEntries
	}
	if slot >= t.end {
		return base + at, false
	}
	return slot, ofKeys
}

// hint records what kernels of 64 columns prefetch, the keys or values of the 64 slots from
// slot on, and returns the address of the record. The first address in it is odd where lines
// go to the second-level cache only.
//
// A kernel requests four lines at a time. They are neighbours, except with streamRuns: there
// memory delivers lines of different 4 KiB pages faster than consecutive ones. Shorter heads
// have fewer such pages in 64 slots, so the neighbouring 64 slots are requested at the same
// time, half of both each time.
func (t *queryRows) hint(slot int, keys bool) unsafe.Pointer {
	kv, h := &t.KV, t.s.hint
	if t.k.scores16 == nil {
		return nil
	}
	first := kv.address(slot, keys)
	if t.c.Streaming != streamRuns {
		h[0], h[1], h[2], h[3], h[4] = first, first+64, first+128, first+192, 4
		if t.c.Streaming != streamNear {
			h[0]++
		}
		return unsafe.Pointer(&h[0])
	}
	quarter := uintptr(kv.Type.Bytes(TileEntries * kv.HeadDim))
	h[0], h[1], h[2], h[3], h[4] = first, first+quarter, first+2*quarter, first+3*quarter, 1
	other := kv.Base + ((slot - kv.Base) ^ hintSlots)
	if quarter < 4096 && other < t.end {
		second := kv.address(other, keys)
		if other < slot {
			first, second = second+quarter, first+quarter
		}
		h[0], h[1], h[2], h[3] = first, first+2*quarter, second, second+2*quarter
	}
	h[0]++
	return unsafe.Pointer(&h[0])
}

// place returns where the keys or the value of a slot are; address returns it as an integer,
// for prefetching only.
func (kv *KV) place(slot int, keys bool) unsafe.Pointer {
	if keys {
		return kv.key(slot)
	}
	return kv.value(slot)
}

func (kv *KV) address(slot int, keys bool) uintptr { return uintptr(kv.place(slot, keys)) }

// takeQuery stores a query in its row of the scratch.
func (t *queryRows) takeQuery(row, q []float32) {
	switch {
	case t.intKeyed: // see takeInts
	case t.k.packed:
		t.c.RoundBF16(unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(row))), len(q)), q)
	case t.k.dot:
		t.c.RoundedBF16(row, q)
	default:
		copy(row, q)
	}
}

// begin fills the scratch of the rows.
func (t *queryRows) begin() {
	d, s := t.KV.HeadDim, t.s
	for r := range t.padded {
		q := s.q[r*attentionStride:][:d]
		clear(s.acc[r*attentionStride:][:d])
		clear(s.out[r*attentionStride:][:d])
		s.all[r] = Softmax{Max: minusInf}
		if r >= t.n {
			clear(q)
			s.from[r], s.to[r] = s.from[t.n-1], s.to[t.n-1]
			continue
		}
		off, i := t.row(r)
		t.takeQuery(q, t.Q[off:off+d])
		if t.intKeyed {
			t.takeInts(r, t.Q[off:off+d])
		}
		s.from[r], s.to[r] = t.slots(i)
	}
	t.end = s.to[t.n-1]
}

func (t *queryRows) run() {
	d, s := t.KV.HeadDim, t.s
	t.begin()
	for at := s.from[0]; at < t.end; {
		end := min(t.end, (at/BlockEntries+1)*BlockEntries)
		t.block(at, end)
		t.merge()
		at = end
	}
	for r := range t.n {
		off, _ := t.row(r)
		out := t.Out[off : off+d]
		if s.all[r].Sum == 0 {
			clear(out)
		} else {
			divideAsm(&out[0], &s.out[r*attentionStride], d, s.all[r].Sum)
			t.KV.rotateBack(t.c, out)
		}
		if t.Stats != nil {
			t.Stats[t.from+r] = s.all[r]
		}
	}
}

// block computes the weighted values of all rows over the logical slots [from, to)
// of one block, and their part of the statistics. From here on, slots are columns,
// counted from the start of the block, base.
func (t *queryRows) block(from, to int) {
	s := t.s
	base := from / BlockEntries * BlockEntries
	for r, lo := range s.from[:t.padded] {
		s.lo[r] = min(max(lo, from), to) - base
		s.hi[r] = max(s.lo[r], min(s.to[r], to)-base)
	}
	from, to = from-base, to-base
	switch {
	case t.intKeyed:
		t.intScores(base, from, to)
	case t.group == 6:
		t.panelScores(base, from, to)
	default:
		t.scores(base, from, to)
	}
	if t.Cap > 0 {
		for r := range t.n {
			t.c.SoftCap(s.p[r*attentionStride:][s.lo[r]:s.hi[r]], t.Cap)
		}
	}
	for r := 0; r < t.padded; r += t.group {
		t.weights(r)
	}
	switch {
	case t.intValued:
		t.intValues(base, from, to)
	case t.group == 6:
		t.panelValues(base, from, to)
	default:
		t.values(base, from, to)
	}
}

// merge adds a block to the rows' results from the earlier ones.
func (t *queryRows) merge() {
	s := t.s
	// Limits grow with the row: those that see nothing here come first or last.
	first, last := 0, t.n
	for first < last && s.lo[first] == s.hi[first] {
		first++
	}
	for first < last && s.lo[last-1] == s.hi[last-1] {
		last--
	}
	if first < last {
		t.c.mergeRows(&s.out[first*attentionStride], &s.acc[first*attentionStride], t.KV.HeadDim, last-first, &s.all[first], &s.part[first])
	}
}

// weights turns the scores of the group of rows from r on into weights.
func (t *queryRows) weights(r int) {
	s := t.s
	first := s.lo[r] &^ (TileEntries - 1)
	if t.k.packed {
		first = 0 // weights stand at the start of their row
	}
	end := (s.hi[r+t.group-1] + TileEntries - 1) &^ (TileEntries - 1)
	if first >= end {
		return
	}
	rows := min(t.group, (t.n-r+1)&^1)
	for i := r; i < r+rows; i++ {
		p := s.p[i*attentionStride:][:BlockEntries]
		for j := first; j < s.lo[i]; j++ {
			p[j] = minusInf
		}
		for j := s.hi[i]; j < end; j++ {
			p[j] = minusInf
		}
	}
	t.k.softmax(&s.p[r*attentionStride+first], end-first, rows, &s.part[r])
}

// panelScores computes the scores of the columns [from, to), panel by panel.
// What a panel holds beyond them is left over, and no row sees its scores.
func (t *queryRows) panelScores(base, from, to int) {
	s, kv := t.s, &t.KV
	row := kv.Type.Bytes(TileEntries)
	stride, n := row, kv.HeadDim
	if t.k.packed {
		stride, n = 2*row, n/2
	}
	from &^= TileEntries - 1
	for at := from &^ (panelColumns - 1); at < to; at += panelColumns {
		end := at + panelColumns
		for j := max(at, from); j < min(end, to); {
			slot := base + j
			cols := min(end-j, (to-j+TileEntries-1)&^(TileEntries-1), kv.PageEntries-(slot-kv.Base)%kv.PageEntries)
			t.k.panelK(&s.k[j-at], kv.key(slot), stride, row*kv.HeadDim, n, cols)
			j += cols
		}
		first, last := 0, t.padded
		for first < last && s.hi[first+5] <= at {
			first += 6
		}
		for first < last && s.lo[last-6] >= end {
			last -= 6
		}
		if first < last {
			nextV := kv.value(base + max(at, from))
			nextK := nextV
			if base+end < t.end {
				nextK = kv.key(base + end)
			}
			groups := (last - first) / 6
			pace := (kv.Type.Bytes(panelColumns)/2/groups + 1) * 2
			t.k.scores6(&s.p[first*attentionStride+at], &s.q[first*attentionStride], &s.k[0], kv.HeadDim, groups, t.ahead(nextK), nextV, pace, t.Scale)
		}
	}
}

// panelValue points to the values of column j in the panel of values that begins at column at.
func (t *queryRows) panelValue(j, at int) *float32 {
	if t.k.packed {
		return &t.s.v[(j-at)/2*panelColumns]
	}
	return &t.s.v[(j-at)*panelColumns]
}

// panelValues adds the weighted values of the columns [from, to), panel by panel.
func (t *queryRows) panelValues(base, from, to int) {
	s, kv := t.s, &t.KV
	size := kv.Type.Bytes(1)
	if t.k.dot {
		// Whole pairs: a page has an even number of slots.
		from, to = from&^1, (to+1)&^1
	}
	for at := from; at < to; {
		end := min(to, at+panelSlots)
		// Groups in which every row sees all of these columns.
		first, last := 0, t.padded
		for first < last && s.hi[first] < end {
			first += 6
		}
		for first < last && s.lo[last-1] > at {
			last -= 6
		}
		for c := 0; c < kv.HeadDim; c += panelColumns {
			cols := min(panelColumns, kv.HeadDim-c)
			for j := at; j < end; {
				slot := base + j
				n := min(end-j, kv.PageEntries-(slot-kv.Base)%kv.PageEntries)
				dst, src := t.panelValue(j, at), unsafe.Add(kv.value(slot), c*size)
				if t.k.packed {
					t.k.panelV(dst, src, 2*kv.HeadDim*size, TileEntries*size, n/2, cols)
				} else {
					t.k.panelV(dst, src, kv.HeadDim*size, TileEntries*size, n, cols)
				}
				j += n
			}
			if first < last {
				t.k.values6(&s.acc[first*attentionStride+c], t.weight(first, at), &s.v[0], end-at, (last-first)/6, cols, t.ahead(nil))
			}
			for r := 0; r < t.padded; r += 6 {
				if r < first || r >= last {
					t.panelEdge(r, c, cols, at, end)
				}
			}
		}
		at = end
	}
}

// panelEdge adds the values of the columns [at, end), which the panel holds, to
// components c to c+cols-1 of the rows r to r+5, not all of which see all of them.
func (t *queryRows) panelEdge(r, c, cols, at, end int) {
	s := t.s
	lo, hi := max(at, s.lo[r+5]), min(end, s.hi[r]) // what all see
	if t.k.dot {
		lo, hi = (lo+1)&^1, hi&^1
	}
	lo = min(lo, end)
	hi = max(hi, lo)
	for i := r; i < min(r+6, t.n); i++ {
		t.panelRow(i, c, cols, at, max(at, s.lo[i]), min(lo, s.hi[i]))
	}
	if lo < hi {
		t.k.values6(&s.acc[r*attentionStride+c], t.weight(r, lo), t.panelValue(lo, at), hi-lo, 1, cols, t.ahead(nil))
	}
	for i := r; i < min(r+6, t.n); i++ {
		t.panelRow(i, c, cols, at, max(hi, s.lo[i]), min(end, s.hi[i]))
	}
}

// panelRow adds the values of the columns [from, to) of the panel that begins at
// column at to row r alone.
func (t *queryRows) panelRow(r, c, cols, at, from, to int) {
	for from < to {
		n := to - from
		v := unsafe.Pointer(t.panelValue(from, at))
		j := from
		if t.k.dot {
			if n &^= 1; from%2 != 0 || n == 0 {
				j, n = from&^1, 2
				v = t.halfPanel(j, at, from%2)
			}
		}
		t.k.panelValues1(&t.s.acc[r*attentionStride+c], t.weight(r, j), v, 4*panelColumns, n, cols, t.ahead(nil))
		from = j + n
	}
}

// halfPanel returns a copy of the two slots from column j on in the panel that
// begins at column at, with zeros for the slot other than which (0 or 1).
func (t *queryRows) halfPanel(j, at, which int) unsafe.Pointer {
	v := t.panelValue(j, at)
	if t.k.packed {
		dst := (*[panelColumns]uint32)(unsafe.Pointer(&t.s.half[0]))
		mask := uint32(0xffff) << (16 * which)
		for i, x := range (*[panelColumns]uint32)(unsafe.Pointer(v)) {
			dst[i] = x & mask
		}
		return unsafe.Pointer(dst)
	}
	dst := (*[2][panelColumns]float32)(unsafe.Pointer(&t.s.half[0]))
	dst[which] = (*[2][panelColumns]float32)(unsafe.Pointer(v))[which]
	dst[1-which] = [panelColumns]float32{}
	return unsafe.Pointer(dst)
}

// scores computes the scores of the columns [from, to), widened to whole tiles.
func (t *queryRows) scores(base, from, to int) {
	s, kv := t.s, &t.KV
	for at := from &^ (TileEntries - 1); at < to; {
		slot := base + at - kv.Base
		page, e := &kv.Pages[slot/kv.PageEntries], slot%kv.PageEntries
		tiles := min((to-at+TileEntries-1)/TileEntries, (kv.PageEntries-e)/TileEntries)
		if tiles > 4 {
			tiles = 4 // their keys stay in the first-level cache for all rows
		}
		end := at + tiles*TileEntries
		k := unsafe.Add(page.K, kv.Type.Bytes(e*kv.HeadDim))
		ahead, keys := t.upcoming(base, at, true)
		next, hint := t.stream(kv.place(ahead, keys)), t.hint(ahead, keys)
		for r := 0; r < t.n; r += 4 {
			// Limits grow with the row.
			if s.hi[r+3] <= at || s.lo[r] >= end {
				continue
			}
			p, q := &s.p[r*attentionStride+at], &s.q[r*attentionStride]
			if tiles == 4 && t.k.scores16 != nil {
				t.k.scores16(p, q, k, kv.HeadDim, 1, hint, t.Scale)
			} else {
				t.k.scores4(p, q, k, kv.HeadDim, tiles, next, t.Scale)
			}
		}
		at = end
	}
}

// values adds the weighted values of the columns [from, to).
func (t *queryRows) values(base, from, to int) {
	kv := &t.KV
	stride := kv.Type.Bytes(kv.HeadDim)
	for at := from; at < to; {
		if t.k.dot {
			at &^= 1
		}
		slot := base + at - kv.Base
		page, e := &kv.Pages[slot/kv.PageEntries], slot%kv.PageEntries
		end := min(to, at+kv.PageEntries-e, at+valueSlots)
		v := unsafe.Add(page.V, e*stride)
		ahead, keys := t.upcoming(base, at, false)
		next := kv.place(ahead, keys)
		t.hint(ahead, keys)
		for r := 0; r < t.n; r += 4 {
			t.valuesOf(r, v, at, end, t.stream(next))
		}
		at = end
	}
}

// valuesOf adds the values of the columns [at, end), which start at v, to rows r to r+3.
func (t *queryRows) valuesOf(r int, v unsafe.Pointer, at, end int, next unsafe.Pointer) {
	s := t.s
	if s.lo[r] == s.lo[r+3] && s.hi[r] == s.hi[r+3] {
		t.rowValues(4, r, v, at, max(at, s.lo[r]), min(end, s.hi[r]), next)
		return
	}
	lo, hi := s.lo[r+3], s.hi[r] // what all four rows see
	if t.k.dot {
		lo, hi = (lo+1)&^1, hi&^1
	}
	if hi <= lo {
		lo, hi = BlockEntries, BlockEntries
	}
	for i := r; i < min(r+4, t.n); i++ {
		t.rowValues(1, i, v, at, max(at, s.lo[i]), min(end, lo, s.hi[i]), t.ahead(nil))
	}
	t.rowValues(4, r, v, at, max(at, lo), min(end, hi), next)
	for i := r; i < min(r+4, t.n); i++ {
		t.rowValues(1, i, v, at, max(at, hi, s.lo[i]), min(end, s.hi[i]), t.ahead(nil))
	}
}

// rowValues adds the values of the columns [from, to) to the one or four rows from
// r on, which see all of them; the values of column at start at v.
func (t *queryRows) rowValues(rows, r int, v unsafe.Pointer, at, from, to int, next unsafe.Pointer) {
	s, d := t.s, t.KV.HeadDim
	size := t.KV.Type.Bytes(1)
	stride := d * size
	for from < to {
		n, j := to-from, from
		src := unsafe.Add(v, (from-at)*stride)
		if t.k.dot {
			if n &^= 1; from%2 != 0 || n == 0 {
				j, n = from&^1, 2
				src = t.halfValues(unsafe.Add(v, (j-at)*stride), from%2)
			}
		}
		acc, p := &s.acc[r*attentionStride], t.weight(r, j)
		done := 0
		switch {
		case rows == 1:
			t.k.values1(acc, p, src, stride, n, d, next)
			done = d
		case t.k.values64 != nil:
			if done = d &^ 63; done > 0 {
				t.k.values64(acc, p, src, stride, n, done, unsafe.Pointer(&t.s.hint[0]))
			}
		}
		if done < d {
			t.k.values4(&s.acc[r*attentionStride+done], p, unsafe.Add(src, done*size), stride, n, d-done, next)
		}
		from = j + n
	}
}

// halfValues returns a copy of the bf16 values of the two slots at v, with zeros
// for the slot other than which (0 or 1).
func (t *queryRows) halfValues(v unsafe.Pointer, which int) unsafe.Pointer {
	d := t.KV.HeadDim
	dst := unsafe.Slice((*uint16)(unsafe.Pointer(&t.s.half[0])), 2*d)
	clear(dst)
	copy(dst[which*d:][:d], unsafe.Slice((*uint16)(v), 2*d)[which*d:])
	return unsafe.Pointer(&t.s.half[0])
}

// growPanels makes room for the panels of heads of d components.
func (s *AttentionScratch) growPanels(d int) {
	if len(s.k) < d*panelColumns {
		s.k = make([]float32, d*panelColumns)
	}
	if s.v == nil {
		s.v = make([]float32, panelSlots*panelColumns)
	}
}

func (c CPU) attentionScores(dst, q []float32, kv *KV, from int, scale float32) {
	if !c.vector() || len(q) != kv.HeadDim {
		scoresPortable(dst, q, kv, from, scale)
		return
	}
	var tile [TileEntries]float32
	for j := 0; j < len(dst); {
		slot := from + j - kv.Base
		page, e := &kv.Pages[slot/kv.PageEntries], slot%kv.PageEntries
		skip := e % TileEntries
		k := unsafe.Add(page.K, kv.Type.Bytes((e-skip)*kv.HeadDim))
		if n := min(len(dst)-j, kv.PageEntries-e) / TileEntries; skip == 0 && n > 0 {
			c.scores1(kv.Type, &dst[j], &q[0], k, kv.HeadDim, n, scale)
			j += n * TileEntries
			continue
		}
		c.scores1(kv.Type, &tile[0], &q[0], k, kv.HeadDim, 1, scale)
		j += copy(dst[j:], tile[skip:])
	}
}

func (c CPU) softmaxWeights(dst []float32, st Softmax) {
	n := 0
	if c.vector() && len(dst) > 0 {
		n = c.softmaxWeightsAsm(&dst[0], len(dst), st)
	}
	softmaxWeightsPortable(dst[n:], st)
}

// minWeights is minWeight for the assembly.
//
//lint:ignore U1000 read by assembly
var minWeights = float32(minWeight)

// The assembly, in attention_amd64.go and attention_arm64.go:
//
//   - vector reports whether c has kernels at all; attentionKernels returns them.
//   - scores1 computes the scores of one row with n tiles.
//   - mergeRows is mergePortable for n components, a multiple of 16, of some rows; a
//     receives the result. It leaves acc cleared for the next block.
//   - divideAsm sets dst[i] = x[i]/total + 0 for a multiple of 16 components.
//   - softmaxWeightsAsm is softmaxWeightsPortable for the first slots, and returns
//     how many.
