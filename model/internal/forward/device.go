package forward

import (
	"context"
	"slices"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
)

// turnColumns is the number of elements that say how a device rotates a row: cosines, sines
// and, in models that have one, the factor of queries.
func (net *Network) turnColumns() int {
	if net.Config.Rope.QueryBeta != 0 {
		return net.Config.HeadDim + 1
	}
	return net.Config.HeadDim
}

// turnsOf returns where a rotation's turns of the pass's rows are.
func (d *deviceRun) turnsOf(rope int) []float32 {
	n := d.net.turnColumns()
	return d.turns.Floats()[rope*d.cap*n:][:d.rows*n]
}

// rotations fills the turns of all rows.
func (d *deviceRun) rotations() { d.Each(d.rows, 16, (*rotationStage)(d)) }

type rotationStage deviceRun

func (st *rotationStage) Run(lo, hi, _ int) {
	d := (*deviceRun)(st)
	for i := range d.spans {
		g := &d.spans[i]
		for row := max(lo, g.row); row < min(hi, g.row+g.N); row++ {
			d.rotation(row, g.SeqLen)
		}
	}
}

// rotation fills the turns of a row of a sequence of seqLen tokens.
func (d *deviceRun) rotation(row, seqLen int) {
	n, dim, pos := d.net.turnColumns(), d.net.Config.HeadDim, int(d.pos[row])
	for rope, r := range d.net.Ropes {
		t := d.turnsOf(rope)[row*n : (row+1)*n]
		r.Row(pos, seqLen, t[:dim/2], t[dim/2:dim])
		if n > dim {
			t[dim] = r.QueryFactor(pos)
		}
	}
}

// forward runs the device's layers over the pass's rows, whose embeddings are in
// d.in. If logits is set, which needs the head on the device, it computes those of
// all rows as well.
func (d *deviceRun) forward(ctx context.Context, logits bool) error {
	d.start()
	d.rotations()
	k := listKey{rows: d.rows, layers: len(d.acc.layers)}
	if logits {
		k.n = d.rows
	}
	if err := d.reserve(0, k.layers); err != nil {
		return err
	}
	if !d.anyWatcher() {
		if err := d.submit(ctx, k); err != nil {
			return err
		}
	} else if err := d.once(ctx, d.rows, func() error { return d.record(k) }); err != nil {
		return err
	}
	d.ready = k.n
	return nil
}

// submit runs the list of a key, recording it if that has not been done before.
func (d *deviceRun) submit(ctx context.Context, k listKey) error {
	list, ok := d.lists[k]
	if !ok {
		d.begin(k.rows)
		err := d.record(k)
		if err == nil {
			list, err = d.e.End()
		}
		if err != nil {
			return err
		}
		if len(d.lists) >= keptLists {
			d.forget()
		}
		d.lists[k] = list
	}
	return d.e.Run(ctx, list)
}

// once runs what record records for the given number of rows, a single time. Watchers
// may cause parts of it to run while it is being recorded.
func (d *deviceRun) once(ctx context.Context, rows int, record func() error) error {
	d.ctx = ctx
	defer func() { d.ctx = nil }()
	d.begin(rows)
	if err := record(); err != nil {
		return err
	}
	return d.flush()
}

// record records the operations of a key.
func (d *deviceRun) record(k listKey) error {
	if k.layers > 0 {
		d.setInput()
	}
	for at := range k.layers {
		if err := forwardLayer(d, at, &d.acc.layers[at]); err != nil {
			return err
		}
	}
	if k.n > 0 {
		d.project(k.first, k.n)
	}
	return nil
}

// setInput sets the residual stream to the pass's embeddings.
func (d *deviceRun) setInput() {
	d.e.Copy(d.act(actX), kernels.Rows{Buffer: d.in, N: d.recorded})
}

