package forward

import (
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
)

// A Watcher sees the queries and the attention of one sequence's span as they pass through
// the layers, and keeps what metrics and the oracle need. Layers with a sliding window are
// not watched: they are never compressed.
type Watcher struct {
	// What the prefill's metric needs from the layer in progress; nil: nothing.
	// Tail is the position from which on queries go into the window.
	Stats  *lukv.QueryStats
	Window *lukv.QueryWindow
	Sums   *lukv.ColumnSums
	Tail   int

	Hidden  *lukv.HiddenStates // of the last tokens
	Repeats *lukv.RepeatScores // a repetition's scores of the finished layer

	// State of the compression while decoding, per layer. In a prefill only
	// the last query counts, and only for the streaming forms.
	Decode  []*lukv.DecodeLayer
	Record  lukv.DecodeNeeds
	Prefill bool

	Recorder Recorder // nil: nobody wants the weights of every step

	// Answer keeps the last queries of every layer, [L], nil for a layer with a
	// sliding window; nil if nobody wants them.
	Answer []*lukv.QueryWindow

	Device *DeviceWatch // what stays on the device for the layer, nil if nothing

	before  []float32         // [n][Heads*HeadDim] queries before RoPE, if decode needs them
	softmax []kernels.Softmax // [KVHeads][n*Group] statistics of the span, if needed
	n       int               // tokens of the span
}

// Recorder is given the attention weights of a token in a KV head, [Group][n], which it must
// not keep. Heads come from several goroutines at a time.
type Recorder interface {
	Record(layer, head int, weights []float32, n int)
}

// Reuse takes over memory of a watcher that is no longer needed.
func (w *Watcher) Reuse(last *Watcher) { w.softmax, last.softmax = last.softmax, nil }

// watchScratch is one worker's scratch for looking at attention weights.
type watchScratch struct {
	probs []float32 // [Group][slots]
}

func (w *Watcher) layer(at int) *lukv.DecodeLayer {
	if w.Decode == nil {
		return nil
	}
	return w.Decode[at]
}

// wantsWeights reports whether the attention weights of the layer are needed.
func (w *Watcher) wantsWeights(at int) bool {
	l := w.layer(at)
	return w.Sums != nil || l != nil && l.Sums() != nil || w.Recorder != nil
}

// FillLayer adds what the watcher has kept of a layer to a metric's view of it.
func (w *Watcher) FillLayer(l *lukv.Layer) {
	l.Queries, l.Stats, l.Sums, l.Repeats, l.Hidden = w.Window, w.Stats, w.Sums, w.Repeats, w.Hidden
}

// needsHidden reports whether the hidden states of any of a span's tokens are kept. The
// watcher may be nil.
func (w *Watcher) needsHidden(p *passRows, g *Span) bool {
	return w != nil && w.Hidden != nil && int(p.pos[g.row])+g.N > w.Hidden.From
}

// watchHidden shows the watchers the residual stream, [rows][Hidden], before layer at.
func (p *passRows) watchHidden(at int, x []float32) {
	p.at = at
	for i := range p.spans {
		if g := &p.spans[i]; g.Watch.needsHidden(p, g) {
			p.watched, p.input = g, x
			p.Each(g.N, 4, (*hiddenStage)(p))
		}
	}
	p.input = nil
}

// hiddenStage normalises the rows of p.watched; an item is a token.
type hiddenStage passRows

func (st *hiddenStage) Run(lo, hi, _ int) {
	p := (*passRows)(st)
	g, dim := p.watched, p.net.Config.Hidden
	for i := lo; i < hi; i++ {
		row := g.row + i
		if dst := g.Watch.Hidden.At(int(p.pos[row])); dst != nil {
			p.net.attentionInput(dst, p.input[row*dim:(row+1)*dim], p.at)
		}
	}
}

// needsQueries reports whether beforeRope looks at the queries of the layer in
// progress, needsAttention whether afterAttention looks at the span's. The
// watcher may be nil for both.
func (w *Watcher) needsQueries(r *passRows) bool {
	return w != nil && r.net.Config.Ragged(r.at) &&
		(w.Stats != nil || w.layer(r.at) != nil && w.Record.PreRoPE && !w.Prefill)
}

func (w *Watcher) needsAttention(r *passRows, g *Span) bool {
	if w == nil || !r.net.Config.Ragged(r.at) {
		return false
	}
	end := int(r.pos[g.row]) + g.N
	return w.Window != nil && end > w.Tail || w.Answer != nil || w.wantsWeights(r.at) ||
		w.layer(r.at) != nil && (!w.Prefill || w.Record.Prefill && end == g.SeqLen)
}

