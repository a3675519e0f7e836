//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/tensor"
)

func metricShapes() []shape {
	return []shape{
		{layout{tensor.BF16, 64, 32}, 6, 2, 0, false},
		{layout{tensor.F16, 32, 16}, 10, 1, 0, false},
		{layout{tensor.F32, 40, 64}, 2, 2, 0, false},
		{layout{tensor.BF16, 12, 16}, 4, 2, 0, false},
		{layout{tensor.F32, 20, 16}, 3, 1, 0, false},
	}
}

func dot(a, b []float32) float64 {
	s := 0.0
	for i := range a {
		s += float64(a[i]) * float64(b[i])
	}
	return s
}

func length(a []float32) float64 { return math.Sqrt(dot(a, a)) }

// columnRef computes the attention that every slot of a head receives from n tokens,
// of which token i sees slots up to first+i, per query head of the group.
func columnRef(c *testCache, q []float32, h, n, first int) [][]float64 {
	s := c.s
	out := make([][]float64, s.group())
	for g := range out {
		out[g] = make([]float64, first+n)
		for i := range n {
			row := q[(i*s.Heads+h*s.group()+g)*s.HeadDim:][:s.HeadDim]
			z := make([]float64, first+i+1)
			top := math.Inf(-1)
			for e := range z {
				z[e] = dot(row, c.key(h, e)) / math.Sqrt(float64(s.HeadDim))
				top = max(top, z[e])
			}
			sum := 0.0
			for e := range z {
				z[e] = math.Exp(z[e] - top)
				sum += z[e]
			}
			for e := range z {
				out[g][e] += z[e] / sum
			}
		}
	}
	return out
}

func TestColumnSumsAndSnapKV(t *testing.T) {
	d := device(t)
	for _, s := range metricShapes() {
		name := fmt.Sprintf("ColumnSums/%+v", s)
		r := rng(name)
		const n = 20 // tokens of the pass, and the window
		start := repeat(s.KVHeads, func(h int) int { return 280 - 150*h })
		c := newTestCache(t, d, r, s, start, nil, 320)
		width := s.Heads * s.HeadDim
		q := random(r, n*width)
		qr, _ := uploadRows(t, d, q, n, width, tensor.F32)
		y, _ := newRows(t, d, n, width, tensor.F32)
		stats := alloc(t, d, n*s.Heads*8)
		raw := make([]byte, n*rowInfoBytes)
		putRows(raw, repeat(n, func(i int) rowInfo { return rowInfo{Offset: i} }))
		rows := upload(t, d, raw)
		w, err := d.newWorkList(s, 0, 1, n)
		ok(t, err)
		defer w.Free()
		_, err = w.Fill([]rowSpan{{N: n, End: repeat(s.KVHeads, func(h int) int { return start[h] + 1 })}}, view{})
		ok(t, err)
		const ld = 304
		seq := sequence{shape: s, Table: c.heads, Longest: start[0] + n}
		sums := func(chunk int) (*guarded, []float32) {
			g := alloc(t, d, s.Heads*ld*4)
			run(t, d, func(cmd *commands) {
				cmd.Zero(g.view)
				for at := 0; at < n; at += chunk {
					cmd.ColumnSums(seq, qr, stats.view, rows.view, at, min(chunk, n-at), g.view, ld)
				}
			})
			return g, g.f32()
		}
		run(t, d, func(cmd *commands) {
			cmd.Attention(attentionOp{shape: s, Q: qr, Out: y, Stats: stats.view, Heads: c.heads, Work: w})
		})
		all, got := sums(n)
		want := make([]float64, s.Heads*ld)
		for h := range s.KVHeads {
			for g, col := range columnRef(c, q, h, n, start[h]) {
				copy(want[(h*s.group()+g)*ld:], col)
			}
		}
		within(t, name, want, got, relative(want, 2e-5, 1e-7))
		for _, chunk := range []int{1, 7} {
			_, other := sums(chunk)
			testnum.SameBits(t, fmt.Sprintf("%s, %d tokens at a time", name, chunk), got, other)
		}

		for _, o := range []kernels.WindowScoring{
			{Window: n, Kernel: 7, MaxPool: true}, {Window: n, Kernel: 5}, {Window: n, Kernel: 1, GroupMax: true},
			{Window: n, Kernel: 7, MaxPool: true, ReduceFirst: true}, {Window: n, Kernel: 3, GroupMax: true, ReduceFirst: true},
		} {
			scores := alloc(t, d, s.KVHeads*ld*4)
			seq := seq
			seq.Held = n
			run(t, d, func(cmd *commands) {
				cmd.Zero(scores.view)
				cmd.SnapKV(seq, o, all.view, ld, scores.view, ld)
			})
			want := make([]float64, s.KVHeads*ld)
			for h := range s.KVHeads {
				copy(want[h*ld:], snapRef(got[h*s.group()*ld:], ld, s.group(), start[h]+n, o))
			}
			within(t, fmt.Sprintf("SnapKV/%+v", o), want, scores.f32(), relative(want, 2e-6, 1e-12))
		}
	}
}