// project computes the logits of n rows of the residual stream, from first on.
func (d *deviceRun) project(first, n int) {
	last, logits := kernels.Rows{Buffer: d.last, N: n}, kernels.Rows{Buffer: d.acts[actLogits], N: n}
	d.e.Norm(last, d.act(actX).Part(first, n), d.acc.norm, d.net.Config.NormEps)
	d.product(logits, last, d.acc.head)
	d.e.Copy(kernels.Rows{Buffer: d.out, N: n}, logits)
}

// flush ends the list being recorded and runs it once.
func (d *deviceRun) flush() error {
	list, err := d.e.End()
	if err != nil {
		return err
	}
	defer list.Free()
	return d.e.Run(d.ctx, list)
}

// reserve makes room for the rows in the caches of layers [from, to).
func (d *deviceRun) reserve(from, to int) error {
	heads := d.net.Config.KVHeads
	n := (to - from) * len(d.spans) * heads
	if cap(d.errs) < n {
		d.errs = make([]error, n)
	}
	d.errs, d.first = d.errs[:n], from
	d.Each(n, 32, (*reserveStage)(d))
	i := 0
	for at := from; at < to; at++ {
		for j := range d.spans {
			g := &d.spans[j]
			for head := range heads {
				if err := d.errs[i]; err != nil {
					clear(d.errs)
					return layerError(at, head, err)
				}
				cache := g.Cache
				d.a.SetHead(at, j, head, cache.Table(at, head), cache.Len(at, head)-g.N, cache.Base(at, head))
				i++
			}
		}
	}
	return nil
}

// reserveStage makes room in the caches; an item is a layer, a span and a KV head.
type reserveStage deviceRun

func (st *reserveStage) Run(lo, hi, _ int) {
	d := (*deviceRun)(st)
	heads := d.net.Config.KVHeads
	for i := lo; i < hi; i++ {
		at, g := d.first+i/heads/len(d.spans), &d.spans[i/heads%len(d.spans)]
		d.errs[i] = g.Cache.Reserve(at, i%heads, d.pos[g.row:g.row+g.N])
	}
}

// turn hands the turns of the pass's rows, those of the stream from first on, to the device.
// They are computed in the first layer and kept for the others.
func (st *Stream) turn(d *deviceRun, at, first int) {
	n, ropes := d.net.turnColumns(), len(d.net.Ropes)
	if st.turns == nil {
		st.turns = make([]float32, ropes*len(st.tokens)*n)
	}
	if at == 0 {
		d.rotations()
	}
	for rope := range ropes {
		kept := st.turns[(rope*len(st.tokens)+first)*n:][:d.rows*n]
		if at > 0 {
			copy(d.turnsOf(rope), kept)
		} else {
			copy(kept, d.turnsOf(rope))
		}
	}
}

// forwardLayer runs a layer over the rows of a stream from first on. The first layer
// starts from their embeddings; what the host continues with is copied back to it.
func (d *deviceRun) forwardLayer(ctx context.Context, at int, st *Stream, first int) error {
	d.start()
	st.turn(d, at, first)
	if err := d.reserve(at, at+1); err != nil {
		return err
	}
	last := at == len(d.acc.layers)-1 && !d.acc.whole()
	if at == 0 {
		d.net.embedTokens(d.embeddings(), st.tokens[first:first+d.rows])
	}
	err := d.once(ctx, d.rows, func() error {
		if at == 0 {
			d.setInput()
		} else {
			d.e.Copy(d.act(actX), st.part(first, d.recorded))
		}
		if err := forwardLayer(d, at, &d.acc.layers[at]); err != nil {
			return err
		}
		if !last {
			d.e.Copy(st.part(first, d.recorded), d.act(actX))
		}
		return nil
	})
	if err != nil || !last {
		return err
	}
	return d.result(ctx, st.hostRows(d.net, first, d.rows))
}

// result copies the residual stream of the pass's rows to x.
func (d *deviceRun) result(ctx context.Context, x []float32) error {
	return d.acc.dev.Read(ctx, x[:d.rows*d.net.Config.Hidden], kernels.Rows{Buffer: d.acts[actX], N: d.rows})
}