// beforeRope is called with the span's queries before rotation.
func (w *Watcher) beforeRope(r *passRows, g *Span) {
	c := r.net.Config
	if !c.Ragged(r.at) {
		return
	}
	stride := c.Heads * c.HeadDim
	q := r.q[g.row*stride : (g.row+g.N)*stride]
	w.n = g.N
	if w.Stats != nil {
		r.watched = g
		r.Each(c.Heads, 1, (*statsStage)(r))
	}
	if w.layer(r.at) != nil && w.Record.PreRoPE && !w.Prefill {
		w.before = append(w.before[:0], q...)
	}
	if w.wantsWeights(r.at) {
		n := c.Heads * g.N
		w.softmax = slices.Grow(w.softmax[:0], n)[:n]
	}
}

// statsStage adds the queries of r.watched to their moments; an item is a query head.
type statsStage passRows

func (st *statsStage) Run(lo, hi, _ int) {
	r := (*passRows)(st)
	c := r.net.Config
	stride := c.Heads * c.HeadDim
	g := r.watched
	for h := lo; h < hi; h++ {
		g.Watch.Stats.Add(h, int(r.pos[g.row]), r.q[g.row*stride+h*c.HeadDim:], g.N, stride)
	}
}

// softmaxOf returns where the kernel leaves the softmax statistics of n tokens
// of a KV head, nil if nobody wants them.
func (w *Watcher) softmaxOf(r *passRows, head, from, n int) []kernels.Softmax {
	c := r.net.Config
	if !c.Ragged(r.at) || !w.wantsWeights(r.at) {
		return nil
	}
	group := c.Heads / c.KVHeads
	off := (head*w.n + from) * group
	return w.softmax[off : off+n*group]
}

// afterAttention is called with the span's rotated queries, once their own keys
// are in the cache.
func (w *Watcher) afterAttention(r *passRows, g *Span) {
	c := r.net.Config
	if !c.Ragged(r.at) {
		return
	}
	stride := c.Heads * c.HeadDim
	if w.Window != nil {
		for i := range g.N {
			if pos := int(r.pos[g.row+i]); pos >= w.Tail {
				w.Window.Append(pos, r.q[(g.row+i)*stride:(g.row+i+1)*stride])
			}
		}
	}
	if w.Answer != nil {
		for i := range g.N {
			w.Answer[r.at].Append(int(r.pos[g.row+i]), r.q[(g.row+i)*stride:(g.row+i+1)*stride])
		}
	}
	if l := w.layer(r.at); l != nil {
		switch pos := int(r.pos[g.row]); {
		case w.Prefill && w.Record.Prefill && pos+g.N == g.SeqLen:
			last := (g.row + g.N - 1) * stride
			l.Record(g.SeqLen-1, r.q[last:last+stride], nil, 1, stride)
		case !w.Prefill:
			l.Record(pos, r.q[g.row*stride:(g.row+g.N)*stride], w.before, g.N, stride)
		}
	}
	if w.wantsWeights(r.at) {
		r.watched = g
		r.Each(c.KVHeads, 1, (*weightsStage)(r))
	}
}

// weightsStage goes through the attention weights of r.watched, row by row; an
// item is a KV head.
type weightsStage passRows

func (st *weightsStage) Run(lo, hi, worker int) {
	r := (*passRows)(st)
	c, p, g, w := r.net.Config, &r.net.Plan[r.at], r.watched, r.watched.Watch
	group, stride := c.Heads/c.KVHeads, c.Heads*c.HeadDim
	var decode *lukv.ColumnSums
	if l := w.layer(r.at); l != nil {
		decode = l.Sums()
	}
	for h := lo; h < hi; h++ {
		kv := g.view(r.at, h)
		total := g.slots(r.at, h)
		stats := w.softmaxOf(r, h, 0, g.N)
		sc := &r.watch[worker]
		for i := 0; i < g.N && !r.stop.Load(); i++ {
			n := total - g.N + i + 1
			sc.probs = slices.Grow(sc.probs[:0], group*total)[:group*n]
			for k := range group {
				q := (g.row+i)*stride + (h*group+k)*c.HeadDim
				r.net.CPU.AttentionWeights(sc.probs[k*n:(k+1)*n], r.q[q:q+c.HeadDim], &kv, 0, p.AttentionScale(), p.AttentionCap(), stats[i*group+k])
			}
			if w.Sums != nil {
				w.Sums.AddRow(h, sc.probs, n)
			}
			if decode != nil {
				decode.AddRow(h, sc.probs, n)
			}
			if w.Recorder != nil {
				w.Recorder.Record(r.at, h, sc.probs, n)
			}
		}
	}
}
