package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// fakeDevice is a device in ordinary memory that computes with package kernels,
// so that a model on it must give exactly the bits of one without. It counts what
// is taken and can be told to fail.
type fakeDevice struct {
	cpu  kernels.CPU
	free uint64 // what Memory reports

	mu    sync.Mutex
	live  map[string]int // things not given back, by kind
	pages map[kernels.DevicePage]*fakePage
	next  kernels.DevicePage

	calls, at int // calls that can fail, and the one that does (0: none)
	fault     error
	submitted int // lists run
	recorded  int // lists recorded
	scored    int // calls that scored a layer
}

func newFakeDevice() *fakeDevice {
	return &fakeDevice{cpu: kernels.Detect(), free: 1 << 40, live: map[string]int{}, pages: map[kernels.DevicePage]*fakePage{}}
}

// failAt makes the n-th call from now on that can fail do so; a lost device stays lost.
func (d *fakeDevice) failAt(n int, fault error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls, d.at, d.fault = 0, n, fault
}

func (d *fakeDevice) hit() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	if d.at > 0 && (d.calls == d.at || d.calls > d.at && errors.Is(d.fault, kernels.ErrDeviceLost)) {
		return fmt.Errorf("fake device: call %d: %w", d.calls, d.fault)
	}
	return nil
}

func (d *fakeDevice) count(kind string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live[kind] += n
}

// held returns the number of things held, by kind.
func (d *fakeDevice) held() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]int{}
	for k, n := range d.live {
		if n != 0 {
			out[k] = n
		}
	}
	return out
}

func (d *fakeDevice) wantEmpty(t testing.TB) {
	t.Helper()
	require.Empty(t, d.held(), "held on the device")
}

func (d *fakeDevice) Info() kernels.DeviceInfo { return kernels.DeviceInfo{Name: "fake"} }
func (d *fakeDevice) Memory() kernels.DeviceMemory {
	return kernels.DeviceMemory{Free: d.free, Total: d.free}
}
func (d *fakeDevice) Close() error {
	d.count("device", -1)
	return nil
}

// fakeThing is a thing on the device that can be freed.
type fakeThing struct {
	d    *fakeDevice
	kind string
	gone bool

	m    kernels.Matrix
	v    []float32
	cols int
}

func (x *fakeThing) Free() {
	if !x.gone {
		x.gone = true
		x.d.count(x.kind, -1)
	}
}

func (d *fakeDevice) thing(x fakeThing) (*fakeThing, error) {
	if err := d.hit(); err != nil {
		return nil, err
	}
	x.d = d
	d.count(x.kind, 1)
	return &x, nil
}

func (d *fakeDevice) Matrix(ctx context.Context, m kernels.Matrix) (kernels.DeviceMatrix, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	return d.thing(fakeThing{kind: "matrix", m: m})
}

func (d *fakeDevice) Vector(_ context.Context, v []float32) (kernels.DeviceVector, error) {
	return d.thing(fakeThing{kind: "vector", v: slices.Clone(v)})
}

func (d *fakeDevice) Rows(n, cols int) (kernels.DeviceRows, error) {
	return d.thing(fakeThing{kind: "rows", v: make([]float32, n*cols), cols: cols})
}

func (d *fakeDevice) Pages(l kernels.PageLayout) (kernels.PagePool, error) {
	if err := d.hit(); err != nil {
		return nil, err
	}
	d.count("pool", 1)
	return &fakePool{d: d, l: l}, nil
}

type fakePage struct {
	refs int
	data []byte // PageLayout.Bytes
}

type fakePool struct {
	d          *fakeDevice
	l          kernels.PageLayout
	live, high int64
	closed     bool
}

func (p *fakePool) Alloc(dst []kernels.DevicePage, n int) ([]kernels.DevicePage, error) {
	if err := p.d.hit(); err != nil {
		return dst, err
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for range n {
		p.d.next++
		const align = 64
		mem := make([]byte, p.l.Bytes()+align)
		mem = mem[-uintptr(unsafe.Pointer(unsafe.SliceData(mem)))%align:][:p.l.Bytes()]
		for i := range mem {
			mem[i] = 0x7e // large numbers: what was never written must not show
		}
		p.d.pages[p.d.next] = &fakePage{1, mem}
		dst = append(dst, p.d.next)
	}
	p.live += int64(n)
	p.high = max(p.high, p.live)
	p.d.live["page"] += n
	return dst, nil
}

func (p *fakePool) Ref(pages []kernels.DevicePage) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for _, x := range pages {
		p.d.pages[x].refs++
	}
}

