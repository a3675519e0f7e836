package forward

import (
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
)

func newHostRun(p *passRows) *hostRun {
	c, n := p.net.Config, p.cap
	qn, kn := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	wide := max(c.Hidden, qn)
	nq, nk := n*qn, n*kn
	shared := make([]float32, max(nq+2*nk, kernels.OperandWords(p.net.innerForms, n, c.Intermediate)))
	h := &hostRun{
		passRows: p,
		narrow:   kernels.NewOperand(make([]float32, kernels.OperandWords(p.net.narrowForms, n, wide)), p.net.narrowForms, n, wide),
		shared:   shared,
		inner:    kernels.NewOperand(shared, p.net.innerForms, n, c.Intermediate),
		k:        shared[nq : nq+nk], v: shared[nq+nk : nq+2*nk],
		cos: make([]float32, len(p.net.Ropes)*n*c.HeadDim/2), sin: make([]float32, len(p.net.Ropes)*n*c.HeadDim/2),
		experts: newMixture(p.net, n),
		workers: make([]hostScratch, p.net.Pool.Threads()),

		attentionTile: kernels.AttentionTokens(c.Heads / c.KVHeads),
	}
	p.q = shared[:nq]
	if slices.ContainsFunc(p.net.Plan, func(l arch.LayerPlan) bool { return !l.AddsDirectly() || l.FFN.Experts > 0 }) {
		h.branch = make([]float32, n*c.Hidden)
	}
	// A run for many rows may also compute few.
	products := max(n*wideStrip, min(n, longRows)*longestStrip)
	for i := range h.workers {
		h.workers[i] = hostScratch{
			tile: make([]float32, min(n, h.attentionTile)*qn),
			row:  make([]float32, max(c.Hidden, c.HeadDim)),
		}
		for j := range h.workers[i].strip {
			h.workers[i].strip[j] = make([]float32, products)
		}
	}
	return h
}

// bytes returns the size of the backend's memory, except for the attention scratch that
// workers grow, at most 300 KiB each.
func (h *hostRun) bytes() int {
	n := 4*(len(h.own)+len(h.shared)+len(h.cos)+len(h.sin)+len(h.branch)) + h.experts.bytes()
	n += 4 * kernels.OperandWords(h.net.narrowForms, h.cap, max(h.net.Config.Hidden, h.net.Config.Heads*h.net.Config.HeadDim))
	for i := range h.workers {
		w := &h.workers[i]
		n += 4 * (len(w.tile) + len(w.row) + len(w.strip[0]) + len(w.strip[1]))
	}
	return n
}

// rotations fills the cosines and sines of all rows.
func (h *hostRun) rotations() { h.Each(h.rows, 16, (*rotateStage)(h)) }

type rotateStage hostRun

func (st *rotateStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	for i := range h.spans {
		g := &h.spans[i]
		for row := max(lo, g.row); row < min(hi, g.row+g.N); row++ {
			for i, r := range h.net.Ropes {
				cos, sin := h.rotation(i, row)
				r.Row(int(h.pos[row]), g.SeqLen, cos, sin)
			}
		}
	}
}

// rotation returns the cosines and sines of a rotation for a row.
func (h *hostRun) rotation(i, row int) (cos, sin []float32) {
	half := h.net.Config.HeadDim / 2
	at := (i*h.cap + row) * half
	return h.cos[at : at+half], h.sin[at : at+half]
}

func (h *hostRun) norm(w []float32) {
	h.weight = w
	h.Each(h.rows, 4, (*normStage)(h))
}

type normStage hostRun

func (st *normStage) Run(lo, hi, worker int) {
	h := (*hostRun)(st)
	n := h.net.Config.Hidden
	row := h.workers[worker].row[:n]
	for i := lo; i < hi; i++ {
		if h.weight == nil {
			h.net.CPU.SetOperand(&h.narrow, i, 0, h.x[i*n:(i+1)*n])
		} else {
			h.net.CPU.RMSNorm(row, h.x[i*n:(i+1)*n], h.weight, h.net.Config.NormEps)
			h.net.CPU.SetOperand(&h.narrow, i, 0, row)
		}
		h.net.CPU.RoundOperand(&h.narrow, i, n)
	}
}

