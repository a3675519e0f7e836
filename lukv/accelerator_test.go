package lukv

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
)

// fakeAccelerator computes in float64 what Accelerator documents, from a layer's
// keys and values and its newest queries.
type fakeAccelerator struct {
	l     *Layer
	calls int
	err   error
}

func (a *fakeAccelerator) each(fn func(h int) []float64) (Scores, error) {
	a.calls++
	if a.err != nil {
		return nil, a.err
	}
	s := make(Scores, a.l.KVHeads)
	for h := range s {
		for _, v := range fn(h) {
			s[h] = append(s[h], float32(v))
		}
	}
	return s, nil
}

func (a *fakeAccelerator) key(h, t int) []float32   { return a.l.Keys(h, t, t+1, nil) }
func (a *fakeAccelerator) value(h, t int) []float32 { return a.l.Values(h, t, t+1, nil) }

func inner(x, y []float32) (v float64) {
	for i := range x {
		v += float64(x[i]) * float64(y[i])
	}
	return v
}

func (a *fakeAccelerator) WindowScores(_ context.Context, o kernels.WindowScoring) (Scores, error) {
	l := a.l
	return a.each(func(h int) []float64 {
		n := l.Len(h) - o.Window
		pool := func(x []float64) []float64 {
			y := make([]float64, n)
			for t := range y {
				y[t] = math.Inf(-1)
				sum := 0.0
				for j := max(t-o.Kernel/2, 0); j < min(t+o.Kernel/2+1, n); j++ {
					y[t], sum = max(y[t], x[j]), sum+x[j]
				}
				if !o.MaxPool {
					y[t] = sum / float64(o.Kernel)
				}
			}
			return y
		}
		total := make([]float64, n)
		for g := range l.Group() {
			mean := make([]float64, n)
			for i := range o.Window {
				at := l.Queries.Len() - o.Window + i
				z, sum := make([]float64, n+i+1), 0.0
				for t := range z {
					z[t] = math.Exp(inner(l.Queries.Row(at, h*l.Group()+g), a.key(h, t)) / math.Sqrt(float64(l.HeadDim)))
					sum += z[t]
				}
				for t := range mean {
					mean[t] += z[t] / sum / float64(o.Window)
				}
			}
			if !o.ReduceFirst {
				mean = pool(mean)
			}
			for t, v := range mean {
				if o.GroupMax {
					total[t] = max(total[t], v)
				} else {
					total[t] += v / float64(l.Group())
				}
			}
		}
		if o.ReduceFirst {
			total = pool(total)
		}
		for range o.Window {
			total = append(total, math.Inf(1))
		}
		return total
	})
}

func (a *fakeAccelerator) AnchorScores(context.Context) (Scores, error) {
	return a.each(func(h int) []float64 {
		mean, out := make([]float64, a.l.HeadDim), make([]float64, a.l.Len(h))
		for t := range out {
			k := a.key(h, t)
			for i, v := range k {
				mean[i] += float64(v) / math.Sqrt(inner(k, k)) / float64(len(out))
			}
		}
		for t := range out {
			k := a.key(h, t)
			var dot, norm float64
			for i, v := range k {
				dot += float64(v) * mean[i]
				norm += mean[i] * mean[i]
			}
			out[t] = -dot / math.Sqrt(norm*inner(k, k))
		}
		return out
	})
}

func (a *fakeAccelerator) KeyNorms(context.Context) (Scores, error) {
	return a.each(func(h int) []float64 {
		out := make([]float64, a.l.Len(h))
		for t := range out {
			out[t] = math.Sqrt(inner(a.key(h, t), a.key(h, t)))
		}
		return out
	})
}

