package forward

import (
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
)

// MixtureRows bounds the rows of a mixture of experts that are computed together: enough
// that an expert's weights, read once for all of them, are shared by several rows.
const MixtureRows = 512

// mixture is the scratch of a mixture of experts. Rows are those of a tile of the pass. An
// assignment is a row and an expert that it chose; assignments are sorted by expert, so
// that an expert's products are those of consecutive rows. A row's branch is the sum of its
// experts in ascending order, the shared one last, whatever other rows choose.
type mixture struct {
	cap, rows int // of the tile, at most and in use
	first     int // row of the pass with which the tile begins
	most      int // rows of the busiest expert

	logits  []float32 // [rows][experts] of the router
	mix     []float32 // [rows] weights of the shared expert
	chosen  []int32   // [rows][chosen]
	weights []float32 // [rows][chosen]

	starts []int     // [experts+1] first assignments
	row    []int32   // [assignments] rows of the tile
	weight []float32 // [assignments]

	in    kernels.Operand // [assignments][Hidden]
	inner kernels.Operand // [assignments][width of an expert]

	words int // of both operands

	l *hostDecoder // the current one
}

// hostExperts returns the experts of a layer one by one.
func hostExperts(list []weights.Expert) (out []expert[kernels.Matrix]) {
	for _, x := range list {
		out = append(out, expert[kernels.Matrix]{matrix(x.Gate), matrix(x.Up), matrix(x.Down)})
	}
	return out
}

// bytes returns the size of the scratch, which may be nil.
func (x *mixture) bytes() int {
	if x == nil {
		return 0
	}
	return 4*(len(x.logits)+len(x.mix)+len(x.chosen)+len(x.weights)+len(x.row)+len(x.weight)+x.words) + 8*len(x.starts)
}

// newMixture returns the scratch for a pass of up to n rows, nil if no layer needs it.
func newMixture(net *Network, n int) *mixture {
	experts, chosen, units, width := 0, 0, 0, 0
	for i := range net.Plan {
		p := &net.Plan[i].FFN
		if p.Experts == 0 {
			continue
		}
		of := p.Chosen
		if p.Shared > 0 {
			of++
		}
		experts, chosen, units = max(experts, p.Experts), max(chosen, p.Chosen), max(units, of)
		width = max(width, p.Width, p.Shared)
	}
	if experts == 0 {
		return nil
	}
	n = min(n, MixtureRows)
	all := n * units
	in, inner := kernels.OperandWords(net.narrowForms, all, net.Config.Hidden), kernels.OperandWords(net.innerForms, all, width)
	return &mixture{
		cap: n, words: in + inner, logits: make([]float32, n*experts), mix: make([]float32, n),
		chosen: make([]int32, n*chosen), weights: make([]float32, n*chosen),
		starts: make([]int, experts+2), row: make([]int32, all), weight: make([]float32, all),
		in:    kernels.NewOperand(make([]float32, in), net.narrowForms, all, net.Config.Hidden),
		inner: kernels.NewOperand(make([]float32, inner), net.innerForms, all, width),
	}
}

func (h *hostRun) mixture(l *hostDecoder) {
	x := h.experts
	x.l = l
	if h.net.inputs != nil {
		h.see(arch.RoleGate, &h.narrow, l.router.Cols, 0, h.rows)
	}
	for x.first = 0; x.first < h.rows && !h.stop.Load(); x.first += x.rows {
		x.rows = min(x.cap, h.rows-x.first)
		h.pool.RunPieces(l.router.Rows, strip, strip, (*routerStage)(h))
		h.Each(x.rows, 4, (*routeStage)(h))
		x.assign()
		h.Each(x.assigned(), 8, (*gatherStage)(h))
		total := 0
		for e := range l.experts {
			if x.starts[e] < x.starts[e+1] {
				total += l.experts[e].gate.Rows
			}
		}
		h.strip = stripOf(x.most, l.router.Cols)
		h.pool.RunPieces(total, strip, h.strip, (*expertsInStage)(h))
		if h.net.inputs != nil {
			h.seeExperts()
		}
		if h.net.rounds(actMLP) {
			h.Each(x.assigned(), 4, (*roundExpertsStage)(h))
		}
		h.strip = stripOf(x.most, l.experts[0].down.Cols)
		h.pool.RunPieces(h.net.Config.Hidden, strip, h.strip, (*expertsOutStage)(h))
	}
}

// routerStage computes the router's logits; an item is an expert.
type routerStage hostRun

func (st *routerStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	x := h.experts
	src, w := h.narrow.From(x.first), x.l.router.Slice(lo, x.l.router.Rows)
	h.net.CPU.Multiply(x.logits[lo:], x.l.router.Rows, &src, x.rows, &w, 0, hi-lo)
}

// routeStage chooses the experts of rows; an item is a row.
type routeStage hostRun

