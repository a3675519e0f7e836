//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// pass is a kernels.Pass: activations on the device, and in memory of the host
// what changes between runs: In, Turns, the rows' places, and per layer the table of heads
// and the work list of attention.
type pass struct {
	d     *Device
	s     kernels.PassShape
	shape shape

	buffers []*buffer // all that Close gives back, but for what follows
	act     [kernels.ActLogits + 1]rowset
	last    rowset // normalised rows of Logits
	stats   view   // [Rows][Heads][2]
	in      *buffer
	turns   *buffer
	out     *buffer // what OutLogits shows
	rowInfo *buffer

	layers   []passLayer
	spans    []rowSpan
	used     int     // rows that rowInfo names
	partials *buffer // of split attention, nil at first
	lists    map[*passList]struct{}
	spare    []*commands
	kept     map[*buffer]struct{} // statistics of metrics
	closed   bool

	// What is being recorded.
	list  *passList
	c     *commands
	err   error
	flops float64 // of c, roughly

	// partFlops is the work after which a list's next part begins.
	partFlops float64
}

// passLayer is what a layer's attention reads. Heads are numbered
// sequence·KVHeads + head.
type passLayer struct {
	heads   *headTable
	work    *workList
	tables  []*pageTable
	entries []int // before the pass
	ends    []int // logical slots that the sequence's first row of the pass sees
}

// passList is a kernels.PassList: commands in parts that are short enough to wait
// for when a run is cancelled.
type passList struct {
	p       *pass
	rows    int
	parts   []*commands
	attend  []int // layers whose work lists are read
	appends []int // layers whose pages are written
	reads   []int // layers whose pages are read otherwise
	split   bool
}

const (
	// splitRows is the most rows for which the blocks of a task may run in
	// parallel. More rows are tasks enough.
	splitRows = 32

	// maxPartialBytes bounds the memory of split attention.
	maxPartialBytes = 128 << 20

	// noRow marks rows that belong to no sequence.
	noRow = math.MaxUint32

	// Work of a part that takes some ten milliseconds, or a tenth of a second.
	hardwareFlops = 1e11
	unitsFlops    = 5e11 // with matrix units
	softwareFlops = 2e9
)

// Pass takes what passes of a shape need.
func (d *Device) Pass(s kernels.PassShape) (kernels.Pass, error) {
	p, err := d.newPass(s)
	if err != nil {
		return nil, fmt.Errorf("make passes of %d rows: %w", s.Rows, err)
	}
	return p, nil
}

