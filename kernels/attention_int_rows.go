//go:build (amd64 || arm64) && !purego

package kernels

import (
	"sync"
	"unsafe"
)

// intTiles is the most tiles of keys that a kernel reads at once.
const intTiles = 4

// intRowsScratch is the part of the scratch that assembly for integers needs.
type intRowsScratch struct {
	factors []float32 // [rows] of queries
	weights []float32 // [rows] factors of weights
	w       []int16   // [rows][attentionStride] weights of a block
	scales  []float32 // [groups][BlockEntries]
	panel   []byte    // [BlockEntries][HeadDim] numbers of 4 bits as int8
	scores  intScores
	values  intValues
}

// bytes is the size of the scratch.
func (s *intRowsScratch) bytes() int {
	return 4*(cap(s.factors)+cap(s.weights)+cap(s.scales)) + 2*cap(s.w) + cap(s.panel)
}

// growInts makes room for integers.
func (t *queryRows) growInts() {
	s := &t.s.ints
	if !t.intKeyed && !t.intValued {
		return
	}
	if rows := t.padded; len(s.n) < rows*attentionStride {
		s.n, s.w = make([]int16, rows*attentionStride), make([]int16, rows*attentionStride)
		s.factors, s.weights = make([]float32, rows), make([]float32, rows)
	}
	if len(s.scales) == 0 {
		s.scales = make([]float32, maxHeadDim/intGroup*BlockEntries)
	}
	if n := BlockEntries * t.KV.HeadDim; (fourBits(t.KV.valueType()) || fourBits(t.KV.Type)) && len(s.panel) < n {
		s.panel = make([]byte, n)
	}
}

// takeInts stores a query in its row.
func (t *queryRows) takeInts(r int, q []float32) {
	s := &t.s.ints
	s.factors[r] = t.c.intQuery(s.n[r*attentionStride:][:len(q)], q, t.KV.Type, t.Scale).factor
}

// segment returns how many of the slots from slot on, at most n, are in one page, the page
// and the first's place in it.
func (kv *KV) segment(slot, n int) (page *Page, entry, count int) {
	page, entry = kv.at(slot)
	return page, entry, min(n, kv.PageEntries-entry)
}

// wholeTiles is n rounded up to whole tiles.
func wholeTiles(n int) int { return (n + TileEntries - 1) &^ (TileEntries - 1) }

// intKeys sets a to n keys of a page from an entry on, whole tiles.
func (kv *KV) intKeys(c CPU, a *intScores, s *intScratch, page *Page, e, n int) {
	r := kv.layout().KeyRows()
	count, size := groups(r.typ, r.dim)
	a.pairs, a.groups, a.tiles = size/2, count, n/TileEntries
	k := unsafe.Add(page.K, cellBytes(r.typ, e*r.dim))
	if !fourBits(r.typ) {
		a.k, a.scales, a.step = k, (*float32)(r.scale(page.K, e, 0)), 0
		return
	}
	unpackInt4(unsafe.Pointer(&s.panel[0]), k, n*r.dim/2)
	for g := range count {
		r.scalesOf(c, s.scales[g*BlockEntries:][:n], page.K, e, g)
	}
	a.k, a.scales, a.step = unsafe.Pointer(&s.panel[0]), &s.scales[0], 4*BlockEntries
}

// intScores computes the scores of the columns [from, to), widened to whole tiles.
func (t *queryRows) intScores(base, from, to int) {
	s, kv, a := t.s, &t.KV, &t.s.ints.scores
	for at := from &^ (TileEntries - 1); at < to; {
		page, e, n := kv.segment(base+at, min(wholeTiles(to-at), intTiles*TileEntries))
		end := at + n
		kv.intKeys(t.c, a, &s.ints, page, e, n)
		a.next = kv.value(base + at)
		for r := 0; r < t.n; r += 4 {
			if s.hi[r+3] <= at || s.lo[r] >= end {
				continue
			}
			a.p, a.q, a.factors = &s.p[r*attentionStride+at], &s.ints.n[r*attentionStride], &s.ints.factors[r]
			t.c.runScores(a)
			a.next = a.k
		}
		at = end
	}
}

