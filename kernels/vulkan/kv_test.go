//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

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

// testCache holds the heads of one sequence twice: in the form that package kernels
// reads and on the device. Entry e of head h is the same in both.
type testCache struct {
	t     testing.TB
	d     *Device
	s     shape
	lens  []int
	bases []int
	k, v  [][]byte // [head] consecutive pages, in the host's order
	pos   [][]int32
	pages []*guarded // [head] device pages
	table []*guarded // [head] page addresses
	heads *headTable
}

// newTestCache makes heads with room for capacity random entries each, of which lens
// are counted; pages are in the device's memory in reverse order. bases are the logical
// slots of the heads' entry 0; nil means 0.
func newTestCache(t testing.TB, d *Device, r *rand.Rand, s shape, lens, bases []int, capacity int) *testCache {
	t.Helper()
	c := &testCache{t: t, d: d, s: s, lens: lens, bases: bases}
	if bases == nil {
		c.bases = make([]int, len(lens))
	}
	n := max((capacity+s.PageEntries-1)/s.PageEntries, 1)
	var err error
	c.heads, err = d.newHeadTable(s.KVHeads)
	ok(t, err)
	t.Cleanup(c.heads.Free)
	half := s.hostHalf()
	stride := (s.PageBytes() + 255) &^ 255
	for h := range s.KVHeads {
		k, _ := narrow(random(r, n*s.PageEntries*s.HeadDim), s.Type)
		v, _ := narrow(random(r, n*s.PageEntries*s.HeadDim), s.Type)
		pos := make([]int32, n*s.PageEntries)
		for i := range pos {
			pos[i] = int32(3*i + h)
		}
		dev := make([]byte, n*stride)
		addr := make([]byte, 8*n)
		g := alloc(t, d, len(dev))
		for p := range n {
			at := (n - 1 - p) * stride
			s.FromHost(dev[at:at+s.PageBytes()], hostPage(k[p*half:(p+1)*half], v[p*half:(p+1)*half], pos[p*s.PageEntries:(p+1)*s.PageEntries]))
			binary.LittleEndian.PutUint64(addr[8*p:], g.view.address()+uint64(at))
		}
		ok(t, d.upload(context.Background(), g.view, dev))
		tab := upload(t, d, addr)
		c.k, c.v, c.pos = append(c.k, k), append(c.v, v), append(c.pos, pos)
		c.pages, c.table = append(c.pages, g), append(c.table, tab)
		c.heads.Set(h, tab.view, lens[h], c.bases[h])
	}
	return c
}

// hostHalf returns the size of a page's keys on the host in bytes.
func (l layout) hostHalf() int { return l.PageEntries * l.HeadDim * l.Type.Bytes(1) }

// hostPage returns a page in the host's order.
func hostPage(k, v []byte, pos []int32) []byte {
	block := append(slices.Clone(k), v...)
	for _, p := range pos {
		block = binary.LittleEndian.AppendUint32(block, uint32(p))
	}
	return block
}

// kv returns a head in the form that package kernels reads.
func (c *testCache) kv(h int) kernels.KV {
	half := c.s.hostHalf()
	kv := kernels.KV{Type: c.s.Type, HeadDim: c.s.HeadDim, PageEntries: c.s.PageEntries, Base: c.bases[h]}
	for at := 0; at < len(c.k[h]); at += half {
		kv.Pages = append(kv.Pages, kernels.Page{K: unsafe.Pointer(&c.k[h][at]), V: unsafe.Pointer(&c.v[h][at])})
	}
	return kv
}

// key and value return an entry's row, widened.
func (c *testCache) key(h, e int) []float32 {
	s, tile := c.s, kernels.TileEntries
	out := make([]float32, s.HeadDim)
	size := s.Type.Bytes(1)
	page := c.k[h][e/s.PageEntries*s.hostHalf():]
	e %= s.PageEntries
	for d := range out {
		at := (e/tile*tile*s.HeadDim + d*tile + e%tile) * size
		kernels.CPU{}.Widen(out[d:d+1], page[at:at+size], s.Type)
	}
	return out
}

func (c *testCache) value(h, e int) []float32 {
	s := c.s
	out := make([]float32, s.HeadDim)
	at := e/s.PageEntries*s.hostHalf() + e%s.PageEntries*s.HeadDim*s.Type.Bytes(1)
	kernels.CPU{}.Widen(out, c.v[h][at:at+s.HeadDim*s.Type.Bytes(1)], s.Type)
	return out
}