func (d *Device) newPass(s kernels.PassShape) (*pass, error) {
	if min(s.Rows, s.Sequences, s.Hidden, s.Heads, s.KVHeads, s.HeadDim, s.Intermediate, s.Vocab) < 1 || s.Logits < 0 || s.Heads%s.KVHeads != 0 || s.Page.HeadDim != s.HeadDim {
		return nil, fmt.Errorf("found %+v, expected positive sizes and whole groups of heads", s)
	}
	l := layout(s.Page)
	if err := l.Check(); err != nil {
		return nil, err
	}
	if s.AttentionBF16 && s.Page.Type != tensor.BF16 {
		return nil, fmt.Errorf("attention in bf16: found pages of type %v, expected BF16", s.Page.Type)
	}
	if err := d.ready(); err != nil {
		return nil, err
	}
	p := &pass{d: d, s: s, shape: shape{layout: l, Heads: s.Heads, KVHeads: s.KVHeads, Scale: s.Scale, BF16: s.AttentionBF16}, lists: map[*passList]struct{}{}, kept: map[*buffer]struct{}{}, partFlops: hardwareFlops}
	switch {
	case d.info.Kind == "software":
		p.partFlops = softwareFlops
	case s.BF16 && d.units != nil:
		p.partFlops = unitsFlops
	}
	if err := p.allocate(); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

func (p *pass) allocate() error {
	s := &p.s
	var err error
	grab := func(take func(int64) (*buffer, error), n int) *buffer {
		if err != nil {
			return nil
		}
		var b *buffer
		if b, err = take(int64(n)); err == nil {
			p.buffers = append(p.buffers, b)
		}
		return b
	}
	rows := func(n, cols int, t tensor.Type) (r rowset) {
		if b := grab(p.d.newLocalBuffer, n*padded(cols)*t.Size()); b != nil {
			r = newRowset(b.All(), t, n, cols)
		}
		return r
	}
	factor := tensor.F32 // of a product
	if s.BF16 {
		factor = tensor.BF16
	}
	for a := range p.act {
		t, n := tensor.F32, s.Rows
		switch kernels.Act(a) {
		case kernels.ActNorm, kernels.ActAttention, kernels.ActInner:
			t = factor
		case kernels.ActLogits:
			n = s.Logits
		}
		p.act[a] = rows(n, s.Columns(kernels.Act(a)), t)
	}
	p.last = rows(s.Logits, s.Hidden, factor)
	if b := grab(p.d.newLocalBuffer, 8*s.Rows*s.Heads); b != nil {
		p.stats = b.All()
	}
	p.in = grab(p.d.newHostBuffer, 4*s.Rows*s.Hidden)
	p.turns = grab(p.d.newParamBuffer, 4*s.Rows*s.HeadDim)
	p.out = grab(p.d.newHostBuffer, 4*s.Logits*s.Vocab)
	p.rowInfo = grab(p.d.newParamBuffer, rowInfoBytes*s.Rows)
	if err != nil {
		return err
	}
	for r := range s.Rows {
		binary.LittleEndian.PutUint32(p.rowInfo.Bytes()[r*rowInfoBytes:], noRow)
	}
	pairs := s.Sequences * s.KVHeads
	p.layers = make([]passLayer, len(s.Windows))
	for i := range p.layers {
		y := &p.layers[i]
		y.tables, y.entries, y.ends = make([]*pageTable, pairs), make([]int, pairs), make([]int, pairs)
		if y.heads, err = p.d.newHeadTable(pairs); err != nil {
			return err
		}
		p.buffers = append(p.buffers, y.heads.mem)
		if y.work, err = p.d.newWorkList(p.shape, s.Windows[i], s.Sequences, s.Rows); err != nil {
			return err
		}
		p.buffers = append(p.buffers, y.work.mem)
	}
	p.spans = make([]rowSpan, 0, s.Sequences)
	// What nothing has written yet is zero: no reader meets numbers that are none.
	return p.d.once(func(c *commands) {
		c.Together(func() {
			for _, a := range append(p.act[:], p.last) {
				if a.N > 0 {
					c.Zero(a.Mem)
				}
			}
			c.Zero(p.stats)
		})
	})
}

// fail keeps the first error of a recording.
func (p *pass) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *pass) Begin(rows int) {
	p.abandon()
	p.err, p.list = nil, &passList{p: p, rows: rows, split: rows <= splitRows}
	switch {
	case p.closed:
		p.fail("the pass is closed")
	case rows < 1 || rows > p.s.Rows:
		p.fail("found %d rows, expected 1 to %d", rows, p.s.Rows)
	}
}

// begin starts the next part.
func (p *pass) begin() {
	p.flops = 0
	var c *commands
	if n := len(p.spare); n > 0 {
		c, p.spare = p.spare[n-1], p.spare[:n-1]
	} else if c, p.err = p.d.newCommands(); p.err != nil {
		return
	}
	p.list.parts = append(p.list.parts, c)
	if p.err = c.Begin(); p.err == nil {
		p.c = c
	}
}

// end ends a part.
func (p *pass) end() {
	if p.c != nil {
		if err := p.c.End(); err != nil && p.err == nil {
			p.err = err
		}
		p.c = nil
	}
}

// work adds up what the current part takes, and ends it when it is enough.
func (p *pass) work(flops float64) {
	if p.flops += flops; p.flops >= p.partFlops {
		p.end()
	}
}

