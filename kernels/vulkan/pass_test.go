//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testctx"
	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/internal/vk"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// A small model, run through a pass on the device and with package kernels: neither
// chunks, nor decoding, nor other sequences in the batch change a bit, and the results
// are within a bound of the CPU's.
type forwardModel struct {
	hidden, heads, kv, dim, inner, vocab int
	windows                              []int // of each layer
	bf16                                 bool
	attention                            tensor.Type // of pages; BF16: attention is also in bf16

	raw map[string][]byte // bf16
	vec map[string][]float32
}

func (m *forwardModel) shapes() map[string][2]int {
	q, k := m.heads*m.dim, m.kv*m.dim
	s := map[string][2]int{"embed": {m.vocab, m.hidden}, "head": {m.vocab, m.hidden}}
	for l := range m.windows {
		for n, x := range map[string][2]int{
			"q": {q, m.hidden}, "k": {k, m.hidden}, "v": {k, m.hidden}, "o": {m.hidden, q},
			"gate": {m.inner, m.hidden}, "up": {m.inner, m.hidden}, "down": {m.hidden, m.inner},
		} {
			s[fmt.Sprint(n, l)] = x
		}
	}
	return s
}

// newForwardModel makes a model with a layer per window.
func newForwardModel(dim int, windows ...int) *forwardModel {
	m := &forwardModel{
		hidden: 90, heads: 6, kv: 2, dim: dim, inner: 157, vocab: 91, windows: windows,
		raw: map[string][]byte{}, vec: map[string][]float32{}, attention: tensor.F32,
	}
	for name, s := range m.shapes() {
		x := random(rng(name), s[0]*s[1])
		for i := range x {
			x[i] /= float32(math.Sqrt(float64(s[1])))
		}
		m.raw[name], _ = narrow(x, tensor.BF16)
	}
	m.vec["norm"] = random(rng("norm"), m.hidden)
	for l := range windows {
		for name, n := range map[string]int{
			"attn": m.hidden, "mlp": m.hidden, "qn": dim, "kn": dim, "qb": m.heads * dim, "kb": m.kv * dim, "gb": m.inner, "db": m.hidden,
		} {
			m.vec[fmt.Sprint(name, l)] = random(rng(fmt.Sprint(name, l)), n)
		}
	}
	return m
}

func (m *forwardModel) embed(tokens []int) []float32 {
	x := make([]float32, len(tokens)*m.hidden)
	for i, t := range tokens {
		kernels.CPU{}.Widen(x[i*m.hidden:(i+1)*m.hidden], m.raw["embed"][2*t*m.hidden:2*(t+1)*m.hidden], tensor.BF16)
	}
	return x
}

// turns returns the cosines and sines of a position.
func (m *forwardModel) turns(pos int) []float32 {
	t := make([]float32, m.dim)
	for i := range m.dim / 2 {
		sin, cos := math.Sincos(float64(pos) * math.Pow(100, -float64(2*i)/float64(m.dim)))
		t[i], t[m.dim/2+i] = float32(cos), float32(sin)
	}
	return t
}