// readBack reads a head's pages from the device and returns them in the host's order.
func (c *testCache) readBack(h int) (k, v []byte, pos []int32) {
	c.t.Helper()
	dev := c.pages[h].raw()
	s := c.s
	stride := (s.PageBytes() + 255) &^ 255
	n, half := len(dev)/stride, s.hostHalf()
	k, v, pos = make([]byte, n*half), make([]byte, n*half), make([]int32, n*s.PageEntries)
	for p := range n {
		at := (n - 1 - p) * stride
		block := make([]byte, s.hostBytes())
		s.ToHost(block, dev[at:at+s.PageBytes()])
		copy(k[p*half:], block[:half])
		copy(v[p*half:], block[half:2*half])
		for i := range s.PageEntries {
			pos[p*s.PageEntries+i] = int32(binary.LittleEndian.Uint32(block[2*half+4*i:]))
		}
	}
	return k, v, pos
}

func TestLayoutRoundTrip(t *testing.T) {
	for _, typ := range weightTypes {
		for _, dim := range []int{4, 8, 12, 24, 128} {
			l := layout{Type: typ, HeadDim: dim, PageEntries: 32}
			ok(t, l.Check())
			r := rng(fmt.Sprint("layout", typ, dim))
			k, _ := narrow(random(r, dim*32), typ)
			v, _ := narrow(random(r, dim*32), typ)
			block := hostPage(k, v, repeat(32, func(i int) int32 { return int32(i * i) }))
			page := make([]byte, l.PageBytes())
			for i := range page {
				page[i] = 0xA5
			}
			l.FromHost(page, block)
			size, pad := typ.Bytes(1), padded(dim)
			for e := range 32 {
				for d := range pad {
					key, value := page[((d/8*32+e)*8+d%8)*size:][:size], page[l.valuesAt()+(e*pad+d)*size:][:size]
					wantKey, wantValue := make([]byte, size), make([]byte, size)
					if d < dim {
						wantKey, wantValue = k[(e/16*16*dim+d*16+e%16)*size:][:size], v[(e*dim+d)*size:][:size]
					}
					if string(key) != string(wantKey) || string(value) != string(wantValue) {
						t.Fatalf("%v, dimension %d: component %d of entry %d: key %x and value %x, expected %x and %x", typ, dim, d, e, key, value, wantKey, wantValue)
					}
				}
			}
			back := make([]byte, len(block))
			l.ToHost(back, page)
			if string(back) != string(block) {
				t.Errorf("%v, dimension %d: a page changed on its way to the device's order and back", typ, dim)
			}
		}
	}
	for _, l := range []layout{
		{Type: tensor.I32, HeadDim: 64, PageEntries: 64}, {Type: tensor.I8, Values: tensor.BF16, HeadDim: 64, PageEntries: 64}, {Type: tensor.I8, Values: tensor.Q4_0, HeadDim: 64, PageEntries: 64},
		{Type: tensor.F32, HeadDim: 10, PageEntries: 64}, {Type: tensor.F32, HeadDim: 264, PageEntries: 64}, {Type: tensor.F32, HeadDim: 64, PageEntries: 48}, {Type: tensor.F32, HeadDim: 64, PageEntries: 8},
	} {
		if l.Check() == nil {
			t.Errorf("%+v was accepted", l)
		}
	}
}

type attentionCase struct {
	shape  shape
	lens   []int // entries of each KV head, including those of the pass's tokens
	n      int   // tokens in the pass
	window int
	bases  []int
}