// recording reports whether an operation can be recorded, and begins a part for
// it if there is none.
func (p *pass) recording() bool {
	if p.list == nil {
		p.fail("Begin is missing")
	}
	if p.err == nil && p.c == nil {
		p.begin()
	}
	return p.err == nil
}

// abandon drops a recording that was not ended.
func (p *pass) abandon() {
	if p.list != nil {
		p.end()
		p.spare = append(p.spare, p.list.parts...)
	}
	p.list, p.c = nil, nil
}

func (p *pass) End() (kernels.PassList, error) {
	if p.list == nil {
		p.fail("Begin is missing")
	}
	if err := p.d.ready(); err != nil && p.err == nil {
		p.err = err
	}
	p.end()
	if p.err != nil {
		p.abandon()
		return nil, fmt.Errorf("record a pass: %w", p.err)
	}
	l := p.list
	p.list = nil
	p.lists[l] = struct{}{}
	return l, nil
}

func (l *passList) Free() {
	if _, ok := l.p.lists[l]; ok {
		delete(l.p.lists, l)
		l.p.spare = append(l.p.spare, l.parts...)
		l.parts = nil
	}
}

// rows returns the rows of an activation that the list is for.
func (p *pass) rows(a kernels.Act) rowset { return p.act[a].First(p.list.rows) }

func (p *pass) Take() {
	if p.recording() {
		x := p.act[kernels.ActX]
		p.c.CopyRows(x.Mem, 4*x.Stride, p.in.All(), 4*x.Cols, 4*x.Cols, p.list.rows)
	}
}

// stored returns rows first … of r as many as the list has.
func (p *pass) stored(r kernels.DeviceRows, first int) view {
	if !p.recording() {
		return view{}
	}
	s, ok := r.(*rowStore)
	switch {
	case !ok || s.buf.block == nil || s.buf.d != p.d:
		p.fail("rows that are not of this device")
	case s.Cols != p.s.Hidden || first < 0 || first+p.list.rows > s.N:
		p.fail("rows [%d, %d) of %d with %d columns, expected %d columns", first, first+p.list.rows, s.N, s.Cols, p.s.Hidden)
	default:
		return s.Mem.At(4*int64(first)*int64(s.Stride), 4*int64(p.list.rows)*int64(s.Stride))
	}
	return view{}
}

func (p *pass) Load(r kernels.DeviceRows, first int) {
	if v := p.stored(r, first); !v.None() {
		p.c.Copy(p.act[kernels.ActX].Mem, v)
	}
}

func (p *pass) Store(r kernels.DeviceRows, first int) {
	if v := p.stored(r, first); !v.None() {
		p.c.Copy(v, p.act[kernels.ActX].Mem.At(0, v.Size()))
	}
}

// vectorOf returns the memory of n numbers.
func (p *pass) vectorOf(v kernels.DeviceVector, n int) view {
	w, ok := v.(*vector)
	switch {
	case !ok || w == nil || w.buf.block == nil || w.buf.d != p.d:
		p.fail("a vector that is not of this device")
	case w.n != n:
		p.fail("a vector of %d numbers, expected %d", w.n, n)
	default:
		return w.buf.All()
	}
	return view{}
}

func (p *pass) matrixOf(m kernels.DeviceMatrix) weights {
	w, ok := m.(*matrix)
	switch {
	case !ok || w == nil || w.buf.block == nil || w.buf.d != p.d:
		p.fail("weights that are not of this device")
	case p.s.BF16 && w.Type != tensor.BF16:
		p.fail("weights of type %v in a pass that rounds activations to bf16", w.Type)
	default:
		return w.weights
	}
	return weights{}
}

func (p *pass) Norm(w kernels.DeviceVector, eps float64) {
	if !p.recording() {
		return
	}
	if v := p.vectorOf(w, p.s.Hidden); p.err == nil {
		p.c.RMSNorm(p.act[kernels.ActNorm], p.rows(kernels.ActX), v, eps)
	}
}