// reference computes the logits of every token on the CPU, without a cache.
func (m *forwardModel) reference(tokens []int) []float32 {
	cpu, n, dim := kernels.Detect(), len(tokens), m.dim
	mul := func(name, bias string, x []float32) []float32 {
		s := m.shapes()[name]
		if m.bf16 {
			_, x = narrow(x, tensor.BF16)
		}
		y := make([]float32, n*s[0])
		w := kernels.Matrix{Type: tensor.BF16, Rows: s[0], Cols: s[1], Data: m.raw[name]}
		cpu.MatMul(y, s[0], x, s[1], n, &w, 0, s[0])
		for i, b := range m.vec[bias] {
			for r := range n {
				y[r*s[0]+i] += b
			}
		}
		return y
	}
	norm := func(name string, x []float32, cols int) []float32 {
		y := make([]float32, len(x))
		for i := 0; i < len(x); i += cols {
			cpu.RMSNorm(y[i:], x[i:i+cols], m.vec[name], 1e-5)
		}
		return y
	}
	x := m.embed(tokens)
	fQ, fK := m.heads*dim, m.kv*dim
	for l, window := range m.windows {
		name := func(s string) string { return fmt.Sprint(s, l) }
		xn := norm(name("attn"), x, m.hidden)
		q, k, v := norm(name("qn"), mul(name("q"), name("qb"), xn), dim), norm(name("kn"), mul(name("k"), name("kb"), xn), dim), mul(name("v"), "", xn)
		att := make([]float32, n*fQ)
		for i := range n {
			t := m.turns(i)
			for h := range m.heads {
				cpu.Rope(q[i*fQ+h*dim:][:dim], t[:dim/2], t[dim/2:])
			}
			for h := range m.kv {
				cpu.Rope(k[i*fK+h*dim:][:dim], t[:dim/2], t[dim/2:])
			}
		}
		_, q = narrow(q, m.attention)
		_, k = narrow(k, m.attention)
		_, v = narrow(v, m.attention)
		for i := range n {
			first := 0
			if window > 0 {
				first = max(0, i+1-window)
			}
			for h := range m.heads {
				var keys, values [][]float32
				for j := first; j <= i; j++ {
					at := j*fK + h/(m.heads/m.kv)*dim
					keys, values = append(keys, k[at:at+dim]), append(values, v[at:at+dim])
				}
				for d, y := range softmaxRef(q[i*fQ+h*dim:][:dim], keys, values) {
					att[i*fQ+h*dim+d] = float32(y)
				}
			}
		}
		cpu.Add(x, mul(name("o"), "", att))
		xn = norm(name("mlp"), x, m.hidden)
		gate := mul(name("gate"), name("gb"), xn)
		cpu.SwiGLU(gate, gate, mul(name("up"), "", xn))
		cpu.Add(x, mul(name("down"), name("db"), gate))
	}
	return mul("head", "", norm("norm", x, m.hidden))
}

// passRig is a model on a device, with a pass.
type passRig struct {
	t     testing.TB
	d     kernels.Device
	m     *forwardModel
	w     map[string]kernels.DeviceMatrix
	v     map[string]kernels.DeviceVector
	pool  kernels.PagePool
	pass  kernels.Pass
	lists map[int]kernels.PassList
	page  kernels.PageLayout
}

func newPassRig(t testing.TB, d *Device, m *forwardModel, rows, sequences int) *passRig {
	t.Helper()
	r := &passRig{
		t: t, d: d, m: m, w: map[string]kernels.DeviceMatrix{}, v: map[string]kernels.DeviceVector{},
		lists: map[int]kernels.PassList{}, page: kernels.PageLayout{Type: m.attention, HeadDim: m.dim, PageEntries: 16},
	}
	ctx := context.Background()
	var err error
	for name, s := range m.shapes() {
		r.w[name], err = d.Matrix(ctx, kernels.Matrix{Type: tensor.BF16, Rows: s[0], Cols: s[1], Data: m.raw[name]})
		ok(t, err)
		t.Cleanup(r.w[name].Free)
	}
	for name, x := range m.vec {
		r.v[name], err = d.Vector(ctx, x)
		ok(t, err)
		t.Cleanup(r.v[name].Free)
	}
	r.pool, err = d.Pages(r.page)
	ok(t, err)
	t.Cleanup(func() { ok(t, r.pool.Close()) })
	r.pass, err = d.Pass(r.passShape(rows, sequences))
	ok(t, err)
	t.Cleanup(r.pass.Close)
	return r
}

func (r *passRig) passShape(rows, sequences int) kernels.PassShape {
	m := r.m
	return kernels.PassShape{
		Rows: rows, Sequences: sequences, Logits: rows, Hidden: m.hidden, Heads: m.heads, KVHeads: m.kv, HeadDim: m.dim,
		Intermediate: m.inner, Vocab: m.vocab, Windows: m.windows, BF16: m.bf16, Scale: kernels.AttentionScale(m.dim), Page: r.page,
		AttentionBF16: m.attention == tensor.BF16,
	}
}

