package model

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/lukv/lukv/kernels"
)

// The forward pass is written once, over rows: a row is one token, and rows of
// several sessions may be computed together. The residual stream of the rows
// lies with the caller; everything else is the scratch of a run.

// segment is a stretch of consecutive tokens of one session inside a run.
type segment struct {
	s      *Session
	row, n int // rows [row, row+n) of the run
	seqLen int // length of the sequence at the end of the call that this belongs to
	watch  *watcher
}

// run is the scratch of one running forward pass. Buffers are [rows][…] with
// rows up to the capacity that was asked for.
type run struct {
	m   *Model
	cap int // rows

	rows int // rows in use
	segs []segment
	pos  []int32 // position of each row

	x    []float32 // [rows][Hidden] residual stream, unless the caller brings its own
	xn   []float32 // [rows][Hidden] normalised, later the output of a projection
	xb   []uint16  // [rows][wide] activations rounded to bf16
	wide int
	q    []float32 // [rows][Heads*HeadDim]
	k, v []float32 // [rows][KVHeads*HeadDim]
	att  []float32 // [rows][Heads*HeadDim]
	gate []float32 // [rows][Intermediate]
	up   []float32
	cos  []float32 // [rows][HeadDim/2]
	sin  []float32

	logits []float32 // [segs][Vocab] of a batch

	scratch []kernels.AttentionScratch // per worker
	watch   []watchScratch             // per worker

	// The current stage's operands; see the stage types below.
	at      int       // layer
	layer   *layer    // its weights
	in      []float32 // residual stream of the rows
	norm    []float32
	mats    [3]product
	nmats   int
	src     []float32 // [rows][srcLen] input of the products
	srcLen  int
	items   []attentionItem
	watched *segment // of the stages that watch
	errs    []error  // per segment and KV head

	stop atomic.Bool // set when the context is done
}

// product is one matrix product of a stage: dst = src·wᵀ + bias, then add += dst.
type product struct {
	w    *kernels.Matrix
	dst  []float32 // [rows][w.Rows]
	bias []float32 // [w.Rows] or nil
	add  []float32 // [rows][w.Rows] or nil
}

// attentionItem is a tile of one segment's tokens and one KV head.
type attentionItem struct {
	seg, head, from, n int
}

// attentionTile is the number of tokens of an attention item.
const attentionTile = 32

// runList keeps idle runs for reuse.
type runList struct {
	m    *Model
	mu   sync.Mutex
	idle []*run
}

// get returns a run for n rows. Prefer the smallest that fits.
func (l *runList) get(n int) *run {
	l.mu.Lock()
	best := -1
	for i, r := range l.idle {
		if r.cap >= n && (best < 0 || r.cap < l.idle[best].cap) {
			best = i
		}
	}
	var r *run
	if best >= 0 {
		r = l.idle[best]
		l.idle[best] = l.idle[len(l.idle)-1]
		l.idle = l.idle[:len(l.idle)-1]
	}
	l.mu.Unlock()
	if r == nil {
		r = newRun(l.m, n)
	}
	r.stop.Store(false)
	r.segs = r.segs[:0]
	r.rows = 0
	return r
}

// idleRuns bounds the scratch that a quiet model holds.
const idleRuns = 4

func (l *runList) put(r *run) {
	clear(r.segs[:cap(r.segs)])
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.idle) < idleRuns {
		l.idle = append(l.idle, r)
		return
	}
	// Keep the small ones: they are what decoding uses.
	big := 0
	for i, o := range l.idle {
		if o.cap > l.idle[big].cap {
			big = i
		}
	}
	if l.idle[big].cap > r.cap {
		l.idle[big] = r
	}
}

func newRun(m *Model, n int) *run {
	c := m.cfg
	qn, kn := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	r := &run{
		m: m, cap: n,
		segs: make([]segment, 0, 1), pos: make([]int32, n),
		x: make([]float32, n*c.Hidden), xn: make([]float32, n*c.Hidden),
		q: make([]float32, n*qn), k: make([]float32, n*kn), v: make([]float32, n*kn),
		att:  make([]float32, n*qn),
		gate: make([]float32, n*c.Intermediate), up: make([]float32, n*c.Intermediate),
		cos: make([]float32, n*c.HeadDim/2), sin: make([]float32, n*c.HeadDim/2),
		scratch: make([]kernels.AttentionScratch, m.pool.Threads()),
		watch:   make([]watchScratch, m.pool.Threads()),
	}
	if m.precision == PrecisionBF16 {
		// Not a power of two, so that rows do not fall on the same cache sets.
		r.wide = max(c.Hidden, qn, c.Intermediate) + 64
		r.xb = make([]uint16, n*r.wide)
	}
	return r
}

