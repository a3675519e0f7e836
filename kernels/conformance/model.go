package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// transformer is a small random model.
type transformer struct {
	hidden, heads, kv, dim, inner, vocab int

	windows []int       // of each layer
	operand tensor.Type // of products' sources
	page    kernels.PageLayout

	raw map[string][]byte // [rows][cols] of bf16
	vec map[string][]float32
}

func newTransformer(dim int, operand, page tensor.Type, windows ...int) *transformer {
	m := &transformer{
		hidden: 90, heads: 6, kv: 2, dim: dim, inner: 157, vocab: 91, windows: windows, operand: operand,
		page: kernels.PageLayout{Type: page, HeadDim: dim, PageEntries: 16},
		raw:  map[string][]byte{}, vec: map[string][]float32{},
	}
	for name, s := range m.shapes() {
		x := normal(random(name), s[0]*s[1])
		for i := range x {
			x[i] /= float32(math.Sqrt(float64(s[1])))
		}
		m.raw[name], _ = narrow(x, tensor.BF16)
	}
	m.vec["norm"] = normal(random("norm"), m.hidden)
	for l := range windows {
		for name, n := range map[string]int{
			"attn": m.hidden, "mlp": m.hidden, "qn": dim, "kn": dim, "qb": m.heads * dim, "kb": m.kv * dim, "gb": m.inner, "db": m.hidden,
		} {
			m.vec[fmt.Sprint(name, l)] = normal(random(fmt.Sprint(name, l)), n)
		}
	}
	return m
}

