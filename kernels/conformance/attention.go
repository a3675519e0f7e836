package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// cache is the cache of one sequence in one layer, on both sides.
type cache struct {
	r     *rig
	l     kernels.PageLayout
	heads []*cachedHead
}

// cachedHead is a KV head's entries from logical slot base on.
type cachedHead struct {
	pages   []kernels.DevicePage
	table   kernels.PageTable
	blocks  []byte // pages as the host arranges them, aligned as kernels want them
	entries int
	base    int
}

// newCache makes a cache whose heads hold random entries, with room for more.
func (r *rig) newCache(rng *rand.Rand, pool kernels.PagePool, l kernels.PageLayout, entries, bases []int, more int) *cache {
	r.t.Helper()
	c := &cache{r: r, l: l}
	for h, n := range entries {
		x := &cachedHead{entries: n, base: bases[h]}
		pages := (n + more + l.PageEntries - 1) / l.PageEntries
		x.blocks = aligned(pages * l.Bytes())
		for e := range n {
			x.store(l, e, normal(rng, l.HeadDim), normal(rng, l.HeadDim), int32(x.base+e))
		}
		var err error
		x.pages, err = pool.Alloc(nil, pages)
		ok(r.t, err)
		ok(r.t, pool.Write(context.Background(), x.pages, x.blocks))
		x.table, err = pool.Table()
		ok(r.t, err)
		ok(r.t, x.table.Set(x.pages, 0))
		r.t.Cleanup(func() {
			x.table.Free()
			pool.Unref(x.pages)
		})
		c.heads = append(c.heads, x)
	}
	return c
}

// aligned returns n zeroed bytes at a multiple of 64.
func aligned(n int) []byte {
	b := make([]byte, n+64)
	return b[-uintptr(unsafe.Pointer(unsafe.SliceData(b)))%64:][:n:n]
}

// block returns the host's page of an entry, and the entry's place there.
func (x *cachedHead) block(l kernels.PageLayout, entry int) (block []byte, e int) {
	return x.blocks[entry/l.PageEntries*l.Bytes():][:l.Bytes()], entry % l.PageEntries
}

// store writes an entry to the host's pages.
func (x *cachedHead) store(l kernels.PageLayout, entry int, key, value []float32, position int32) {
	block, e := x.block(l, entry)
	keysOf(l).store(block, e, key)
	valuesOf(l).store(block, e, value)
	binary.LittleEndian.PutUint32(block[l.PositionsAt()+4*e:], uint32(position))
}

// entry returns a key and a value of the host's pages.
func (x *cachedHead) entry(l kernels.PageLayout, entry int) (key, value []float32) {
	block, e := x.block(l, entry)
	return keysOf(l).load(block, e), valuesOf(l).load(block, e)
}

// position returns the position of an entry of the host's pages.
func (x *cachedHead) position(l kernels.PageLayout, entry int) int32 {
	block, e := x.block(l, entry)
	return int32(binary.LittleEndian.Uint32(block[l.PositionsAt()+4*e:]))
}

// kv is the view of the host's pages.
func (x *cachedHead) kv(l kernels.PageLayout) kernels.KV {
	kv := kernels.KV{Type: l.Type, Values: l.Values, HeadDim: l.HeadDim, PageEntries: l.PageEntries, Base: x.base}
	for block := range slices.Chunk(x.blocks, l.Bytes()) {
		p := unsafe.Pointer(unsafe.SliceData(block))
		kv.Pages = append(kv.Pages, kernels.Page{K: p, V: unsafe.Add(p, l.ValuesAt())})
	}
	return kv
}

// set tells an attention where the cache is.
func (c *cache) set(a kernels.Attention, layer, seq int) {
	for h, x := range c.heads {
		a.SetHead(layer, seq, h, x.table, x.entries, x.base)
	}
}

// attentionCase is a pass over sequences whose heads hold different numbers of entries.
type attentionCase struct {
	l         kernels.PageLayout
	heads, kv int
	window    int
	bf16      bool
	cap       float32 // of scores, 0 for none
	turning   turning
	rows      []int // of each sequence
	entries   [][]int
}

// turning says how a pass rotates queries and keys.
type turning uint8

const (
	turned   turning = iota
	factored         // queries have a factor, too
	still            // not at all
)

