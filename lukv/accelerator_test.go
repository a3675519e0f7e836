package lukv

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeAccelerator computes in float64 what Accelerator documents, from a layer's
// keys and values and its newest queries.
type fakeAccelerator struct {
	l           *Layer
	calls       int
	err         error
	unsupported bool
}

// each makes a row for each of n heads, an element per entry of its KV head.
func (a *fakeAccelerator) each(n int, fn func(i, t int) float64) ([][]float32, error) {
	a.calls++
	if a.err != nil {
		return nil, a.err
	}
	if a.unsupported {
		return nil, errors.ErrUnsupported
	}
	out := make([][]float32, n)
	for i := range out {
		for t := range a.l.Len(i * a.l.KVHeads / n) {
			out[i] = append(out[i], float32(fn(i, t)))
		}
	}
	return out, nil
}

func (a *fakeAccelerator) key(h, t int) []float32   { return a.l.Keys(h, t, t+1, nil) }
func (a *fakeAccelerator) value(h, t int) []float32 { return a.l.Values(h, t, t+1, nil) }

func inner(x, y []float32) (v float64) {
	for i := range x {
		v += float64(x[i]) * float64(y[i])
	}
	return v
}

func (a *fakeAccelerator) KeyNorms(context.Context) ([][]float32, error) {
	return a.each(a.l.KVHeads, func(h, t int) float64 { return math.Sqrt(inner(a.key(h, t), a.key(h, t))) })
}

func (a *fakeAccelerator) ValueNorms(context.Context) ([][]float32, error) {
	return a.each(a.l.KVHeads, func(h, t int) float64 { return math.Sqrt(inner(a.value(h, t), a.value(h, t))) })
}

func (a *fakeAccelerator) OutputNorms(context.Context) ([][]float32, error) {
	return a.each(a.l.KVHeads, func(h, t int) float64 { return normsOf(a.l, h)[t] })
}

func (a *fakeAccelerator) MeanCosines(context.Context) ([][]float32, error) {
	return a.each(a.l.KVHeads, func(h, t int) float64 {
		mean, k := make([]float64, a.l.HeadDim), a.key(h, t)
		for other := range a.l.Len(h) {
			x := a.key(h, other)
			for i, v := range x {
				mean[i] += float64(v) / math.Sqrt(inner(x, x))
			}
		}
		var dot, norm float64
		for i, v := range k {
			dot += float64(v) * mean[i]
			norm += mean[i] * mean[i]
		}
		return dot / math.Sqrt(norm*inner(k, k))
	})
}

func (a *fakeAccelerator) QuadraticForms(_ context.Context, linear, form []float32) ([][]float32, error) {
	D := a.l.HeadDim
	return a.each(a.l.Heads, func(q, t int) float64 {
		k := a.key(q/a.l.Group(), t)
		v := inner(k, linear[q*D:(q+1)*D])
		for i := 0; i < D && form != nil; i++ {
			v += float64(k[i]) * inner(k, form[(q*D+i)*D:(q*D+i+1)*D])
		}
		return v
	})
}

// unrotated is a key with its rotation undone, but not its scale.
func (a *fakeAccelerator) unrotated(h, t int, frequencies []float64) []float64 {
	k, out := a.key(h, t), make([]float64, a.l.HeadDim)
	for i, f := range frequencies {
		sin, cos := math.Sincos(f * float64(positionOf(a.l.positions(h), t)))
		x, y := float64(k[i]), float64(k[len(frequencies)+i])
		out[i], out[len(frequencies)+i] = x*cos+y*sin, y*cos-x*sin
	}
	return out
}

func (a *fakeAccelerator) KeyDistances(_ context.Context, frequencies []float64) ([][]float32, error) {
	return a.each(a.l.KVHeads, func(h, t int) (distance float64) {
		for i, v := range a.unrotated(h, t, frequencies) {
			mean := 0.0
			for other := range a.l.Len(h) {
				mean += a.unrotated(h, other, frequencies)[i] / float64(a.l.Len(h))
			}
			distance += (v - mean) * (v - mean)
		}
		return distance
	})
}

func (a *fakeAccelerator) LinearForms(_ context.Context, keys, values []float32, frequencies []float64) ([][]float32, error) {
	D := a.l.HeadDim
	return a.each(a.l.KVHeads, func(h, t int) float64 {
		v := inner(a.value(h, t), values[h*D:(h+1)*D])
		for i, x := range a.unrotated(h, t, frequencies) {
			v += x * float64(keys[h*D+i])
		}
		return v
	})
}