// snapRef computes spec §3.1 from the sums of a head's group.
func snapRef(sums []float32, ld, group, T int, o kernels.WindowScoring) []float64 {
	n := T - min(o.Window, T)
	cols := repeat(group, func(g int) []float64 {
		x := wide(sums[g*ld : g*ld+n])
		for i := range x {
			x[i] /= float64(o.Window)
		}
		return x
	})
	pool := func(x []float64) []float64 {
		y := make([]float64, len(x))
		for t := range x {
			lo, hi := max(t-o.Kernel/2, 0), min(t+o.Kernel/2+1, len(x))
			if o.MaxPool {
				y[t] = x[lo]
			}
			for _, v := range x[lo:hi] {
				if o.MaxPool {
					y[t] = max(y[t], v)
				} else {
					y[t] += v / float64(o.Kernel)
				}
			}
		}
		return y
	}
	reduce := func(x [][]float64) []float64 {
		y := make([]float64, n)
		for t := range y {
			y[t] = x[0][t]
			for _, r := range x[1:] {
				if o.GroupMax {
					y[t] = max(y[t], r[t])
				} else {
					y[t] += r[t]
				}
			}
			if !o.GroupMax {
				y[t] /= float64(group)
			}
		}
		return y
	}
	var out []float64
	if o.ReduceFirst {
		out = pool(reduce(cols))
	} else {
		for g := range cols {
			cols[g] = pool(cols[g])
		}
		out = reduce(cols)
	}
	for len(out) < T {
		out = append(out, math.Inf(1))
	}
	return out
}

// anchorRef computes minus the cosine of a head's keys with the mean of its unit keys.
func anchorRef(c *testCache, h, n int) []float64 {
	anchor := make([]float64, c.s.HeadDim)
	for e := range n {
		k := c.key(h, e)
		for i, x := range k {
			anchor[i] += float64(x) / length(k) / float64(n)
		}
	}
	norm := 0.0
	for _, x := range anchor {
		norm += x * x
	}
	return repeat(n, func(e int) float64 {
		k, p := c.key(h, e), 0.0
		for i, x := range k {
			p += float64(x) * anchor[i]
		}
		return -p / (length(k) * math.Sqrt(norm))
	})
}

// outputRef is both norms of a head's values after the columns of wo, [][Heads·HeadDim],
// that query head q reads.
func outputRef(c *testCache, wo []float32, q, n int) (one, two []float64) {
	s := c.s
	width := s.Heads * s.HeadDim
	one, two = make([]float64, n), make([]float64, n)
	for e := range n {
		v := c.value(q/s.group(), e)
		for o := 0; o < len(wo); o += width {
			x := dot(wo[o+q*s.HeadDim:][:s.HeadDim], v)
			one[e] += math.Abs(x)
			two[e] += x * x
		}
		two[e] = math.Sqrt(two[e])
	}
	return one, two
}