func attentionCases() []attentionCase {
	shape := func(typ tensor.Type, d, pe, h, kv int) shape {
		return shape{layout{Type: typ, HeadDim: d, PageEntries: pe}, h, kv, 0, 0, false}
	}
	cases := []attentionCase{
		{shape(tensor.BF16, 64, 64, 4, 2), []int{70, 300}, 1, 0, nil},
		{shape(tensor.F16, 128, 64, 8, 1), []int{529}, 1, 0, nil},
		{shape(tensor.F32, 64, 128, 2, 2), []int{258, 259}, 9, 0, nil},
		{shape(tensor.BF16, 96, 32, 7, 1), []int{301}, 2, 0, nil},
		{shape(tensor.BF16, 80, 16, 6, 2), []int{257, 13}, 4, 0, nil},
		{shape(tensor.F16, 32, 16, 10, 2), []int{70, 71}, 70, 0, nil},
		{shape(tensor.F16, 256, 32, 2, 1), []int{600}, 3, 0, nil},
		{shape(tensor.BF16, 32, 32, 24, 2), []int{40, 256}, 3, 0, nil}, // group above 8
		{shape(tensor.F32, 32, 32, 4, 2), []int{505, 505}, 6, 60, nil},
		{shape(tensor.BF16, 32, 32, 3, 1), []int{59}, 40, 3, []int{480}},
		{shape(tensor.BF16, 64, 32, 2, 1), []int{171}, 50, 100, []int{128}},
		{shape(tensor.F32, 8, 16, 1, 1), []int{1}, 1, 0, nil},
		{shape(tensor.F16, 16, 16, 2, 2), []int{1, 2}, 1, 0, nil},
		{shape(tensor.BF16, 12, 16, 4, 2), []int{270, 40}, 5, 0, nil},
		{shape(tensor.F32, 20, 16, 3, 1), []int{300}, 2, 0, nil},
		{shape(tensor.F16, 16, 64, 2, 1), []int{66001}, 2, 0, nil}, // more blocks than combine.comp takes at once
	}
	for _, typ := range weightTypes {
		cases = append(cases, attentionCase{shape(typ, 128, 64, 4, 2), []int{1000, 515}, 5, 0, nil})
	}
	for _, c := range cases {
		if c.shape.Type == tensor.BF16 {
			c.shape.BF16 = true
			cases = append(cases, c)
		}
	}
	return cases
}

// tipped returns the most that attention in bf16, for query q over the logical slots
// [lo, hi) of head h, may change if weights nearly halfway between two bf16 numbers are
// rounded the other way: the components of the result, and the sum. out is the result.
func (c *testCache) tipped(h int, q, out []float32, lo, hi int) (moved []float64, sum float64) {
	t := make([]float32, hi-lo)
	kv := c.kv(h)
	kernels.CPU{}.AttentionScores(t, q, &kv, lo, c.s.scale())
	moved = make([]float64, len(q))
	total, top := 0.0, slices.Max(t)
	for at := lo; at < hi; {
		end := min(hi, (at/kernels.BlockEntries+1)*kernels.BlockEntries)
		m := slices.Max(t[at-lo : end-lo])
		for slot := at; slot < end; slot++ {
			p := kernels.Exp2(t[slot-lo] - m)
			w := float64(p) * math.Exp2(float64(m-top))
			total += w
			// The distance from halfway in units of the discarded bits; 840 are 1e-4 of the size.
			if x := int(math.Float32bits(p)&0xffff) - 0x8000; x < -840 || x > 840 {
				continue
			}
			sum += w / 128
			for d, v := range c.value(h, slot-c.bases[h]) {
				moved[d] += w / 128 * math.Abs(float64(v)-float64(out[d]))
			}
		}
		at = end
	}
	for d := range moved {
		moved[d] /= total
	}
	return moved, sum
}

