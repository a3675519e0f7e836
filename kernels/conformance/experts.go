package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

func expertsOf(e kernels.Encoder) kernels.ExpertEncoder { return e.(kernels.ExpertEncoder) }

// routeBound is relative to the weight of an expert.
const routeBound = 4e-6

// route is kernels.Route with the experts in ascending order.
func route(chosen int, logits []float32, normalise bool) (experts, weights []float32) {
	places, of := make([]int32, chosen), make([]float32, chosen)
	kernels.Route(places, of, logits, normalise)
	for _, x := range slices.Sorted(slices.Values(places)) {
		experts, weights = append(experts, float32(x)), append(weights, of[slices.Index(places, x)])
	}
	return experts, weights
}

// routes chooses experts by logits of all kinds, by equal ones, and by few different ones.
func (s *suite) routes(r *rig, st testnum.Style) (list []operation) {
	for i, shape := range [][3]int{{1, 1, 1}, {4, 8, 2}, {33, 60, 4}, {5, 128, 8}, {3, 65, 65}, {3, 300, 9}} {
		n, experts, chosen := shape[0], shape[1], shape[2]
		name := fmt.Sprintf("Route/%d×%d of %d/%v", n, chosen, experts, st)
		x := numbers(name, st, n*experts, tensor.F32)
		for j := range experts {
			if n > 2 {
				x[experts+j], x[2*experts+j] = -3, float32(j*7%5)
			}
		}
		var ids, weights []float32
		for row := range slices.Chunk(x, experts) {
			a, b := route(chosen, row, i%2 == 0)
			ids, weights = append(ids, a...), append(weights, b...)
		}
		logits := r.rows(tensor.F32, n, experts, x)
		other := r.rows(tensor.F32, n, chosen, nil)
		list = append(list, operation{
			name: name + "/experts", dst: tensor.F32, n: n, cols: chosen, want: ids, bound: func(int) float64 { return 0 },
			record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
				expertsOf(e).Route(dst, other.Part(first, n), logits.Part(first, n), i%2 == 0)
			},
		}, operation{
			name: name + "/weights", dst: tensor.F32, n: n, cols: chosen, want: weights, bound: relative(weights, routeBound),
			record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
				expertsOf(e).Route(other.Part(first, n), dst, logits.Part(first, n), i%2 == 0)
			},
		})
	}
	return list
}

// stack returns random weights of experts.
func (r *rig) stack(name string, st testnum.Style, t tensor.Type, experts, rows, cols int) weights {
	r.t.Helper()
	w := r.weights(name, st, t, experts*rows, cols, false)
	var of []kernels.Matrix
	for x := range experts {
		of = append(of, w.Slice(x*rows, (x+1)*rows))
	}
	m, err := r.d.Matrix(context.Background(), of...)
	ok(r.t, err)
	r.t.Cleanup(m.Free)
	w.W = m
	return w
}

// expertCase is a shape of products of experts: n rows choose some of several experts, each
// of which is a matrix [rows, cols].
type expertCase struct{ n, chosen, experts, cols, rows int }

// expertCases have few rows for an expert, some, and many.
var expertCases = []expertCase{
	{1, 2, 4, 64, 9}, {1, 2, 2, 4160, 3}, {3, 4, 13, 33, 8}, {9, 2, 4, 100, 35}, {17, 2, 3, 2080, 3}, {40, 1, 2, 33, 18},
}

// assigned are experts that rows choose: the first more often than others, the last never if
// there are enough.
func (c *expertCase) assigned(name string) (ids []float32) {
	r := random(name)
	for range c.n {
		of := r.Perm(c.experts)
		if c.experts > c.chosen {
			of = slices.DeleteFunc(of, func(x int) bool { return x == c.experts-1 })
		}
		if r.IntN(2) == 0 {
			at := slices.Index(of, 0)
			of[0], of[at] = of[at], of[0]
		}
		slices.Sort(of[:c.chosen])
		for _, x := range of[:c.chosen] {
			ids = append(ids, float32(x))
		}
	}
	return ids
}