func (p *pass) MatMul(src kernels.Act, add bool, products []kernels.DeviceProduct) {
	if !p.recording() {
		return
	}
	var list [3]product
	flops := 0.0
	for len(products) > 0 {
		// As many at once as one shader takes.
		n := 0
		for n < len(products) && n < len(list) {
			pr := &products[n]
			if src > kernels.ActLogits || pr.Dst >= kernels.ActLogits {
				p.fail("a product of activation %d to %d", src, pr.Dst)
				return
			}
			q := product{W: p.matrixOf(pr.W), Dst: p.act[pr.Dst]}
			if pr.Bias != nil {
				q.Bias = p.vectorOf(pr.Bias, q.W.Rows)
			}
			if n > 0 && q.W.Type != list[0].W.Type {
				break
			}
			list[n] = q
			flops += 2 * float64(p.list.rows) * float64(q.W.Rows) * float64(q.W.Cols)
			n++
		}
		if p.err != nil {
			return
		}
		p.c.MatMul(p.rows(src), add, list[:n]...)
		products = products[n:]
	}
	p.work(flops)
}

func (p *pass) HeadNorm(a kernels.Act, w kernels.DeviceVector, eps float64) {
	if !p.recording() {
		return
	}
	if a != kernels.ActQ && a != kernels.ActK {
		p.fail("norm of the heads of activation %d", a)
	}
	if v := p.vectorOf(w, p.s.HeadDim); p.err == nil {
		p.c.HeadNorm(p.rows(a), p.s.HeadDim, v, eps)
	}
}

// layer checks the number of a layer and notes it in a list once.
func (p *pass) layer(i int, list *[]int) *passLayer {
	if i < 0 || i >= len(p.layers) {
		p.fail("layer %d of %d", i, len(p.layers))
		return nil
	}
	for _, l := range *list {
		if l == i {
			return &p.layers[i]
		}
	}
	*list = append(*list, i)
	return &p.layers[i]
}

func (p *pass) RopeAppend(layer int) {
	if !p.recording() {
		return
	}
	if y := p.layer(layer, &p.list.appends); y != nil {
		p.c.RopeAppend(p.shape, p.rows(kernels.ActQ), p.rows(kernels.ActK), p.rows(kernels.ActV), p.turns.All(), p.rowInfo.All(), y.heads)
	}
}

func (p *pass) Attend(layer int, stats bool) {
	if !p.recording() {
		return
	}
	y := p.layer(layer, &p.list.attend)
	if y == nil {
		return
	}
	op := attentionOp{
		shape: p.shape, Q: p.rows(kernels.ActQ), Out: p.rows(kernels.ActAttention),
		Heads: y.heads, Work: y.work, Split: p.list.split,
	}
	if stats {
		op.Stats = p.stats
	}
	p.c.Attention(op)
	if !p.list.split {
		p.work(math.Inf(1)) // it may take long, and how long is not known yet
	}
}

func (p *pass) GateUp(gate, up kernels.DeviceMatrix, gb, ub kernels.DeviceVector) {
	if !p.recording() {
		return
	}
	g, u := p.matrixOf(gate), p.matrixOf(up)
	var bias [2]view
	for i, b := range []kernels.DeviceVector{gb, ub} {
		if b != nil {
			bias[i] = p.vectorOf(b, p.s.Intermediate)
		}
	}
	if p.err != nil {
		return
	}
	p.c.GateUp(p.act[kernels.ActInner], p.rows(kernels.ActNorm), product{W: g, Bias: bias[0]}, product{W: u, Bias: bias[1]})
	p.work(4 * float64(p.list.rows) * float64(p.s.Intermediate) * float64(p.s.Hidden))
}