func TestAttention(t *testing.T) {
	d := device(t)
	for i, a := range attentionCases() {
		name := fmt.Sprintf("Attention/%d/%+v", i, a)
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r := rng(name)
			s, n := a.shape, a.n
			longest := 0
			for _, l := range a.lens {
				longest = max(longest, l)
			}
			c := newTestCache(t, d, r, s, a.lens, a.bases, longest)
			width := s.Heads * s.HeadDim
			q := random(r, n*width)
			if s.BF16 {
				_, q = narrow(q, tensor.BF16)
			}
			qr, _ := uploadRows(t, d, q, n, width, tensor.F32)
			ends := func(at int) []int {
				e := make([]int, s.KVHeads)
				for h := range e {
					e[h] = c.bases[h] + a.lens[h] - n + 1 + at
				}
				return e
			}
			// attend computes tokens in chunks, and those in spans, split or not.
			attend := func(chunk, span int, split bool) ([]float32, []float32) {
				y, yg := newRows(t, d, n, width, tensor.F32)
				st := alloc(t, d, n*s.Heads*8)
				for at := 0; at < n; at += chunk {
					m := min(chunk, n-at)
					w, err := d.newWorkList(s, a.window, m, m)
					ok(t, err)
					defer w.Free()
					const items = 600
					var parts view
					if split {
						parts = alloc(t, d, int(partialBytes(s.HeadDim, items))).view
					}
					var spans []rowSpan
					for row := 0; row < m; row += span {
						spans = append(spans, rowSpan{Seq: 0, Row: row, N: min(span, m-row), End: ends(at + row)})
					}
					n, err := w.Fill(spans, parts)
					ok(t, err)
					if n > items {
						t.Fatalf("%d items", n)
					}
					op := attentionOp{
						shape: s, Q: qr.Part(at, m), Out: y.Part(at, m), Heads: c.heads, Work: w,
						Stats: st.view.At(int64(at*s.Heads*8), int64(m*s.Heads*8)), Split: split,
					}
					run(t, d, func(c *commands) { c.Attention(op) })
				}
				return rowsOf(yg, y), st.f32()
			}
			whole := longest < 1<<16 || d.loops == 0 // a workgroup may go through all blocks
			got, stats := attend(n, n, !whole)

			want := make([]float32, len(q))
			wantStats := make([]float32, 2*n*s.Heads)
			moved, movedStats := make([]float64, len(q)), make([]float64, len(wantStats))
			group := s.group()
			for h := range s.KVHeads {
				off := h * group * s.HeadDim
				sm := make([]kernels.Softmax, n*group)
				var sc kernels.AttentionScratch
				kernels.CPU{}.Attention(&kernels.AttentionArgs{
					Out: want[off:], Q: q[off:], Stride: width, N: n, Group: group, End: ends(0)[h], Window: a.window,
					Scale: kernels.AttentionScale(s.HeadDim), KV: c.kv(h), Stats: sm, BF16: s.BF16,
				}, &sc)
				for i, x := range sm {
					at := 2 * (i/group*s.Heads + h*group + i%group)
					wantStats[at], wantStats[at+1] = x.Max, x.Sum
					if s.BF16 {
						row := (i/group*s.Heads + h*group + i%group) * s.HeadDim
						end, lo := ends(i / group)[h], 0
						if a.window > 0 {
							lo = max(0, end-a.window)
						}
						of, sum := c.tipped(h, q[row:row+s.HeadDim], want[row:row+s.HeadDim], lo, end)
						copy(moved[row:], of)
						movedStats[at+1] = sum
					}
				}
			}
			// Values are on the order of one, at most about five.
			within(t, name, wide(want), got, func(i int) float64 { return 4e-6*5 + moved[i] })
			within(t, name+" stats", wide(wantStats), stats, func(i int) float64 { return 1e-5*math.Abs(float64(wantStats[i])) + 1e-5 + movedStats[i] })

			for _, by := range []struct{ chunk, span int }{{n, n}, {1, 1}, {4, 4}, {4, 1}} {
				if by.chunk > n {
					continue
				}
				for _, split := range []bool{false, true} {
					if !split && !whole {
						continue
					}
					out, st := attend(by.chunk, by.span, split)
					what := fmt.Sprintf("%s, %d tokens at a time in spans of %d, split %v", name, by.chunk, by.span, split)
					testnum.SameBits(t, what, got, out)
					testnum.SameBits(t, what+" stats", stats, st)
				}
			}
		})
	}
	// The bf16 output is the f32 output, rounded.
	s := shape{layout{Type: tensor.BF16, HeadDim: 64, PageEntries: 16}, 4, 2, 0, 0, false}
	r := rng("bf16 out")
	c := newTestCache(t, d, r, s, []int{20, 300}, nil, 300)
	qr, _ := uploadRows(t, d, random(r, 4*64), 1, 4*64, tensor.F32)
	w, err := d.newWorkList(s, 0, 1, 1)
	ok(t, err)
	defer w.Free()
	parts := alloc(t, d, int(partialBytes(64, 100)))
	var outs [][]float32
	for _, typ := range []tensor.Type{tensor.F32, tensor.BF16} {
		for _, p := range []view{{}, parts.view} {
			y, yg := newRows(t, d, 1, 4*64, typ)
			_, err := w.Fill([]rowSpan{{N: 1, End: []int{20, 300}}}, p)
			ok(t, err)
			run(t, d, func(cmd *commands) {
				cmd.Attention(attentionOp{shape: s, Q: qr, Out: y, Heads: c.heads, Work: w, Split: !p.None()})
			})
			_, x := narrow(rowsOf(yg, y), tensor.BF16)
			outs = append(outs, x)
		}
	}
	for _, o := range outs[1:] {
		testnum.SameBits(t, "attention in bf16", outs[0], o)
	}
}