// expectedRef computes Expected Attention of a head with n entries; rows of mean and
// form are pitch elements apart.
func expectedRef(c *testCache, h, n, pitch int, mean, form []float32, first int, norm bool, eps float64) []float64 {
	D, P, G := c.s.HeadDim, pitch, c.s.group()
	want := make([]float64, n)
	for g := range G {
		q := h*G + g
		z := make([]float64, n)
		top := math.Inf(-1)
		for e := range z {
			k := c.key(h, e)
			z[e] = dot(mean[q*P:q*P+D], k)
			for a := 0; a < D && form != nil; a++ {
				z[e] += float64(k[a]) * dot(form[(q*P+a)*P:(q*P+a)*P+D], k)
			}
			if e >= first {
				top = max(top, z[e])
			}
		}
		sum := 0.0
		for _, v := range z[first:] {
			sum += math.Exp(v - top)
		}
		for e := first; e < n; e++ {
			want[e] += math.Exp(z[e]-top) / sum / float64(G)
		}
	}
	for e := range n {
		switch {
		case e < first:
			want[e] = math.Inf(1)
		case norm:
			want[e] = (want[e] + eps) * length(c.value(h, e))
		}
	}
	return want
}

func TestVectorMetrics(t *testing.T) {
	d := device(t)
	for _, s := range metricShapes() {
		name := fmt.Sprintf("%+v", s)
		r := rng(name)
		lens := repeat(s.KVHeads, func(h int) int { return 600 - 590*h })
		c := newTestCache(t, d, r, s, lens, nil, 600)
		const ld = 608
		seq := sequence{shape: s, Table: c.heads, Longest: 600}
		diff, keys, values, l1, l2 := make([]float64, s.KVHeads*ld), make([]float64, s.KVHeads*ld), make([]float64, s.KVHeads*ld), make([]float64, s.Heads*ld), make([]float64, s.Heads*ld)
		const M = 13
		width := s.Heads * s.HeadDim
		raw, wo := narrow(random(r, M*width), tensor.BF16)
		dw := uploadWeights(t, d, raw, tensor.BF16, M, width)
		for h, n := range lens {
			copy(diff[h*ld:], anchorRef(c, h, n))
			for e := range n {
				keys[h*ld+e], values[h*ld+e] = length(c.key(h, e)), length(c.value(h, e))
			}
			for q := h * s.group(); q < (h+1)*s.group(); q++ {
				one, two := outputRef(c, wo, q, n)
				copy(l1[q*ld:], one)
				copy(l2[q*ld:], two)
			}
		}
		work := alloc(t, d, int(keyDiffBytes(s, 600)))
		for _, op := range []struct {
			name     string
			want     []float64
			rel, abs float64
			run      func(cmd *commands, out view)
		}{
			{"KeyDiff", diff, 0, 1e-5, func(cmd *commands, out view) { cmd.KeyDiff(seq, work.view, out, ld) }},
			{"KeyNorms", keys, 2e-6, 1e-30, func(cmd *commands, out view) { cmd.KeyNorms(seq, out, ld) }},
			{"ValueNorms", values, 2e-6, 1e-30, func(cmd *commands, out view) { cmd.ValueNorms(seq, out, ld) }},
			{"OutputNorms/1", l1, 1e-5, 1e-30, func(cmd *commands, out view) { cmd.OutputNorms(seq, dw, 1, out, ld) }},
			{"OutputNorms/2", l2, 1e-5, 1e-30, func(cmd *commands, out view) { cmd.OutputNorms(seq, dw, 2, out, ld) }},
		} {
			out := alloc(t, d, len(op.want)*4)
			run(t, d, func(cmd *commands) {
				cmd.Zero(out.view)
				op.run(cmd, out.view)
			})
			within(t, op.name+"/"+name, op.want, out.f32(), relative(op.want, op.rel, op.abs))
		}
	}
}