func (p *pass) Logits(w kernels.DeviceVector, eps float64, head kernels.DeviceMatrix, first, n int) {
	if !p.recording() {
		return
	}
	if first < 0 || n < 1 || first+n > p.list.rows || n > p.s.Logits {
		p.fail("logits of rows [%d, %d) of %d, expected at most %d", first, first+n, p.list.rows, p.s.Logits)
	}
	v, m := p.vectorOf(w, p.s.Hidden), p.matrixOf(head)
	if p.err != nil {
		return
	}
	x, y := p.act[kernels.ActX], p.act[kernels.ActLogits]
	p.c.RMSNorm(p.last, x.Part(first, n), v, eps)
	p.c.MatMul(p.last.First(n), false, product{W: m, Dst: y})
	p.c.CopyRows(p.out.All(), 4*y.Cols, y.Mem, 4*y.Stride, 4*y.Cols, n)
	p.work(2 * float64(n) * float64(m.Rows) * float64(m.Cols))
}

func (p *pass) In() []float32    { return floatsOf(p.in) }
func (p *pass) Turns() []float32 { return floatsOf(p.turns) }

func (p *pass) OutLogits(n int) []float32 {
	out := floatsOf(p.out)
	return out[:n*p.s.Vocab]
}

func (p *pass) SetSpans(spans []kernels.PassSpan, positions []int32) {
	m := p.rowInfo.Bytes()
	for r := range p.used {
		binary.LittleEndian.PutUint32(m[r*rowInfoBytes:], noRow)
	}
	p.used, p.spans = 0, p.spans[:0]
	for i, s := range spans {
		p.spans = append(p.spans, rowSpan{Seq: i, Row: s.Row, N: s.N})
		for j := range s.N {
			putRow(m[(s.Row+j)*rowInfoBytes:], rowInfo{Seq: i, Offset: j, Position: positions[s.Row+j]})
		}
		p.used = max(p.used, s.Row+s.N)
	}
}

func (p *pass) SetHead(layer, seq, head int, t kernels.PageTable, entries, base int) {
	y, i := &p.layers[layer], seq*p.s.KVHeads+head
	table, _ := t.(*pageTable)
	y.tables[i], y.entries[i], y.ends[i] = table, entries, base+entries+1
	if table != nil && table.mem != nil {
		y.heads.Set(i, table.mem.All(), entries, base)
	}
}

// prepare checks that a list's layers have room and fills their work lists.
func (p *pass) prepare(l *passList) error {
	if len(l.appends)+len(l.attend)+len(l.reads) == 0 {
		return nil
	}
	if p.used > l.rows {
		return fmt.Errorf("found sequences in %d rows, the list is for %d", p.used, l.rows)
	}
	kv, pe := p.s.KVHeads, p.shape.PageEntries
	for _, layers := range [...][]int{l.appends, l.attend, l.reads} {
		for _, i := range layers {
			y := &p.layers[i]
			for _, s := range p.spans {
				for h := s.Seq * kv; h < (s.Seq+1)*kv; h++ {
					if t := y.tables[h]; t == nil || t.mem == nil || t.pages*pe < y.entries[h]+s.N {
						return fmt.Errorf("layer %d, sequence %d, head %d: there are no pages for %d entries and %d more", i, s.Seq, h%kv, y.entries[h], s.N)
					}
				}
			}
		}
	}
	need, err := p.plan(l)
	if err == nil && l.split && need <= maxPartialBytes && (p.partials == nil || need > p.partials.Size()) && p.growPartials(need) {
		_, err = p.plan(l)
	}
	return err
}

// plan fills the work lists of a list's layers and returns the memory that the one
// with the most items needs to be split.
func (p *pass) plan(l *passList) (int64, error) {
	var parts view
	if l.split && p.partials != nil {
		parts = p.partials.All()
	}
	kv, most := p.s.KVHeads, 0
	for _, i := range l.attend {
		y := &p.layers[i]
		for j := range p.spans {
			seq := p.spans[j].Seq
			p.spans[j].End = y.ends[seq*kv : (seq+1)*kv]
		}
		items, err := y.work.Fill(p.spans, parts)
		if err != nil {
			return 0, err
		}
		most = max(most, items)
	}
	return partialBytes(p.s.HeadDim, most), nil
}