func (st *routeStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	x, p := h.experts, &h.experts.l.plan.FFN
	for i := lo; i < hi; i++ {
		kernels.Route(x.chosen[i*p.Chosen:(i+1)*p.Chosen], x.weights[i*p.Chosen:(i+1)*p.Chosen],
			x.logits[i*p.Experts:(i+1)*p.Experts], p.Normalise)
		if p.Shared > 0 {
			src := h.narrow.From(x.first + i)
			h.net.CPU.Multiply(x.mix[i:i+1], 1, &src, 1, &x.l.sharedMix, 0, 1)
			x.mix[i] = 1 / (1 + kernels.Exp(-x.mix[i]))
		}
	}
}

// assigned returns the number of assignments.
func (x *mixture) assigned() int { return x.starts[len(x.l.experts)] }

// assign sorts the assignments by expert, and those of an expert by row.
func (x *mixture) assign() {
	p := &x.l.plan.FFN
	starts := x.starts[:len(x.l.experts)+1]
	clear(starts)
	chosen := x.chosen[:x.rows*p.Chosen]
	for _, e := range chosen {
		starts[e+1]++
	}
	if p.Shared > 0 {
		starts[p.Experts+1] = x.rows
	}
	x.most = 0
	for e := range x.l.experts {
		x.most = max(x.most, starts[e+1])
		starts[e+1] += starts[e]
	}
	// While rows are placed, starts[e] is the next place of expert e.
	place := func(e, row int, weight float32) {
		at := starts[e]
		x.row[at], x.weight[at] = int32(row), weight
		starts[e]++
	}
	for i, e := range chosen {
		place(int(e), i/p.Chosen, x.weights[i])
	}
	if p.Shared > 0 {
		for i := range x.rows {
			place(p.Experts, i, x.mix[i])
		}
	}
	copy(starts[1:], starts[:len(starts)-1])
	starts[0] = 0
}

// gatherStage copies the rows of assignments side by side; an item is an assignment.
type gatherStage hostRun

func (st *gatherStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	x := h.experts
	for i := lo; i < hi; i++ {
		x.in.CopyRow(i, &h.narrow, x.first+int(x.row[i]), h.net.Config.Hidden)
	}
}

// expertsInStage computes the gated products of all assignments; an item is a row of gate
// and up of an expert that has any.
type expertsInStage hostRun

func (st *expertsInStage) Run(lo, hi, worker int) {
	h := (*hostRun)(st)
	x, w := h.experts, &h.workers[worker]
	base := 0
	for e := range x.l.experts {
		first, n := x.starts[e], x.starts[e+1]-x.starts[e]
		if n == 0 {
			continue
		}
		of := &x.l.experts[e]
		from, to := max(lo-base, 0), min(hi-base, of.gate.Rows)
		base += of.gate.Rows
		for from < to && !h.stop.Load() {
			end := min(to, from+h.strip)
			cols := end - from
			g, u := w.strip[0][:n*cols], w.strip[1][:n*cols]
			src := x.in.From(first)
			gate, up := of.gate.Slice(from, of.gate.Rows), of.up.Slice(from, of.up.Rows)
			h.net.CPU.Multiply(g, cols, &src, n, &gate, 0, cols)
			h.net.CPU.Multiply(u, cols, &src, n, &up, 0, cols)
			h.net.CPU.Gated(x.l.plan.FFN.Activation, g, g, u)
			for i := range n {
				h.net.CPU.SetOperand(&x.inner, first+i, from, g[i*cols:(i+1)*cols])
			}
			from = end
		}
	}
}

// roundExpertsStage makes the integers of the gated products; an item is an assignment.
type roundExpertsStage hostRun

func (st *roundExpertsStage) Run(lo, hi, _ int) {
	h := (*hostRun)(st)
	x, p := h.experts, &h.experts.l.plan.FFN
	for i := lo; i < hi; i++ {
		width := p.Width
		if i >= x.starts[p.Experts] {
			width = p.Shared
		}
		h.net.CPU.RoundOperand(&x.inner, i, width)
	}
}

// expertsOutStage adds the weighted outputs of the experts; an item is a column of the
// branch.
type expertsOutStage hostRun

func (st *expertsOutStage) Run(lo, hi, worker int) {
	h := (*hostRun)(st)
	x, hidden := h.experts, h.net.Config.Hidden
	for lo < hi && !h.stop.Load() {
		end := min(hi, lo+h.strip)
		cols := end - lo
		branch := h.branch[x.first*hidden:]
		for i := range x.rows {
			clear(branch[i*hidden+lo : i*hidden+end])
		}
		for e := range x.l.experts {
			first, n := x.starts[e], x.starts[e+1]-x.starts[e]
			if n == 0 {
				continue
			}
			src, buf := x.inner.From(first), h.workers[worker].strip[0][:n*cols]
			down := x.l.experts[e].down.Slice(lo, hidden)
			h.net.CPU.Multiply(buf, cols, &src, n, &down, 0, cols)
			for i := range n {
				at := int(x.row[first+i])*hidden + lo
				h.net.CPU.AddScaled(branch[at:at+cols], buf[i*cols:(i+1)*cols], x.weight[first+i])
			}
		}
		lo = end
	}
}