// Attention in bf16 rounds weights, and drops those below 2^-60.
func TestAttentionWeightsInBF16(t *testing.T) {
	d := device(t)
	s := shape{layout{Type: tensor.BF16, HeadDim: 8, PageEntries: 16}, 1, 1, 1, 0, true}
	c := newTestCache(t, d, rng("weights in bf16"), s, []int{0}, nil, 16)
	// The first components of the keys determine the scores.
	const n, huge = 4, 1 << 70
	k := [n * 8]float32{0: 0, 8: -0.5, 16: -60, 24: -60.5}
	v := [n * 8]float32{0: 1, 8 + 1: 1, 16 + 2: huge, 24 + 3: huge}
	q, turns := [n * 8]float32{24: 1 + 1.0/512}, [n * 8]float32{}
	for i := range n {
		copy(turns[8*i:], []float32{1, 1, 1, 1})
	}
	qr, qg := uploadRows(t, d, q[:], n, 8, tensor.F32)
	kr, _ := uploadRows(t, d, k[:], n, 8, tensor.F32)
	vr, _ := uploadRows(t, d, v[:], n, 8, tensor.F32)
	raw := make([]byte, n*rowInfoBytes)
	putRows(raw, repeat(n, func(i int) rowInfo { return rowInfo{0, i, int32(i)} }))
	rows, tv := upload(t, d, raw), upload(t, d, bytesOf(turns[:]))
	w, err := d.newWorkList(s, 0, 1, 1)
	ok(t, err)
	defer w.Free()
	parts := alloc(t, d, int(partialBytes(8, 1)))
	for _, bf16 := range []bool{false, true} {
		x := float64(q[24])
		p := []float64{1, math.Exp2(-0.5 * x), math.Exp2(-60 * x), math.Exp2(-60.5 * x), 0, 0, 0, 0}
		if bf16 {
			copy(p, []float64{1, 0.70703125, 1.0 / (1 << 60), 0}) // 0.70703125 is nearest to 2^-0.5
		}
		want := slices.Clone(p)
		for i := range want {
			want[i] *= float64(v[9*i%len(v)]) / (p[0] + p[1])
		}
		s.BF16, w.shape.BF16 = bf16, bf16
		for _, p := range []view{{}, parts.view} {
			y, yg := newRows(t, d, 1, 8, tensor.F32)
			_, err := w.Fill([]rowSpan{{N: 1, End: []int{n}}}, p)
			ok(t, err)
			run(t, d, func(cmd *commands) {
				cmd.RopeAppend(s, qr, kr, vr, rows2D{tv.view, tensor.F32, qr.N, s.HeadDim, s.HeadDim}, rows.view, c.heads)
				cmd.Attention(attentionOp{shape: s, Q: qr.Part(n-1, 1), Out: y, Heads: c.heads, Work: w, Split: !p.None()})
			})
			if q := rowsOf(qg, qr)[24]; (q == 1) != bf16 {
				t.Errorf("attention in bf16 %v: the query is %v", bf16, q)
			}
			within(t, fmt.Sprintf("attention in bf16 %v", bf16), want, rowsOf(yg, y), relative(want, 1e-5, 1e-9))
		}
	}
	s.Type = tensor.F16
	if err := d.run(context.Background(), func(cmd *commands) {
		cmd.RopeAppend(s, qr, kr, vr, rows2D{tv.view, tensor.F32, qr.N, s.HeadDim, s.HeadDim}, rows.view, c.heads)
	}); err == nil {
		t.Error("attention in bf16 over pages in f16 was accepted")
	} else {
		t.Log(err)
	}
}