func (p *fakePool) Unref(pages []kernels.DevicePage) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	for _, x := range pages {
		if h := p.d.pages[x]; h.refs > 1 {
			h.refs--
			continue
		}
		delete(p.d.pages, x)
		p.live--
		p.d.live["page"]--
	}
}

func (p *fakePool) shared(x kernels.DevicePage) bool {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.pages[x].refs > 1
}

func (p *fakePool) data(x kernels.DevicePage) []byte {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	return p.d.pages[x].data
}

func (p *fakePool) Read(_ context.Context, blocks []byte, pages []kernels.DevicePage) error {
	if err := p.d.hit(); err != nil {
		return err
	}
	for i, x := range pages {
		copy(blocks[i*p.l.Bytes():(i+1)*p.l.Bytes()], p.data(x))
	}
	return nil
}

func (p *fakePool) Write(_ context.Context, pages []kernels.DevicePage, blocks []byte) error {
	if err := p.d.hit(); err != nil {
		return err
	}
	for i, x := range pages {
		copy(p.data(x), blocks[i*p.l.Bytes():(i+1)*p.l.Bytes()])
	}
	return nil
}

func (p *fakePool) Copy(dst, src kernels.DevicePage) error {
	if err := p.d.hit(); err != nil {
		return err
	}
	copy(p.data(dst), p.data(src))
	return nil
}

// entry returns the places of element i of the key and value of entry e of a page.
func (p *fakePool) entry(data []byte, e, i int) (key, value []byte) {
	size, dim := p.l.Type.Bytes(1), p.l.HeadDim
	k := (e/kernels.TileEntries*kernels.TileEntries*dim + i*kernels.TileEntries + e%kernels.TileEntries) * size
	v := (p.l.PageEntries*dim + e*dim + i) * size
	return data[k : k+size], data[v : v+size]
}

func (p *fakePool) Compact(dst, src []kernels.DevicePage, slots []int32, from int) error {
	if err := p.d.hit(); err != nil {
		return err
	}
	n := p.l.PageEntries
	for i := from; i < len(slots); i++ {
		s := int(slots[i])
		to, at := p.data(dst[i/n]), p.data(src[s/n])
		for j := range p.l.HeadDim {
			tk, tv := p.entry(to, i%n, j)
			fk, fv := p.entry(at, s%n, j)
			copy(tk, fk)
			copy(tv, fv)
		}
	}
	return nil
}

func (p *fakePool) Table() (kernels.PageTable, error) {
	if err := p.d.hit(); err != nil {
		return nil, err
	}
	p.d.count("table", 1)
	return &fakeTable{p: p}, nil
}

func (p *fakePool) Bytes() int64     { return p.live * int64(p.l.Bytes()) }
func (p *fakePool) HighWater() int64 { return p.high * int64(p.l.Bytes()) }
func (p *fakePool) ResetHighWater()  { p.high = p.live }
func (p *fakePool) Taken() int64     { return p.Bytes() }
func (p *fakePool) Close() error {
	if !p.closed {
		p.closed = true
		p.d.count("pool", -1)
	}
	return nil
}

type fakeTable struct {
	p     *fakePool
	pages []kernels.DevicePage
	gone  bool
}

func (t *fakeTable) Set(pages []kernels.DevicePage, from int) error {
	if err := t.p.d.hit(); err != nil {
		return err
	}
	t.pages = append(t.pages[:from], pages[from:]...)
	return nil
}

func (t *fakeTable) Free() {
	if !t.gone {
		t.gone = true
		t.p.d.count("table", -1)
	}
}

// kv returns the first n entries of a table as kernels read them. What the table holds
// beyond their pages may be out of date.
func (t *fakeTable) kv(base, n int) kernels.KV {
	l := t.p.l
	kv := kernels.KV{Type: l.Type, HeadDim: l.HeadDim, PageEntries: l.PageEntries, Base: base}
	for _, x := range t.pages[:(n+l.PageEntries-1)/l.PageEntries] {
		p := unsafe.Pointer(unsafe.SliceData(t.p.data(x)))
		kv.Pages = append(kv.Pages, kernels.Page{K: p, V: unsafe.Add(p, l.PageEntries*l.HeadDim*l.Type.Bytes(1))})
	}
	return kv
}