// add appends a segment of n tokens of s, whose first position is s.pos+offset.
func (r *run) add(s *Session, offset, n, seqLen int, w *watcher) {
	for i := range n {
		r.pos[r.rows+i] = int32(s.pos + offset + i)
	}
	r.segs = append(r.segs, segment{s: s, row: r.rows, n: n, seqLen: seqLen, watch: w})
	r.rows += n
}

// reset empties the run for the next chunk.
func (r *run) reset() {
	r.segs, r.rows = r.segs[:0], 0
}

// embedTokens writes the embeddings of tokens to x, [len(tokens)][Hidden].
func (m *Model) embedTokens(x []float32, tokens []int32) {
	h := m.cfg.Hidden
	size := h * m.embed.Type.Size()
	for i, t := range tokens {
		m.cpu.Widen(x[i*h:(i+1)*h], m.embed.Data[int(t)*size:(int(t)+1)*size], m.embed.Type)
	}
}

// rotations fills the cosines and sines of all rows.
func (r *run) rotations() { r.each(r.rows, 16, (*rotateStage)(r)) }

type rotateStage run

func (st *rotateStage) Run(lo, hi, _ int) {
	r := (*run)(st)
	h := r.m.cfg.HeadDim / 2
	for i := range r.segs {
		g := &r.segs[i]
		for row := max(lo, g.row); row < min(hi, g.row+g.n); row++ {
			r.m.rope.Row(int(r.pos[row]), g.seqLen, r.cos[row*h:(row+1)*h], r.sin[row*h:(row+1)*h])
		}
	}
}

// each runs a stage over n items. A single item does not wake anybody.
func (r *run) each(n, grain int, t interface{ Run(lo, hi, worker int) }) {
	if n == 1 {
		t.Run(0, 1, 0)
		return
	}
	r.m.pool.Run(n, grain, t)
}

// forwardLayer runs layer at over the run's rows: x, [rows][Hidden], is the
// residual stream and is updated, keys and values are appended to the
// sessions' caches. rotations must have been called. If the context was
// cancelled meanwhile, r.stop is set and x and the caches hold rubbish that
// the caller takes back.
func (r *run) forwardLayer(at int, x []float32) error {
	m, c := r.m, r.m.cfg
	r.at, r.layer, r.in = at, &m.layers[at], x[:r.rows*c.Hidden]
	l := r.layer

	r.normalise(l.attnNorm)
	r.multiply(c.Hidden,
		product{w: &l.q, dst: r.q, bias: l.qb},
		product{w: &l.k, dst: r.k, bias: l.kb},
		product{w: &l.v, dst: r.v, bias: l.vb})
	r.each(r.rows, 4, (*headNormStage)(r))
	for i := range r.segs {
		if g := &r.segs[i]; g.watch != nil {
			g.watch.beforeRope(r, g)
		}
	}
	r.each(r.rows, 4, (*ropeStage)(r))

	if n := len(r.segs) * c.KVHeads; cap(r.errs) < n {
		r.errs = make([]error, n)
	}
	r.errs = r.errs[:len(r.segs)*c.KVHeads]
	r.each(len(r.errs), 1, (*appendStage)(r))
	for i, err := range r.errs {
		if err != nil {
			clear(r.errs)
			return fmt.Errorf("layer %d, kv head %d: %w", at, i%c.KVHeads, err)
		}
	}

	r.attend()
	for i := range r.segs {
		if g := &r.segs[i]; g.watch != nil {
			g.watch.afterAttention(r, g)
		}
	}
	r.round(r.att, c.Heads*c.HeadDim)
	r.multiply(c.Heads*c.HeadDim, product{w: &l.o, dst: r.xn, bias: l.ob, add: r.in})

	r.normalise(l.mlpNorm)
	r.multiply(c.Hidden,
		product{w: &l.gate, dst: r.gate, bias: l.gb},
		product{w: &l.up, dst: r.up, bias: l.ub})
	r.each(r.rows*swigluParts(c.Intermediate), 1, (*swigluStage)(r))
	r.round(r.gate, c.Intermediate)
	r.multiply(c.Intermediate, product{w: &l.down, dst: r.xn, bias: l.downb, add: r.in})
	return nil
}