// Commands that were recorded once follow a growing cache: 40 decode steps of two
// sequences, one of which starts empty.
func TestRecordedDecode(t *testing.T) {
	d := device(t)
	s := shape{layout{Type: tensor.F16, HeadDim: 32, PageEntries: 16}, 4, 2, 0, 0, false}
	r := rng("decode")
	const steps, seqs = 40, 2
	start := [][]int{{250, 3}, {0, 0}}
	// One table holds the heads of both sequences.
	both := s
	both.KVHeads *= seqs
	both.Heads *= seqs
	c := newTestCache(t, d, r, both, []int{250, 3, 0, 0}, nil, 300)
	width, kw := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	host := func(n int) *buffer {
		b, err := d.newHostBuffer(int64(n))
		ok(t, err)
		t.Cleanup(b.Free)
		return b
	}
	qb, kb, vb, ob := host(seqs*width*4), host(seqs*kw*4), host(seqs*kw*4), host(seqs*width*4)
	turns, rows := host(seqs*s.HeadDim*4), host(seqs*rowInfoBytes)
	for i := range seqs * s.HeadDim {
		x := float32(0)
		if i%s.HeadDim < s.HeadDim/2 {
			x = 1
		}
		binary.LittleEndian.PutUint32(turns.Bytes()[4*i:], math.Float32bits(x))
	}
	w, err := d.newWorkList(s, 0, seqs, seqs)
	ok(t, err)
	defer w.Free()
	const items = 16
	parts := alloc(t, d, int(partialBytes(s.HeadDim, items)))
	q := newRows2D(qb.All(), tensor.F32, seqs, width)
	op := attentionOp{shape: s, Q: q, Out: newRows2D(ob.All(), tensor.F32, seqs, width), Heads: c.heads, Work: w, Split: true}
	cmd, err := d.newCommands()
	ok(t, err)
	defer cmd.Free()
	ok(t, cmd.Begin())
	cmd.Mark()
	cmd.RopeAppend(s, q, newRows2D(kb.All(), tensor.F32, seqs, kw), newRows2D(vb.All(), tensor.F32, seqs, kw), rows2D{turns.All(), tensor.F32, seqs, s.HeadDim, s.HeadDim}, rows.All(), c.heads)
	cmd.Attention(op)
	cmd.Mark()
	ok(t, cmd.End())

	keys := map[[2]int][][]float32{}
	values := map[[2]int][][]float32{}
	for sq := range seqs {
		for h := range s.KVHeads {
			for e := range start[sq][h] {
				keys[[2]int{sq, h}] = append(keys[[2]int{sq, h}], c.key(sq*s.KVHeads+h, e))
				values[[2]int{sq, h}] = append(values[[2]int{sq, h}], c.value(sq*s.KVHeads+h, e))
			}
		}
	}
	spans := []rowSpan{{Seq: 0, Row: 0, N: 1, End: make([]int, s.KVHeads)}, {Seq: 1, Row: 1, N: 1, End: make([]int, s.KVHeads)}}
	for step := range steps {
		qv, kv, vv := random(r, seqs*width), random(r, seqs*kw), random(r, seqs*kw)
		copy(qb.Bytes(), bytesOf(qv))
		copy(kb.Bytes(), bytesOf(kv))
		copy(vb.Bytes(), bytesOf(vv))
		putRows(rows.Bytes(), []rowInfo{{0, 0, int32(1000 + step)}, {1, 0, int32(step)}})
		for sq := range seqs {
			for h := range s.KVHeads {
				i := sq*s.KVHeads + h
				c.heads.Set(i, c.table[i].view, start[sq][h]+step, 0)
				spans[sq].End[h] = start[sq][h] + step + 1
				_, k := narrow(kv[sq*kw+h*s.HeadDim:sq*kw+(h+1)*s.HeadDim], s.Type)
				_, v := narrow(vv[sq*kw+h*s.HeadDim:sq*kw+(h+1)*s.HeadDim], s.Type)
				keys[[2]int{sq, h}] = append(keys[[2]int{sq, h}], k)
				values[[2]int{sq, h}] = append(values[[2]int{sq, h}], v)
			}
		}
		_, err := w.Fill(spans, parts.view)
		ok(t, err)
		ticket, err := d.submit(cmd)
		ok(t, err)
		ok(t, d.wait(context.Background(), ticket))
		got := floats(ob.Bytes())
		var want []float64
		for sq := range seqs {
			for h := range s.Heads {
				at := [2]int{sq, h / s.group()}
				want = append(want, softmaxRef(qv[sq*width+h*s.HeadDim:sq*width+(h+1)*s.HeadDim], keys[at], values[at])...)
			}
		}
		within(t, fmt.Sprintf("step %d", step), want, got, func(int) float64 { return 2e-5 })
	}
	if times, err := cmd.Times(); err != nil || slices.Contains(d.Info().Features, "timestamps") && len(times) != 2 {
		t.Errorf("times: %v, %v", times, err)
	}
	n := testing.AllocsPerRun(50, func() {
		if _, err := w.Fill(spans, parts.view); err != nil {
			t.Error("the list could not be filled")
		}
		ticket, err := d.submit(cmd)
		if err != nil || d.wait(context.Background(), ticket) != nil {
			t.Error("the commands could not be submitted")
		}
	})
	if n > 0 {
		t.Errorf("a decode step allocates %v times", n)
	}
}

