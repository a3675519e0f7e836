//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

var (
	_ kernels.ExpertEncoder     = (*encoder)(nil)
	_ kernels.StatisticsEncoder = (*encoder)(nil)
	_ kernels.Reducer           = (*attention)(nil)
)

// encoder is a kernels.Encoder: it resolves buffers and records commands, in parts that
// are short enough to wait for when a run is cancelled.
type encoder struct {
	d      *Device
	lists  map[*commandList]struct{}
	spare  []*commands
	closed bool

	// What is being recorded.
	list  *commandList
	c     *commands
	err   error
	flops float64 // of c, approximate

	grouped assignments // of the operation recorded last, if it sorted any

	// partFlops is the amount of work after which a new part of a list begins.
	partFlops float64
}

// commandList is a kernels.CommandList.
type commandList struct {
	e     *encoder
	parts []*commands
	uses  []attentionUse

	scratch []*buffer // for lists of assignments
}

// attentionUse says that a list reads or writes the pages of a layer, for passes of up to
// rows rows.
type attentionUse struct {
	a     *attention
	layer int
	rows  int

	attends bool // reads the work list
	split   bool // whose blocks may run in parallel

	need int64 // bytes of partial results, in the pass being prepared
}

// Work for a part that takes tens of milliseconds, or a tenth of a second.
const (
	hardwareFlops = 1e11
	unitsFlops    = 5e11 // with matrix units
	softwareFlops = 2e9
)

// Encoder returns an encoder without lists.
func (d *Device) Encoder() (kernels.Encoder, error) {
	if err := d.ready(); err != nil {
		return nil, fmt.Errorf("make an encoder: %w", err)
	}
	e := &encoder{d: d, lists: map[*commandList]struct{}{}, partFlops: hardwareFlops}
	switch {
	case d.info.Kind == "software":
		e.partFlops = softwareFlops
	case d.matrixUnits != nil:
		e.partFlops = unitsFlops
	}
	return e, nil
}

// Close frees the encoder with its lists.
func (e *encoder) Close() {
	if e.closed {
		return
	}
	e.abandon()
	for l := range e.lists {
		l.Free()
	}
	for _, c := range e.spare {
		c.Free()
	}
	e.spare, e.closed = nil, true
}

// Free returns the commands of a list to its encoder.
func (l *commandList) Free() {
	if _, ok := l.e.lists[l]; ok {
		delete(l.e.lists, l)
		l.release()
	}
}

// release gives up what a list that does not run has.
func (l *commandList) release() {
	l.e.spare = append(l.e.spare, l.parts...)
	for _, b := range l.scratch {
		b.Free()
	}
	l.parts, l.scratch = nil, nil
}

func (e *encoder) fail(op string, err error) {
	if e.err == nil && err != nil {
		e.err = fmt.Errorf("%s: %w", op, err)
	}
}

func (e *encoder) Begin() {
	e.abandon()
	e.err, e.list = nil, &commandList{e: e}
	if e.closed {
		e.err = errors.New("the encoder is closed")
	}
}

// begin starts the next part.
func (e *encoder) begin() {
	e.flops = 0
	var c *commands
	if n := len(e.spare); n > 0 {
		c, e.spare = e.spare[n-1], e.spare[:n-1]
	} else if c, e.err = e.d.newCommands(); e.err != nil {
		return
	}
	e.list.parts = append(e.list.parts, c)
	if e.err = c.Begin(); e.err == nil {
		e.c = c
	}
}

// end ends a part.
func (e *encoder) end() {
	if e.c != nil {
		if err := e.c.End(); err != nil && e.err == nil {
			e.err = err
		}
		e.c = nil
	}
}

// work adds to the work of the current part, and ends the part if that is enough.
func (e *encoder) work(flops float64) {
	if e.flops += flops; e.flops >= e.partFlops {
		e.end()
	}
}

// recording reports whether an operation can be recorded, and begins a part for
// it if there is none.
func (e *encoder) recording() bool {
	e.grouped = assignments{}
	if e.list == nil && e.err == nil {
		e.err = errors.New("Begin is missing")
	}
	if e.err == nil && e.c == nil {
		e.begin()
	}
	return e.err == nil
}