// intValues adds the weighted values of the columns [from, to), group by group.
func (t *queryRows) intValues(base, from, to int) {
	s, kv := &t.s.ints, &t.KV
	v := kv.layout().ValueRows()
	count, size := groups(v.typ, v.dim)
	from = from &^ 1
	if fourBits(v.typ) {
		for at := from; at < to; {
			page, e, n := kv.segment(base+at, (to-at+1)&^1)
			src := unsafe.Add(page.V, e/2*v.dim)
			unpackInt4(unsafe.Pointer(&s.panel[at*v.dim]), src, n/2*v.dim)
			at += n
		}
	}
	for g := range count {
		for at := from; at < to; {
			page, e, n := kv.segment(base+at, to-at)
			v.scalesOf(t.c, s.scales[at:at+n], page.V, e, g)
			at += n
		}
		for r := range t.padded {
			t.intWeights(r, from, to)
		}
		t.intSums(base, from, to, g*size, size)
		for r := range t.n {
			scaleInts(&t.s.acc[r*attentionStride+g*size], size, s.weights[r])
		}
	}
}

// intWeights rounds the weights of a row for a group, whose scales are in the scratch, and sets
// those of the other columns in [from, to) to 0.
func (t *queryRows) intWeights(r, from, to int) {
	s := &t.s.ints
	lo, hi := t.s.lo[r]&^(TileEntries-1), wholeTiles(t.s.hi[r])
	w := s.w[r*attentionStride:][:BlockEntries]
	if r >= t.n || t.s.lo[r] >= t.s.hi[r] {
		clear(w[from : (to+1)&^1])
		s.weights[r] = 0
		return
	}
	if from < lo {
		clear(w[from:lo])
	}
	if hi < to {
		clear(w[hi : (to+1)&^1])
	}
	s.weights[r] = t.c.roundInt16(w[lo:hi], t.s.p[r*attentionStride:][lo:hi], s.scales[lo:hi], weightMost)
}

// intSums adds the weighted components c to c+cols-1 of the values of the columns [from, to).
func (t *queryRows) intSums(base, from, to, c, cols int) {
	s, kv, a := t.s, &t.KV, &t.s.ints.values
	a.stride, a.cols = 2*kv.HeadDim, cols
	for at := from; at < to; {
		page, e, n := kv.segment(base+at, (to-at+1)&^1)
		end := at + n
		if fourBits(kv.valueType()) {
			n, end = (to-at+1)&^1, to
			a.v = unsafe.Pointer(&s.ints.panel[at*kv.HeadDim+2*c])
		} else {
			a.v = unsafe.Add(page.V, e*kv.HeadDim+2*c)
		}
		a.pairs, a.next = n/2, a.v
		if next := base + at + BlockEntries; next < t.end && isInt(kv.Type) {
			a.next = kv.key(next)
		}
		for r := 0; r < t.n; r += 4 {
			if s.hi[r+3] <= at || s.lo[r] >= end {
				continue
			}
			a.acc, a.w = &s.acc[r*attentionStride+c], &s.ints.w[r*attentionStride+at]
			t.c.runValues(a)
			a.next = a.v
		}
		at = end
	}
}

// intScoresBuffers is the memory of scoresIntAsm.
type intScoresBuffers struct {
	p       [4 * attentionStride]float32
	q       [4 * attentionStride]int16
	factors [4]float32
	ints    intScratch
}

var intScoresScratch = sync.Pool{New: func() any {
	s := new(intScoresBuffers)
	s.ints.scales = make([]float32, maxHeadDim/intGroup*BlockEntries)
	s.ints.panel = make([]byte, intTiles*TileEntries*maxHeadDim)
	return s
}}

// scoresIntAsm is scoresIntPortable if c has kernels for it.
func (c CPU) scoresIntAsm(dst []float32, q *query, kv *KV, from int) bool {
	if !c.hasAttention(kv) {
		return false
	}
	s := intScoresScratch.Get().(*intScoresBuffers)
	defer intScoresScratch.Put(s)
	clear(s.q[:])
	copy(s.q[:], q.n)
	s.factors = [4]float32{q.factor}
	a := intScores{p: &s.p[0], q: &s.q[0], factors: &s.factors[0]}
	for j := 0; j < len(dst); {
		skip := (from + j) % TileEntries
		page, e, n := kv.segment(from+j-skip, min(wholeTiles(skip+len(dst)-j), intTiles*TileEntries))
		kv.intKeys(c, &a, &s.ints, page, e, n)
		a.next = a.k
		c.runScores(&a)
		j += copy(dst[j:], s.p[skip:n])
	}
	return true
}