// A driver that ends loops early gets no work that needs more.
func TestLoopLimit(t *testing.T) {
	d := device(t)
	s := shape{layout{Type: tensor.BF16, HeadDim: 64, PageEntries: 64}, 4, 1, 0, 0, false}
	w, err := d.newWorkList(s, 0, 1, 2)
	ok(t, err)
	defer w.Free()
	w.loops = 65535
	parts := alloc(t, d, int(partialBytes(s.HeadDim, 200)))
	for _, c := range []struct {
		entries, tokens int
		parts           view
		ok              bool
	}{
		{127 * 256, 1, view{}, true}, {127*256 + 1, 1, view{}, false}, {127*256 + 1, 1, parts.view, true},
		{85*256 - 1, 2, view{}, true}, {85 * 256, 2, view{}, false}, {85 * 256, 2, parts.view, true},
	} {
		_, err := w.Fill([]rowSpan{{N: c.tokens, End: []int{c.entries}}}, c.parts)
		ok(t, err)
		if (w.endsEarly == nil) != c.ok {
			t.Errorf("%+v: %v", c, w.endsEarly)
		}
	}
	w.loops = 0
	_, err = w.Fill([]rowSpan{{N: 2, End: []int{1 << 20}}}, view{})
	ok(t, err)
	ok(t, w.endsEarly)
}

// softmaxRef computes attention in float64.
func softmaxRef(q []float32, keys, values [][]float32) []float64 {
	z := make([]float64, len(keys))
	top := math.Inf(-1)
	for i, k := range keys {
		for d := range q {
			z[i] += float64(q[d]) * float64(k[d])
		}
		z[i] /= math.Sqrt(float64(len(q)))
		top = max(top, z[i])
	}
	out, sum := make([]float64, len(q)), 0.0
	for i := range z {
		p := math.Exp(z[i] - top)
		sum += p
		for d := range out {
			out[d] += p * float64(values[i][d])
		}
	}
	for d := range out {
		out[d] /= sum
	}
	return out
}