func (r *passRig) layer(l int) {
	p := r.pass
	w := func(s string) kernels.DeviceMatrix { return r.w[fmt.Sprint(s, l)] }
	v := func(s string) kernels.DeviceVector { return r.v[fmt.Sprint(s, l)] }
	p.Norm(v("attn"), 1e-5)
	p.MatMul(kernels.ActNorm, false, []kernels.DeviceProduct{
		{W: w("q"), Dst: kernels.ActQ, Bias: v("qb")}, {W: w("k"), Dst: kernels.ActK, Bias: v("kb")}, {W: w("v"), Dst: kernels.ActV},
	})
	p.HeadNorm(kernels.ActQ, v("qn"), 1e-5)
	p.HeadNorm(kernels.ActK, v("kn"), 1e-5)
	p.RopeAppend(l)
	p.Attend(l, true)
	p.MatMul(kernels.ActAttention, true, []kernels.DeviceProduct{{W: w("o"), Dst: kernels.ActX}})
	p.Norm(v("mlp"), 1e-5)
	p.GateUp(w("gate"), w("up"), v("gb"), nil)
	p.MatMul(kernels.ActMLP, true, []kernels.DeviceProduct{{W: w("down"), Dst: kernels.ActX, Bias: v("db")}})
}

// list records the whole model for the given number of rows.
func (r *passRig) list(rows int) kernels.PassList {
	r.t.Helper()
	if l, ok := r.lists[rows]; ok {
		return l
	}
	p := r.pass
	p.Begin(rows)
	p.SetInput()
	for l := range r.m.windows {
		r.layer(l)
	}
	p.Logits(r.v["norm"], 1e-5, r.w["head"], 0, rows)
	list, err := p.End()
	ok(r.t, err)
	r.lists[rows] = list
	return list
}

// passSeq is a sequence in a rig, with its cache.
type passSeq struct {
	n     int
	pages [][]kernels.DevicePage // [layer*KV+head]
	table []kernels.PageTable
	base  []int // [layer*KV+head]
}

func (r *passRig) sequence() *passSeq {
	n := len(r.m.windows) * r.m.kv
	s := &passSeq{pages: make([][]kernels.DevicePage, n), base: make([]int, n)}
	for range n {
		t, err := r.pool.Table()
		ok(r.t, err)
		r.t.Cleanup(t.Free)
		s.table = append(s.table, t)
	}
	return s
}

// set gives the pass its sequences and their next tokens, and makes room for these.
func (r *passRig) set(seqs []*passSeq, tokens [][]int) {
	r.t.Helper()
	row := 0
	var spans []kernels.PassSpan
	var positions []int32
	for i, s := range seqs {
		n := len(tokens[i])
		copy(r.pass.In()[row*r.m.hidden:], r.m.embed(tokens[i]))
		for j := range n {
			copy(r.pass.CosSin()[(row+j)*r.m.dim:], r.m.turns(s.n+j))
			positions = append(positions, int32(s.n+j))
		}
		spans = append(spans, kernels.PassSpan{Row: row, N: n})
		for at := range s.pages {
			held := s.n - s.base[at]
			had := len(s.pages[at])
			var err error
			s.pages[at], err = r.pool.Alloc(s.pages[at], max(0, (held+n+r.page.PageEntries-1)/r.page.PageEntries-had))
			ok(r.t, err)
			ok(r.t, s.table[at].Set(s.pages[at], had))
			r.pass.SetHead(at/r.m.kv, i, at%r.m.kv, s.table[at], held, s.base[at])
		}
		row += n
	}
	r.pass.SetSpans(spans, positions)
}