type fakeHead struct {
	table         *fakeTable
	entries, base int
}

// fakePass keeps what a device would: activations, and operations, as closures.
type fakePass struct {
	kernels.PassShape
	d      *fakeDevice
	acts   [kernels.ActLogits + 1][]float32
	in     []float32
	cosSin []float32
	out    []float32
	stats  []kernels.Softmax
	spans  []kernels.PassSpan
	pos    []int32
	heads  map[[3]int]fakeHead

	rows int
	ops  []func()
	open bool
	gone bool
}

func (d *fakeDevice) Pass(s kernels.PassShape) (kernels.Pass, error) {
	if err := d.hit(); err != nil {
		return nil, err
	}
	d.count("pass", 1)
	p := &fakePass{
		PassShape: s, d: d,
		in: make([]float32, s.Rows*s.Hidden), cosSin: make([]float32, s.Rows*s.HeadDim),
		out: make([]float32, s.Logits*s.Vocab), stats: make([]kernels.Softmax, s.Rows*s.Heads),
		heads: map[[3]int]fakeHead{},
	}
	for a := range p.acts {
		rows := s.Rows
		if kernels.Activation(a) == kernels.ActLogits {
			rows = s.Logits
		}
		p.acts[a] = make([]float32, rows*p.Columns(kernels.Activation(a)))
	}
	return p, nil
}

func (p *fakePass) Begin(rows int) {
	if p.open || rows > p.Rows {
		panic("fake device: Begin while recording, or of too many rows")
	}
	p.open, p.rows, p.ops = true, rows, nil
}

type fakeList struct {
	fakeThing
	p    *fakePass
	rows int
	ops  []func()
}

func (p *fakePass) End() (kernels.PassList, error) {
	if !p.open {
		panic("fake device: End without Begin")
	}
	p.open = false
	if err := p.d.hit(); err != nil {
		return nil, err
	}
	p.d.count("list", 1)
	p.d.mu.Lock()
	p.d.recorded++
	p.d.mu.Unlock()
	return &fakeList{fakeThing{d: p.d, kind: "list"}, p, p.rows, p.ops}, nil
}

func (p *fakePass) op(f func()) {
	if !p.open {
		panic("fake device: operation without Begin")
	}
	p.ops = append(p.ops, f)
}

func (p *fakePass) SetInput() { p.op(func() { copy(p.acts[kernels.ActX], p.in[:p.rows*p.Hidden]) }) }
func (p *fakePass) LoadRows(r kernels.DeviceRows, first int) {
	p.op(func() { copy(p.acts[kernels.ActX][:p.rows*p.Hidden], r.(*fakeThing).v[first*p.Hidden:]) })
}
func (p *fakePass) StoreRows(r kernels.DeviceRows, first int) {
	p.op(func() { copy(r.(*fakeThing).v[first*p.Hidden:], p.acts[kernels.ActX][:p.rows*p.Hidden]) })
}

func (p *fakePass) row(a kernels.Activation, i int) []float32 {
	n := p.Columns(a)
	return p.acts[a][i*n : (i+1)*n]
}

func (p *fakePass) Norm(w kernels.DeviceVector, eps float64) {
	p.op(func() {
		for i := range p.rows {
			p.d.cpu.RMSNorm(p.row(kernels.ActNorm, i), p.row(kernels.ActX, i), w.(*fakeThing).v, eps)
		}
	})
}

// product returns src·wᵀ + bias for the first n rows of src.
func (p *fakePass) product(src []float32, n int, w kernels.DeviceMatrix, bias kernels.DeviceVector) []float32 {
	m := w.(*fakeThing).m
	dst := make([]float32, n*m.Rows)
	if p.BF16 && m.Type == tensor.BF16 {
		x := make([]uint16, n*m.Cols)
		p.d.cpu.RoundBF16(x, src[:n*m.Cols])
		p.d.cpu.MatMulBF16(dst, m.Rows, x, m.Cols, n, &m, 0, m.Rows)
	} else {
		p.d.cpu.MatMul(dst, m.Rows, src, m.Cols, n, &m, 0, m.Rows)
	}
	if bias != nil {
		for i := range n {
			p.d.cpu.Add(dst[i*m.Rows:(i+1)*m.Rows], bias.(*fakeThing).v)
		}
	}
	return dst
}