func (h *hostRun) multiply(src act, add bool, linears []hostLinear) {
	h.src, h.add, h.linears = h.operand(src), add, linears
	if h.net.inputs != nil {
		h.seeProducts(src, linears[0].dst)
	}
	if src != actNorm && h.net.rounds(src) { // rows of the norm are rounded as they are made
		h.Each(h.rows, 4, (*roundStage)(h))
	}
	total := 0
	for i := range linears {
		total += linears[i].w.Rows
	}
	h.share(total, linears[0].w.Cols, (*linearStage)(h))
}

// roundStage makes the integers of rows of the source, whose columns several workers set.
type roundStage hostRun

func (st *roundStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	for i := lo; i < hi; i++ {
		h.net.CPU.RoundOperand(h.src, i, h.linears[0].w.Cols)
	}
}

type linearStage hostRun

func (st *linearStage) Run(lo, hi, worker int) {
	h := (*hostRun)(st)
	base := 0
	for i := range h.linears {
		p := &h.linears[i]
		from, to := max(lo-base, 0), min(hi-base, p.w.Rows)
		base += p.w.Rows
		for from < to {
			if h.stop.Load() {
				return
			}
			end := min(to, from+h.strip)
			if h.add {
				h.addLinear(p, from, end, h.workers[worker].strip[0])
			} else {
				h.matMul(h.buffer(p.dst)[from:], p.w.Rows, p, from, end)
			}
			from = end
		}
	}
}

// matMul computes columns [lo, hi) of a product for all rows, bias included.
// Column lo of row r goes to dst[r*ldd].
func (h *hostRun) matMul(dst []float32, ldd int, p *hostLinear, lo, hi int) {
	// dst begins with column lo. The rows after hi stay in w: the kernels prefetch
	// them.
	w, n := p.w.Slice(lo, p.w.Rows), hi-lo
	h.net.CPU.Multiply(dst, ldd, h.src, h.rows, &w, 0, n)
	if p.bias != nil {
		for i := range h.rows {
			h.net.CPU.Add(dst[i*ldd:i*ldd+n], p.bias[lo:hi])
		}
	}
}

// addLinear adds columns [lo, hi) of a product to its destination.
func (h *hostRun) addLinear(p *hostLinear, lo, hi int, buf []float32) {
	cols, n, dst := hi-lo, p.w.Rows, h.buffer(p.dst)
	h.matMul(buf, cols, p, lo, hi)
	for i := range h.rows {
		h.net.CPU.Add(dst[i*n+lo:i*n+hi], buf[i*cols:(i+1)*cols])
	}
}

func (h *hostRun) headNorm(a act, w []float32) {
	h.weight, h.norming = w, a
	h.Each(h.rows, 4, (*headNormStage)(h))
}

type headNormStage hostRun

func (st *headNormStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	d, buf := h.net.Config.HeadDim, h.buffer(h.norming)
	heads := h.net.Config.KVHeads
	if h.norming == actQ {
		heads = h.net.Config.Heads
	}
	for i := lo * heads; i < hi*heads; i++ {
		x := buf[i*d : (i+1)*d]
		h.net.CPU.RMSNorm(x, x, h.weight, h.net.Config.NormEps)
	}
}

func (h *hostRun) queriesReady(at int) error {
	h.watchHidden(at, h.x)
	h.watchQueries(at)
	return nil
}

func (h *hostRun) attentionReady(at int) error {
	h.watchAttention(at)
	return nil
}

func (h *hostRun) ropeAppend(at int) error {
	h.at = at
	h.Each(h.rows, 4, (*ropeStage)(h))
	heads := h.net.Config.KVHeads
	if n := len(h.spans) * heads; cap(h.errs) < n {
		h.errs = make([]error, n)
	}
	h.errs = h.errs[:len(h.spans)*heads]
	h.Each(len(h.errs), 1, (*appendStage)(h))
	for i, err := range h.errs {
		if err != nil {
			clear(h.errs)
			return layerError(at, i%heads, err)
		}
	}
	return nil
}