// step runs the next tokens of sequences and returns the logits of each.
func (r *passRig) step(seqs []*passSeq, tokens ...[]int) [][]float32 {
	r.t.Helper()
	r.set(seqs, tokens)
	rows := 0
	for _, t := range tokens {
		rows += len(t)
	}
	ok(r.t, r.pass.Run(context.Background(), r.list(rows)))
	all := slices.Clone(r.pass.OutLogits(rows))
	var out [][]float32
	for i, s := range seqs {
		n := len(tokens[i])
		out, all = append(out, all[:n*r.m.vocab]), all[n*r.m.vocab:]
		s.n += n
		// A window drops whole pages that no later token sees.
		for at := range s.pages {
			if w := r.m.windows[at/r.m.kv]; w > 0 {
				for s.base[at]+r.page.PageEntries <= s.n+1-w {
					r.pool.Unref(s.pages[at][:1])
					s.pages[at] = s.pages[at][1:]
					s.base[at] += r.page.PageEntries
					ok(r.t, s.table[at].Set(s.pages[at], 0))
				}
			}
		}
	}
	return out
}

// chunks feeds tokens to one sequence in chunks of the given sizes; the last size repeats.
func (r *passRig) chunks(s *passSeq, tokens []int, sizes ...int) []float32 {
	var out []float32
	for i := 0; len(tokens) > 0; i++ {
		n := min(sizes[min(i, len(sizes)-1)], len(tokens))
		out = append(out, r.step([]*passSeq{s}, tokens[:n])[0]...)
		tokens = tokens[n:]
	}
	return out
}

func testTokens(m *forwardModel, n, seed int) []int {
	return repeat(n, func(i int) int { return (i*i + 7*seed) % m.vocab })
}

func TestPass(t *testing.T) {
	d := device(t)
	for _, c := range []struct {
		dim       int
		windows   []int
		bf16      bool
		attention tensor.Type
		n         int
		bound     float64
	}{
		{16, []int{0, 0}, false, tensor.F32, 45, 1e-5},
		{12, []int{0, 0}, false, tensor.F32, 45, 1e-5},
		{16, []int{0, 20}, false, tensor.F32, 70, 1e-5},
		{16, []int{5, 0, 33}, true, tensor.F32, 60, 0.05},
		{32, []int{0}, true, tensor.F32, 300, 0.05},
		{32, []int{0}, true, tensor.BF16, 300, 0.05},
		{16, []int{20, 0}, false, tensor.BF16, 60, 0.05},
	} {
		t.Run(fmt.Sprintf("dim%d,windows%v,bf16=%v,attention=%v", c.dim, c.windows, c.bf16, c.attention), func(t *testing.T) {
			m := newForwardModel(c.dim, c.windows...)
			m.bf16, m.attention = c.bf16, c.attention
			r := newPassRig(t, d, m, c.n, 3)
			tokens := testTokens(m, c.n, 1)
			// Windows drop pages only after a step, so this prefill sees all pages.
			got := r.chunks(r.sequence(), tokens, c.n)
			within(t, "logits", wide(m.reference(tokens)), got, func(int) float64 { return c.bound })

			testnum.SameBits(t, "chunks and decoding", got, r.chunks(r.sequence(), tokens, 10, 1, 25, 1, 1, 40, 1))
			testnum.SameBits(t, "token by token", got, r.chunks(r.sequence(), tokens, 1))
			if c.n > 256 {
				testnum.SameBits(t, "beyond a block", got, r.chunks(r.sequence(), tokens, c.n-5, 1, 2))
			}

			// In a batch with sequences of other lengths, one of which starts earlier.
			a, b, e := r.sequence(), r.sequence(), r.sequence()
			others := testTokens(m, 40, 2)
			r.step([]*passSeq{b}, others[:17])
			var batched []float32
			for at := 0; at < c.n; {
				k := min(1+at%13, c.n-at)
				steps := []*passSeq{b, a, e}
				next := [][]int{others[at%30 : at%30+1], tokens[at : at+k], others[at%20 : at%20+2]}
				if at%3 == 1 {
					steps, next = steps[1:], next[1:]
				}
				if k+3 > c.n {
					steps, next = []*passSeq{a}, [][]int{tokens[at : at+k]}
				}
				out := r.step(steps, next...)
				batched = append(batched, out[slices.Index(steps, a)]...)
				at += k
			}
			testnum.SameBits(t, "in company", got, batched)

			// In many parts, and layer by layer through rows on the device.
			r.pass.(*pass).partFlops = 1
			clear(r.lists)
			testnum.SameBits(t, "in many parts", got, r.chunks(r.sequence(), tokens, c.n))
			store, err := r.d.Rows(c.n+3, m.hidden)
			ok(t, err)
			defer store.Free()
			s := r.sequence()
			r.set([]*passSeq{s}, [][]int{tokens})
			lists := make([]kernels.PassList, len(c.windows)+1)
			for l := range lists {
				r.pass.Begin(c.n)
				if l == 0 {
					r.pass.SetInput()
				} else {
					r.pass.LoadRows(store, 2)
				}
				if l < len(c.windows) {
					r.layer(l)
					r.pass.StoreRows(store, 2)
				} else {
					r.pass.Logits(r.v["norm"], 1e-5, r.w["head"], c.n-4, 3)
				}
				lists[l], err = r.pass.End()
				ok(t, err)
			}
			for _, l := range lists {
				ok(t, r.pass.Run(context.Background(), l))
				l.Free()
			}
			testnum.SameBits(t, "layer by layer", got[(c.n-4)*m.vocab:(c.n-1)*m.vocab], slices.Clone(r.pass.OutLogits(3)))
		})
	}
}