// normalise sets xn to the normalised residual stream, ready for products.
func (r *run) normalise(w []float32) {
	r.norm = w
	r.each(r.rows, 4, (*normStage)(r))
	r.src, r.srcLen = r.xn, r.m.cfg.Hidden
}

type normStage run

func (st *normStage) Run(lo, hi, _ int) {
	r := (*run)(st)
	h := r.m.cfg.Hidden
	for i := lo; i < hi; i++ {
		dst := r.xn[i*h : (i+1)*h]
		r.m.cpu.RMSNorm(dst, r.in[i*h:(i+1)*h], r.norm, r.m.cfg.NormEps)
		if r.xb != nil {
			r.m.cpu.RoundBF16(r.xb[i*r.wide:i*r.wide+h], dst)
		}
	}
}

// round prepares src, [rows][n], for products.
func (r *run) round(src []float32, n int) {
	r.src, r.srcLen = src, n
	if r.xb != nil {
		r.each(r.rows, 4, (*roundStage)(r))
	}
}

type roundStage run

func (st *roundStage) Run(lo, hi, _ int) {
	r := (*run)(st)
	for i := lo; i < hi; i++ {
		r.m.cpu.RoundBF16(r.xb[i*r.wide:i*r.wide+r.srcLen], r.src[i*r.srcLen:(i+1)*r.srcLen])
	}
}

// multiply runs up to three products over the same input of n columns.
func (r *run) multiply(n int, p ...product) {
	r.nmats = copy(r.mats[:], p)
	total := 0
	for i := range r.nmats {
		total += r.mats[i].w.Rows
	}
	r.m.pool.Run(total, productGrain, (*productStage)(r))
}

// productGrain is the number of weight rows that a worker takes at a time: few
// enough to share out evenly and to notice a cancellation, enough to fill the
// kernels' tiles.
const productGrain = 64

type productStage run

func (st *productStage) Run(lo, hi, _ int) {
	r := (*run)(st)
	base := 0
	for i := range r.nmats {
		p := &r.mats[i]
		from, to := max(lo-base, 0), min(hi-base, p.w.Rows)
		base += p.w.Rows
		for from < to {
			if r.stop.Load() {
				return
			}
			end := min(to, from+productGrain)
			r.product(p, from, end)
			from = end
		}
	}
}

// product computes weight rows [lo, hi) of p for all rows.
func (r *run) product(p *product, lo, hi int) {
	n := p.w.Rows
	if r.xb != nil && p.w.Type == bf16Type {
		r.m.cpu.MatMulBF16(p.dst, n, r.xb, r.wide, r.rows, p.w, lo, hi)
	} else {
		r.m.cpu.MatMul(p.dst, n, r.src, r.srcLen, r.rows, p.w, lo, hi)
	}
	if p.bias == nil && p.add == nil {
		return
	}
	for i := range r.rows {
		d := p.dst[i*n+lo : i*n+hi]
		if p.bias != nil {
			r.m.cpu.Add(d, p.bias[lo:hi])
		}
		if p.add != nil {
			r.m.cpu.Add(p.add[i*n+lo:i*n+hi], d)
		}
	}
}

// headNormStage applies the per-head query and key norms where the model has them.
type headNormStage run

func (st *headNormStage) Run(lo, hi, _ int) {
	r := (*run)(st)
	if r.layer.qNorm == nil {
		return
	}
	c := r.m.cfg
	d := c.HeadDim
	for i := lo; i < hi; i++ {
		for h := range c.Heads {
			x := r.q[(i*c.Heads+h)*d : (i*c.Heads+h+1)*d]
			r.m.cpu.RMSNorm(x, x, r.layer.qNorm, c.NormEps)
		}
		for h := range c.KVHeads {
			x := r.k[(i*c.KVHeads+h)*d : (i*c.KVHeads+h+1)*d]
			r.m.cpu.RMSNorm(x, x, r.layer.kNorm, c.NormEps)
		}
	}
}

type ropeStage run