// growPartials takes more memory for split attention; it reports false if there is
// not enough, which costs time and nothing else.
func (p *pass) growPartials(need int64) bool {
	b, err := p.d.newLocalBuffer(min(max(2*need, 64<<10), maxPartialBytes))
	if err != nil {
		return false
	}
	p.partials.Free()
	p.partials = b
	return true
}

func (p *pass) Run(ctx context.Context, list kernels.PassList) error {
	l, ok := list.(*passList)
	if !ok || l.p != p {
		return errors.New("run a pass: the list is not of this pass")
	}
	if _, live := p.lists[l]; !live {
		return errors.New("run a pass: the list was freed")
	}
	if err := p.d.ready(); err != nil {
		return fmt.Errorf("run a pass: %w", err)
	}
	if err := p.prepare(l); err != nil {
		return fmt.Errorf("run a pass: %w", err)
	}
	if err := p.run(ctx, l); err != nil {
		return fmt.Errorf("run a pass: %w", err)
	}
	return nil
}

// run hands over the parts of a list, at most two ahead of the device.
func (p *pass) run(ctx context.Context, l *passList) error {
	var last, before ticket
	var err error
	for _, c := range l.parts {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		t, e := p.d.submit(c)
		if e == nil {
			before, last = last, t
			e = p.d.wait(context.Background(), before)
		}
		if err = e; err != nil {
			break
		}
	}
	// Host memory is written again after a run: nothing may be under way.
	if e := p.d.wait(context.Background(), last); err == nil {
		err = e
	}
	return err
}

func (p *pass) Read(ctx context.Context, dst []float32, a kernels.Act, first, n int) error {
	if a > kernels.ActLogits {
		return fmt.Errorf("read activation %d: there is none", a)
	}
	r := p.act[a]
	if p.closed || first < 0 || n < 0 || first+n > r.N || len(dst) < n*r.Cols {
		return fmt.Errorf("read rows [%d, %d) of activation %d: found %d rows of %d and room for %d numbers", first, first+n, a, r.N, r.Cols, len(dst))
	}
	if n == 0 {
		return p.d.ready()
	}
	r = r.Part(first, n)
	size := r.Type.Size()
	raw := floatBytes(dst[:n*r.Cols])
	if r.Stride != r.Cols || r.Type != tensor.F32 {
		raw = make([]byte, r.bytes())
	}
	if err := p.d.download(ctx, raw, r.Mem); err != nil {
		return fmt.Errorf("read an activation: %w", err)
	}
	if r.Stride != r.Cols || r.Type != tensor.F32 {
		for i := range n {
			kernels.CPU{}.Widen(dst[i*r.Cols:(i+1)*r.Cols], raw[i*r.Stride*size:(i*r.Stride+r.Cols)*size], r.Type)
		}
	}
	return nil
}

func (p *pass) ReadStats(ctx context.Context, dst []kernels.Softmax, first, n int) error {
	heads := p.s.Heads
	if p.closed || first < 0 || n < 0 || first+n > p.s.Rows || len(dst) < n*heads {
		return fmt.Errorf("read softmax statistics of rows [%d, %d): found %d rows of %d and room for %d", first, first+n, p.s.Rows, heads, len(dst))
	}
	dst = dst[:n*heads]
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(dst))), 8*len(dst))
	if err := p.d.download(ctx, raw, p.stats.At(8*int64(first*heads), int64(len(raw)))); err != nil {
		return fmt.Errorf("read softmax statistics: %w", err)
	}
	for i := range dst {
		if dst[i].Sum == 0 {
			dst[i].Max = float32(math.Inf(-1))
		}
	}
	return nil
}

func (p *pass) Close() {
	if p.closed {
		return
	}
	p.abandon()
	for l := range p.lists {
		l.Free()
	}
	for _, c := range p.spare {
		c.Free()
	}
	for _, b := range p.buffers {
		b.Free()
	}
	for b := range p.kept {
		b.Free()
	}
	clear(p.kept)
	p.partials.Free()
	p.spare, p.buffers, p.partials, p.closed = nil, nil, nil, true
}
