//go:build (amd64 || arm64) && !purego

package kernels

import "unsafe"

const (
	maxHeadDim = 256 // of the scratch rows

	attentionRows = 64 // rows (query heads of tokens) that share a pass over the cache
	valueSlots    = 64 // slots whose values stay in the first-level cache meanwhile
)

type (
	scoresFunc func(p, q *float32, k unsafe.Pointer, d, n int, next unsafe.Pointer, scale float32)
	valuesFunc func(acc, p *float32, v unsafe.Pointer, stride, n, cols int, next unsafe.Pointer)
)

// attentionAsm computes attention in tiles of attentionRows rows. Per block of
// the cache it computes the scores of all rows, turns them into weights and adds
// the weighted values; four rows at a time share what is loaded.
func (c CPU) attentionAsm(a *AttentionArgs, s *AttentionScratch) bool {
	if !c.vector() || a.KV.HeadDim%16 != 0 || a.KV.HeadDim < 1 || a.KV.HeadDim > maxHeadDim {
		return false
	}
	s.grow((min(attentionRows, a.N*a.Group)+3)&^3, a.KV.HeadDim)
	for from := 0; from < a.N*a.Group; from += attentionRows {
		t := attentionTile{AttentionArgs: a, s: s, c: c, from: from, n: min(attentionRows, a.N*a.Group-from)}
		t.run()
	}
	return true
}

// attentionTile is n rows of an attention call; row r is head (from+r)%Group of
// token (from+r)/Group.
type attentionTile struct {
	*AttentionArgs
	s       *AttentionScratch
	c       CPU
	from, n int
	end     int // slots that the last row sees
}

func (t *attentionTile) row(r int) (off, lo, hi int) {
	i, g := (t.from+r)/t.Group, (t.from+r)%t.Group
	lo, hi = t.slots(i)
	return i*t.Stride + g*t.KV.HeadDim, lo, hi
}

func (t *attentionTile) run() {
	d, s := t.KV.HeadDim, t.s
	for r := range (t.n + 3) &^ 3 {
		q, out := s.q[r*attentionStride:][:d], s.out[r*attentionStride:][:d]
		clear(out)
		s.all[r] = Softmax{Max: minusInf}
		if r >= t.n {
			clear(q)
			continue
		}
		off, _, _ := t.row(r)
		copy(q, t.Q[off:off+d])
	}
	_, lo, _ := t.row(0)
	_, _, hi := t.row(t.n - 1)
	t.end = hi
	for at := lo; at < hi; {
		end := min(hi, (at/BlockEntries+1)*BlockEntries)
		t.block(at, end)
		at = end
	}
	for r := range t.n {
		off, _, _ := t.row(r)
		out := t.Out[off : off+d]
		if s.all[r].Sum == 0 {
			clear(out)
		} else {
			divideAsm(&out[0], &s.out[r*attentionStride], d, s.all[r].Sum)
		}
		if t.Stats != nil {
			t.Stats[t.from+r] = s.all[r]
		}
	}
}

// block advances all rows over the logical slots [from, to) of one block.
func (t *attentionTile) block(from, to int) {
	s := t.s
	// Slot numbers in the block; column 0 of the scores is the start of the block.
	base := from / BlockEntries * BlockEntries
	for r := range t.n {
		_, lo, hi := t.row(r)
		lo, hi = max(lo, base)-base, min(hi, to)-base
		s.lo[r], s.hi[r] = lo, max(lo, hi)
	}
	for r := t.n; r%4 != 0; r++ {
		s.lo[r], s.hi[r] = s.lo[t.n-1], s.hi[t.n-1]
	}
	t.scores(base, from-base, to-base)
	for r := range t.n {
		lo, hi := s.lo[r], s.hi[r]
		if lo == hi {
			continue
		}
		p := s.p[r*attentionStride:][:BlockEntries]
		first, end := lo&^(TileEntries-1), (hi+TileEntries-1)&^(TileEntries-1)
		for j := first; j < lo; j++ {
			p[j] = minusInf
		}
		for j := hi; j < end; j++ {
			p[j] = minusInf
		}
		t.c.softmaxBlock(&p[first], end-first, &s.part[r])
		clear(s.acc[r*attentionStride:][:t.KV.HeadDim])
	}
	t.values(base, from-base, to-base)
	for r := range t.n {
		if s.lo[r] < s.hi[r] {
			mergeAsm(&s.out[r*attentionStride], &s.acc[r*attentionStride], t.KV.HeadDim, &s.all[r], &s.part[r])
		}
	}
}