// Passes and pools of one device may be used at the same time.
func TestPassesInParallel(t *testing.T) {
	d := device(t)
	m := newForwardModel(16, 0, 20)
	tokens := testTokens(m, 45, 1)
	want := newPassRig(t, d, m, 45, 1)
	bits := want.chunks(want.sequence(), tokens, 45)
	for i := range 4 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			r := newPassRig(t, d, m, 45, 1)
			for range 3 {
				testnum.SameBits(t, "beside other passes", bits, r.chunks(r.sequence(), tokens, 5+10*i, 1))
			}
		})
	}
}

// What the host reads from a pass is what the operations wrote.
func TestPassReads(t *testing.T) {
	d := device(t)
	ctx := context.Background()
	for _, bf16 := range []bool{false, true} {
		m := newForwardModel(12, 0)
		if m.bf16 = bf16; bf16 {
			m.attention = tensor.BF16
		}
		const n = 9
		r := newPassRig(t, d, m, n, 1)
		r.chunks(r.sequence(), testTokens(m, n, 3), n)
		read := func(a kernels.Activation, first, k, cols int) []float32 {
			x := make([]float32, k*cols)
			ok(t, r.pass.Read(ctx, x, a, first, k))
			return x
		}
		testnum.SameBits(t, "logits", r.pass.OutLogits(n)[2*m.vocab:5*m.vocab], read(kernels.ActLogits, 2, 3, m.vocab))
		x, norm := read(kernels.ActX, 0, n, m.hidden), make([]float32, m.hidden)
		kernels.CPU{}.RMSNorm(norm, x[m.hidden:2*m.hidden], m.vec["norm"], 1e-5)
		if bf16 {
			_, norm = narrow(norm, tensor.BF16)
		}
		want := make([]float32, m.vocab)
		w := kernels.Matrix{Type: tensor.BF16, Rows: m.vocab, Cols: m.hidden, Data: m.raw["head"]}
		kernels.CPU{}.MatMul(want, m.vocab, norm, m.hidden, 1, &w, 0, m.vocab)
		within(t, "logits from the residual stream", wide(want), r.pass.OutLogits(n)[m.vocab:2*m.vocab], func(int) float64 { return 0.05 })
		inner := read(kernels.ActMLP, 0, n, m.inner)
		if _, y := narrow(inner, tensor.BF16); bf16 {
			testnum.SameBits(t, "inner activations are bf16", y, inner)
		}
		q := read(kernels.ActQ, 0, n, m.heads*m.dim)
		if _, y := narrow(q, tensor.BF16); slices.Equal(q, y) != bf16 {
			t.Errorf("attention in bf16 %v: queries are bf16 %v", bf16, !bf16)
		}
		stats := make([]kernels.Softmax, n*m.heads)
		ok(t, r.pass.ReadStats(ctx, stats, 0, n))
		for h := range m.heads {
			// The first token sees only itself.
			if stats[h].Sum != 1 {
				t.Errorf("statistics of head %d: %+v", h, stats[h])
			}
		}
		if r.pass.Read(ctx, make([]float32, m.hidden), kernels.ActX, n, 1) == nil || r.pass.Read(ctx, nil, kernels.ActX, 0, 1) == nil ||
			r.pass.ReadStats(ctx, stats, 1, n) == nil || r.pass.Read(ctx, nil, 99, 0, 0) == nil {
			t.Error("a read beyond an activation was accepted")
		}
	}
}

