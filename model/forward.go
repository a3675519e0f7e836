package model

import (
	"context"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// The forward pass is written once, over rows: a row is one token, and rows of
// several sessions may be computed together. forwardLayer gives the sequence of
// operations; a backend carries them out.

// decoder is one decoder layer with weights as a backend holds them: M is its
// matrix type, V its vector type. Absent biases and norms are zero values.
type decoder[M, V any] struct {
	plan *arch.LayerPlan

	attnNorm, mlpNorm         V // [Hidden], before the branches
	postAttnNorm, postMLPNorm V // [Hidden], after them
	qNorm, kNorm              V // [HeadDim], or of all heads

	qkv  []linear[M, V] // of actNorm, [Heads*HeadDim, Hidden], [KVHeads*HeadDim, Hidden] twice
	rows []int32        // order in which a backend holds the rows of Q and K, nil: as published
	out  []linear[M, V] // of actAttention, [Hidden, Heads*HeadDim]
	down []linear[M, V] // of actMLP, [Hidden, Intermediate]

	gate, up         M // [Intermediate, Hidden]
	gateBias, upBias V // [Intermediate]

	router    M           // [experts, Hidden]
	experts   []expert[M] // the shared one, if there is one, comes last
	sharedMix M           // [1, Hidden], the weight of the shared one
}

// expert is one unit of a mixture.
type expert[M any] struct {
	gate, up M // [width, Hidden]
	down     M // [Hidden, width]
}

// linear is one matrix product: dst = source·wᵀ + bias.
type linear[M, V any] struct {
	w    M
	bias V
	dst  act
}

// newDecoder makes a layer from stored weights. vector and norm, which makes the weights of
// a norm, are called for absent tensors, too.
func newDecoder[M, V any](p *arch.LayerPlan, l *weights.Layer, matrix func(tensor.Tensor) M, vector, norm func(tensor.Tensor) V) decoder[M, V] {
	add := actX
	if !p.AddsDirectly() {
		add = actBranch
	}
	of := func(w, bias tensor.Tensor, dst act) linear[M, V] {
		return linear[M, V]{matrix(w), vector(bias), dst}
	}
	d := decoder[M, V]{
		plan:     p,
		attnNorm: norm(l.AttnNorm), mlpNorm: norm(l.MLPNorm),
		postAttnNorm: norm(l.PostAttnNorm), postMLPNorm: norm(l.PostMLPNorm),
		qNorm: norm(l.QNorm), kNorm: norm(l.KNorm),
		qkv: []linear[M, V]{
			of(l.Q, l.QBias, actQ), of(l.K, l.KBias, actK), of(l.V, l.VBias, actV),
		},
		out: []linear[M, V]{of(l.O, l.OBias, add)},
	}
	if p.FFN.Experts == 0 {
		d.down = []linear[M, V]{of(l.Down, l.DownBias, add)}
		d.gate, d.up, d.gateBias, d.upBias = matrix(l.Gate), matrix(l.Up), vector(l.GateBias), vector(l.UpBias)
		return d
	}
	d.router = matrix(l.Router)
	for _, x := range l.Experts {
		d.experts = append(d.experts, expert[M]{matrix(x.Gate), matrix(x.Up), matrix(x.Down)})
	}
	if p.FFN.Shared > 0 {
		d.sharedMix = matrix(l.SharedMix)
		d.experts = append(d.experts, expert[M]{matrix(l.Shared.Gate), matrix(l.Shared.Up), matrix(l.Shared.Down)})
	}
	return d
}

// backend computes the operations of a layer on the rows of a pass. They read and
// write the activations that package kernels names.
type backend[M, V any] interface {
	// norm sets actNorm to the RMS-normalised actX, or to actX itself if there is no w.
	norm(w V)
	// multiply computes products of src, adding them to their dst if add is set.
	multiply(src act, add bool, linears []linear[M, V])
	// HeadNorm normalises every head of a in place, FullNorm all heads together.
	headNorm(a act, w V)
	fullNorm(a act, w V)
	// reorder brings the elements of each head of queries and keys into an order.
	reorder(order []int32)
	// ropeAppend rotates queries and keys and appends keys and values to the
	// caches of the spans.
	ropeAppend(at int) error
	// attend sets actAttention.
	attend(at int)
	// gateUp sets actMLP to the products of actNorm with gate and up, joined as the plan's
	// activation says.
	gateUp(p *arch.LayerPlan, gate, up M, gateBias, upBias V)
	// mixture sets actBranch to the weighted sum of the experts that a layer's router
	// chooses.
	mixture(l *decoder[M, V])
	// addBranch adds actBranch, normalised if there is a w, times scale to actX.
	addBranch(w V, scale float32)
	// queriesReady is called when actQ holds a layer's queries before rotation,
	// attentionReady when the layer's attention is complete: the points at which
	// watchers look.
	queriesReady(at int) error
	attentionReady(at int) error
}

// forwardLayer runs layer at over the rows of a pass: actX, the residual
// stream, is updated, and keys and values are appended to the sessions' caches.
func forwardLayer[M, V any](b backend[M, V], at int, l *decoder[M, V]) error {
	p := l.plan
	direct := p.AddsDirectly()
	b.norm(l.attnNorm)
	b.multiply(actNorm, false, l.qkv)
	if l.rows != nil {
		b.reorder(l.rows)
	}
	switch p.QKNorm {
	case arch.HeadNorm:
		b.headNorm(actQ, l.qNorm)
		b.headNorm(actK, l.kNorm)
	case arch.FullNorm:
		b.fullNorm(actQ, l.qNorm)
		b.fullNorm(actK, l.kNorm)
	}
	if p.Order != nil {
		b.reorder(p.Order)
	}
	if err := b.queriesReady(at); err != nil {
		return err
	}
	if err := b.ropeAppend(at); err != nil {
		return err
	}
	b.attend(at)
	if err := b.attentionReady(at); err != nil {
		return err
	}
	b.multiply(actAttention, direct, l.out)
	if !direct {
		b.addBranch(l.postAttnNorm, float32(p.ResidualScale))
	}
	b.norm(l.mlpNorm)
	if p.FFN.Experts > 0 {
		b.mixture(l)
		b.addBranch(l.postMLPNorm, float32(p.ResidualScale))
		return nil
	}
	b.gateUp(p, l.gate, l.up, l.gateBias, l.upBias)
	b.multiply(actMLP, direct, l.down)
	if !direct {
		b.addBranch(l.postMLPNorm, float32(p.ResidualScale))
	}
	return nil
}

// span is a run of consecutive tokens of one session inside a pass.
type span struct {
	s      *Session
	row, n int // rows [row, row+n) of the pass
	seqLen int // length of the sequence at the end of the call that the span belongs to
	watch  *watcher
}

// pass is the part of a forward pass that all backends share and watchers look at.
type pass struct {
	m     *Model
	cap   int // most rows
	rows  int // in use
	spans []span
	pos   []int32 // position of each row

	q []float32 // [rows][Heads*HeadDim] queries, when watchers may look

	watch   []watchScratch // per worker
	at      int            // layer in progress
	watched *span          // for the stages that watch
	input   []float32      // likewise, [rows][Hidden] input of a layer

	stop atomic.Bool // set when the context is done
}

// add appends a span of n tokens of s, whose first position is s.pos+offset.
func (p *pass) add(s *Session, offset, n, seqLen int, w *watcher) {
	for i := range n {
		p.pos[p.rows+i] = int32(s.pos + offset + i)
	}
	p.spans = append(p.spans, span{s: s, row: p.rows, n: n, seqLen: seqLen, watch: w})
	p.rows += n
}

// each runs a stage over n items. A single item wakes no worker.
func (p *pass) each(n, grain int, t interface{ Run(lo, hi, worker int) }) {
	if n == 1 {
		t.Run(0, 1, 0)
		return
	}
	p.m.pool.Run(n, grain, t)
}

// watchQueries shows the watchers the queries of layer at before rotation.
func (p *pass) watchQueries(at int) {
	p.at = at
	for i := range p.spans {
		if g := &p.spans[i]; g.watch != nil {
			g.watch.beforeRope(p, g)
		}
	}
}

// watchAttention shows the watchers the rotated queries, once their keys are in the
// cache.
func (p *pass) watchAttention(at int) {
	p.at = at
	for i := range p.spans {
		if g := &p.spans[i]; g.watch != nil {
			g.watch.afterAttention(p, g)
		}
	}
}

// watchContext sets p.stop when ctx is done, until release is called. If p.stop is
// just being set, release waits for that, so that the pass can be reused. A context
// that cannot be cancelled costs nothing.
func (p *pass) watchContext(ctx context.Context) (release func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	set := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		p.stop.Store(true)
		close(set)
	})
	return func() {
		if !cancel() {
			<-set
		}
	}
}

