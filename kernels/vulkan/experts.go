//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"errors"
	"fmt"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// What the arrays of shaders/route.comp and shaders/group.comp have room for.
const (
	maxChosen  = 1024
	maxExperts = 4096
)

// assignments are rows and the experts that they chose, for products with stacks of experts.
type assignments struct {
	IDs     rows2D // [rows][experts of a row] f32
	Experts int    // of a stack
	List    view   // of Group; none if a workgroup computes a single assignment
}

// n is the number of assignments.
func (a *assignments) n() int { return a.IDs.N * a.IDs.Cols }

// tile is tileOf for as many rows as an expert has on average. It does not affect the bits of
// the result.
func (a *assignments) tile(cols int) (size string, outs, rows, split int) {
	return tileOf((a.n()+a.Experts-1)/a.Experts, cols)
}

// listBytes is the size of the list of Group.
func (a *assignments) listBytes() int64 { return 4 * int64(2*a.Experts+2+a.n()) }

// Route sets the rows of ids to the places of the largest elements of the rows of x, in ascending
// order, and those of w to their weights (kernels.Route). The choice is exact. Bound: relative
// error 2e-6.
func (c *commands) Route(ids, w, x rows2D, normalise bool) {
	const op = "route"
	if !c.ready(op) {
		return
	}
	c.rows(op, "logits", x, x.Cols, tensor.F32)
	c.rows(op, "experts", ids, ids.Cols, tensor.F32)
	c.rows(op, "weights", w, ids.Cols, tensor.F32)
	if ids.N != x.N || w.N != x.N || ids.Cols < 1 || ids.Cols > min(x.Cols, maxChosen) {
		c.fail(op, "found %d and %d rows of %d experts for %d rows, expected as many of at most %d", ids.N, w.N, ids.Cols, x.N, min(x.Cols, maxChosen))
	}
	var p push
	for _, r := range []rows2D{x, ids, w} {
		p.addr(r.Mem)
	}
	p.u32(x.Cols, ids.Cols, x.Stride, ids.Stride, w.Stride, 0)
	if normalise {
		p.n -= 4
		p.u32(1)
	}
	gx, gy := grid(x.N)
	c.dispatch(op, "route", nil, &p, gx, gy, 1)
}

// Group sorts assignments by expert into their list, for tiles of the given number of rows.
func (c *commands) Group(a assignments, tile int) {
	const op = "group by expert"
	if !c.ready(op) {
		return
	}
	c.rows(op, "experts", a.IDs, a.IDs.Cols, tensor.F32)
	c.floats(op, "list", a.List, int(a.listBytes()/4), false)
	if a.Experts > maxExperts {
		c.fail(op, "found %d experts, expected at most %d", a.Experts, maxExperts)
	}
	var p push
	p.addr(a.IDs.Mem)
	p.addr(a.List)
	p.u32(a.n(), a.IDs.Cols, a.IDs.Stride, a.Experts, tile)
	c.dispatch(op, "group", nil, &p, 1, 1, 1)
}

// ExpertMatMul sets row j of y, f32, to the product of row j of x, F32 or BF16, with the matrix
// of assignment j in the stack w: the bits that MatMul gives without matrix units.
func (c *commands) ExpertMatMul(y, x rows2D, a assignments, w weights) {
	const op = "product of experts"
	if c.ready(op) {
		c.experts(op, y, x, a, 1, "matmul", 0, []weights{w}, tensor.F32)
	}
}

// ExpertGateUp sets row j of y, F32 or BF16, to the gated products of the row of x that
// assignment j is of with its matrices in the stacks gate and up.
func (c *commands) ExpertGateUp(y, x rows2D, a assignments, by kernels.Activation, gate, up weights) {
	const op = "gate and up of experts"
	if c.ready(op) {
		c.experts(op, y, x, a, a.IDs.Cols, "gateup", by, []weights{gate, up}, tensor.F32, tensor.BF16)
	}
}