func (p *fakePass) MatMul(src kernels.Activation, add bool, products []kernels.DeviceProduct) {
	products = slices.Clone(products)
	p.op(func() {
		for _, x := range products {
			y := p.product(p.acts[src], p.rows, x.W, x.Bias)
			if add {
				p.d.cpu.Add(p.acts[x.Dst][:len(y)], y)
			} else {
				copy(p.acts[x.Dst], y)
			}
		}
	})
}

func (p *fakePass) HeadNorm(a kernels.Activation, w kernels.DeviceVector, eps float64) {
	p.op(func() {
		for i := range p.rows * p.Columns(a) / p.HeadDim {
			x := p.acts[a][i*p.HeadDim : (i+1)*p.HeadDim]
			p.d.cpu.RMSNorm(x, x, w.(*fakeThing).v, eps)
		}
	})
}

func (p *fakePass) RopeAppend(layer int) {
	p.op(func() {
		d := p.HeadDim
		for i := range p.rows {
			t := p.cosSin[i*d : (i+1)*d]
			for _, a := range []kernels.Activation{kernels.ActQ, kernels.ActK} {
				x := p.row(a, i)
				for ; len(x) > 0; x = x[d:] {
					p.d.cpu.Rope(x[:d], t[:d/2], t[d/2:])
				}
			}
			if q := p.row(kernels.ActQ, i); p.AttentionBF16 {
				p.d.cpu.RoundedBF16(q, q)
			}
		}
		for seq, span := range p.spans {
			for head := range p.KVHeads {
				h := p.heads[[3]int{layer, seq, head}]
				pool := h.table.p
				for i := range span.N {
					e := h.entries + i
					x := h.table.pages[e/pool.l.PageEntries]
					if pool.shared(x) {
						panic("fake device: write to a shared page")
					}
					for j := range d {
						at := head*d + j
						k, v := pool.entry(pool.data(x), e%pool.l.PageEntries, j)
						p.d.cpu.Narrow(k, p.row(kernels.ActK, span.Row+i)[at:at+1], pool.l.Type)
						p.d.cpu.Narrow(v, p.row(kernels.ActV, span.Row+i)[at:at+1], pool.l.Type)
					}
				}
			}
		}
	})
}

func (p *fakePass) Attend(layer int, stats bool) {
	p.op(func() {
		group, n := p.Heads/p.KVHeads, p.Columns(kernels.ActQ)
		for i := range p.stats {
			p.stats[i] = kernels.Softmax{}
		}
		for seq, span := range p.spans {
			for head := range p.KVHeads {
				h := p.heads[[3]int{layer, seq, head}]
				off := span.Row*n + head*group*p.HeadDim
				st := make([]kernels.Softmax, span.N*group)
				a := kernels.AttentionArgs{
					Out: p.acts[kernels.ActAttention][off:], Q: p.acts[kernels.ActQ][off:], Stride: n, N: span.N, Group: group,
					End: h.base + h.entries + 1, Window: p.Windows[layer], Scale: p.Scale, KV: h.table.kv(h.base, h.entries+span.N), Stats: st,
					BF16: p.AttentionBF16,
				}
				p.d.cpu.Attention(&a, new(kernels.AttentionScratch))
				for i := range st {
					if stats {
						p.stats[(span.Row+i/group)*p.Heads+head*group+i%group] = st[i]
					}
				}
			}
		}
	})
}

func (p *fakePass) GateUp(gate, up kernels.DeviceMatrix, gb, ub kernels.DeviceVector) {
	p.op(func() {
		g := p.product(p.acts[kernels.ActNorm], p.rows, gate, gb)
		u := p.product(p.acts[kernels.ActNorm], p.rows, up, ub)
		p.d.cpu.SwiGLU(p.acts[kernels.ActMLP][:len(g)], g, u)
	})
}

func (p *fakePass) Logits(w kernels.DeviceVector, eps float64, head kernels.DeviceMatrix, first, n int) {
	if n > p.PassShape.Logits {
		panic("fake device: more rows of logits than the pass was made for")
	}
	p.op(func() {
		x := make([]float32, n*p.Hidden)
		for i := range n {
			p.d.cpu.RMSNorm(x[i*p.Hidden:(i+1)*p.Hidden], p.row(kernels.ActX, first+i), w.(*fakeThing).v, eps)
		}
		copy(p.out, p.product(x, n, head, nil))
	})
}