func (st *ropeStage) Run(lo, hi, _ int) {
	r := (*run)(st)
	c := r.m.cfg
	d := c.HeadDim
	for i := lo; i < hi; i++ {
		cos, sin := r.cos[i*d/2:(i+1)*d/2], r.sin[i*d/2:(i+1)*d/2]
		for h := range c.Heads {
			r.m.cpu.Rope(r.q[(i*c.Heads+h)*d:(i*c.Heads+h+1)*d], cos, sin)
		}
		for h := range c.KVHeads {
			r.m.cpu.Rope(r.k[(i*c.KVHeads+h)*d:(i*c.KVHeads+h+1)*d], cos, sin)
		}
	}
}

// appendStage stores the rows' keys and values; an item is a segment and KV head.
type appendStage run

func (st *appendStage) Run(lo, hi, _ int) {
	r := (*run)(st)
	c := r.m.cfg
	d, stride := c.HeadDim, c.KVHeads*c.HeadDim
	for i := lo; i < hi; i++ {
		g, h := &r.segs[i/c.KVHeads], i%c.KVHeads
		from := g.row*stride + h*d
		to := (g.row+g.n-1)*stride + (h+1)*d
		r.errs[i] = g.s.cache.Append(r.at, h, r.pos[g.row:g.row+g.n], r.k[from:to], r.v[from:to], stride)
	}
}

// attend computes the attention of all rows into att.
func (r *run) attend() {
	c := r.m.cfg
	r.items = r.items[:0]
	for i := range r.segs {
		// Later tokens see more: hand their tiles out first.
		for from := (r.segs[i].n - 1) / attentionTile * attentionTile; from >= 0; from -= attentionTile {
			for h := range c.KVHeads {
				r.items = append(r.items, attentionItem{i, h, from, min(attentionTile, r.segs[i].n-from)})
			}
		}
	}
	r.each(len(r.items), 1, (*attentionStage)(r))
}

type attentionStage run

func (st *attentionStage) Run(lo, hi, worker int) {
	r := (*run)(st)
	c := r.m.cfg
	group := c.Heads / c.KVHeads
	stride := c.Heads * c.HeadDim
	for i := lo; i < hi && !r.stop.Load(); i++ {
		it := &r.items[i]
		g := &r.segs[it.seg]
		off := (g.row+it.from)*stride + it.head*group*c.HeadDim
		end := off + (it.n-1)*stride + group*c.HeadDim
		a := kernels.AttentionArgs{
			Out: r.att[off:end], Q: r.q[off:end], Stride: stride,
			N: it.n, Group: group,
			End:    g.s.slots(r.at, it.head) - g.n + it.from + 1,
			Window: r.layer.window,
			Scale:  r.m.rope.scale,
			KV:     g.s.view(r.at, it.head),
		}
		if g.watch != nil {
			a.Stats = g.watch.softmaxOf(r, it.head, it.from, it.n)
		}
		r.m.cpu.Attention(&a, &r.scratch[worker])
	}
}

// swigluPart is the number of elements of a SwiGLU item.
const swigluPart = 2048

func swigluParts(n int) int { return (n + swigluPart - 1) / swigluPart }

type swigluStage run

func (st *swigluStage) Run(lo, hi, _ int) {
	r := (*run)(st)
	n := r.m.cfg.Intermediate
	parts := swigluParts(n)
	for i := lo; i < hi; i++ {
		row, from := i/parts*n, i%parts*swigluPart
		to := row + min(from+swigluPart, n)
		from += row
		r.m.cpu.SwiGLU(r.gate[from:to], r.gate[from:to], r.up[from:to])
	}
}

// project computes the logits of n rows of the residual stream x into dst,
// [n][Vocab]. It uses the run's buffers: n is at most its capacity.
func (r *run) project(dst, x []float32, n int) {
	rows := r.rows
	r.rows, r.in = n, x
	r.normalise(r.m.norm)
	r.multiply(r.m.cfg.Hidden, product{w: &r.m.head, dst: dst})
	r.rows = rows
}

// watchContext sets r.stop when ctx is done, until the returned function is
// called. A context that cannot be cancelled costs nothing.
func (r *run) watchContext(ctx context.Context) (release func() bool) {
	if ctx.Done() == nil {
		return nothing
	}
	return context.AfterFunc(ctx, func() { r.stop.Store(true) })
}

func nothing() bool { return true }
