//go:build (linux || darwin || windows) && (amd64 || arm64)

package vulkan

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/lukv/lukv/tensor"
)

func metricShapes() []Shape {
	return []Shape{
		{Layout{tensor.BF16, 64, 32}, 6, 2},
		{Layout{tensor.F16, 32, 16}, 10, 1},
		{Layout{tensor.F32, 40, 64}, 2, 2},
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

// columnRef is the attention that every slot of a head receives from n tokens,
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
		w, err := d.NewWork(s, 0, 1, n)
		ok(t, err)
		defer w.Free()
		ok(t, w.Fill([]Span{{N: n, End: repeat(s.KVHeads, func(h int) int { return start[h] + 1 })}}, 1<<20))
		const ld = 304
		seq := Sequence{Shape: s, Table: c.heads, Longest: start[0] + n}
		sums := func(chunk int) (*guarded, []float32) {
			g := alloc(t, d, s.Heads*ld*4)
			run(t, d, func(cmd *Commands) {
				cmd.Zero(g.View)
				for at := 0; at < n; at += chunk {
					cmd.ColumnSums(seq, qr, stats.View, at, min(chunk, n-at), at, g.View, ld)
				}
			})
			return g, g.f32()
		}
		run(t, d, func(cmd *Commands) {
			cmd.Attention(AttentionOp{Shape: s, Q: qr, Out: y, Stats: stats.View, Heads: c.heads, Work: w})
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
			sameBits(t, fmt.Sprintf("%s, %d tokens at a time", name, chunk), got, other)
		}

		for _, o := range []SnapKVOptions{
			{Window: n, Kernel: 7, MaxPool: true}, {Window: n, Kernel: 5}, {Window: n, Kernel: 1, GroupMax: true},
			{Window: n, Kernel: 7, MaxPool: true, ReduceFirst: true}, {Window: n, Kernel: 3, GroupMax: true, ReduceFirst: true},
		} {
			scores := alloc(t, d, s.KVHeads*ld*4)
			seq := seq
			seq.Held = n
			run(t, d, func(cmd *Commands) {
				cmd.Zero(scores.View)
				cmd.SnapKV(seq, o, all.View, ld, scores.View, ld)
			})
			want := make([]float64, s.KVHeads*ld)
			for h := range s.KVHeads {
				copy(want[h*ld:], snapRef(got[h*s.group()*ld:], ld, s.group(), start[h]+n, o))
			}
			within(t, fmt.Sprintf("SnapKV/%+v", o), want, scores.f32(), relative(want, 2e-6, 1e-12))
		}
	}
}

// snapRef is spec §3.1 on the sums of a head's group.
func snapRef(sums []float32, ld, group, T int, o SnapKVOptions) []float64 {
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

func TestVectorMetrics(t *testing.T) {
	d := device(t)
	for _, s := range metricShapes() {
		name := fmt.Sprintf("%+v", s)
		r := rng(name)
		lens := repeat(s.KVHeads, func(h int) int { return 600 - 590*h })
		c := newTestCache(t, d, r, s, lens, nil, 600)
		const ld = 608
		seq := Sequence{Shape: s, Table: c.heads, Longest: 600}
		diff, keys, values, l1, l2 := make([]float64, s.KVHeads*ld), make([]float64, s.KVHeads*ld), make([]float64, s.KVHeads*ld), make([]float64, s.Heads*ld), make([]float64, s.Heads*ld)
		const M = 13
		width := s.Heads * s.HeadDim
		raw, wo := narrow(random(r, M*width), tensor.BF16)
		dw := uploadWeights(t, d, raw, tensor.BF16, M, width)
		for h, n := range lens {
			anchor := make([]float64, s.HeadDim)
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
			for e := range n {
				k, v := c.key(h, e), c.value(h, e)
				p := 0.0
				for i, x := range k {
					p += float64(x) * anchor[i]
				}
				diff[h*ld+e] = -p / (length(k) * math.Sqrt(norm))
				keys[h*ld+e], values[h*ld+e] = length(k), length(v)
				for g := range s.group() {
					q := h*s.group() + g
					for o := range M {
						x := dot(wo[o*width+q*s.HeadDim:][:s.HeadDim], v)
						l1[q*ld+e] += math.Abs(x)
						l2[q*ld+e] += x * x
					}
					l2[q*ld+e] = math.Sqrt(l2[q*ld+e])
				}
			}
		}
		work := alloc(t, d, int(KeyDiffBytes(s, 600)))
		for _, op := range []struct {
			name     string
			want     []float64
			rel, abs float64
			run      func(cmd *Commands, out View)
		}{
			{"KeyDiff", diff, 0, 1e-5, func(cmd *Commands, out View) { cmd.KeyDiff(seq, work.View, out, ld) }},
			{"KeyNorms", keys, 2e-6, 1e-30, func(cmd *Commands, out View) { cmd.KeyNorms(seq, out, ld) }},
			{"ValueNorms", values, 2e-6, 1e-30, func(cmd *Commands, out View) { cmd.ValueNorms(seq, out, ld) }},
			{"OutputNorms/1", l1, 1e-5, 1e-30, func(cmd *Commands, out View) { cmd.OutputNorms(seq, dw, 1, out, ld) }},
			{"OutputNorms/2", l2, 1e-5, 1e-30, func(cmd *Commands, out View) { cmd.OutputNorms(seq, dw, 2, out, ld) }},
		} {
			out := alloc(t, d, len(op.want)*4)
			run(t, d, func(cmd *Commands) {
				cmd.Zero(out.View)
				op.run(cmd, out.View)
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
		q[i] = q[i]*0.5 + 30 // a mean that would cancel
	}
	qr, _ := uploadRows(t, d, q, n, heads*dim, tensor.F32)
	var first []float32
	for _, chunk := range []int{n, 1, 37} {
		state := alloc(t, d, int(MomentBytes(heads, dim)))
		run(t, d, func(c *Commands) {
			c.Zero(state.View)
			for at := 0; at < n; at += chunk {
				c.Moments(qr, dim, at, min(chunk, n-at), state.View, at == 0, true)
			}
		})
		got := state.f32()
		if first == nil {
			first = got
		}
		sameBits(t, fmt.Sprintf("moments, %d rows at a time", chunk), first, got)
	}
	for h := range heads {
		mean, cov := make([]float64, dim), make([]float64, dim*dim)
		ok(t, ReadMoments(first, dim, h, n, mean, cov))
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
	if ReadMoments(first, dim, heads, n, make([]float64, dim), nil) == nil {
		t.Error("moments of a head that does not exist")
	}
}

func TestExpectedAttention(t *testing.T) {
	d := device(t)
	for _, s := range metricShapes() {
		r := rng(fmt.Sprintf("expected %+v", s))
		lens := repeat(s.KVHeads, func(h int) int { return 300 - 280*h })
		c := newTestCache(t, d, r, s, lens, nil, 300)
		D, G := s.HeadDim, s.group()
		mean := random(r, s.Heads*D)
		form := make([]float32, s.Heads*D*D)
		for q := range s.Heads {
			for a := range D {
				mean[q*D+a] /= float32(math.Sqrt(float64(D)))
				for b := a; b < D; b++ {
					form[(q*D+a)*D+b] = float32(r.NormFloat64()) / float32(D)
				}
			}
		}
		sinks := make([]byte, 4*s.KVHeads)
		binary.LittleEndian.PutUint32(sinks, 4)
		const ld = 320
		mv, fv, sv := upload(t, d, bytesOf(mean)), upload(t, d, bytesOf(form)), upload(t, d, sinks)
		for _, o := range []struct{ cov, norm bool }{{true, true}, {false, true}, {true, false}} {
			op := ExpectedOp{
				Sequence: Sequence{Shape: s, Table: c.heads, Longest: 300}, Mean: mv.View, Sinks: sv.View,
				Work: alloc(t, d, int(ExpectedBytes(s, 300))).View, ValueNorm: o.norm, Epsilon: 0.02, Ld: ld,
			}
			if o.cov {
				op.Form = fv.View
			}
			out := alloc(t, d, s.KVHeads*ld*4)
			op.Scores = out.View
			run(t, d, func(cmd *Commands) {
				cmd.Zero(out.View)
				cmd.ExpectedAttention(op)
			})
			want := make([]float64, s.KVHeads*ld)
			for h, n := range lens {
				first := int(binary.LittleEndian.Uint32(sinks[4*h:]))
				for g := range G {
					q := h*G + g
					z := make([]float64, n)
					top := math.Inf(-1)
					for e := range z {
						k := c.key(h, e)
						z[e] = dot(mean[q*D:(q+1)*D], k)
						if o.cov {
							for a := range D {
								z[e] += float64(k[a]) * dot(form[(q*D+a)*D:(q*D+a+1)*D], k)
							}
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
						want[h*ld+e] += math.Exp(z[e]-top) / sum / float64(G)
					}
				}
				for e := range n {
					switch {
					case e < first:
						want[h*ld+e] = math.Inf(1)
					case o.norm:
						want[h*ld+e] = (want[h*ld+e] + 0.02) * length(c.value(h, e))
					}
				}
			}
			within(t, fmt.Sprintf("ExpectedAttention/%+v/%+v", s, o), want, out.f32(), relative(want, 1e-4, 1e-12))
		}
	}
}