func TestMoments(t *testing.T) {
	d := device(t)
	const heads, dim, n = 3, 40, 200
	r := rng("moments")
	q := random(r, n*heads*dim)
	for i := range q {
		q[i] = q[i]*0.5 + 30 // a large mean, which would cause cancellation
	}
	qr, _ := uploadRows(t, d, q, n, heads*dim, tensor.F32)
	var first []float32
	for _, chunk := range []int{n, 1, 37} {
		state := alloc(t, d, int(momentBytes(heads, dim)))
		run(t, d, func(c *commands) {
			c.Zero(state.view)
			for at := 0; at < n; at += chunk {
				c.Moments(qr, dim, at, min(chunk, n-at), state.view, true)
			}
		})
		got := state.f32()
		if first == nil {
			first = got
		}
		testnum.SameBits(t, fmt.Sprintf("moments, %d rows at a time", chunk), first, got)
	}
	for h := range heads {
		mean, cov := make([]float64, dim), make([]float64, dim*dim)
		rows, err := readMoments(first, dim, h, mean, cov)
		ok(t, err)
		if rows != n {
			t.Fatalf("%d rows, expected %d", rows, n)
		}
		wantMean, wantCov := make([]float64, dim), make([]float64, dim*dim)
		at := func(i, a int) float64 { return float64(q[(i*heads+h)*dim+a]) }
		for a := range dim {
			for i := range n {
				wantMean[a] += at(i, a) / n
			}
		}
		for a := range dim {
			for b := range dim {
				for i := range n {
					wantCov[a*dim+b] += (at(i, a) - wantMean[a]) * (at(i, b) - wantMean[b]) / n
				}
			}
		}
		for i := range mean {
			if math.Abs(mean[i]-wantMean[i]) > 1e-6 {
				t.Fatalf("mean %d of head %d: want %g, got %g", i, h, wantMean[i], mean[i])
			}
		}
		for i := range cov {
			if math.Abs(cov[i]-wantCov[i]) > 1e-6 {
				t.Fatalf("covariance %d of head %d: want %g, got %g", i, h, wantCov[i], cov[i])
			}
		}
	}
	if _, err := readMoments(first, dim, heads, make([]float64, dim), nil); err == nil {
		t.Error("moments of a head that does not exist")
	}
}

func TestExpectedAttention(t *testing.T) {
	d := device(t)
	for _, s := range metricShapes() {
		r := rng(fmt.Sprintf("expected %+v", s))
		lens := repeat(s.KVHeads, func(h int) int { return 300 - 280*h })
		c := newTestCache(t, d, r, s, lens, nil, 300)
		D, P := s.HeadDim, padded(s.HeadDim)
		mean := make([]float32, s.Heads*P)
		form := make([]float32, s.Heads*P*P)
		for q := range s.Heads {
			for a := range D {
				mean[q*P+a] = float32(r.NormFloat64() / math.Sqrt(float64(D)))
				for b := a; b < D; b++ {
					form[(q*P+a)*P+b] = float32(r.NormFloat64()) / float32(D)
				}
			}
		}
		sinks := make([]byte, 4*s.KVHeads)
		binary.LittleEndian.PutUint32(sinks, 4)
		const ld = 320
		mv, fv, sv := upload(t, d, bytesOf(mean)), upload(t, d, bytesOf(form)), upload(t, d, sinks)
		for _, o := range []struct{ cov, norm bool }{{true, true}, {false, true}, {true, false}} {
			op := expectedOp{
				sequence: sequence{shape: s, Table: c.heads, Longest: 300}, Mean: mv.view, Sinks: sv.view,
				Work: alloc(t, d, int(expectedBytes(s, 300))).view, ValueNorm: o.norm, Epsilon: 0.02, Ld: ld,
			}
			if o.cov {
				op.Form = fv.view
			}
			out := alloc(t, d, s.KVHeads*ld*4)
			op.Scores = out.view
			run(t, d, func(cmd *commands) {
				cmd.Zero(out.view)
				cmd.ExpectedAttention(op)
			})
			want := make([]float64, s.KVHeads*ld)
			var f []float32
			if o.cov {
				f = form
			}
			for h, n := range lens {
				copy(want[h*ld:], expectedRef(c, h, n, P, mean, f, int(binary.LittleEndian.Uint32(sinks[4*h:])), o.norm, 0.02))
			}
			within(t, fmt.Sprintf("ExpectedAttention/%+v/%+v", s, o), want, out.f32(), relative(want, 1e-4, 1e-12))
		}
	}
}