// logits copies the logits of rows first … first+n-1 of the pass to dst, computing them
// if that has not been done yet.
func (d *deviceRun) logits(ctx context.Context, dst []float32, first, n int) error {
	if first+n <= d.ready {
		d.copyLogits(dst, d.out.Floats()[first*d.net.Config.Vocab:], n)
		return nil
	}
	if err := d.submit(ctx, listKey{rows: d.rows, first: first, n: n}); err != nil {
		return err
	}
	d.copyLogits(dst, d.out.Floats(), n)
	return nil
}

// copyLogits copies n rows of logits, on all threads: they come from memory that no
// processor's cache holds.
func (d *deviceRun) copyLogits(dst, src []float32, n int) {
	d.to, d.from = dst, src
	d.Each(n, 1, (*copyStage)(d))
	d.to, d.from = nil, nil
}

type copyStage deviceRun

func (st *copyStage) Run(lo, hi, _ int) {
	vocab := st.net.Config.Vocab
	copy(st.to[lo*vocab:hi*vocab], st.from[lo*vocab:hi*vocab])
	st.net.finishLogits(st.to[lo*vocab : hi*vocab])
}

// streamLogits computes the logits of rows of a stream.
func (d *deviceRun) streamLogits(ctx context.Context, dst []float32, st *Stream, first, n int) error {
	err := d.once(ctx, n, func() error {
		d.e.Copy(d.act(actX), st.part(first, n))
		d.project(0, n)
		return nil
	})
	if err != nil {
		return err
	}
	d.copyLogits(dst, d.out.Floats(), n)
	return nil
}

func (d *deviceRun) norm(w kernels.Buffer) {
	if w == nil {
		d.e.Copy(d.act(actNorm), d.act(actX))
		return
	}
	d.e.Norm(d.act(actNorm), d.act(actX), w, d.net.Config.NormEps)
}

func (d *deviceRun) multiply(src act, add bool, linears []deviceLinear) {
	d.products = d.products[:0]
	for i := range linears {
		l := &linears[i]
		d.products = append(d.products, kernels.Product{Linear: kernels.Linear{W: l.w, Bias: l.bias}, Dst: d.act(l.dst)})
	}
	d.e.MatMul(d.act(src), add, d.products)
}

func (d *deviceRun) headNorm(a act, w kernels.Buffer) {
	d.e.HeadNorm(d.act(a), w, d.net.Config.NormEps)
}

// fullNorm is headNorm for weights of all heads.
func (d *deviceRun) fullNorm(a act, w kernels.Buffer) { d.headNorm(a, w) }

func (d *deviceRun) ropeAppend(at int) error {
	var turns kernels.Rows
	if rope := d.net.Plan[at].Rope; rope != arch.NoRope {
		turns = kernels.Rows{Buffer: d.turns, First: rope * d.cap, N: d.recorded}
	}
	d.e.RopeAppend(d.a, at, d.act(actQ), d.act(actK), d.act(actV), turns)
	return nil
}

func (d *deviceRun) attend(at int) {
	stats := d.wantsWeights(at)
	for i := range d.spans {
		stats = stats || d.sumsRows(&d.spans[i])
	}
	d.e.Attend(d.a, at, d.act(actAttention), d.act(actQ), stats)
	for i := range d.spans {
		d.recordSums(at, i, &d.spans[i])
	}
}

// wantsWeights reports whether a watcher wants the attention weights of a layer.
func (d *deviceRun) wantsWeights(at int) bool {
	return d.net.Config.Ragged(at) && slices.ContainsFunc(d.spans, func(g Span) bool {
		return g.Watch != nil && g.Watch.wantsWeights(at)
	})
}

func (d *deviceRun) gateUp(p *arch.LayerPlan, gate, up kernels.DeviceMatrix, gateBias, upBias kernels.Buffer) {
	d.e.GateUp(d.act(actMLP), d.act(actNorm), p.FFN.Activation, kernels.Linear{W: gate, Bias: gateBias}, kernels.Linear{W: up, Bias: upBias})
}