// eachExpertCase calls f for every shape, type of weights and type of activations.
func (s *suite) eachExpertCase(st testnum.Style, f func(c expertCase, i int, wt, xt tensor.Type)) {
	for i, c := range expertCases {
		if testing.Short() && c.n*c.chosen*c.cols*c.rows > 60000 {
			continue
		}
		for k, wt := range s.types {
			for j, xt := range []tensor.Type{tensor.F32, tensor.BF16} {
				if k >= s.floats && ((i+k+j)%2 == 1 || !randomScales(st)) {
					continue
				}
				c.cols = whole(c.cols, wt)
				f(c, i, wt, xt)
			}
		}
	}
}

// multiplyExperts returns the products of rows x, each with the matrix of a stack that ids has
// for it, and their bounds.
func (s *suite) multiplyExperts(w *weights, rows int, ids, x []float32, t tensor.Type) ([]float32, func(int) float64) {
	var y []float32
	var bounds []func(int) float64
	for j, row := range slices.Collect(slices.Chunk(x, w.Cols)) {
		e := int(ids[j])
		one := weights{Matrix: w.Slice(e*rows, (e+1)*rows), wide: w.wide[e*rows*w.Cols : (e+1)*rows*w.Cols]}
		y = append(y, s.multiply(&one, row, 1, t)...)
		bounds = append(bounds, s.bound(&one, row, t))
	}
	return y, func(i int) float64 { return bounds[i/rows](i % rows) }
}

// expertProducts multiplies rows by the experts that they chose; a part of the operation has
// rows with a single expert each.
func (s *suite) expertProducts(r *rig, st testnum.Style) (list []operation) {
	s.eachExpertCase(st, func(c expertCase, _ int, wt, xt tensor.Type) {
		name := fmt.Sprintf("ExpertMatMul/%v·%v/%+v/%v", xt, wt, c, st)
		all, ids := c.n*c.chosen, c.assigned(name)
		x, w := numbers(name, st, all*c.cols, xt), r.stack(name+" w", st, wt, c.experts, c.rows, c.cols)
		want, bound := s.multiplyExperts(&w, c.rows, ids, x, xt)
		src := r.rows(xt, all, c.cols, x)
		experts, each := r.rows(tensor.F32, c.n, c.chosen, ids), r.rows(tensor.F32, all, 1, ids)
		list = append(list, operation{
			name: name, dst: tensor.F32, n: all, cols: c.rows, want: want, bound: bound,
			record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
				if n == all {
					expertsOf(e).ExpertMatMul(dst, src, experts, w.W)
				} else {
					expertsOf(e).ExpertMatMul(dst, src.Part(first, n), each.Part(first, n), w.W)
				}
			},
		})
	})
	return list
}