func (p *fakePass) In() []float32     { return p.in }
func (p *fakePass) CosSin() []float32 { return p.cosSin }

func (p *fakePass) SetSpans(spans []kernels.PassSpan, positions []int32) {
	if len(spans) > p.Sequences {
		panic("fake device: more sequences than the pass was made for")
	}
	p.spans, p.pos = append(p.spans[:0], spans...), append(p.pos[:0], positions...)
}

func (p *fakePass) SetHead(layer, seq, head int, t kernels.PageTable, entries, base int) {
	p.heads[[3]int{layer, seq, head}] = fakeHead{t.(*fakeTable), entries, base}
}

func (p *fakePass) Run(ctx context.Context, list kernels.PassList) error {
	l := list.(*fakeList)
	if l.gone || l.p != p || p.open {
		panic("fake device: run of a list that was freed, of another pass or while recording")
	}
	if err := p.d.hit(); err != nil {
		return err
	}
	p.d.mu.Lock()
	p.d.submitted++
	p.d.mu.Unlock()
	p.rows = l.rows
	for _, op := range l.ops {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		op()
	}
	return nil
}

func (p *fakePass) OutLogits(n int) []float32 { return p.out[:n*p.Vocab] }

func (p *fakePass) Read(_ context.Context, dst []float32, a kernels.Activation, first, n int) error {
	if p.open {
		panic("fake device: Read while recording")
	}
	if err := p.d.hit(); err != nil {
		return err
	}
	copy(dst[:n*p.Columns(a)], p.acts[a][first*p.Columns(a):])
	return nil
}

func (p *fakePass) ReadStats(_ context.Context, dst []kernels.Softmax, first, n int) error {
	if err := p.d.hit(); err != nil {
		return err
	}
	copy(dst[:n*p.Heads], p.stats[first*p.Heads:])
	return nil
}

func (p *fakePass) Close() {
	if !p.gone {
		p.gone = true
		p.d.count("pass", -1)
	}
}

// The fake device scores with package lukv, so that scores are the host's.

type fakeMoments struct {
	fakeThing
	stats *lukv.QueryStats
	n     int
}

type fakeSums struct {
	fakeThing
	queries *lukv.QueryWindow // the rows, kept instead of their sums
}

func (p *fakePass) NewMoments(covariance bool) (kernels.DeviceMoments, error) {
	if err := p.d.hit(); err != nil {
		return nil, err
	}
	p.d.count("moments", 1)
	return &fakeMoments{fakeThing: fakeThing{d: p.d, kind: "moments"}, stats: lukv.NewQueryStats(p.Heads, p.HeadDim, 0, covariance, p.d.cpu)}, nil
}

func (p *fakePass) Moments(m kernels.DeviceMoments, first, n int) {
	p.op(func() {
		x := m.(*fakeMoments)
		for q := range p.Heads {
			x.stats.Add(q, 0, p.acts[kernels.ActQ][first*p.Columns(kernels.ActQ)+q*p.HeadDim:], n, p.Columns(kernels.ActQ))
		}
		x.n += n
	})
}

func (p *fakePass) ReadMoments(_ context.Context, m kernels.DeviceMoments, head int, mean, cov []float64) (int, error) {
	if err := p.d.hit(); err != nil {
		return 0, err
	}
	x := m.(*fakeMoments)
	x.stats.Mean(head, mean)
	if cov != nil {
		if err := x.stats.Cov(head, cov); err != nil {
			return 0, err
		}
	}
	return x.n, nil
}

func (p *fakePass) NewSums(entries int) (kernels.DeviceSums, error) {
	if err := p.d.hit(); err != nil {
		return nil, err
	}
	p.d.count("sums", 1)
	return &fakeSums{fakeThing{d: p.d, kind: "sums"}, lukv.NewQueryWindow(p.Heads, p.HeadDim, entries)}, nil
}

func (p *fakePass) ColumnSums(s kernels.DeviceSums, layer, seq, first, n int) {
	p.op(func() {
		if st := p.stats[first*p.Heads]; st == (kernels.Softmax{}) {
			panic("fake device: column sums without statistics")
		}
		for i := range n {
			s.(*fakeSums).queries.Append(int(p.pos[first+i]), p.row(kernels.ActQ, first+i))
		}
	})
}