func TestRopeAppend(t *testing.T) {
	d := device(t)
	for _, typ := range weightTypes {
		for _, dim := range []int{8, 12, 64, 128} {
			s := shape{layout{Type: typ, HeadDim: dim, PageEntries: 16}, 4, 2, 0, 0, false}
			r := rng(fmt.Sprint("rope", typ, dim))
			const n = 21
			lens := []int{30, 5}
			c := newTestCache(t, d, r, s, lens, nil, 80)
			q, k, v := random(r, n*4*dim), random(r, n*2*dim), random(r, n*2*dim)
			turns := make([]float32, n*dim)
			for i := range n {
				for j := range dim / 2 {
					sin, cos := math.Sincos(float64(i+7) / float64(j+1))
					turns[i*dim+j], turns[i*dim+dim/2+j] = float32(cos), float32(sin)
				}
			}
			qr, qg := uploadRows(t, d, q, n, 4*dim, tensor.F32)
			kr, _ := uploadRows(t, d, k, n, 2*dim, tensor.F32)
			vr, _ := uploadRows(t, d, v, n, 2*dim, tensor.F32)
			info := repeat(n, func(i int) rowInfo { return rowInfo{0, i, int32(1000 + i)} })
			raw := make([]byte, n*rowInfoBytes)
			putRows(raw, info)
			ri, tv := upload(t, d, raw), upload(t, d, bytesOf(turns))
			run(t, d, func(cmd *commands) {
				cmd.RopeAppend(s, qr, kr, vr, rows2D{tv.view, tensor.F32, qr.N, s.HeadDim, s.HeadDim}, ri.view, c.heads)
			})
			if typ == tensor.BF16 {
				// Attention in bf16 gets the same queries, rounded.
				b := s
				b.BF16 = true
				br, bg := uploadRows(t, d, q, n, 4*dim, tensor.F32)
				run(t, d, func(cmd *commands) {
					cmd.RopeAppend(b, br, kr, vr, rows2D{tv.view, tensor.F32, qr.N, s.HeadDim, s.HeadDim}, ri.view, c.heads)
				})
				_, want := narrow(rowsOf(qg, qr), tensor.BF16)
				testnum.SameBits(t, "queries for attention in bf16", want, rowsOf(bg, br))
			}
			for i := range n {
				cos, sin := turns[i*dim:i*dim+dim/2], turns[i*dim+dim/2:(i+1)*dim]
				for h := range 4 {
					kernels.CPU{}.Rope(q[(i*4+h)*dim:(i*4+h+1)*dim], cos, sin)
				}
				for h := range 2 {
					kernels.CPU{}.Rope(k[(i*2+h)*dim:(i*2+h+1)*dim], cos, sin)
				}
			}
			within(t, "rotated queries", wide(q), rowsOf(qg, qr), func(int) float64 { return 1e-6 })
			unit := map[tensor.Type]float64{tensor.F32: 1e-6, tensor.F16: 1.0 / 1024, tensor.BF16: 1.0 / 128}[typ]
			for h := range 2 {
				before := append([]byte(nil), c.k[h]...)
				kb, vb, pos := c.readBack(h)
				c.k[h], c.v[h] = kb, vb
				for i := range n {
					e := lens[h] + i
					want := k[(i*2+h)*dim : (i*2+h+1)*dim]
					within(t, "stored key", wide(want), c.key(h, e), relative(wide(want), unit, 2e-6))
					_, stored := narrow(v[(i*2+h)*dim:(i*2+h+1)*dim], typ)
					testnum.SameBits(t, "stored value", stored, c.value(h, e))
					if pos[e] != int32(1000+i) {
						t.Fatalf("position of entry %d: want %d, got %d", e, 1000+i, pos[e])
					}
				}
				c.k[h] = before
				was := c.key(h, lens[h]-1)
				c.k[h] = kb
				testnum.SameBits(t, "the entry before", was, c.key(h, lens[h]-1))
			}
		}
	}
}

func TestCompact(t *testing.T) {
	d := device(t)
	for _, typ := range weightTypes {
		for _, dim := range []int{8, 20, 64} {
			s := shape{layout{Type: typ, HeadDim: dim, PageEntries: 16}, 3, 3, 0, 0, false}
			r := rng(fmt.Sprint("compact", typ, dim))
			lens := []int{700, 700, 40}
			c := newTestCache(t, d, r, s, lens, nil, 700)
			// The third head moves to other pages, as if a fork shared it.
			other := newTestCache(t, d, r, s, lens, nil, 700)
			var moves []moveJob
			var kept [][]int
			for h := range 3 {
				var slots []int
				for e := range lens[h] {
					if r.IntN(3) > 0 || e < 5 {
						slots = append(slots, e)
					}
				}
				raw := make([]byte, 4*len(slots))
				for i, e := range slots {
					binary.LittleEndian.PutUint32(raw[4*i:], uint32(e))
				}
				m := moveJob{Src: c.table[h].view, Dst: c.table[h].view, Slots: upload(t, d, raw).view, N: len(slots), From: 5}
				if h == 2 {
					m.Dst, m.From = other.table[h].view, 0
				}
				moves, kept = append(moves, m), append(kept, slots)
			}
			raw := make([]byte, moveBytes*len(moves))
			putMoves(raw, moves)
			mv := upload(t, d, raw)
			run(t, d, func(cmd *commands) { cmd.Compact(s.layout, mv.view, len(moves)) })
			for h := range 3 {
				dst := c
				if h == 2 {
					dst = other
				}
				after := &testCache{s: s}
				k, v, pos := dst.readBack(h)
				after.k, after.v = [][]byte{k}, [][]byte{v}
				for i, e := range kept[h] {
					testnum.SameBits(t, fmt.Sprintf("%v key %d of head %d", typ, i, h), c.key(h, e), after.key(0, i))
					testnum.SameBits(t, fmt.Sprintf("%v value %d of head %d", typ, i, h), c.value(h, e), after.value(0, i))
					if pos[i] != c.pos[h][e] {
						t.Fatalf("position %d of head %d: want %d, got %d", i, h, c.pos[h][e], pos[i])
					}
				}
			}
		}
	}
}