// interrupted returns why the pass was stopped, nil if it was not: because its
// context is done, or its session was closed.
func (p *pass) interrupted(ctx context.Context) error {
	if !p.stop.Load() {
		return nil
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return errSessionClosed
}

// reset empties the run for the next chunk.
func (r *run) reset() { r.spans, r.parts, r.rows = r.spans[:0], r.parts[:0], 0 }

// logitRows is the number of rows whose logits can be computed at once.
func (r *run) logitRows() int {
	if r.host == nil {
		return r.dev.logitRows
	}
	return min(r.cap, hostLogits)
}

// hostLogits bounds the logits of a prefill that are computed at once: one row
// at a time would read the head's weights once per row; all rows at once would
// need rows×Vocab floats.
const hostLogits = 64

// forward runs all layers over the run's rows, whose tokens are given. logits says
// that those of all rows will be wanted. done, if not nil, is told how many layers
// have just been completed. If ctx is done, or on another error, the caches hold
// garbage that the caller removes.
func (r *run) forward(ctx context.Context, tokens []int32, logits bool, done func(layers int)) error {
	first := 0
	if r.dev != nil {
		r.m.embedTokens(r.dev.embeddings(), tokens)
		if err := r.dev.forward(ctx, logits && r.host == nil); err != nil {
			return err
		}
		first = len(r.dev.acc.layers)
		if done != nil {
			done(first)
		}
		if r.host == nil {
			return nil
		}
	}
	h := r.host
	h.useOwn()
	if r.dev == nil {
		r.m.embedTokens(h.x, tokens)
	} else if err := r.dev.result(ctx, h.x); err != nil {
		return err
	}
	h.rotations()
	for at := first; at < r.m.cfg.Layers; at++ {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := r.hostLayer(ctx, at); err != nil {
			return err
		}
		if done != nil {
			done(1)
		}
	}
	return nil
}

// hostLayer runs one layer over the residual stream in host.x.
func (r *run) hostLayer(ctx context.Context, at int) error {
	for i := range r.spans {
		if await := r.spans[i].s.await; await != nil {
			if err := await(at); err != nil {
				return err
			}
		}
	}
	if err := forwardLayer(r.host, at, &r.m.layers[at]); err != nil {
		return err
	}
	return r.interrupted(ctx)
}

// logits computes the logits of rows first … first+n-1 of the last call of forward
// into dst, [n][Vocab].
func (r *run) logits(ctx context.Context, dst []float32, first, n int) error {
	if r.host == nil {
		return r.dev.logits(ctx, dst, first, n)
	}
	h := r.m.cfg.Hidden
	r.host.project(dst, r.host.x[first*h:(first+n)*h], n)
	return r.interrupted(ctx)
}

// stream is the residual stream of a whole prompt, for passes that go layer by
// layer. It is held where the next layer is computed.
type stream struct {
	tokens []int32
	x      []float32        // [tokens][Hidden], on the host
	mem    []byte           // of x, outside the Go heap: freed when the prefill ends
	memory *kvcache.Account // charged for it, may be nil
	rows   kernels.Buffer   // the same on a device, nil without one
	cosSin []float32        // [tokens][HeadDim] for the device: cosines and sines
}

func (r *run) newStream(tokens []int32) (*stream, error) {
	st := &stream{tokens: tokens}
	if r.host != nil {
		if err := st.takeRows(r.m); err != nil {
			return nil, fmt.Errorf("memory for the hidden states of %d tokens: %w", len(tokens), err)
		}
	}
	if r.dev == nil {
		r.m.embedTokens(st.x, tokens)
		return st, nil
	}
	rows, err := r.dev.acc.dev.Buffer(tensor.F32, len(tokens), r.m.cfg.Hidden)
	if err != nil {
		st.close()
		return nil, fmt.Errorf("memory for the hidden states of %d tokens: %w", len(tokens), err)
	}
	st.rows = rows
	return st, nil
}

// takeRows allocates the stream on the host.
func (st *stream) takeRows(m *Model) error {
	n := len(st.tokens) * m.cfg.Hidden
	if m.memory != nil {
		if err := m.memory.Take(4 * int64(n)); err != nil {
			return err
		}
	}
	mem, err := arena.Map(4 * n)
	if err != nil {
		if m.memory != nil {
			m.memory.Give(4 * int64(n))
		}
		return err
	}
	st.mem, st.memory = mem, m.memory
	st.x = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(mem))), n)
	return nil
}