// experts records a shader of products whose rows of x belong to sharing assignments each.
func (c *commands) experts(op string, y, x rows2D, a assignments, sharing int, shader string, by kernels.Activation, stacks []weights, types ...tensor.Type) {
	outs := y.Cols
	xt, yt := c.rows(op, "x", x, x.Cols, tensor.F32, tensor.BF16), c.rows(op, "y", y, outs, types...)
	c.rows(op, "experts", a.IDs, a.IDs.Cols, tensor.F32)
	var codes [2]uint32
	for i, w := range stacks {
		codes[i] = c.weights(op, w)
		if w.Rows != a.Experts*outs || w.Cols != x.Cols || x.Cols < 1 {
			c.fail(op, "weights: found %d×%d, expected %d experts of %d×%d", w.Rows, w.Cols, a.Experts, outs, x.Cols)
		}
	}
	if y.N != a.n() || x.N*sharing != y.N {
		c.fail(op, "found %d rows of y and %d of x for %d assignments", y.N, x.N, a.n())
	}
	if c.err != nil || y.N == 0 {
		return
	}
	size, of, rows, split := a.tile(x.Cols)
	tiles, mode, where := y.N, uint32(1), a.IDs.Mem
	if rows > 1 {
		tiles, mode, where = min(y.N, y.N/rows+a.Experts), 2, a.List
		if c.floats(op, "list", a.List, int(a.listBytes()/4), false); c.err != nil {
			return
		}
	}
	if len(stacks) > 1 && rows > 1 {
		of /= 2
	}
	of /= split
	p := expertArgs(y, x, a, sharing, where, stacks)
	c.dispatch(op, shader+size, []uint32{codes[0], xt, uint32(split), yt, codes[1], mode, uint32(by)}, &p, (outs+of-1)/of, tiles, 1)
}

// expertArgs returns the argument block of shaders/matmul.comp for experts.
func expertArgs(y, x rows2D, a assignments, sharing int, where view, stacks []weights) (p push) {
	p.addr(x.Mem)
	for i := range 3 {
		if i < len(stacks) {
			p.addr(stacks[i].Mem)
		} else {
			p.u64(0)
		}
	}
	p.addr(y.Mem)
	p.u64(0)
	p.addr(where)
	for range 3 {
		p.u64(0) // no bias
	}
	p.u32(y.Cols, sharing, a.IDs.Cols, y.Stride, a.IDs.Stride, a.Experts, y.N, x.Stride, x.Cols, padded(x.Cols))
	return p
}

// ExpertSum sets row r of y to the sum of rows r·K … r·K+K-1 of x, times the K elements of row r
// of w, ascending from zero. A product is rounded before it is added: the result is exact.
func (c *commands) ExpertSum(y, x, w rows2D) { c.weigh("sum of experts", y, x, w, 0) }

// AddGated adds row r of x, times the logistic function of the element of row r of w, to row r
// of y. Bound: relative error of a product 2e-6.
func (c *commands) AddGated(y, x, w rows2D) { c.weigh("add with gates", y, x, w, 1) }

func (c *commands) weigh(op string, y, x, w rows2D, gates uint32) {
	if !c.ready(op) {
		return
	}
	c.rows(op, "y", y, x.Cols, tensor.F32)
	c.rows(op, "x", x, x.Cols, tensor.F32)
	c.rows(op, "weights", w, w.Cols, tensor.F32)
	if w.N != y.N || x.N != y.N*w.Cols || gates == 1 && w.Cols != 1 {
		c.fail(op, "found %d rows and %d×%d weights for %d", x.N, w.N, w.Cols, y.N)
	}
	var p push
	for _, r := range []rows2D{x, y, w} {
		p.addr(r.Mem)
	}
	p.u32(x.Cols, w.Cols, x.Stride, y.Stride, w.Stride)
	c.dispatch(op, "weigh", []uint32{gates}, &p, (x.Cols+255)/256, y.N, 1)
}