type ropeStage hostRun

func (st *ropeStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	c, rope := h.net.Config, h.net.Plan[h.at].Rope
	d := c.HeadDim
	for i := range h.spans {
		g := &h.spans[i]
		rounded := g.BF16
		for i := max(lo, g.row); i < min(hi, g.row+g.N); i++ {
			q := h.q[i*c.Heads*d : (i+1)*c.Heads*d]
			if rope != arch.NoRope {
				h.rotate(rope, i, q)
				if f := h.net.Ropes[rope].QueryFactor(int(h.pos[i])); f != 1 {
					h.net.CPU.Scale(q, f)
				}
			}
			if rounded {
				// This is what attention reads, and so what metrics should see.
				h.net.CPU.RoundedBF16(q, q)
			}
		}
	}
}

// rotate turns the queries q and the keys of a row.
func (h *hostRun) rotate(rope, row int, q []float32) {
	d, heads := h.net.Config.HeadDim, h.net.Config.KVHeads
	cos, sin := h.rotation(rope, row)
	for ; len(q) > 0; q = q[d:] {
		h.net.CPU.Rope(q[:d], cos, sin)
	}
	for k := h.k[row*heads*d : (row+1)*heads*d]; len(k) > 0; k = k[d:] {
		h.net.CPU.Rope(k[:d], cos, sin)
	}
}

// appendStage stores the rows' keys and values; an item is a span and a KV head.
type appendStage hostRun

func (st *appendStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	c := h.net.Config
	d, stride := c.HeadDim, c.KVHeads*c.HeadDim
	for i := lo; i < hi; i++ {
		g, head := &h.spans[i/c.KVHeads], i%c.KVHeads
		from := g.row*stride + head*d
		to := (g.row+g.N-1)*stride + (head+1)*d
		h.errs[i] = g.Cache.Append(h.at, head, h.pos[g.row:g.row+g.N], h.k[from:to], h.v[from:to], stride)
	}
}

func (h *hostRun) gateUp(p *arch.LayerPlan, gate, up kernels.Matrix, gateBias, upBias []float32) {
	h.src, h.ffn = &h.narrow, &p.FFN
	h.gate, h.up = hostLinear{w: gate, bias: gateBias}, hostLinear{w: up, bias: upBias}
	if h.net.inputs != nil {
		h.see(arch.RoleGate, h.src, gate.Cols, 0, h.rows)
	}
	h.share(gate.Rows, gate.Cols, (*gateUpStage)(h))
}

type gateUpStage hostRun

func (st *gateUpStage) Run(lo, hi, worker int) {
	h := (*hostRun)(st)
	w := &h.workers[worker]
	for lo < hi && !h.stop.Load() {
		end := min(hi, lo+h.strip)
		cols := end - lo
		g, u := w.strip[0][:h.rows*cols], w.strip[1][:h.rows*cols]
		h.matMul(g, cols, &h.gate, lo, end)
		h.matMul(u, cols, &h.up, lo, end)
		h.net.CPU.Gated(h.ffn.Activation, g, g, u)
		for i := range h.rows {
			h.net.CPU.SetOperand(&h.inner, i, lo, g[i*cols:(i+1)*cols])
		}
		lo = end
	}
}

// project computes the logits of n rows of the residual stream x into dst,
// [n][Vocab]; n is at most the pass's capacity.
func (h *hostRun) project(dst, x []float32, n int) {
	rows, stream := h.rows, h.x
	h.rows, h.x, h.dst = n, x, dst
	h.norm(h.net.norm)
	h.multiply(actNorm, false, h.net.head)
	if h.net.Config.Scalars.ChangesLogits() {
		h.Each(n, 1, (*finishStage)(h))
	}
	h.rows, h.x, h.dst = rows, stream, nil
}