func (s *suite) attentionCases() (list []attentionCase) {
	add := func(t pageTypes, dim, page, heads, kv, window int, rows []int, entries ...[]int) {
		c := attentionCase{l: t.layout(dim, page), heads: heads, kv: kv, window: window, rows: rows, entries: entries}
		list = append(list, c)
		if c.bf16 = t == (pageTypes{keys: tensor.BF16}); c.bf16 {
			list = append(list, c)
		}
		switch {
		case heads == 10:
			c.cap = 0.9
		case kv == 2 && dim == 64:
			c.turning = still
		case window > 0:
			c.turning, c.cap = factored, 2
		default:
			c.turning = factored
		}
		list = append(list, c)
	}
	for _, t := range s.pageTypes {
		add(t, 64, 32, 6, 2, 0, []int{1}, []int{70, 3})
		add(t, 32, 16, 10, 1, 0, []int{19, 1, 5}, []int{0}, []int{600}, []int{255})
		add(t, 128, 64, 4, 4, 0, []int{3}, []int{250, 256, 0, 300})
		add(t, 40, 64, 3, 1, 60, []int{6, 33}, []int{500}, []int{10})
		add(t, 12, 16, 4, 2, 0, []int{1, 1}, []int{520, 40}, []int{1, 0})
		add(t, 16, 16, 16, 1, 21, []int{2}, []int{100})
	}
	return list
}

// attention appends rows to ragged caches and attends to them.
func (s *suite) attention(t *testing.T) {
	for _, c := range s.attentionCases() {
		t.Run(fmt.Sprintf("%v,dim%d,heads%d/%d,window%d,rows%v,bf16=%v,cap%g,turning%d", typesOf(c.l), c.l.HeadDim, c.heads, c.kv, c.window, c.rows, c.bf16, c.cap, c.turning), func(t *testing.T) {
			s.attend(t, c)
		})
	}
}

// pass is an attention case on both sides.
type pass struct {
	attentionCase
	n         int // rows
	pool      kernels.PagePool
	caches    []*cache
	spans     []kernels.RowSpan
	positions []int32

	q, k, v, turns []float32 // as they are given to the device
}

func (r *rig) newPass(c attentionCase) *pass {
	rng := random(fmt.Sprintf("%+v", c))
	pool, err := r.d.Pages(c.l)
	ok(r.t, err)
	r.t.Cleanup(func() { ok(r.t, pool.Close()) })
	p := &pass{attentionCase: c, pool: pool}
	for i, n := range c.rows {
		bases := make([]int, c.kv)
		if c.window > 0 && slices.Min(c.entries[i]) >= c.window { // no row sees the first page any more
			bases = slices.Repeat([]int{c.l.PageEntries}, c.kv)
		}
		p.caches = append(p.caches, r.newCache(rng, pool, c.l, c.entries[i], bases, n))
		p.spans = append(p.spans, kernels.RowSpan{Row: p.n, N: n})
		for j := range n {
			p.positions = append(p.positions, int32(slices.Max(c.entries[i])+bases[0]+j))
		}
		p.n += n
	}
	d := c.l.HeadDim
	p.q, p.k, p.v = normal(rng, p.n*c.heads*d), normal(rng, p.n*c.kv*d), normal(rng, p.n*c.kv*d)
	n := p.turnColumns()
	p.turns = make([]float32, p.n*n)
	for i := range p.n {
		for j := range d / 2 {
			sin, cos := math.Sincos(float64(p.positions[i]) * math.Pow(100, -float64(2*j)/float64(d)))
			p.turns[i*n+j], p.turns[i*n+d/2+j] = float32(cos), float32(sin)
		}
		if n > d {
			p.turns[i*n+d] = 1 + float32(i%5)/7
		}
	}
	return p
}

func (p *pass) turnColumns() int {
	if p.turning == factored {
		return p.l.HeadDim + 1
	}
	return p.l.HeadDim
}

// rotate turns the queries q and keys k of row i.
func (p *pass) rotate(i int, q, k []float32) {
	d, n := p.l.HeadDim, p.turnColumns()
	if p.turning == still {
		return
	}
	turns := p.turns[i*n : (i+1)*n]
	for _, x := range [][]float32{q, k} {
		for head := range slices.Chunk(x, d) {
			cpu.Rope(head, turns[:d/2], turns[d/2:d])
		}
	}
	if p.turning == factored {
		cpu.Scale(q, turns[d])
	}
}

// reference rotates the queries, appends the rows to the host's pages and attends to them.
func (p *pass) reference() (q, out []float32, stats []kernels.Softmax) {
	d, group := p.l.HeadDim, p.heads/p.kv
	q, k := slices.Clone(p.q), slices.Clone(p.k)
	for i := range p.n {
		p.rotate(i, q[i*p.heads*d:(i+1)*p.heads*d], k[i*p.kv*d:(i+1)*p.kv*d])
	}
	if p.bf16 {
		cpu.RoundedBF16(q, q)
	}
	out, stats = make([]float32, len(q)), make([]kernels.Softmax, p.n*p.heads)
	for seq, span := range p.spans {
		for h, x := range p.caches[seq].heads {
			for i := range span.N {
				at := (span.Row+i)*p.kv*d + h*d
				x.store(p.l, x.entries+i, k[at:at+d], p.v[at:at+d], p.positions[span.Row+i])
			}
			at, st := (span.Row*p.heads+h*group)*d, make([]kernels.Softmax, span.N*group)
			cpu.Attention(&kernels.AttentionArgs{
				Out: out[at:], Q: q[at:], Stride: p.heads * d, N: span.N, Group: group, End: x.base + x.entries + 1,
				Window: p.window, Scale: kernels.AttentionScale(d), Cap: p.cap, KV: x.kv(p.l), Stats: st, BF16: p.bf16,
			}, new(kernels.AttentionScratch))
			for i, v := range st {
				stats[(span.Row+i/group)*p.heads+h*group+i%group] = v
			}
		}
	}
	return q, out, stats
}