// abandon drops a recording that was not ended.
func (e *encoder) abandon() {
	if e.list != nil {
		e.end()
		e.list.release()
	}
	e.list, e.c = nil, nil
}

func (e *encoder) End() (kernels.CommandList, error) {
	if e.list == nil && e.err == nil {
		e.err = errors.New("Begin is missing")
	}
	if err := e.d.ready(); err != nil && e.err == nil {
		e.err = err
	}
	e.end()
	if e.err != nil {
		e.abandon()
		return nil, fmt.Errorf("record operations: %w", e.err)
	}
	l := e.list
	e.list = nil
	e.lists[l] = struct{}{}
	return l, nil
}

// Run runs a list and waits for it.
func (e *encoder) Run(ctx context.Context, list kernels.CommandList) error {
	l, ok := list.(*commandList)
	if !ok || l.e != e {
		return errors.New("run a list: it is not of this encoder")
	}
	if _, live := e.lists[l]; !live {
		return errors.New("run a list: it was freed")
	}
	err := e.d.ready()
	if err == nil {
		err = l.prepare()
	}
	if err == nil {
		err = e.run(ctx, l)
	}
	if err != nil {
		return fmt.Errorf("run a list: %w", err)
	}
	return nil
}

// run submits the parts of a list, of which at most two are in flight.
func (e *encoder) run(ctx context.Context, l *commandList) error {
	var last, before ticket
	var err error
	for _, c := range l.parts {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		t, failed := e.d.submit(c)
		if failed == nil {
			before, last = last, t
			failed = e.d.wait(context.Background(), before)
		}
		if err = failed; err != nil {
			break
		}
	}
	// Shared memory is written again after a run, so nothing may be in flight.
	if failed := e.d.wait(context.Background(), last); err == nil {
		err = failed
	}
	return err
}

// rows returns the memory of rows that an operation uses; it is on the device unless shared
// is set.
func (e *encoder) rows(op string, r kernels.Rows, shared bool) rows2D {
	m, err := e.d.rowsOf(r)
	e.fail(op, err)
	if err == nil && !shared && r.Buffer.(*rowBuffer).shared {
		e.fail(op, errors.New("found a shared buffer, expected one on the device"))
	}
	return m
}

// vector returns the memory of a buffer of one row of n numbers; any n if negative.
func (e *encoder) vector(op string, b kernels.Buffer, n int) view {
	r, err := e.d.bufferOf(b)
	if err == nil && (r.N != 1 || r.Type != tensor.F32 || n >= 0 && r.Cols != n) {
		err = fmt.Errorf("found %d rows of %d elements of type %v, expected one row of %d of F32", r.N, r.Cols, r.Type, n)
	}
	if err != nil {
		e.fail(op, err)
		return view{}
	}
	return r.Mem.At(0, 4*int64(r.Cols))
}

// linear resolves a product with its bias.
func (e *encoder) linear(op string, l kernels.Linear) (p product) {
	w, err := e.d.matrixOf(l.W)
	e.fail(op, err)
	if p.W = w; l.Bias != nil {
		p.Bias = e.vector(op, l.Bias, w.Rows)
	}
	return p
}

func (e *encoder) Copy(dst, src kernels.Rows) {
	const op = "copy"
	if !e.recording() {
		return
	}
	to, from := e.rows(op, dst, true), e.rows(op, src, true)
	round := to.Type == tensor.BF16 && from.Type == tensor.F32
	if e.err == nil && (to.N != from.N || to.Cols != from.Cols || to.Type != from.Type && !round) {
		e.fail(op, fmt.Errorf("found %d rows of %d elements of type %v for %d rows of %d of type %v", to.N, to.Cols, to.Type, from.N, from.Cols, from.Type))
	}
	if e.err != nil || to.N == 0 {
		return
	}
	if round {
		e.c.Round(to, from)
		return
	}
	size := to.Type.Bytes(1)
	if to.Stride == from.Stride {
		e.c.Copy(to.Mem, from.Mem.At(0, from.bytes()))
		return
	}
	e.c.CopyRows(to.Mem, size*to.Stride, from.Mem, size*from.Stride, size*to.Cols, to.N)
}

