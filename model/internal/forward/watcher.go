package model

import (
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
)

// A watcher sees the queries and the attention of one session's span as
// they pass through the layers, and keeps what metrics and the oracle need.
// Layers with a sliding window are not watched: they are never compressed.
type watcher struct {
	s *Session

	// What the prefill's metric needs from the layer in progress; nil: nothing.
	// tail is the position from which on queries go into the window.
	stats  *lukv.QueryStats
	window *lukv.QueryWindow
	sums   *lukv.ColumnSums

	hidden  *lukv.HiddenStates // of the last tokens
	repeats *lukv.RepeatScores // a repetition's scores of the finished layer
	tail    int

	// State of the compression while decoding, per layer. In a prefill only
	// the last query counts, and only for the streaming forms.
	decode  []*lukv.DecodeLayer
	record  lukv.DecodeNeeds
	prefill bool

	recorder *oracleRecorder // oracle measurement, nil if none

	// answer keeps the last queries of every layer, [L], nil for a layer with a
	// sliding window; nil if nobody wants them.
	answer []*lukv.QueryWindow

	device *deviceWatch // what stays on the device for the layer, nil if nothing

	before  []float32         // [n][Heads*HeadDim] queries before RoPE, if decode needs them
	softmax []kernels.Softmax // [KVHeads][n*Group] statistics of the span, if needed
	n       int               // tokens of the span
}

// watchScratch is one worker's scratch for looking at attention weights.
type watchScratch struct {
	probs []float32 // [Group][slots]
}

func (w *watcher) layer(at int) *lukv.DecodeLayer {
	if w.decode == nil {
		return nil
	}
	return w.decode[at]
}

// wantsWeights reports whether the attention weights of the layer are needed.
func (w *watcher) wantsWeights(at int) bool {
	l := w.layer(at)
	return w.sums != nil || l != nil && l.Sums() != nil || w.recorder != nil
}

// with returns the watcher, a new one if it is nil, with a repetition's scores of the
// layer.
func (w *watcher) with(s *Session, repeats *lukv.RepeatScores) *watcher {
	if w == nil {
		w = &watcher{s: s}
	}
	w.repeats = repeats
	return w
}

// fillLayer adds what the watcher has kept of a layer to a metric's view of it.
func (w *watcher) fillLayer(l *lukv.Layer) {
	l.Queries, l.Stats, l.Sums, l.Repeats, l.Hidden = w.window, w.stats, w.sums, w.repeats, w.hidden
}

// needsHidden reports whether the hidden states of any of a span's tokens are kept. The
// watcher may be nil.
func (w *watcher) needsHidden(p *pass, g *span) bool {
	return w != nil && w.hidden != nil && int(p.pos[g.row])+g.n > w.hidden.From
}

// watchHidden shows the watchers the residual stream, [rows][Hidden], before layer at.
func (p *pass) watchHidden(at int, x []float32) {
	p.at = at
	for i := range p.spans {
		if g := &p.spans[i]; g.watch.needsHidden(p, g) {
			p.watched, p.input = g, x
			p.each(g.n, 4, (*hiddenStage)(p))
		}
	}
	p.input = nil
}

// hiddenStage normalises the rows of p.watched; an item is a token.
type hiddenStage pass

func (st *hiddenStage) Run(lo, hi, _ int) {
	p := (*pass)(st)
	g, dim := p.watched, p.m.cfg.Hidden
	for i := lo; i < hi; i++ {
		row := g.row + i
		if dst := g.watch.hidden.At(int(p.pos[row])); dst != nil {
			p.m.attentionInput(dst, p.input[row*dim:(row+1)*dim], p.at)
		}
	}
}

// needsQueries reports whether beforeRope looks at the queries of the layer in
// progress, needsAttention whether afterAttention looks at the span's. The
// watcher may be nil for both.
func (w *watcher) needsQueries(r *pass) bool {
	return w != nil && r.m.cfg.Ragged(r.at) &&
		(w.stats != nil || w.layer(r.at) != nil && w.record.PreRoPE && !w.prefill)
}

func (w *watcher) needsAttention(r *pass, g *span) bool {
	if w == nil || !r.m.cfg.Ragged(r.at) {
		return false
	}
	end := int(r.pos[g.row]) + g.n
	return w.window != nil && end > w.tail || w.answer != nil || w.wantsWeights(r.at) ||
		w.layer(r.at) != nil && (!w.prefill || w.record.Prefill && end == g.seqLen)
}

