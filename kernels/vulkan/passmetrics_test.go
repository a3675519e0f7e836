//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

// cacheOf reads back a sequence's heads in a layer, in the host's order.
func (r *passRig) cacheOf(s *passSeq, layer int) *testCache {
	c := &testCache{t: r.t, s: r.pass.(*pass).shape}
	half := c.s.hostHalf()
	for h := range r.m.kv {
		var k, v []byte
		pages := s.pages[layer*r.m.kv+h]
		blocks := make([]byte, len(pages)*r.page.Bytes())
		ok(r.t, r.pool.Read(context.Background(), blocks, pages))
		for block := range slices.Chunk(blocks, r.page.Bytes()) {
			k, v = append(k, block[:half]...), append(v, block[half:2*half]...)
		}
		c.k, c.v = append(c.k, k), append(c.v, v)
	}
	return c
}

// The metrics of a pass are those of its cache and its queries, no matter how rows
// are divided into passes and what else is in the batch.
func TestMetricPass(t *testing.T) {
	d := device(t)
	ctx := context.Background()
	for _, dim := range []int{16, 12} {
		m := newForwardModel(dim, 0)
		const n, window = 300, 24
		tokens, other := testTokens(m, n, 1), testTokens(m, 50, 2)
		width := m.heads * dim
		// feed feeds the tokens in chunks, as sequence 1 beside one that gets 3 tokens per
		// chunk, and returns the statistics and the queries, before and after rotation.
		type result struct {
			r             *passRig
			s             *passSeq
			moments       kernels.DeviceMoments
			window, all   kernels.DeviceSums
			before, after []float32
		}
		feed := func(sizes ...int) result {
			r := newPassRig(t, d, m, n+3, 2)
			mp := r.pass.(kernels.MetricPass)
			a, x := r.sequence(), result{r: r, s: r.sequence()}
			var err error
			x.moments, err = mp.NewMoments(true)
			ok(t, err)
			x.window, err = mp.NewSums(n + 7)
			ok(t, err)
			x.all, err = mp.NewSums(n)
			ok(t, err)
			for i := 0; x.s.n < n; i++ {
				k := min(sizes[min(i, len(sizes)-1)], n-x.s.n)
				record := func(after bool) kernels.PassList {
					mp.Begin(k + 3)
					mp.SetInput()
					mp.Norm(r.v["attn0"], 1e-5)
					mp.MatMul(kernels.ActNorm, false, []kernels.DeviceProduct{
						{W: r.w["q0"], Dst: kernels.ActQ}, {W: r.w["k0"], Dst: kernels.ActK}, {W: r.w["v0"], Dst: kernels.ActV},
					})
					if after {
						mp.Moments(x.moments, 3, k/2)
						mp.Moments(x.moments, 3+k/2, k-k/2)
						mp.RopeAppend(0)
						mp.Attend(0, true)
						mp.ColumnSums(x.all, 0, 1, 3, k)
						if skip := max(0, n-window-x.s.n); skip < k {
							mp.ColumnSums(x.window, 0, 1, 3+skip, k-skip)
						}
					}
					l, err := mp.End()
					ok(t, err)
					return l
				}
				r.set([]*passSeq{a, x.s}, [][]int{other[:3], tokens[x.s.n : x.s.n+k]})
				for _, after := range []bool{false, true} {
					l := record(after)
					ok(t, mp.Run(ctx, l))
					q := make([]float32, k*width)
					ok(t, mp.Read(ctx, q, kernels.ActQ, 3, k))
					if after {
						x.after = append(x.after, q...)
					} else {
						x.before = append(x.before, q...)
					}
					l.Free()
				}
				a.n, x.s.n = a.n+3, x.s.n+k
			}
			// Metrics are then computed over all entries.
			r.set([]*passSeq{a, x.s}, [][]int{nil, nil})
			return x
		}
		x := feed(n)
		mp, c := x.r.pass.(kernels.MetricPass), x.r.cacheOf(x.s, 0)
		group := c.s.group()
		compare := func(what string, got [][]float32, rel, abs float64, want func(h int) []float64) {
			t.Helper()
			for h := range got {
				w := want(h)
				within(t, fmt.Sprintf("%s of head %d", what, h), w, got[h], relative(w, rel, abs))
			}
		}
		// Window scores from the sums over the last rows.
		options := []kernels.WindowScoring{
			{Window: window, Kernel: 7, MaxPool: true}, {Window: window, Kernel: 5, GroupMax: true, ReduceFirst: true},
		}
		for _, o := range options {
			got, err := mp.WindowScores(ctx, 0, 1, x.window, o)
			ok(t, err)
			compare("window scores", got, 1e-4, 1e-9, func(h int) []float64 {
				cols := columnRef(c, x.after[(n-window)*width:], h, window, n-window)
				flat := make([]float32, 0, group*n)
				for _, col := range cols {
					for _, v := range col {
						flat = append(flat, float32(v))
					}
				}
				return snapRef(flat, n, group, n, o)
			})
		}
		anchors, err := mp.AnchorScores(ctx, 0, 1)
		ok(t, err)
		compare("anchor scores", anchors, 0, 1e-5, func(h int) []float64 { return anchorRef(c, h, n) })
		keys, err := mp.KeyNorms(ctx, 0, 1)
		ok(t, err)
		compare("key norms", keys, 2e-6, 0, func(h int) []float64 { return repeat(n, func(e int) float64 { return length(c.key(h, e)) }) })
		values, err := mp.ValueNorms(ctx, 0, 1)
		ok(t, err)
		compare("value norms", values, 2e-6, 0, func(h int) []float64 { return repeat(n, func(e int) float64 { return length(c.value(h, e)) }) })
		_, wo := narrow(make([]float32, m.hidden*width), tensor.F32)
		kernels.CPU{}.Widen(wo, m.raw["o0"], tensor.BF16)
		for norm := 1; norm <= 2; norm++ {
			got, err := mp.OutputNorms(ctx, 0, 1, x.r.w["o0"], norm)
			ok(t, err)
			compare("output norms", got, 1e-5, 0, func(q int) []float64 {
				one, two := outputRef(c, wo, q, n)
				return [][]float64{one, two}[norm-1]
			})
		}
		// Moments of the queries before rotation.
		mean, cov := make([]float64, dim), make([]float64, dim*dim)
		for h := range m.heads {
			rows, err := mp.ReadMoments(ctx, x.moments, h, mean, cov)
			ok(t, err)
			if rows != n {
				t.Fatalf("%d rows, expected %d", rows, n)
			}
			at := func(i, a int) float64 { return float64(x.before[i*width+h*dim+a]) }
			for a := range dim {
				want := make([]float64, dim+1)
				for i := range n {
					want[dim] += at(i, a) / n
				}
				if math.Abs(mean[a]-want[dim]) > 1e-6 {
					t.Fatalf("mean %d of head %d: want %g, got %g", a, h, want[dim], mean[a])
				}
				for b := range dim {
					v := 0.0
					for i := range n {
						v += (at(i, a) - mean[a]) * (at(i, b) - mean[b]) / n
					}
					if math.Abs(cov[a*dim+b]-v) > 1e-6 {
						t.Fatalf("covariance %d, %d of head %d: want %g, got %g", a, b, h, v, cov[a*dim+b])
					}
				}
			}
		}
		expected := kernels.ExpectedScoring{Mean: random(rng("mean"), width), Form: make([]float32, width*dim), Sinks: []int{4, 0}, ValueNorm: true, Epsilon: 0.02}
		for i := range expected.Form {
			if i%dim >= i/dim%dim {
				expected.Form[i] = float32(rng(fmt.Sprint(i)).NormFloat64()) / float32(10*dim)
			}
		}
		for _, o := range []kernels.ExpectedScoring{expected, {Mean: expected.Mean}} {
			got, err := mp.ExpectedScores(ctx, 0, 1, o)
			ok(t, err)
			compare("expected attention", got, 1e-4, 1e-12, func(h int) []float64 {
				first := 0
				if o.Sinks != nil {
					first = o.Sinks[h]
				}
				form := make([]float32, m.heads*dim*dim)
				copy(form, o.Form)
				return expectedRef(c, h, n, dim, o.Mean, form, first, o.ValueNorm, o.Epsilon)
			})
		}
		// Chunks do not change a bit.
		y := feed(100, 1, 190, 5)
		other1 := y.r.pass.(kernels.MetricPass)
		for _, o := range options {
			for i, s := range [][2]kernels.DeviceSums{{x.window, y.window}, {x.all, y.all}} {
				a, err := mp.WindowScores(ctx, 0, 1, s[0], o)
				ok(t, err)
				b, err := other1.WindowScores(ctx, 0, 1, s[1], o)
				ok(t, err)
				for h := range a {
					testnum.SameBits(t, fmt.Sprintf("window scores %d of head %d in chunks", i, h), a[h][:n-window], b[h][:n-window])
				}
			}
		}
		again := make([]float64, dim)
		if _, err := mp.ReadMoments(ctx, x.moments, 3, mean, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := other1.ReadMoments(ctx, y.moments, 3, again, nil); err != nil || !slices.Equal(mean, again) {
			t.Errorf("moments in chunks: %v and %v, %v", mean, again, err)
		}

		// Arguments that do not fit are rejected.
		short, err := mp.NewSums(n - 1)
		ok(t, err)
		freed, err := mp.NewSums(n)
		ok(t, err)
		freed.Free()
		freed.Free()
		for name, call := range map[string]func() error{
			"layer":    func() error { _, err := mp.KeyNorms(ctx, 1, 0); return err },
			"sequence": func() error { _, err := mp.KeyNorms(ctx, 0, 2); return err },
			"short":    func() error { _, err := mp.WindowScores(ctx, 0, 1, short, options[0]); return err },
			"freed":    func() error { _, err := mp.WindowScores(ctx, 0, 1, freed, options[0]); return err },
			"foreign":  func() error { _, err := mp.WindowScores(ctx, 0, 1, y.window, options[0]); return err },
			"kernel": func() error {
				_, err := mp.WindowScores(ctx, 0, 1, x.window, kernels.WindowScoring{Window: 2, Kernel: 2})
				return err
			},
			"no window": func() error {
				_, err := mp.WindowScores(ctx, 0, 1, x.window, kernels.WindowScoring{Kernel: 1})
				return err
			},
			"mean": func() error {
				_, err := mp.ExpectedScores(ctx, 0, 1, kernels.ExpectedScoring{Mean: make([]float32, 3)})
				return err
			},
			"norm":    func() error { _, err := mp.OutputNorms(ctx, 0, 1, x.r.w["o0"], 3); return err },
			"weights": func() error { _, err := mp.OutputNorms(ctx, 0, 1, x.r.w["q0"], 1); return err },
			"head":    func() error { _, err := mp.ReadMoments(ctx, x.moments, m.heads, mean, nil); return err },
			"rows":    func() error { mp.Begin(2); mp.Moments(x.moments, 1, 2); _, err := mp.End(); return err },
			"sums":    func() error { mp.Begin(2); mp.ColumnSums(freed, 0, 1, 0, 1); _, err := mp.End(); return err },
			"of whom": func() error { mp.Begin(2); mp.ColumnSums(x.all, 0, 2, 0, 1); _, err := mp.End(); return err },
		} {
			if err := call(); err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		short.Free()
	}
	// Layers with a window have no column sums.
	r := newPassRig(t, d, newForwardModel(16, 9), 2, 1)
	mp := r.pass.(kernels.MetricPass)
	s, err := mp.NewSums(20)
	ok(t, err)
	mp.Begin(1)
	mp.ColumnSums(s, 0, 0, 0, 1)
	if _, err := mp.End(); err == nil {
		t.Error("column sums of a layer with a window")
	}
	// A lost device is reported here as well.
	own := openTest(t, Options{BlockBytes: 1 << 20})
	lost := newPassRig(t, own, newForwardModel(16, 0), 2, 1)
	mp = lost.pass.(kernels.MetricPass)
	moments, err := mp.NewMoments(false)
	ok(t, err)
	lost.step([]*passSeq{lost.sequence()}, []int{1})
	own.mu.Lock()
	own.lost = fmt.Errorf("a test: %w", kernels.ErrDeviceLost)
	own.mu.Unlock()
	_, err1 := mp.NewMoments(true)
	_, err2 := mp.NewSums(3)
	_, err3 := mp.AnchorScores(ctx, 0, 0)
	_, err4 := mp.ReadMoments(ctx, moments, 0, make([]float64, 16), nil)
	for i, err := range []error{err1, err2, err3, err4} {
		if !errors.Is(err, kernels.ErrDeviceLost) {
			t.Errorf("call %d on a lost device: %v", i, err)
		}
	}
}