func (e *encoder) Embed(dst kernels.Rows, table kernels.DeviceMatrix, ids kernels.Rows) {
	const op = "embed"
	if !e.recording() {
		return
	}
	x, i := e.rows(op, dst, false), e.rows(op, ids, true)
	w, err := e.d.matrixOf(table)
	if e.fail(op, err); e.err == nil {
		e.c.Embed(x, i, w)
	}
}

func (e *encoder) Norm(dst, src kernels.Rows, weight kernels.Buffer, eps float64) {
	const op = "norm"
	if !e.recording() {
		return
	}
	y, x := e.rows(op, dst, false), e.rows(op, src, false)
	if w := e.vector(op, weight, x.Cols); e.err == nil {
		e.c.RMSNorm(y, x, w, eps)
	}
}

func (e *encoder) HeadNorm(x kernels.Rows, weight kernels.Buffer, eps float64) {
	const op = "head norm"
	if !e.recording() {
		return
	}
	r := e.rows(op, x, false)
	if w := e.vector(op, weight, -1); e.err == nil {
		e.c.HeadNorm(r, int(w.Size()/4), w, eps)
	}
}

func (e *encoder) MatMul(src kernels.Rows, add bool, products []kernels.Product) {
	const op = "matrix product"
	if !e.recording() {
		return
	}
	x := e.rows(op, src, false)
	var list [3]product
	flops := 0.0
	for len(products) > 0 {
		// As many at a time as one shader takes.
		n := 0
		for n < len(products) && n < len(list) {
			p := e.linear(op, products[n].Linear)
			p.Dst = e.rows(op, products[n].Dst, false)
			if n > 0 && p.W.Type != list[0].W.Type {
				break
			}
			list[n] = p
			flops += 2 * float64(x.N) * float64(p.W.Rows) * float64(p.W.Cols)
			n++
		}
		if e.err != nil {
			return
		}
		e.c.MatMul(x, add, list[:n]...)
		products = products[n:]
	}
	e.work(flops)
}

func (e *encoder) GateUp(dst, src kernels.Rows, a kernels.Activation, gate, up kernels.Linear) {
	const op = "gate and up"
	if !e.recording() {
		return
	}
	y, x := e.rows(op, dst, false), e.rows(op, src, false)
	if g, u := e.linear(op, gate), e.linear(op, up); e.err == nil {
		e.c.GateUp(y, x, a, g, u)
		e.work(4 * float64(x.N) * float64(g.W.Rows) * float64(g.W.Cols))
	}
}

func (e *encoder) AddScaled(dst, src kernels.Rows, scale float32) {
	const op = "add"
	if !e.recording() {
		return
	}
	if y, x := e.rows(op, dst, false), e.rows(op, src, false); e.err == nil {
		e.c.AddScaled(y, x, scale)
	}
}

func (e *encoder) ArgMax(dst, src kernels.Rows) {
	const op = "arg-max"
	if !e.recording() {
		return
	}
	if y, x := e.rows(op, dst, true), e.rows(op, src, false); e.err == nil {
		e.c.ArgMax(y, x)
	}
}

// use adds the layer of an attention to those that the list needs.
func (e *encoder) use(op string, of kernels.Attention, layer, rows int) *attentionUse {
	a, ok := of.(*attention)
	switch {
	case !ok || a.freed || a.d != e.d:
		e.fail(op, fmt.Errorf("the attention is not on %s, or was freed", e.d.info.Name))
	case layer < 0 || layer >= len(a.layers):
		e.fail(op, fmt.Errorf("found layer %d of %d", layer, len(a.layers)))
	case rows > a.s.Rows:
		e.fail(op, fmt.Errorf("found %d rows, expected at most %d", rows, a.s.Rows))
	}
	if e.err != nil {
		return nil
	}
	l := e.list
	for i := range l.uses {
		if u := &l.uses[i]; u.a == a && u.layer == layer {
			u.rows = min(u.rows, rows)
			return u
		}
	}
	l.uses = append(l.uses, attentionUse{a: a, layer: layer, rows: rows, split: rows <= splitRows})
	return &l.uses[len(l.uses)-1]
}