// scores computes the scores of the columns [from, to), widened to whole tiles.
func (t *attentionTile) scores(base, from, to int) {
	s, kv := t.s, &t.KV
	one, four := t.c.scores4(kv.Type)
	for at := from &^ (TileEntries - 1); at < to; {
		slot := base + at - kv.Base
		page, e := &kv.Pages[slot/kv.PageEntries], slot%kv.PageEntries
		tiles := min((to-at+TileEntries-1)/TileEntries, (kv.PageEntries-e)/TileEntries)
		if tiles > 4 {
			tiles = 4 // their keys stay in the first-level cache for all rows
		}
		end := at + tiles*TileEntries
		k := unsafe.Add(page.K, e*kv.HeadDim*kv.Type.Size())
		next := kv.value(base + at)
		for r := 0; r < t.n; r += 4 {
			// Limits grow with the row.
			if s.hi[r+3] <= at || s.lo[r] >= end {
				continue
			}
			p, q := &s.p[r*attentionStride+at], &s.q[r*attentionStride]
			if tiles == 4 && four != nil {
				four(p, q, k, kv.HeadDim, 1, next, t.Scale)
			} else {
				one(p, q, k, kv.HeadDim, tiles, next, t.Scale)
			}
		}
		at = end
	}
}

// values adds the weighted values of the columns [from, to).
func (t *attentionTile) values(base, from, to int) {
	kv := &t.KV
	stride := kv.HeadDim * kv.Type.Size()
	for at := from; at < to; {
		slot := base + at - kv.Base
		page, e := &kv.Pages[slot/kv.PageEntries], slot%kv.PageEntries
		end := min(to, at+kv.PageEntries-e, at+valueSlots)
		v := unsafe.Add(page.V, e*stride)
		next := v
		if ahead := base + at + BlockEntries; ahead < t.end {
			next = kv.key(ahead)
		}
		for r := 0; r < t.n; r += 4 {
			t.valuesOf(r, v, at, end, next)
		}
		at = end
	}
}

// valuesOf adds the values of the columns [at, end), which start at v, to rows r to r+3.
func (t *attentionTile) valuesOf(r int, v unsafe.Pointer, at, end int, next unsafe.Pointer) {
	s, kv := t.s, &t.KV
	stride := kv.HeadDim * kv.Type.Size()
	lo, hi := s.lo[r+3], s.hi[r] // what all four rows see
	if hi <= lo {
		lo, hi = BlockEntries, BlockEntries
	}
	one, four, wide := t.c.values4(kv.Type)
	ragged := s.lo[r] != s.lo[r+3] || s.hi[r] != s.hi[r+3]
	single := func(from, to int) {
		for i := r; i < min(r+4, t.n); i++ {
			if f, e := max(from, s.lo[i]), min(to, s.hi[i]); f < e {
				one(&s.acc[i*attentionStride], &s.p[i*attentionStride+f], unsafe.Add(v, (f-at)*stride), stride, e-f, kv.HeadDim, nil)
			}
		}
	}
	if ragged {
		single(at, min(end, lo))
	}
	if f, e := max(at, lo), min(end, hi); f < e {
		acc, p, v := &s.acc[r*attentionStride], &s.p[r*attentionStride+f], unsafe.Add(v, (f-at)*stride)
		done := 0
		if wide != nil && kv.HeadDim >= 64 {
			done = kv.HeadDim &^ 63
			wide(acc, p, v, stride, e-f, done, next)
		}
		if done < kv.HeadDim {
			four(&s.acc[r*attentionStride+done], p, unsafe.Add(v, done*kv.Type.Size()), stride, e-f, kv.HeadDim-done, next)
		}
	}
	if ragged {
		single(max(at, hi), end)
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
		k := unsafe.Add(page.K, (e-skip)*kv.HeadDim*kv.Type.Size())
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

// The assembly, in attention_amd64.go and attention_arm64.go:
//
//   - vector reports whether c has kernels at all.
//   - scores4 returns the kernels for 4 rows: any number of tiles, and one or
//     more groups of four tiles or nil. scores1 computes
//     the scores of one row with n tiles.
//   - values4 returns the kernels for one row, for four, and for four and a
//     multiple of 64 columns or nil. All want a multiple of 16 columns.
//   - softmaxBlock replaces the n scores at p, n a positive multiple of 16 and p
//     in lane 0, by their weights relative to the largest.
//   - mergeAsm is mergePortable for n components, a multiple of 16; a receives the result.
//   - divideAsm sets dst[i] = x[i]/total + 0 for a multiple of 16 components.
//   - softmaxWeightsAsm is softmaxWeightsPortable for as many of the first
//     slots as it returns.