// beforeRope is called with the span's queries before rotation.
func (w *watcher) beforeRope(r *pass, g *span) {
	c := r.m.cfg
	if !c.Ragged(r.at) {
		return
	}
	stride := c.Heads * c.HeadDim
	q := r.q[g.row*stride : (g.row+g.n)*stride]
	w.n = g.n
	if w.stats != nil {
		r.watched = g
		r.each(c.Heads, 1, (*statsStage)(r))
	}
	if w.layer(r.at) != nil && w.record.PreRoPE && !w.prefill {
		w.before = append(w.before[:0], q...)
	}
	if w.wantsWeights(r.at) {
		n := c.Heads * g.n
		w.softmax = slices.Grow(w.softmax[:0], n)[:n]
	}
}

// statsStage adds the queries of r.watched to their moments; an item is a query head.
type statsStage pass

func (st *statsStage) Run(lo, hi, _ int) {
	r := (*pass)(st)
	c := r.m.cfg
	stride := c.Heads * c.HeadDim
	g := r.watched
	for h := lo; h < hi; h++ {
		g.watch.stats.Add(h, int(r.pos[g.row]), r.q[g.row*stride+h*c.HeadDim:], g.n, stride)
	}
}

// softmaxOf returns where the kernel leaves the softmax statistics of n tokens
// of a KV head, nil if nobody wants them.
func (w *watcher) softmaxOf(r *pass, head, from, n int) []kernels.Softmax {
	c := r.m.cfg
	if !c.Ragged(r.at) || !w.wantsWeights(r.at) {
		return nil
	}
	group := c.Heads / c.KVHeads
	off := (head*w.n + from) * group
	return w.softmax[off : off+n*group]
}

// afterAttention is called with the span's rotated queries, once their own keys
// are in the cache.
func (w *watcher) afterAttention(r *pass, g *span) {
	c := r.m.cfg
	if !c.Ragged(r.at) {
		return
	}
	stride := c.Heads * c.HeadDim
	if w.window != nil {
		for i := range g.n {
			if pos := int(r.pos[g.row+i]); pos >= w.tail {
				w.window.Append(pos, r.q[(g.row+i)*stride:(g.row+i+1)*stride])
			}
		}
	}
	if w.answer != nil {
		for i := range g.n {
			w.answer[r.at].Append(int(r.pos[g.row+i]), r.q[(g.row+i)*stride:(g.row+i+1)*stride])
		}
	}
	if l := w.layer(r.at); l != nil {
		switch pos := int(r.pos[g.row]); {
		case w.prefill && w.record.Prefill && pos+g.n == g.seqLen:
			last := (g.row + g.n - 1) * stride
			l.Record(g.seqLen-1, r.q[last:last+stride], nil, 1, stride)
		case !w.prefill:
			l.Record(pos, r.q[g.row*stride:(g.row+g.n)*stride], w.before, g.n, stride)
		}
	}
	if w.wantsWeights(r.at) {
		r.watched = g
		r.each(c.KVHeads, 1, (*weightsStage)(r))
	}
}

// weightsStage goes through the attention weights of r.watched, row by row; an
// item is a KV head.
type weightsStage pass

func (st *weightsStage) Run(lo, hi, worker int) {
	r := (*pass)(st)
	c, p, g, w := r.m.cfg, &r.m.plan[r.at], r.watched, r.watched.watch
	group, stride := c.Heads/c.KVHeads, c.Heads*c.HeadDim
	var decode *lukv.ColumnSums
	if l := w.layer(r.at); l != nil {
		decode = l.Sums()
	}
	for h := lo; h < hi; h++ {
		kv := w.s.view(r.at, h)
		total := w.s.slots(r.at, h)
		stats := w.softmaxOf(r, h, 0, g.n)
		sc := &r.watch[worker]
		for i := 0; i < g.n && !r.stop.Load(); i++ {
			n := total - g.n + i + 1
			sc.probs = slices.Grow(sc.probs[:0], group*total)[:group*n]
			for k := range group {
				q := (g.row+i)*stride + (h*group+k)*c.HeadDim
				r.m.cpu.AttentionWeights(sc.probs[k*n:(k+1)*n], r.q[q:q+c.HeadDim], &kv, 0, p.AttentionScale(), p.AttentionCap(), stats[i*group+k])
			}
			if w.sums != nil {
				w.sums.AddRow(h, sc.probs, n)
			}
			if decode != nil {
				decode.AddRow(h, sc.probs, n)
			}
			if w.recorder != nil {
				w.recorder.add(r.at, h, sc.probs, n)
			}
		}
	}
}

// oracleRecorder records the oracle importance of a context while a question about it
// is answered with the full cache.
type oracleRecorder struct {
	o *lukv.Oracle
	t int // tokens of the context
	// errs collects what the workers report, one per KV head.
	errs []error
}

// add takes the attention weights of one decoding step, [Group][n], of which
// the first t belong to the context.
func (p *oracleRecorder) add(layer, head int, probs []float32, n int) {
	group := len(probs) / n
	for g := range group {
		if err := p.o.Observe(layer, head*group+g, probs[g*n:g*n+p.t]); err != nil {
			p.errs[head] = err
		}
	}
}