func (a *fakeAccelerator) ExpectedScores(_ context.Context, o kernels.ExpectedScoring) (Scores, error) {
	l, D := a.l, a.l.HeadDim
	return a.each(func(h int) []float64 {
		out := make([]float64, l.Len(h))
		for t := range o.Sinks[h] {
			out[t] = math.Inf(1)
		}
		for g := range l.Group() {
			q := h*l.Group() + g
			z, sum := make([]float64, len(out)), 0.0
			for t := o.Sinks[h]; t < len(out); t++ {
				k := a.key(h, t)
				v := inner(k, o.Mean[q*D:(q+1)*D])
				for i := 0; i < D && o.Form != nil; i++ {
					v += float64(k[i]) * inner(k, o.Form[(q*D+i)*D:(q*D+i+1)*D])
				}
				z[t] = math.Exp(v)
				sum += z[t]
			}
			for t := o.Sinks[h]; t < len(out); t++ {
				out[t] += z[t] / sum / float64(l.Group())
			}
		}
		for t := o.Sinks[h]; o.ValueNorm && t < len(out); t++ {
			out[t] = (out[t] + o.Epsilon) * math.Sqrt(inner(a.value(h, t), a.value(h, t)))
		}
		return out
	})
}

func TestAcceleratedMetrics(t *testing.T) {
	for _, heads := range [][2]int{{4, 2}, {3, 3}, {4, 1}} {
		l := randomAttention(150, heads[0], heads[1], 6)
		l.Share = 60
		withSums(t, l, 5)
		for name, m := range everyMetric(t) {
			t.Run(name, func(t *testing.T) {
				want, err := Score(context.Background(), m, l)
				require.NoError(t, err)
				fast := *l
				fake := &fakeAccelerator{l: l}
				fast.Accelerator = fake
				switch m.(type) {
				case snapKV, expectedAttention, kNorm, criticalKV, chunkKV:
					require.Equal(t, 1, scoreAlike(t, m, &fast, fake, want))
				case keyDiff:
					n := 1
					if name == "keydiff block" {
						n = 0
					}
					require.Equal(t, n, scoreAlike(t, m, &fast, fake, want))
				default:
					require.Zero(t, scoreAlike(t, m, &fast, fake, want))
				}
				if fake.calls == 0 {
					return
				}
				fake.err = errors.New("gone")
				_, err = Score(context.Background(), m, &fast)
				require.ErrorIs(t, err, fake.err)
			})
		}
	}
}

// scoreAlike scores a layer, compares the scores and returns how often its accelerator
// was asked.
func scoreAlike(t *testing.T, m Metric, l *Layer, fake *fakeAccelerator, want Scores) int {
	got, err := Score(context.Background(), m, l)
	require.NoError(t, err)
	require.Len(t, got, len(want))
	for h := range want {
		require.Len(t, got[h], len(want[h]))
		for i, v := range want[h] {
			if math.IsInf(float64(v), 0) {
				require.Equal(t, v, got[h][i])
				continue
			}
			require.InDelta(t, v, got[h][i], 1e-5*(1+math.Abs(float64(v))), "head %d slot %d", h, i)
		}
	}
	return fake.calls
}

func TestAcceleratedSnapKVNeedsNoQueries(t *testing.T) {
	l := randomAttention(150, 4, 2, 6)
	m := mustMetric(t, MetricConfig{Name: "snapkv"})
	fast := *l
	fast.Accelerator, fast.Queries = &fakeAccelerator{l: l}, nil
	_, err := Score(context.Background(), m, &fast)
	require.NoError(t, err)
	fast.Accelerator = nil
	_, err = Score(context.Background(), m, &fast)
	require.ErrorContains(t, err, "the last queries are missing")
}

func TestSetMoments(t *testing.T) {
	l := randomAttention(150, 4, 2, 6)
	const D = 6
	s := NewQueryStats(4, D, 0, true, l.CPU)
	mean, cov := make([]float64, D), make([]float64, D*D)
	gotMean, gotCov := make([]float64, D), make([]float64, D*D)
	for q := range 4 {
		s.Add(q, 0, l.Queries.Row(3, q), 1, D) // replaced by SetMoments
		l.Stats.Mean(q, mean)
		require.NoError(t, l.Stats.Cov(q, cov))
		s.SetMoments(q, l.Stats.Count(q), mean, cov)
		require.Equal(t, l.Stats.Count(q), s.Count(q))
		s.Mean(q, gotMean)
		require.NoError(t, s.Cov(q, gotCov))
		require.InDeltaSlice(t, mean, gotMean, 1e-14)
		require.InDeltaSlice(t, cov, gotCov, 1e-13)
	}
}