func TestPassChecksItsArguments(t *testing.T) {
	d := device(t)
	m := newForwardModel(16, 0)
	r := newPassRig(t, d, m, 4, 2)
	p := r.pass
	other, err := d.Rows(2, m.hidden)
	ok(t, err)
	defer other.Free()
	f32, err := d.Matrix(context.Background(), kernels.Matrix{Type: tensor.F32, Rows: 2, Cols: 2, Data: make([]byte, 16)})
	ok(t, err)
	freed, err := d.Vector(context.Background(), make([]float32, m.hidden))
	ok(t, err)
	freed.Free()
	freed.Free()
	for name, record := range map[string]func(){
		"no rows":   func() { p.Begin(0) },
		"many rows": func() { p.Begin(5) },
		"layer":     func() { p.Begin(1); p.RopeAppend(1) },
		"no layer":  func() { p.Begin(1); p.Attend(-1, false) },
		"columns": func() {
			p.Begin(1)
			p.MatMul(kernels.ActX, false, []kernels.DeviceProduct{{W: f32, Dst: kernels.ActQ}})
		},
		"dst": func() {
			p.Begin(1)
			p.MatMul(kernels.ActNorm, false, []kernels.DeviceProduct{{W: r.w["q0"], Dst: kernels.ActK}})
		},
		"no weights": func() { p.Begin(1); p.MatMul(kernels.ActNorm, false, []kernels.DeviceProduct{{Dst: kernels.ActQ}}) },
		"norm":       func() { p.Begin(1); p.Norm(r.v["qn0"], 1e-5) },
		"freed":      func() { p.Begin(1); p.Norm(freed, 1e-5) },
		"heads":      func() { p.Begin(1); p.HeadNorm(kernels.ActX, r.v["qn0"], 1e-5) },
		"rows":       func() { p.Begin(2); p.LoadRows(other, 1) },
		"store":      func() { p.Begin(2); p.StoreRows(nil, 0) },
		"gate":       func() { p.Begin(1); p.GateUp(r.w["gate0"], r.w["down0"], nil, nil) },
		"bias":       func() { p.Begin(1); p.GateUp(r.w["gate0"], r.w["up0"], r.v["qn0"], nil) },
		"logits":     func() { p.Begin(2); p.Logits(r.v["norm"], 1e-5, r.w["head"], 1, 2) },
		"head":       func() { p.Begin(2); p.Logits(r.v["norm"], 1e-5, r.w["q0"], 0, 2) },
	} {
		record()
		if l, err := p.End(); err == nil {
			l.Free()
			t.Errorf("%s: no error", name)
		} else {
			t.Log(err)
		}
	}
	if _, err := p.End(); err == nil {
		t.Error("End without Begin")
	}
	// Too few pages, too many rows, a freed list.
	ctx := context.Background()
	s := r.sequence()
	r.set([]*passSeq{s}, [][]int{{1, 2}})
	list := r.list(2)
	p.SetHead(0, 0, 1, s.table[1], 15, 0)
	if err := p.Run(ctx, list); err == nil {
		t.Error("a pass without room for its rows ran")
	}
	p.SetHead(0, 0, 1, nil, 0, 0)
	if err := p.Run(ctx, list); err == nil {
		t.Error("a pass without a page table ran")
	}
	r.set([]*passSeq{s}, [][]int{{1, 2}})
	if err := p.Run(ctx, r.list(1)); err == nil {
		t.Error("a list of one row ran for two")
	}
	ok(t, p.Run(ctx, list))
	list.Free()
	list.Free()
	if err := p.Run(ctx, list); err == nil {
		t.Error("a list that was freed ran")
	}
	delete(r.lists, 2)
	for _, s := range []kernels.PassShape{{}, {Rows: 1, Page: r.page}} {
		if _, err := d.Pass(s); err == nil {
			t.Errorf("a pass of %+v", s)
		}
	}
	shape := r.passShape(1, 1)
	shape.Page.HeadDim = 64
	if _, err := d.Pass(shape); err == nil {
		t.Error("a pass with pages of other heads")
	}
	shape = r.passShape(1, 1)
	shape.AttentionBF16 = true
	if _, err := d.Pass(shape); err == nil {
		t.Error("attention in bf16 over pages in f32")
	} else {
		t.Log(err)
	}
	mixed := *m
	mixed.bf16 = true
	b := &passRig{t: t, d: d, m: &mixed, page: r.page}
	q, err := d.Pass(b.passShape(1, 1))
	ok(t, err)
	defer q.Close()
	q.Begin(1)
	q.MatMul(kernels.ActNorm, false, []kernels.DeviceProduct{{W: f32, Dst: kernels.ActQ}})
	if _, err := q.End(); err == nil {
		t.Error("f32 weights where activations are bf16")
	}
}