func (e *encoder) RopeAppend(a kernels.Attention, layer int, q, k, v, turns kernels.Rows) {
	const op = "rope and append"
	if !e.recording() {
		return
	}
	rq, rk, rv := e.rows(op, q, false), e.rows(op, k, false), e.rows(op, v, false)
	var by rows2D
	if turns.Buffer != nil {
		by = e.rows(op, turns, true)
	}
	if u := e.use(op, a, layer, rq.N); e.err == nil {
		y := &u.a.layers[layer]
		e.c.RopeAppend(y.shape, rq, rk, rv, by, u.a.rowInfo.All(), y.heads)
	}
}

func (e *encoder) Attend(a kernels.Attention, layer int, dst, q kernels.Rows, stats bool) {
	const op = "attention"
	if !e.recording() {
		return
	}
	y, x := e.rows(op, dst, false), e.rows(op, q, false)
	u := e.use(op, a, layer, x.N)
	if e.err != nil {
		return
	}
	u.attends = true
	if u.split != (x.N <= splitRows) {
		e.fail(op, errors.New("found few rows in one attention to a layer and many in another, expected one kind in a list"))
		return
	}
	o := attentionOp{shape: u.a.layers[layer].shape, Q: x, Out: y, Heads: u.a.layers[layer].heads, Work: u.a.layers[layer].work, Split: u.split}
	if stats {
		o.Stats = u.a.stats.All()
	}
	e.c.Attention(o)
	if !u.split {
		e.work(math.Inf(1)) // it may take long; how long is not known yet
	}
}

// part reports whether rows first … first+n-1 are among those of r.
func (e *encoder) part(op string, r rows2D, first, n int) bool {
	if e.err == nil && (first < 0 || n < 0 || n > r.N-first) {
		e.fail(op, fmt.Errorf("found rows [%d, %d+%d) of %d", first, first, n, r.N))
	}
	return e.err == nil
}

func (e *encoder) Moments(m kernels.Moments, q kernels.Rows, first, n int) {
	const op = "query moments"
	if !e.recording() {
		return
	}
	x := e.rows(op, q, false)
	s, ok := m.(*moments)
	if !ok || s.mem.block == nil || s.a.d != e.d {
		e.fail(op, errors.New("the statistics are not on this device, or were freed"))
	}
	if !e.part(op, x, first, n) {
		return
	}
	e.c.Moments(x, s.a.s.HeadDim, first, n, s.mem.All(), s.covariance)
	if s.covariance {
		e.work(2 * float64(n) * float64(x.Cols) * float64(s.a.s.HeadDim))
	}
}

func (e *encoder) ColumnSums(s kernels.ColumnSums, a kernels.Attention, layer, seq int, q kernels.Rows, first, n int) {
	const op = "attention column sums"
	if !e.recording() {
		return
	}
	x := e.rows(op, q, false)
	u := e.use(op, a, layer, x.N)
	if !e.part(op, x, first, n) {
		return
	}
	to, ok := s.(*columnSums)
	switch {
	case !ok || to.a != u.a || to.mem.block == nil:
		e.fail(op, errors.New("the sums are not of this attention, or were freed"))
	case seq < 0 || seq >= u.a.s.Sequences:
		e.fail(op, fmt.Errorf("found sequence %d of %d", seq, u.a.s.Sequences))
	case u.a.s.Windows[layer] > 0:
		e.fail(op, fmt.Errorf("layer %d has a window", layer))
	}
	if e.err != nil {
		return
	}
	of := sequence{shape: u.a.layers[layer].shape, Table: u.a.layers[layer].heads, Seq: seq, Longest: to.entries}
	e.c.ColumnSums(of, x, u.a.stats.All(), u.a.rowInfo.All(), first, n, to.mem.All(), to.entries)
	e.work(2 * float64(n) * float64(x.Cols) * float64(to.entries))
}
