package conformance

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/lukv/lukv/internal/testctx"
	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// arguments records operations whose arguments do not fit.
func (s *suite) arguments(t *testing.T) {
	r := newRig(t, s.d)
	c := attentionCase{l: kernels.PageLayout{Type: tensor.F32, HeadDim: 16, PageEntries: 16}, heads: 4, kv: 2, window: 9, rows: []int{2}, entries: [][]int{{5, 3}}}
	p := r.newPass(c)
	a, q, k, v, turns := p.start(r)
	x, y, wide := r.rows(tensor.F32, 2, 16, nil), r.rows(tensor.F32, 2, 8, nil), r.rows(tensor.F32, 2, 64, nil)
	narrowed, one := r.rows(tensor.BF16, 2, 16, nil), r.rows(tensor.F32, 2, 1, nil)
	w := r.weights("w", testnum.Plain, tensor.BF16, 8, 16, true)
	other := r.weights("other", testnum.Plain, tensor.BF16, 6, 16, true)
	eight, sixteen := r.vector(make([]float32, 8)), r.vector(make([]float32, 16))
	freed, err := s.d.Buffer(tensor.F32, 2, 16)
	ok(t, err)
	freed.Free()
	freed.Free()
	product := func(l kernels.Linear, dst kernels.Rows) []kernels.Product {
		return []kernels.Product{{Linear: l, Dst: dst}}
	}
	wrong := map[string]func(e kernels.Encoder){
		"copy of other columns":      func(e kernels.Encoder) { e.Copy(x, y) },
		"copy of fewer rows":         func(e kernels.Encoder) { e.Copy(x, x.Part(0, 1)) },
		"copy to another type":       func(e kernels.Encoder) { e.Copy(x, narrowed) },
		"turns of other columns":     func(e kernels.Encoder) { e.RopeAppend(a, 1, q, k, v, one) },
		"freed":                      func(e kernels.Encoder) { e.Copy(x, kernels.Rows{Buffer: freed, N: 2}) },
		"no buffer":                  func(e kernels.Encoder) { e.Copy(x, kernels.Rows{N: 2}) },
		"rows beyond a buffer":       func(e kernels.Encoder) { e.Copy(x.Part(0, 50), x.Part(0, 50)) },
		"negative row":               func(e kernels.Encoder) { e.Copy(x, x.Part(-5, 2)) },
		"norm of other columns":      func(e kernels.Encoder) { e.Norm(y, x, sixteen, 1e-5) },
		"weight of other columns":    func(e kernels.Encoder) { e.Norm(x, x, eight, 1e-5) },
		"part of a head":             func(e kernels.Encoder) { e.HeadNorm(y, sixteen, 1e-5) },
		"source of other columns":    func(e kernels.Encoder) { e.MatMul(y, false, product(w.Linear, y)) },
		"product to other columns":   func(e kernels.Encoder) { e.MatMul(x, false, product(w.Linear, x)) },
		"product to fewer rows":      func(e kernels.Encoder) { e.MatMul(x, false, product(w.Linear, y.Part(0, 1))) },
		"no weights":                 func(e kernels.Encoder) { e.MatMul(x, false, product(kernels.Linear{}, y)) },
		"bias of other columns":      func(e kernels.Encoder) { e.MatMul(x, false, product(kernels.Linear{W: w.W, Bias: sixteen}, y)) },
		"gates to other columns":     func(e kernels.Encoder) { e.GateUp(x, x, kernels.SiLU, w.Linear, w.Linear) },
		"gates and fewer ups":        func(e kernels.Encoder) { e.GateUp(y, x, kernels.SiLU, w.Linear, other.Linear) },
		"sum of other columns":       func(e kernels.Encoder) { e.AddScaled(x, y, 1) },
		"embedding of other columns": func(e kernels.Encoder) { e.Embed(y, w.W, one) },
		"embeddings of fewer ids":    func(e kernels.Encoder) { e.Embed(x, w.W, one.Part(0, 1)) },
		"maximum to many columns":    func(e kernels.Encoder) { e.ArgMax(y, x) },
		"layer":                      func(e kernels.Encoder) { e.RopeAppend(a, 2, q, k, v, turns) },
		"no layer":                   func(e kernels.Encoder) { e.Attend(a, -1, wide, q, false) },
		"no attention":               func(e kernels.Encoder) { e.Attend(nil, 0, wide, q, false) },
		"fewer keys":                 func(e kernels.Encoder) { e.RopeAppend(a, 1, q, k.Part(0, 1), v, turns) },
		"queries of other heads":     func(e kernels.Encoder) { e.Attend(a, 1, x, x, false) },
	}
	if s.experts {
		maps.Copy(wrong, map[string]func(e kernels.Encoder){
			"more experts than there are": func(e kernels.Encoder) { expertsOf(e).Route(x, x, y, false) },
			"weights of other experts":    func(e kernels.Encoder) { expertsOf(e).Route(one, y, x, false) },
			"experts of other columns":    func(e kernels.Encoder) { expertsOf(e).ExpertMatMul(y, y, one, w.W) },
			"part of an expert":           func(e kernels.Encoder) { expertsOf(e).ExpertMatMul(x, x, one, w.W) },
			"experts of fewer rows":       func(e kernels.Encoder) { expertsOf(e).ExpertMatMul(y, x, one.Part(0, 1), w.W) },
			"rows of more experts":        func(e kernels.Encoder) { expertsOf(e).ExpertGateUp(y, x, y, kernels.SiLU, w.W, w.W) },
			"experts with fewer ups":      func(e kernels.Encoder) { expertsOf(e).ExpertGateUp(y, x, one, kernels.SiLU, w.W, other.W) },
			"sum of fewer experts":        func(e kernels.Encoder) { expertsOf(e).ExpertSum(x, x, y) },
			"gates of many columns":       func(e kernels.Encoder) { expertsOf(e).AddGated(x, x, y) },
		})
	}
	if s.reduces {
		of := s.reducer(t, a)
		moments, err := of.Moments(false)
		ok(t, err)
		sums, err := of.ColumnSums(50)
		ok(t, err)
		statistics := func(e kernels.Encoder) kernels.StatisticsEncoder { return e.(kernels.StatisticsEncoder) }
		maps.Copy(wrong, map[string]func(e kernels.Encoder){
			"moments beyond rows": func(e kernels.Encoder) { statistics(e).Moments(moments, q, 1, 2) },
			"sums with a window":  func(e kernels.Encoder) { statistics(e).ColumnSums(sums, a, 1, 0, q, 0, 1) },
			"sums of no sequence": func(e kernels.Encoder) { statistics(e).ColumnSums(sums, a, 0, 1, q, 0, 1) },
		})
	}
	for name, record := range wrong {
		r.e.Begin()
		record(r.e)
		if l, err := r.e.End(); err == nil {
			l.Free()
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := r.e.End(); err == nil {
		t.Error("End without Begin: no error")
	}
	if _, err := s.d.Buffer(tensor.F32, -1, 4); err == nil {
		t.Error("a buffer of negative size")
	}
	if w, err := s.d.Matrix(t.Context(), w.Matrix, other.Matrix); err == nil {
		w.Free()
		t.Error("a stack of matrices of several shapes")
	}
	if w, err := s.d.Matrix(t.Context()); err == nil {
		w.Free()
		t.Error("a stack of no matrices")
	}
	if _, err := s.d.Attention(kernels.AttentionShape{Rows: 1, Sequences: 1, Heads: 3, KVHeads: 2, HeadDim: 16, Page: c.l}); err == nil {
		t.Error("three heads share two KV heads")
	}
	// After all that the encoder works.
	r.run(func(e kernels.Encoder) { e.AddScaled(x, x.Part(0, 2), 1) })
}

// lists runs recorded lists again, frees them and cancels them.
func (s *suite) lists(t *testing.T) {
	r := newRig(t, s.d)
	in, out := r.shared(kernels.HostWrites, 3, 40, nil), r.shared(kernels.HostReads, 3, 40, nil)
	x := r.rows(tensor.F32, 3, 40, nil)
	double := r.list(func(e kernels.Encoder) {
		e.Copy(x, kernels.Rows{Buffer: in, N: 3})
		e.AddScaled(x, x, 1)
		e.Copy(kernels.Rows{Buffer: out, N: 3}, x)
	})
	again := r.list(func(e kernels.Encoder) {
		e.AddScaled(x, x, 1)
		e.Copy(kernels.Rows{Buffer: out, N: 3}, x)
	})
	for i := range 5 {
		copy(in.Floats(), normal(random("lists"), 120))
		in.Floats()[i] = float32(i)
		want := slices.Clone(in.Floats())
		ok(t, r.e.Run(t.Context(), double))
		ok(t, r.e.Run(t.Context(), again))
		for j := range want {
			want[j] *= 4
		}
		testnum.SameBits(t, "a list that runs again", want, out.Floats())
	}
	other, err := s.d.Encoder()
	ok(t, err)
	if other.Run(t.Context(), double) == nil {
		t.Error("an encoder runs the list of another")
	}
	other.Close()
	again.Free()
	again.Free()
	if r.e.Run(t.Context(), again) == nil {
		t.Error("a list that was freed runs")
	}

	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if err := r.e.Run(ctx, double); !errors.Is(err, cause) {
		t.Errorf("a cancelled run: found %v, expected its cause", err)
	}
	for left := range 4 { // cancelled after some parts of a list, or not at all
		if err := r.e.Run(testctx.DoneAfter(t.Context(), left), double); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled run: %v", err)
		}
	}
	ok(t, r.e.Run(t.Context(), double))
	r.e.Close()
	r.e.Close()
	s.decodeAllocates(t)
}

// decodeAllocates counts the allocations of a decode step.
func (s *suite) decodeAllocates(t *testing.T) {
	if s.o.Allocates {
		return
	}
	r := newRig(t, s.d)
	c := attentionCase{l: kernels.PageLayout{Type: tensor.F32, HeadDim: 16, PageEntries: 16}, heads: 4, kv: 2, rows: []int{1, 1}, entries: [][]int{{30, 3}, {2, 9}}}
	p := r.newPass(c)
	a, q, k, v, turns := p.start(r)
	out := r.rows(tensor.F32, p.n, p.heads*16, nil)
	l := r.list(func(e kernels.Encoder) {
		e.RopeAppend(a, 1, q, k, v, turns)
		e.Attend(a, 1, out, q, false)
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	step := func() {
		a.SetSpans(p.spans, p.positions)
		for seq, c := range p.caches {
			c.set(a, 1, seq)
		}
		ok(t, r.e.Run(ctx, l))
	}
	step()
	if n := testing.AllocsPerRun(50, step); n > 0 {
		t.Errorf("a decode step allocates %v times", n)
	}
}