func TestPassCancelled(t *testing.T) {
	d := device(t)
	m := newForwardModel(16, 0, 0)
	r := newPassRig(t, d, m, 40, 1)
	tokens := testTokens(m, 40, 1)
	want := r.chunks(r.sequence(), tokens, 40)
	r.pass.(*pass).partFlops = 1
	clear(r.lists)
	list := r.list(40)
	s := r.sequence()
	r.set([]*passSeq{s}, [][]int{tokens})
	if n := len(list.(*passList).parts); n < 10 {
		t.Fatalf("the list has %d parts", n)
	}
	for _, left := range []int{0, 1, 3, 6} {
		err := r.pass.Run(testctx.DoneAfter(t.Context(), left), list)
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("cancelled after %d parts: %v", left, err)
		}
		if d.done < d.last {
			t.Errorf("work is under way after a cancelled run")
		}
	}
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if err := r.pass.Run(ctx, list); !errors.Is(err, cause) {
		t.Errorf("the cause of a cancelled run is %v", err)
	}
	ok(t, r.pass.Run(context.Background(), list))
	testnum.SameBits(t, "after cancelled runs", want, slices.Clone(r.pass.OutLogits(40)))
}

func TestPassAllocatesNothing(t *testing.T) {
	d := device(t)
	m := newForwardModel(16, 0, 30)
	r := newPassRig(t, d, m, 4, 2)
	seqs := []*passSeq{r.sequence(), r.sequence()}
	r.step(seqs[:1], []int{5, 6, 7})
	r.set(seqs, [][]int{{1}, {2}})
	list := r.list(2)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ok(t, r.pass.Run(ctx, list))
	spans, positions := []kernels.PassSpan{{Row: 0, N: 1}, {Row: 1, N: 1}}, []int32{3, 0}
	n := testing.AllocsPerRun(50, func() {
		r.pass.SetSpans(spans, positions)
		for at := range seqs[0].pages {
			for i, s := range seqs {
				if s.table[at].Set(s.pages[at], 0) != nil {
					t.Error("the table could not be set")
				}
				r.pass.SetHead(at/m.kv, i, at%m.kv, s.table[at], s.n, 0)
			}
		}
		if r.pass.Run(ctx, list) != nil || len(r.pass.OutLogits(2)) == 0 {
			t.Error("the list could not be run")
		}
	})
	if n > 0 {
		t.Errorf("a decode step allocates %v times", n)
	}
}