// layer returns a layer and sequence as the metrics of package lukv see it.
func (p *fakePass) layer(layer, seq int) *lukv.Layer {
	l := &lukv.Layer{Index: layer, Heads: p.Heads, KVHeads: p.KVHeads, HeadDim: p.HeadDim, CPU: p.d.cpu}
	read := func(h, lo, hi int, dst []float32, values bool) []float32 {
		t := p.heads[[3]int{layer, seq, h}].table
		dst = slices.Grow(dst[:0], (hi-lo)*p.HeadDim)[:(hi-lo)*p.HeadDim]
		for e := lo; e < hi; e++ {
			for i := range p.HeadDim {
				k, v := t.p.entry(t.p.data(t.pages[e/t.p.l.PageEntries]), e%t.p.l.PageEntries, i)
				if values {
					k = v
				}
				p.d.cpu.Widen(dst[(e-lo)*p.HeadDim+i:][:1], k, t.p.l.Type)
			}
		}
		return dst
	}
	l.Keys = func(h, lo, hi int, dst []float32) []float32 { return read(h, lo, hi, dst, false) }
	l.Values = func(h, lo, hi int, dst []float32) []float32 { return read(h, lo, hi, dst, true) }
	for h := range p.KVHeads {
		l.Lens = append(l.Lens, p.heads[[3]int{layer, seq, h}].entries)
		l.T = max(l.T, l.Lens[h])
	}
	return l
}

// reduce counts a reduction and returns its rows, rounded as a device's are.
func (p *fakePass) reduce(rows [][]float64, err error) ([][]float32, error) {
	if err := p.d.hit(); err != nil {
		return nil, err
	}
	p.d.mu.Lock()
	p.d.scored++
	p.d.mu.Unlock()
	out := make([][]float32, len(rows))
	for i, row := range rows {
		for _, v := range row {
			out[i] = append(out[i], float32(v))
		}
	}
	return out, err
}

func (p *fakePass) ReadColumnSums(ctx context.Context, s kernels.DeviceSums, layer, seq int) ([][]float32, error) {
	l := p.layer(layer, seq)
	l.Queries = s.(*fakeSums).queries
	rows, err := l.WindowMeans(ctx, l.Queries.Len())
	for _, row := range rows {
		for t := range row {
			row[t] *= float64(l.Queries.Len())
		}
	}
	return p.reduce(rows, err)
}

func (p *fakePass) AnchorScores(ctx context.Context, layer, seq int) ([][]float32, error) {
	rows, err := p.layer(layer, seq).MeanCosines(ctx)
	for _, row := range rows {
		for t := range row {
			row[t] = -row[t]
		}
	}
	return p.reduce(rows, err)
}

func (p *fakePass) KeyNorms(ctx context.Context, layer, seq int) ([][]float32, error) {
	return p.reduce(roots(p.layer(layer, seq).SquaredKeyNorms(ctx)))
}

func (p *fakePass) ValueNorms(ctx context.Context, layer, seq int) ([][]float32, error) {
	return p.reduce(roots(p.layer(layer, seq).SquaredValueNorms(ctx)))
}

func roots(rows [][]float64, err error) ([][]float64, error) {
	for _, row := range rows {
		for t := range row {
			row[t] = math.Sqrt(row[t])
		}
	}
	return rows, err
}

func (p *fakePass) QuadraticForm(ctx context.Context, layer, seq int, linear, form []float32) ([][]float32, error) {
	return p.reduce(p.layer(layer, seq).QuadraticForms(ctx, linear, form))
}

func (p *fakePass) WindowScores(context.Context, int, int, kernels.DeviceSums, kernels.WindowScoring) ([][]float32, error) {
	panic("fake device: nobody asks for window scores")
}

func (p *fakePass) ExpectedScores(context.Context, int, int, kernels.ExpectedScoring) ([][]float32, error) {
	panic("fake device: nobody asks for expected scores")
}

func (p *fakePass) OutputNorms(context.Context, int, int, kernels.DeviceMatrix, int) ([][]float32, error) {
	panic("fake device: nobody asks for output norms")
}

var (
	_ kernels.MetricPass = (*fakePass)(nil)
	_ reducer            = (*fakePass)(nil)
)