func (a *fakeAccelerator) WindowMeans(_ context.Context, w int) ([][]float32, error) {
	return a.each(a.l.Heads, func(q, t int) (mean float64) {
		for i := a.l.Queries.Len() - w; i < a.l.Queries.Len(); i++ {
			if p := a.l.Queries.Position(i); t <= p { // slots are positions
				mean += attentionOf(a.l, q/a.l.Group(), a.l.Queries.Row(i, q), p)[t] / float64(w)
			}
		}
		return mean
	})
}

// TestAcceleratedMetrics: metrics that are made of reductions give the same scores on a
// device, and read the layer where a device cannot compute one.
func TestAcceleratedMetrics(t *testing.T) {
	calls := map[string]int{ // of metrics with these reductions; the others call none
		"snapkv": 1, "snapkv avg": 1, "snapkv max first": 1, "keydiff": 1, "knorm": 1, "expected_attention": 2, "ea plain": 1,
		"tova": 1, "criticalkv": 1, "defensivekv": 1, "compactor": 1, "compactor chunks": 1, "cur": 2, "cur mean": 2,
		"chunkkv": 1, "chunkkv each": 1, "key_distance": 1, "key_distance values": 1, "learned": 3,
	}
	for _, heads := range [][2]int{{4, 2}, {3, 3}, {4, 1}} {
		l := randomAttention(70, heads[0], heads[1], 6)
		l.Share = 30
		withSums(t, l, 5)
		all := everyMetric(t)
		all["learned"] = WithCalibration(learnedMetric(t), randomRankings(l.Index+1, heads[1], 6))
		for name, m := range all {
			t.Run(name, func(t *testing.T) {
				want, err := Score(context.Background(), m, l)
				require.NoError(t, err)
				fast := *l
				fake := &fakeAccelerator{l: l}
				fast.Accelerator = fake
				require.Equal(t, calls[name], scoreAlike(t, m, &fast, fake, want))
				if fake.calls == 0 {
					return
				}
				fake.unsupported = true
				got, err := Score(context.Background(), m, &fast)
				require.NoError(t, err)
				require.Equal(t, want, got)
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
			require.InDelta(t, v, got[h][i], 2e-5*(1+math.Abs(float64(v))), "head %d slot %d", h, i)
		}
	}
	return fake.calls
}

// TestReductionsAllocateNothing: in a scratch, once its memory has grown.
func TestReductionsAllocateNothing(t *testing.T) {
	ctx := t.Context()
	l := randomAttention(300, 4, 2, 8)
	l.Scratch = &Scratch{Scores: true}
	defer l.Scratch.Close()
	D := l.HeadDim
	linear, form := make([]float32, 4*D), make([]float32, 4*D*D)
	probs := make([]float32, 2*300)
	queries, positions := make([]float32, 2*D), []int{7, 299}
	var sum float32
	for name, call := range map[string]func() error{
		"key norms":    func() error { _, err := l.SquaredKeyNorms(ctx); return err },
		"value norms":  func() error { _, err := l.SquaredValueNorms(ctx); return err },
		"output norms": func() error { _, err := l.OutputNorms(ctx); return err },
		"cosines":      func() error { _, err := l.MeanCosines(ctx); return err },
		"distances":    func() error { _, err := l.keyDistances(ctx); return err },
		"forms":        func() error { _, err := l.QuadraticForms(ctx, linear, form); return err },
		"window":       func() error { _, err := l.WindowMeans(ctx, 16); return err },
		"scores":       func() error { l.NewScores(); return nil },
		"keys":         func() error { return l.EachKeys(ctx, 1, func(_, _ int, x []float32) { sum += x[0] }) },
		"values":       func() error { return l.EachValues(ctx, 1, func(_, _ int, x []float32) { sum += x[0] }) },
		"attention":    func() error { return l.Attend(ctx, 0, queries, positions, probs) },
		"each row":     func() error { return l.WindowAttention(ctx, 1, 16, func(_ int, p []float32) { sum += p[0] }) },
	} {
		step := func() {
			l.Scratch.Next()
			if err := call(); err != nil {
				t.Fatal(name, err)
			}
		}
		step()
		require.Zero(t, testing.AllocsPerRun(20, step), name)
	}
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
