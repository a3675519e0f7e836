package device

import (
	"slices"

	"github.com/lukv/lukv/kernels"
)

var _ kernels.ExpertEncoder = (*encoder)(nil)

func (e *encoder) Route(experts, weights, logits kernels.Rows, normalise bool) {
	const op = "route"
	from := e.rows(op, logits, -1, -1)
	ids := e.rows(op, experts, from.n, -1)
	w := e.rows(op, weights, from.n, ids.cols)
	if !e.check(op, ids.cols > 0 && ids.cols <= from.cols, "found %d experts to choose of %d", ids.cols, from.cols) {
		return
	}
	e.op(op, func() {
		chosen, order := make([]int32, ids.cols), make([]int, ids.cols)
		of := make([]float32, ids.cols)
		for i := range from.n {
			kernels.Route(chosen, of, from.row(i), normalise)
			for k := range order {
				order[k] = k
			}
			slices.SortFunc(order, func(a, b int) int { return int(chosen[a] - chosen[b]) })
			for k, at := range order {
				ids.row(i)[k], w.row(i)[k] = float32(chosen[at]), of[at]
			}
		}
	})
}

// expert is a product of rows with matrices of a stack.
type expert struct {
	x, ids rows
	shared int // rows of the result that share one of x
	out    int // rows of a matrix
	stack  *kernels.Matrix
}

func (e *encoder) expert(op string, to, x, ids rows, shared int, w kernels.DeviceMatrix) expert {
	p := expert{x, ids, shared, to.cols, e.matrix(op, w, x.cols)}
	e.check(op, to.n == ids.n*ids.cols && x.n*shared == to.n, "found %d rows for %d experts of %d rows", to.n, ids.n*ids.cols, x.n)
	e.check(op, to.cols > 0 && p.stack.Rows%max(to.cols, 1) == 0, "found a stack of %d rows for %d columns", p.stack.Rows, to.cols)
	return p
}

// row computes a row of the result.
func (p *expert) row(cpu kernels.CPU, y []float32, i int) {
	first := int(p.ids.v[i]) * p.out
	w := p.stack.Slice(first, first+p.out)
	x := p.x
	x.v, x.n = x.row(i/p.shared), 1
	x.multiply(cpu, y, &w)
}

func (e *encoder) ExpertGateUp(dst, src, experts kernels.Rows, a kernels.Activation, gate, up kernels.DeviceMatrix) {
	const op = "gate and up of experts"
	to, x, ids := e.rows(op, dst, -1, -1), e.rows(op, src, -1, -1), e.rows(op, experts, -1, -1)
	g, u := e.expert(op, to, x, ids, ids.cols, gate), e.expert(op, to, x, ids, ids.cols, up)
	e.check(op, g.stack.Rows == u.stack.Rows, "found stacks of %d and %d rows", g.stack.Rows, u.stack.Rows)
	e.op(op, func() {
		y, z := make([]float32, to.cols), make([]float32, to.cols)
		for i := range to.n {
			g.row(e.d.cpu, y, i)
			u.row(e.d.cpu, z, i)
			e.d.cpu.Gated(a, y, y, z)
			to.set(e.d.cpu, i, y)
		}
	})
}

func (e *encoder) ExpertMatMul(dst, src, experts kernels.Rows, w kernels.DeviceMatrix) {
	const op = "product of experts"
	to, x, ids := e.rows(op, dst, -1, -1), e.rows(op, src, -1, -1), e.rows(op, experts, -1, -1)
	p := e.expert(op, to, x, ids, 1, w)
	e.op(op, func() {
		for i := range to.n {
			p.row(e.d.cpu, to.row(i), i)
		}
	})
}

func (e *encoder) ExpertSum(dst, src, weights kernels.Rows) {
	const op = "sum of experts"
	to, w := e.rows(op, dst, -1, -1), e.rows(op, weights, dst.N, -1)
	from := e.rows(op, src, w.n*w.cols, to.cols)
	e.op(op, func() {
		clear(to.v)
		for i, of := range w.v {
			e.d.cpu.AddScaled(to.row(i/w.cols), from.row(i), of)
		}
	})
}

func (e *encoder) AddGated(dst, src, gates kernels.Rows) {
	const op = "add with gates"
	from := e.rows(op, src, -1, -1)
	to, g := e.rows(op, dst, from.n, from.cols), e.rows(op, gates, from.n, 1)
	e.op(op, func() {
		for i, x := range g.v {
			e.d.cpu.AddScaled(to.row(i), from.row(i), 1/(1+kernels.Exp(-x)))
		}
	})
}