func (m *transformer) shapes() map[string][2]int {
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

// turns returns the cosines and sines of a position.
func (m *transformer) turns(pos int) []float32 {
	t := make([]float32, m.dim)
	for i := range m.dim / 2 {
		sin, cos := math.Sincos(float64(pos) * math.Pow(100, -float64(2*i)/float64(m.dim)))
		t[i], t[m.dim/2+i] = float32(cos), float32(sin)
	}
	return t
}

// running is a transformer on a device.
type running struct {
	*rig
	m    *transformer
	w    map[string]kernels.DeviceMatrix
	v    map[string]kernels.Buffer
	acts map[string]kernels.Rows // by name, of the most rows
	pool kernels.PagePool
	a    kernels.Attention

	ids, turns, out kernels.SharedBuffer
	lists           map[int]kernels.CommandList
}

func (r *rig) start(m *transformer, rows, sequences int) *running {
	r.t.Helper()
	x := &running{rig: r, m: m, w: map[string]kernels.DeviceMatrix{}, v: map[string]kernels.Buffer{}, acts: map[string]kernels.Rows{}, lists: map[int]kernels.CommandList{}}
	for name, s := range m.shapes() {
		x.w[name] = r.matrix(kernels.Matrix{Type: tensor.BF16, Rows: s[0], Cols: s[1], Data: m.raw[name]})
	}
	for name, v := range m.vec {
		x.v[name] = r.vector(v)
	}
	for name, cols := range map[string]int{"x": m.hidden, "q": m.heads * m.dim, "k": m.kv * m.dim, "v": m.kv * m.dim, "logits": m.vocab} {
		x.acts[name] = r.rows(tensor.F32, rows, cols, nil)
	}
	for name, cols := range map[string]int{"norm": m.hidden, "attention": m.heads * m.dim, "inner": m.inner} {
		x.acts[name] = r.rows(m.operand, rows, cols, nil)
	}
	x.ids, x.turns, x.out = r.shared(kernels.HostWrites, rows, 1, nil), r.shared(kernels.HostWrites, rows, m.dim, nil), r.shared(kernels.HostReads, rows, m.vocab, nil)
	var err error
	x.pool, err = r.d.Pages(m.page)
	ok(r.t, err)
	r.t.Cleanup(func() { ok(r.t, x.pool.Close()) })
	x.a, err = r.d.Attention(kernels.AttentionShape{
		Rows: rows, Sequences: sequences, Heads: m.heads, KVHeads: m.kv, HeadDim: m.dim, Windows: m.windows,
		Scale: kernels.AttentionScale(m.dim), Page: m.page, BF16: m.page.Type == tensor.BF16,
	})
	ok(r.t, err)
	r.t.Cleanup(x.a.Free)
	return x
}

// layer records a layer over n rows.
func (r *running) layer(l, n int) {
	e := r.e
	act := func(name string) kernels.Rows { return r.acts[name].Part(0, n) }
	linear := func(w, bias string) kernels.Linear {
		p := kernels.Linear{W: r.w[fmt.Sprint(w, l)]}
		if bias != "" {
			p.Bias = r.v[fmt.Sprint(bias, l)]
		}
		return p
	}
	e.Norm(act("norm"), act("x"), r.v[fmt.Sprint("attn", l)], 1e-5)
	e.MatMul(act("norm"), false, []kernels.Product{
		{Linear: linear("q", "qb"), Dst: act("q")}, {Linear: linear("k", "kb"), Dst: act("k")}, {Linear: linear("v", ""), Dst: act("v")},
	})
	e.HeadNorm(act("q"), r.v[fmt.Sprint("qn", l)], 1e-5)
	e.HeadNorm(act("k"), r.v[fmt.Sprint("kn", l)], 1e-5)
	e.RopeAppend(r.a, l, act("q"), act("k"), act("v"), kernels.Rows{Buffer: r.turns, N: n})
	e.Attend(r.a, l, act("attention"), act("q"), true)
	e.MatMul(act("attention"), true, []kernels.Product{{Linear: linear("o", ""), Dst: act("x")}})
	e.Norm(act("norm"), act("x"), r.v[fmt.Sprint("mlp", l)], 1e-5)
	e.GateUp(act("inner"), act("norm"), kernels.SiLU, linear("gate", "gb"), linear("up", ""))
	e.MatMul(act("inner"), true, []kernels.Product{{Linear: linear("down", "db"), Dst: act("x")}})
}

func (r *running) embed(n int) {
	r.e.Embed(r.acts["x"].Part(0, n), r.w["embed"], kernels.Rows{Buffer: r.ids, N: n})
}

func (r *running) project(n int) {
	norm, logits := r.acts["norm"].Part(0, n), r.acts["logits"].Part(0, n)
	r.e.Norm(norm, r.acts["x"].Part(0, n), r.v["norm"], 1e-5)
	r.e.MatMul(norm, false, []kernels.Product{{Linear: kernels.Linear{W: r.w["head"]}, Dst: logits}})
	r.e.Copy(kernels.Rows{Buffer: r.out, N: n}, logits)
}

// all returns the list of the whole model for a number of rows, recorded once.
func (r *running) all(n int) kernels.CommandList {
	if l, ok := r.lists[n]; ok {
		return l
	}
	r.lists[n] = r.list(func(kernels.Encoder) {
		r.embed(n)
		for l := range r.m.windows {
			r.layer(l, n)
		}
		r.project(n)
	})
	return r.lists[n]
}

// sequence is a sequence of tokens with its cache.
type sequence struct {
	n     int
	pages [][]kernels.DevicePage // [layer*KV+head]
	table []kernels.PageTable
	base  []int // [layer*KV+head]
}

func (r *running) sequence() *sequence {
	n := len(r.m.windows) * r.m.kv
	s := &sequence{pages: make([][]kernels.DevicePage, n), base: make([]int, n)}
	for range n {
		t, err := r.pool.Table()
		ok(r.t, err)
		s.table = append(s.table, t)
	}
	r.t.Cleanup(func() {
		for i, t := range s.table {
			t.Free()
			r.pool.Unref(s.pages[i])
		}
	})
	return s
}

// set gives the device the next tokens of sequences, and makes room for them.
func (r *running) set(seqs []*sequence, tokens [][]int) {
	r.t.Helper()
	row := 0
	var spans []kernels.RowSpan
	var positions []int32
	for i, s := range seqs {
		n := len(tokens[i])
		for j, id := range tokens[i] {
			r.ids.Floats()[row+j] = float32(id)
			copy(r.turns.Floats()[(row+j)*r.m.dim:], r.m.turns(s.n+j))
			positions = append(positions, int32(s.n+j))
		}
		spans = append(spans, kernels.RowSpan{Row: row, N: n})
		for at := range s.pages {
			held, had := s.n-s.base[at], len(s.pages[at])
			var err error
			s.pages[at], err = r.pool.Alloc(s.pages[at], max(0, (held+n+r.m.page.PageEntries-1)/r.m.page.PageEntries-had))
			ok(r.t, err)
			ok(r.t, s.table[at].Set(s.pages[at], had))
			r.a.SetHead(at/r.m.kv, i, at%r.m.kv, s.table[at], held, s.base[at])
		}
		row += n
	}
	r.a.SetSpans(spans, positions)
}

// step runs the next tokens of sequences and returns the logits of each.
func (r *running) step(seqs []*sequence, tokens ...[]int) (logits [][]float32) {
	r.t.Helper()
	r.set(seqs, tokens)
	rows := 0
	for _, t := range tokens {
		rows += len(t)
	}
	ok(r.t, r.e.Run(context.Background(), r.all(rows)))
	all := slices.Clone(r.out.Floats()[:rows*r.m.vocab])
	for i, s := range seqs {
		n := len(tokens[i])
		logits, all = append(logits, all[:n*r.m.vocab]), all[n*r.m.vocab:]
		s.n += n
		// A window drops whole pages that no later token sees.
		for at := range s.pages {
			if w := r.m.windows[at/r.m.kv]; w > 0 {
				for s.base[at]+r.m.page.PageEntries <= s.n+1-w {
					r.pool.Unref(s.pages[at][:1])
					s.pages[at] = s.pages[at][1:]
					s.base[at] += r.m.page.PageEntries
					ok(r.t, s.table[at].Set(s.pages[at], 0))
				}
			}
		}
	}
	return logits
}

// chunks feeds tokens to one sequence in chunks of the given sizes; the last size repeats.
func (r *running) chunks(s *sequence, tokens []int, sizes ...int) (logits []float32) {
	for i := 0; len(tokens) > 0; i++ {
		n := min(sizes[min(i, len(sizes)-1)], len(tokens))
		logits = append(logits, r.step([]*sequence{s}, tokens[:n])[0]...)
		tokens = tokens[n:]
	}
	return logits
}

func (m *transformer) tokens(n, seed int) []int {
	ids := make([]int, n)
	for i := range ids {
		ids[i] = (i*i + 7*seed) % m.vocab
	}
	return ids
}

// model runs a small model: neither chunks, nor decoding, nor other sequences in a batch, nor
// going layer by layer change a bit, and results are those of package kernels.
func (s *suite) model(t *testing.T) {
	for _, c := range []struct {
		dim           int
		windows       []int
		operand, page tensor.Type
		n             int
		bound         float64
	}{
		{16, []int{0, 0}, tensor.F32, tensor.F32, 45, 2e-5},
		{12, []int{0, 0}, tensor.F32, tensor.F32, 45, 2e-5},
		{16, []int{0, 20}, tensor.F32, tensor.F32, 70, 2e-5},
		{16, []int{5, 0, 33}, tensor.BF16, tensor.F32, 60, 0.05},
		{32, []int{0}, tensor.BF16, tensor.F16, 300, 0.05},
		{32, []int{0}, tensor.BF16, tensor.BF16, 300, 0.05},
		{16, []int{20, 0}, tensor.F32, tensor.BF16, 60, 0.05},
	} {
		if testing.Short() && c.n > 100 {
			continue
		}
		t.Run(fmt.Sprintf("dim%d,windows%v,products of %v,pages of %v", c.dim, c.windows, c.operand, c.page), func(t *testing.T) {
			m := newTransformer(c.dim, c.operand, c.page, c.windows...)
			r := newRig(t, s.d).start(m, c.n, 3)
			tokens := m.tokens(c.n, 1)
			got := r.chunks(r.sequence(), tokens, c.n)
			s.compare(t, "logits", s.logits(m, tokens), got, func(int) float64 { return c.bound })
			testnum.SameBits(t, "in chunks and decoding", got, r.chunks(r.sequence(), tokens, 10, 1, 25, 1, 1, 40, 1))
			testnum.SameBits(t, "token by token", got, r.chunks(r.sequence(), tokens, 1))
			if c.n > kernels.BlockEntries {
				testnum.SameBits(t, "beyond a block of entries", got, r.chunks(r.sequence(), tokens, c.n-5, 1, 2))
			}
			r.inBatches(got, tokens)
			r.byLayers(got, tokens)
		})
	}
}

// inBatches runs tokens in batches with sequences of other lengths, one of which starts
// earlier.
func (r *running) inBatches(want []float32, tokens []int) {
	a, b, c := r.sequence(), r.sequence(), r.sequence()
	others := r.m.tokens(40, 2)
	r.step([]*sequence{b}, others[:17])
	var got []float32
	for at := 0; at < len(tokens); {
		k := min(1+at%13, len(tokens)-at)
		seqs, next := []*sequence{b, a, c}, [][]int{others[at%30 : at%30+1], tokens[at : at+k], others[at%20 : at%20+2]}
		if at%3 == 1 {
			seqs, next = seqs[1:], next[1:]
		}
		if k+3 > len(tokens) {
			seqs, next = []*sequence{a}, [][]int{tokens[at : at+k]}
		}
		out := r.step(seqs, next...)
		got = append(got, out[slices.Index(seqs, a)]...)
		at += k
	}
	testnum.SameBits(r.t, "in company", want, got)
}

// byLayers runs one layer after the other, with the residual stream in a buffer of its own.
func (r *running) byLayers(want []float32, tokens []int) {
	n := len(tokens)
	stream := r.rows(tensor.F32, n+3, r.m.hidden, nil).Part(2, n)
	r.set([]*sequence{r.sequence()}, [][]int{tokens})
	x := r.acts["x"].Part(0, n)
	for l := range len(r.m.windows) + 1 {
		r.run(func(e kernels.Encoder) {
			if l == 0 {
				r.embed(n)
			} else {
				e.Copy(x, stream)
			}
			if l < len(r.m.windows) {
				r.layer(l, n)
				e.Copy(stream, x)
			} else {
				r.project(n)
			}
		})
	}
	testnum.SameBits(r.t, "layer by layer", want, slices.Clone(r.out.Floats()[:n*r.m.vocab]))
}

// logits computes the logits of every token with package kernels, without pages.
func (s *suite) logits(m *transformer, tokens []int) []float32 {
	n, dim := len(tokens), m.dim
	multiply := func(name, bias string, x []float32) []float32 {
		shape := m.shapes()[name]
		w := weights{Matrix: kernels.Matrix{Type: tensor.BF16, Rows: shape[0], Cols: shape[1], Data: m.raw[name]}, bias: m.vec[bias]}
		return s.multiply(&w, rounded(x, m.operand), n, m.operand)
	}
	norm := func(name string, x []float32, cols int) []float32 {
		y := make([]float32, len(x))
		for i := 0; i < len(x); i += cols {
			cpu.RMSNorm(y[i:i+cols], x[i:i+cols], m.vec[name], 1e-5)
		}
		return y
	}
	x := make([]float32, n*m.hidden)
	for i, id := range tokens {
		cpu.Widen(x[i*m.hidden:(i+1)*m.hidden], m.raw["embed"][2*id*m.hidden:2*(id+1)*m.hidden], tensor.BF16)
	}
	for l, window := range m.windows {
		name := func(s string) string { return fmt.Sprint(s, l) }
		h := norm(name("attn"), x, m.hidden)
		p := &pass{
			attentionCase: attentionCase{l: m.page, heads: m.heads, kv: m.kv, window: window, bf16: m.page.Type == tensor.BF16},
			n:             n, spans: []kernels.RowSpan{{N: n}}, positions: make([]int32, n),
			q: norm(name("qn"), multiply(name("q"), name("qb"), h), dim), k: norm(name("kn"), multiply(name("k"), name("kb"), h), dim), v: multiply(name("v"), "", h),
			caches: []*cache{{l: m.page}},
		}
		for i := range n {
			p.turns = append(p.turns, m.turns(i)...)
		}
		for range m.kv {
			p.caches[0].heads = append(p.caches[0].heads, &cachedHead{blocks: aligned((n + m.page.PageEntries - 1) / m.page.PageEntries * m.page.Bytes())})
		}
		_, attention, _ := p.reference()
		cpu.Add(x, multiply(name("o"), "", attention))
		h = norm(name("mlp"), x, m.hidden)
		gate := multiply(name("gate"), name("gb"), h)
		cpu.Gated(kernels.SiLU, gate, gate, multiply(name("up"), "", h))
		cpu.Add(x, multiply(name("down"), name("db"), gate))
	}
	return multiply("head", "", norm("norm", x, m.hidden))
}