// expertGates is the same with gates and ups.
func (s *suite) expertGates(r *rig, st testnum.Style) (list []operation) {
	s.eachExpertCase(st, func(c expertCase, i int, wt, xt tensor.Type) {
		ut := wt
		if k := slices.Index(s.types, wt); k >= s.floats && i%3 == 1 {
			ut = s.types[s.floats+(k+2)%(len(s.types)-s.floats)]
		}
		acts := kernels.Activations()
		act := acts[i%len(acts)]
		name := fmt.Sprintf("ExpertGateUp/%v/%v·%v/%+v/%v", act, xt, wt, c, st)
		all, ids := c.n*c.chosen, c.assigned(name)
		x := numbers(name, st, c.n*c.cols, xt)
		var repeated []float32
		for row := range slices.Chunk(x, c.cols) {
			repeated = append(repeated, slices.Repeat(row, c.chosen)...)
		}
		gate, up := r.stack(name+" gate", st, wt, c.experts, c.rows, c.cols), r.stack(name+" up", st, ut, c.experts, c.rows, c.cols)
		g, gb := s.multiplyExperts(&gate, c.rows, ids, repeated, xt)
		u, ub := s.multiplyExperts(&up, c.rows, ids, repeated, xt)
		want := make([]float32, len(g))
		cpu.Gated(act, want, g, u)
		src, one := r.rows(xt, c.n, c.cols, x), r.rows(xt, all, c.cols, repeated)
		experts, each := r.rows(tensor.F32, c.n, c.chosen, ids), r.rows(tensor.F32, all, 1, ids)
		list = append(list, operation{
			name: name, dst: xt, n: all, cols: c.rows, want: want, bound: gatedBound(act, g, u, want, gb, ub, xt),
			record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
				if n == all {
					expertsOf(e).ExpertGateUp(dst, src, experts, act, gate.W, up.W)
				} else {
					expertsOf(e).ExpertGateUp(dst, one.Part(first, n), each.Part(first, n), act, gate.W, up.W)
				}
			},
		})
	})
	return list
}

// expertSums adds up what experts gave, and what a unit gave that is always there.
func (s *suite) expertSums(r *rig, st testnum.Style) (list []operation) {
	for _, shape := range [][3]int{{1, 1, 1}, {5, 2, 1000}, {12, 8, 300}} {
		n, chosen, cols := shape[0], shape[1], shape[2]
		name := fmt.Sprintf("ExpertSum/%d×%d×%d/%v", n, chosen, cols, st)
		x, w, want := numbers(name, st, n*chosen*cols, tensor.F32), numbers(name+" w", st, n*chosen, tensor.F32), make([]float32, n*cols)
		size := make([]float64, n*cols)
		for i, of := range w {
			at := i / chosen * cols
			cpu.AddScaled(want[at:at+cols], x[i*cols:(i+1)*cols], of)
			for j := range cols {
				size[at+j] += math.Abs(float64(x[i*cols+j]) * float64(of))
			}
		}
		src, weights := r.rows(tensor.F32, n*chosen, cols, x), r.rows(tensor.F32, n, chosen, w)
		list = append(list, operation{
			name: name, dst: tensor.F32, n: n, cols: cols, initial: slices.Repeat([]float32{7}, n*cols), want: want,
			bound: func(i int) float64 { return 1e-6*size[i] + 1e-30 },
			record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
				expertsOf(e).ExpertSum(dst, src.Part(first*chosen, n*chosen), weights.Part(first, n))
			},
		})
		list = append(list, s.gatedSum(r, st, n, cols))
	}
	return list
}

func (s *suite) gatedSum(r *rig, st testnum.Style, n, cols int) operation {
	name := fmt.Sprintf("AddGated/%d×%d/%v", n, cols, st)
	x, y, g := numbers(name, st, n*cols, tensor.F32), numbers(name+" y", st, n*cols, tensor.F32), numbers(name+" g", st, n, tensor.F32)
	want, part := slices.Clone(y), make([]float64, n*cols)
	for i, of := range g {
		gate := 1 / (1 + kernels.Exp(-of))
		cpu.AddScaled(want[i*cols:(i+1)*cols], x[i*cols:(i+1)*cols], gate)
		for j := range cols {
			part[i*cols+j] = math.Abs(float64(x[i*cols+j]) * float64(gate))
		}
	}
	src, gates := r.rows(tensor.F32, n, cols, x), r.rows(tensor.F32, n, 1, g)
	return operation{
		name: name, dst: tensor.F32, n: n, cols: cols, initial: y, want: want,
		bound: func(i int) float64 {
			return elementBound*part[i] + 1e-7*math.Abs(float64(want[i])) + 1e-30
		},
		record: func(e kernels.Encoder, dst kernels.Rows, first, n int) {
			expertsOf(e).AddGated(dst, src.Part(first, n), gates.Part(first, n))
		},
	}
}
