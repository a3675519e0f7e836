package lukv

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv/solve"
)

// TestOutputGram compares norms computed through the Gram matrix with those
// of the product itself.
func TestOutputGram(t *testing.T) {
	const D, M, n = 16, 40, 9
	rng := rand.New(rand.NewPCG(1, 1))
	w := make([]float32, M*D) // [M][D]
	v := make([]float32, n*D)
	for _, x := range [][]float32{w, v} {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
	}
	clear(v[3*D : 4*D])
	g := NewOutputGram(D)
	for m := range M {
		g.Add(w[m*D : (m+1)*D])
	}
	got := g.Norms(nil, v)
	require.Len(t, got, n)
	for j := range n {
		sq := 0.0
		for m := range M {
			dot := 0.0
			for i := range D {
				dot += float64(w[m*D+i]) * float64(v[j*D+i])
			}
			sq += dot * dot
		}
		require.InDelta(t, math.Sqrt(sq), got[j], 1e-5*(1+math.Sqrt(sq)))
	}
	require.Zero(t, got[3])
	one := NewOutputGram(1)
	one.Add([]float32{3})
	one.Add([]float32{4})
	require.Equal(t, []float32{10, 5}, one.Norms(nil, []float32{2, -1}))
}

// TestOracle checks the maximum over steps and group, the three
// normalisations, and that excluded layers stay out.
func TestOracle(t *testing.T) {
	o, err := NewOracle(3, 4, 2, 3)
	require.NoError(t, err)
	norms := [][][]float32{
		{{1, 2, 3}, {1, 1, 1}, {2, 2, 2}, {4, 1, 1}},
		nil,
		{{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}},
	}
	for _, l := range []int{0, 2} {
		require.NoError(t, o.Include(l))
	}
	_, err = o.Importance(NormLayer)
	require.ErrorContains(t, err, "layer 0 lacks the value norms of query head 0")
	for l, layer := range norms {
		for g, n := range layer {
			require.NoError(t, o.SetNorms(l, g, n))
		}
	}
	steps := []struct {
		l, g int
		a    []float32
	}{
		{0, 0, []float32{0.5, 0.25, 0}},
		{0, 1, []float32{0.25, 0.75, 0}},
		{0, 0, []float32{0.125, 0.5, 0.25}},
		{0, 3, []float32{0.5, 0.5, float32(math.NaN())}},
		{2, 2, []float32{0, 0, 1}},
	}
	// Any order of steps and any concurrency between KV heads give the
	// same.
	var wg sync.WaitGroup
	for kv := range 2 {
		wg.Go(func() {
			for i := range steps {
				if s := steps[len(steps)-1-i]; s.g/2 == kv {
					if err := o.Observe(s.l, s.g, s.a); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	raw, err := o.Importance(NormNone)
	require.NoError(t, err)
	require.Equal(t, [][][]float32{
		{{0.5, 1, 0.75}, {2, 0.5, 0}},
		nil,
		{{0, 0, 0}, {0, 0, 1}},
	}, raw)
	for norm, div := range map[string][]float64{NormLayer: {21, 0, 12}, NormGlobal: {33, 0, 33}} {
		got, err := o.Importance(norm)
		require.NoError(t, err)
		require.Nil(t, got[1])
		for _, l := range []int{0, 2} {
			for h := range got[l] {
				for j := range got[l][h] {
					require.Equal(t, float32(float64(raw[l][h][j])/(div[l]+1e-9)), got[l][h][j])
				}
			}
		}
	}
	o.Reset()
	raw, err = o.Importance(NormNone)
	require.NoError(t, err)
	require.Equal(t, []float32{0, 0, 0}, raw[0][0])

	require.Error(t, o.Include(3))
	require.ErrorContains(t, o.Observe(1, 0, make([]float32, 3)), "layer 1 is not included")
	require.ErrorContains(t, o.Observe(0, 4, make([]float32, 3)), "query head 4 of 4")
	require.ErrorContains(t, o.Observe(0, 0, make([]float32, 2)), "2 positions, expected 3")
	require.ErrorContains(t, o.SetNorms(0, 0, []float32{1, -1, 0}), "value norm -1")
	_, err = o.Importance("head")
	require.ErrorContains(t, err, `normalisation "head" is unknown`)
	_, err = NewOracle(1, 3, 2, 1)
	require.Error(t, err)
}

// TestGlobalNormalizationAllocatesLikeNone: one divisor for the whole model
// cannot move budget.
func TestGlobalNormalizationAllocatesLikeNone(t *testing.T) {
	importance, scores := syntheticModel(3, 2, 128, 6)
	scaled := make([][][]float32, len(importance))
	for l := range importance {
		for _, row := range importance[l] {
			s := make([]float32, len(row))
			for i, v := range row {
				s[i] = v / 4096
			}
			scaled[l] = append(scaled[l], s)
		}
	}
	a, err := solveLevels(t.Context(), importance, scores, Protection{}, solve.SweepOptions{}, nil)
	require.NoError(t, err)
	b, err := solveLevels(t.Context(), scaled, scores, Protection{}, solve.SweepOptions{}, nil)
	require.NoError(t, err)
	require.Equal(t, a.Keep, b.Keep)
}