// start makes the attention of a pass and its buffers.
func (p *pass) start(r *rig) (a kernels.Attention, q, k, v, turns kernels.Rows) {
	r.t.Helper()
	d := p.l.HeadDim
	shape := kernels.AttentionShape{
		Rows: p.n, Sequences: len(p.rows), Heads: p.heads, KVHeads: p.kv, HeadDim: d, Windows: []int{0, p.window},
		Scale: kernels.AttentionScale(d), Cap: p.cap, Page: p.l, BF16: p.bf16,
	}
	if p.l.IntValues() && p.l.Type == tensor.BF16 { // a layer among those with keys of integers
		shape.Page.Type, shape.WideKeys = p.l.Values, []bool{false, true}
	}
	a, err := r.d.Attention(shape)
	ok(r.t, err)
	r.t.Cleanup(a.Free)
	a.SetSpans(p.spans, p.positions)
	for seq, c := range p.caches {
		c.set(a, 1, seq)
	}
	if p.turning != still {
		turns = kernels.Rows{Buffer: r.shared(kernels.HostWrites, p.n, p.turnColumns(), p.turns), N: p.n}
	}
	return a, r.rows(tensor.F32, p.n, p.heads*d, p.q), r.rows(tensor.F32, p.n, p.kv*d, p.k), r.rows(tensor.F32, p.n, p.kv*d, p.v), turns
}

func (s *suite) attend(t *testing.T, c attentionCase) {
	r := newRig(t, s.d)
	p := r.newPass(c)
	a, q, k, v, turns := p.start(r)
	width := p.heads * p.l.HeadDim
	out := r.rows(tensor.F32, p.n, width, nil)
	r.run(func(e kernels.Encoder) {
		e.RopeAppend(a, 1, q, k, v, turns)
		e.Attend(a, 1, out, q, true)
	})
	wantQ, want, wantStats := p.reference()
	rounding := 1e-6
	if p.bf16 {
		rounding = bf16Bound
	}
	s.compare(t, "rotated queries", wantQ, r.read(q, width), func(i int) float64 { return rounding*math.Abs(float64(wantQ[i])) + 1e-6 })
	got := r.read(out, width)
	s.compare(t, "attention", want, got, func(int) float64 {
		if p.bf16 || p.l.Type != tensor.F32 { // a key or a weight may be rounded the other way
			return 0.02
		}
		return 2e-5
	})
	narrowOut := r.rows(tensor.BF16, p.n, width, nil)
	r.run(func(e kernels.Encoder) { e.Attend(a, 1, narrowOut, q, false) })
	testnum.SameBits(t, "attention in bf16", rounded(got, tensor.BF16), r.read(narrowOut, width))

	stats := make([]kernels.Softmax, p.n*p.heads)
	ok(t, a.ReadStats(t.Context(), stats, 0, p.n))
	for i, w := range wantStats {
		g := stats[i]
		total := math.Abs(float64(g.Sum)*math.Exp2(float64(g.Max-w.Max)) - float64(w.Sum))
		if s.o.Exact && g != w || !(total <= 0.02*float64(w.Sum)) {
			t.Fatalf("softmax statistics %d: found %+v, expected %+v", i, g, w)
		}
	}
	p.samePages(s, r)
}

// samePages compares the entries on the device with those of the host.
func (p *pass) samePages(s *suite, r *rig) {
	for seq, c := range p.caches {
		for h, x := range c.heads {
			got := &cachedHead{blocks: make([]byte, len(x.blocks))}
			ok(r.t, p.pool.Read(context.Background(), got.blocks, x.pages))
			for e := range x.entries + p.spans[seq].N {
				wk, wv := x.entry(p.l, e)
				gk, gv := got.entry(p.l, e)
				what := fmt.Sprintf("entry %d of sequence %d, head %d: ", e, seq, h)
				testnum.SameBits(r.t, what+"value", wv, gv)
				limit, step := 0.0, 0.0
				switch {
				case e < x.entries || p.turning == still && p.l.Type == tensor.I8:
				case p.l.Type == tensor.F32:
					limit = 1e-6
				case p.l.Type == tensor.I8: // an integer may be rounded the other way
					step = 1.01 * float64(largest(wk)) / 127
				default:
					limit = bf16Bound
				}
				s.compare(r.t, what+"key", wk, gk, func(i int) float64 { return limit*(math.Abs(float64(wk[i]))+limit) + step })
			}
		}
	}
}
