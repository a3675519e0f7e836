//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"fmt"
	"math"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

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

// work adds to the work of the current part, and ends the part if that is enough.
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

// rows returns an activation's rows, as many as the list has.
func (p *pass) rows(a kernels.Activation) rowset { return p.act[a].First(p.list.rows) }

func (p *pass) SetInput() {
	if p.recording() {
		x := p.act[kernels.ActX]
		p.c.CopyRows(x.Mem, 4*x.Stride, p.in.All(), 4*x.Cols, 4*x.Cols, p.list.rows)
	}
}

// stored returns the rows of r from first on, as many as the list has.
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

func (p *pass) LoadRows(r kernels.DeviceRows, first int) {
	if v := p.stored(r, first); !v.None() {
		p.c.Copy(p.act[kernels.ActX].Mem, v)
	}
}

func (p *pass) StoreRows(r kernels.DeviceRows, first int) {
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

func (p *pass) MatMul(src kernels.Activation, add bool, products []kernels.DeviceProduct) {
	if !p.recording() {
		return
	}
	var list [3]product
	flops := 0.0
	for len(products) > 0 {
		// As many at a time as one shader takes.
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

func (p *pass) HeadNorm(a kernels.Activation, w kernels.DeviceVector, eps float64) {
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

// layer checks the index of a layer and adds it to list unless it is there.
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
		p.work(math.Inf(1)) // it may take long; how long is not known yet
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
	p.c.GateUp(p.act[kernels.ActMLP], p.rows(kernels.ActNorm), product{W: g, Bias: bias[0]}, product{W: u, Bias: bias[1]})
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