func (st *stream) close() {
	if st.rows != nil {
		st.rows.Free()
	}
	if st.mem == nil {
		return
	}
	if st.memory != nil {
		st.memory.Give(int64(len(st.mem)))
	}
	// Unmapping a whole mapping fails only if it is not one.
	_ = arena.Unmap(st.mem)
	st.mem, st.x = nil, nil
}

// part returns n rows of the stream on the device from first on.
func (st *stream) part(first, n int) kernels.Rows {
	return kernels.Rows{Buffer: st.rows, First: first, N: n}
}

// hostRows returns n rows of the stream on the host from first on.
func (st *stream) hostRows(m *Model, first, n int) []float32 {
	h := m.cfg.Hidden
	return st.x[first*h : (first+n)*h]
}

// forwardLayer runs layer at over the run's rows, which are those of st from
// first on. Errors are as for forward.
func (r *run) forwardLayer(ctx context.Context, at int, st *stream, first int) error {
	if r.dev != nil && at < len(r.dev.acc.layers) {
		return r.dev.forwardLayer(ctx, at, st, first)
	}
	r.host.x = st.hostRows(r.m, first, r.rows)
	r.host.rotations()
	return r.hostLayer(ctx, at)
}

// streamLogits computes the logits of rows first … first+n-1 of st.
func (r *run) streamLogits(ctx context.Context, dst []float32, st *stream, first, n int) error {
	if r.host == nil {
		return r.dev.streamLogits(ctx, dst, st, first, n)
	}
	r.host.project(dst, st.hostRows(r.m, first, n), n)
	return r.interrupted(ctx)
}

// embedTokens writes the embeddings of tokens to x, [len(tokens)][Hidden].
func (m *Model) embedTokens(x []float32, tokens []int32) {
	h := m.cfg.Hidden
	for i, t := range tokens {
		row := x[i*h : (i+1)*h]
		m.cpu.WidenRow(row, &m.embed, int(t), 0)
		if m.embedScale != 1 {
			m.cpu.Scale(row, m.embedScale)
		}
	}
}

// attentionInput sets dst to what the attention of layer at reads where the residual
// stream is x.
func (m *Model) attentionInput(dst, x []float32, at int) {
	if w := m.layers[at].attnNorm; w != nil {
		m.cpu.RMSNorm(dst, x, w, m.cfg.NormEps)
	} else {
		copy(dst, x)
	}
}

func layerError(at, head int, err error) error {
	return fmt.Errorf("layer %d, kv head %d: %w", at, head, err)
}