func (e *encoder) Route(experts, weights, logits kernels.Rows, normalise bool) {
	const op = "route"
	if !e.recording() {
		return
	}
	i, w, x := e.rows(op, experts, false), e.rows(op, weights, false), e.rows(op, logits, false)
	if e.err == nil {
		e.c.Route(i, w, x, normalise)
	}
}

func (e *encoder) ExpertGateUp(dst, src, experts kernels.Rows, by kernels.Activation, gate, up kernels.DeviceMatrix) {
	const op = "gate and up of experts"
	if !e.recording() {
		return
	}
	y, x, ids := e.rows(op, dst, false), e.rows(op, src, false), e.rows(op, experts, false)
	g, a := e.stack(op, gate, y, ids)
	u, err := e.d.matrixOf(up)
	if e.fail(op, err); e.err != nil {
		return
	}
	if a = e.group(op, a, g.Cols); e.err == nil {
		e.c.ExpertGateUp(y, x, a, by, g, u)
		e.grouped = a
		e.work(4 * float64(y.N) * float64(y.Cols) * float64(g.Cols))
	}
}

func (e *encoder) ExpertMatMul(dst, src, experts kernels.Rows, w kernels.DeviceMatrix) {
	const op = "product of experts"
	before := e.grouped
	if !e.recording() {
		return
	}
	y, x, ids := e.rows(op, dst, false), e.rows(op, src, false), e.rows(op, experts, false)
	m, a := e.stack(op, w, y, ids)
	if e.err != nil {
		return
	}
	if before.IDs == a.IDs && before.Experts == a.Experts {
		a = before
	} else if a = e.group(op, a, m.Cols); e.err != nil {
		return
	}
	e.c.ExpertMatMul(y, x, a, m)
	e.work(2 * float64(y.N) * float64(y.Cols) * float64(m.Cols))
}

// stack resolves the matrices of experts, whose results are rows of y.
func (e *encoder) stack(op string, of kernels.DeviceMatrix, y, ids rows2D) (weights, assignments) {
	w, err := e.d.matrixOf(of)
	if err == nil && (y.Cols < 1 || w.Rows%y.Cols != 0) {
		err = fmt.Errorf("found a stack of %d rows for %d columns", w.Rows, y.Cols)
	}
	if err == nil && ids.Cols < 1 {
		err = errors.New("found rows without experts")
	}
	if e.fail(op, err); e.err != nil {
		return weights{}, assignments{}
	}
	return w, assignments{IDs: ids, Experts: w.Rows / y.Cols}
}

// group sorts assignments if workgroups are to compute several of an expert together, in memory
// that belongs to the list of commands.
func (e *encoder) group(op string, a assignments, cols int) assignments {
	_, _, rows, _ := a.tile(cols)
	if rows == 1 {
		return a
	}
	l := e.list
	if l.scratch == nil || l.scratch[len(l.scratch)-1].Size() < a.listBytes() {
		b, err := e.d.newLocalBuffer(a.listBytes())
		if err != nil {
			e.fail(op, err)
			return a
		}
		l.scratch = append(l.scratch, b)
	}
	a.List = l.scratch[len(l.scratch)-1].All()
	e.c.Group(a, rows)
	return a
}

func (e *encoder) ExpertSum(dst, src, weights kernels.Rows) {
	const op = "sum of experts"
	if !e.recording() {
		return
	}
	if y, x, w := e.rows(op, dst, false), e.rows(op, src, false), e.rows(op, weights, false); e.err == nil {
		e.c.ExpertSum(y, x, w)
	}
}

func (e *encoder) AddGated(dst, src, gates kernels.Rows) {
	const op = "add with gates"
	if !e.recording() {
		return
	}
	if y, x, w := e.rows(op, dst, false), e.rows(op, src, false), e.rows(op, gates, false); e.err == nil {
		e.c.AddGated(y, x, w)
	}
}