func (d *deviceRun) addBranch(w kernels.Buffer, scale float32) {
	if w != nil {
		d.e.HeadNorm(d.act(actBranch), w, d.net.Config.NormEps)
	}
	d.e.AddScaled(d.act(actX), d.act(actBranch), scale)
}

// reorder is not called: the rows of queries and keys are in order on a device, see
// Model.onDevices.
func (d *deviceRun) reorder([]int32) { panic("model: an operation that devices lack") }

func (d *deviceRun) anyWatcher() bool {
	return slices.ContainsFunc(d.spans, func(g Span) bool { return g.Watch != nil })
}

// queriesReady interrupts the list where a watcher needs queries before rotation.
func (d *deviceRun) queriesReady(at int) error {
	if !d.anyWatcher() {
		return nil
	}
	if n := d.rows * d.net.Config.Heads * d.net.Config.HeadDim; cap(d.q) < n {
		d.q = make([]float32, n)
	}
	d.at = at
	if err := d.readHidden(at); err != nil {
		return err
	}
	wants := false
	for i := range d.spans {
		wants = wants || d.spans[i].Watch.needsQueries(d.passRows)
	}
	if wants {
		if err := d.readQueries(); err != nil {
			return err
		}
		d.begin(d.rows)
	}
	d.watchQueries(at)
	for i := range d.spans {
		d.recordMoments(&d.spans[i])
	}
	return nil
}

// readHidden shows the watchers the input of a layer, if one wants it.
func (d *deviceRun) readHidden(at int) error {
	wants := false
	for i := range d.spans {
		wants = wants || d.spans[i].Watch.needsHidden(d.passRows, &d.spans[i])
	}
	if !wants {
		return nil
	}
	if err := d.flush(); err != nil {
		return err
	}
	x := make([]float32, d.rows*d.net.Config.Hidden)
	if err := d.result(d.ctx, x); err != nil {
		return err
	}
	d.watchHidden(at, x)
	d.begin(d.rows)
	return nil
}

// attentionReady interrupts the list where a watcher needs rotated queries or
// attention weights, which it computes from a copy of the keys.
func (d *deviceRun) attentionReady(at int) error {
	d.at = at
	wants := false
	for i := range d.spans {
		wants = wants || d.spans[i].Watch.needsAttention(d.passRows, &d.spans[i])
	}
	if !wants {
		return nil
	}
	if err := d.readQueries(); err != nil {
		return err
	}
	if d.wantsWeights(at) {
		if err := d.readSoftmax(); err != nil {
			return err
		}
	}
	d.watchAttention(at)
	for i := range d.spans {
		if err := d.spans[i].Cache.Err(); err != nil {
			return err
		}
	}
	if err := d.interrupted(d.ctx); err != nil {
		return err
	}
	d.begin(d.rows)
	return nil
}

// readQueries runs what was recorded so far and copies the queries to the host.
func (d *deviceRun) readQueries() error {
	if err := d.flush(); err != nil {
		return err
	}
	return d.acc.dev.Read(d.ctx, d.q[:d.rows*d.net.Config.Heads*d.net.Config.HeadDim], kernels.Rows{Buffer: d.acts[actQ], N: d.rows})
}

// readSoftmax hands the softmax statistics of the last attention to the watchers.
func (d *deviceRun) readSoftmax() error {
	c := d.net.Config
	group := c.Heads / c.KVHeads
	n := d.rows * c.Heads
	d.softmax = slices.Grow(d.softmax[:0], n)[:n]
	if err := d.a.ReadStats(d.ctx, d.softmax, 0, d.rows); err != nil {
		return err
	}
	for i := range d.spans {
		g := &d.spans[i]
		for head := range c.KVHeads {
			if g.Watch == nil {
				continue
			}
			of := g.Watch.softmaxOf(d.passRows, head, 0, g.N)
			for j := range len(of) / group {
				copy(of[j*group:(j+1)*group], d.softmax[(g.row+j)*c.Heads+head*group:])
			}
		}
	}
	return nil
}