// A lost device fails every method with kernels.ErrDeviceLost, and nothing else.
func TestDeviceLostThroughTheInterface(t *testing.T) {
	d := openTest(t, Options{BlockBytes: 1 << 20})
	ctx := context.Background()
	m := newForwardModel(16, 0)
	r := newPassRig(t, d, m, 4, 1)
	s := r.sequence()
	r.step([]*passSeq{s}, []int{1, 2})
	list := r.list(2)
	r.set([]*passSeq{s}, [][]int{{1, 2}})
	before := d.Memory()
	d.mu.Lock()
	d.inject = vk.DeviceLost("vkQueueSubmit2")
	d.mu.Unlock()
	page, block, pages := s.pages[0][0], make([]byte, r.page.Bytes()), s.pages[0]
	for round := range 2 {
		for name, call := range map[string]func() error{
			"Run": func() error { return r.pass.Run(ctx, list) },
			"Matrix": func() error {
				_, err := d.Matrix(ctx, kernels.Matrix{Type: tensor.F32, Rows: 1, Cols: 1, Data: make([]byte, 4)})
				return err
			},
			"Vector":  func() error { _, err := d.Vector(ctx, []float32{1}); return err },
			"Rows":    func() error { _, err := d.Rows(1, 1); return err },
			"Pages":   func() error { _, err := d.Pages(r.page); return err },
			"Pass":    func() error { _, err := d.Pass(r.passShape(1, 1)); return err },
			"Alloc":   func() error { _, err := r.pool.Alloc(nil, 1); return err },
			"Read":    func() error { return r.pool.Read(ctx, block, pages[:1]) },
			"Write":   func() error { return r.pool.Write(ctx, pages[:1], block) },
			"Copy":    func() error { return r.pool.Copy(page, page) },
			"Compact": func() error { return r.pool.Compact(pages, pages, []int32{1}, 0) },
			"Table":   func() error { _, err := r.pool.Table(); return err },
			"Set":     func() error { return s.table[0].Set(pages, 0) },
			"End":     func() error { r.pass.Begin(1); r.pass.SetInput(); _, err := r.pass.End(); return err },
			"Act":     func() error { return r.pass.Read(ctx, make([]float32, m.hidden), kernels.ActX, 0, 1) },
			"Stats":   func() error { return r.pass.ReadStats(ctx, make([]kernels.Softmax, m.heads), 0, 1) },
		} {
			if round == 0 && name != "Run" {
				continue // in the first round the submission by Run must be the one that fails
			}
			if err := call(); !errors.Is(err, kernels.ErrDeviceLost) || errors.Is(err, kernels.ErrDeviceMemory) {
				t.Errorf("%s on a lost device: %v", name, err)
			}
		}
	}
	r.pool.Ref(pages)
	r.pool.Unref(pages)
	require.EqualValues(t, 1, holders(r.pool, page))
	require.Equal(t, before.Buffers, d.Memory().Buffers)
	ok(t, d.Close())
	ok(t, d.Close())
}

// Opening and closing everything a thousand times leaves nothing behind.
func TestPassesLeaveNothing(t *testing.T) {
	d := openTest(t, Options{BlockBytes: 4 << 20})
	m := newForwardModel(16, 0)
	for i := range 1000 {
		p, err := d.Pass((&passRig{m: m, page: kernels.PageLayout{Type: tensor.F32, HeadDim: 16, PageEntries: 16}}).passShape(1+i%3, 1))
		ok(t, err)
		p.Begin(1)
		p.SetInput()
		if i%3 > 0 {
			_, err := p.End()
			ok(t, err)
		}
		pool, err := d.Pages(kernels.PageLayout{Type: tensor.BF16, HeadDim: 16, PageEntries: 16})
		ok(t, err)
		_, err = pool.Alloc(nil, 1+i%100)
		ok(t, err)
		table, err := pool.Table()
		ok(t, err)
		rows, err := d.Rows(2, 2)
		ok(t, err)
		rows.Free()
		table.Free()
		ok(t, pool.Close())
		p.Close()
		p.Close()
	}
	if mem := d.Memory(); mem.Buffers != 0 || mem.Used != 0 || len(d.live) != len(d.stage.slots) {
		t.Errorf("%+v and %d lists of commands are left", mem, len(d.live))
	}
}
