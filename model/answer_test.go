package model

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

// exactErrors computes output errors by their definition: attention in float64 over
// a cache that holds only what is kept of the context, and what follows it.
type exactErrors struct {
	e       *exactModel
	context int
	counts  bool                          // whether the token in progress is a step
	kept    func(layer, head, j int) bool // of the context
	sums    map[[2]int]float64            // by layer and KV head
}

func (x *exactErrors) saw(layer int, q []float64) {
	if !x.counts {
		return
	}
	c := x.e.cfg
	d, group := c.HeadDim, c.Heads/c.KVHeads
	o := x.e.widened(x.e.w.Layers[layer].Tensors[arch.RoleO]) // [Hidden, Heads*HeadDim]
	for h := range c.KVHeads {
		dy := make([]float64, c.Hidden)
		for g := h * group; g < (h+1)*group; g++ {
			cut := x.attend(layer, h, q[g*d:(g+1)*d], func(j int) bool { return j >= x.context || x.kept(layer, h, j) })
			full := x.attend(layer, h, q[g*d:(g+1)*d], func(int) bool { return true })
			for row := range dy {
				for i := range d {
					dy[row] += o[row*c.Heads*d+g*d+i] * (cut[i] - full[i])
				}
			}
		}
		for _, v := range dy {
			x.sums[[2]int{layer, h}] += v * v
		}
	}
}

// attend returns the attention of one query over the entries that are there.
func (x *exactErrors) attend(layer, h int, q []float64, there func(j int) bool) []float64 {
	d := len(q)
	out, total := make([]float64, d), 0.0
	for j, k := range x.e.keys[layer] {
		if !there(j) {
			continue
		}
		z := 0.0
		for i := range d {
			z += q[i] * k[h*d+i]
		}
		w := math.Exp(z / math.Sqrt(float64(d)))
		total += w
		for i := range d {
			out[i] += w * x.e.vals[layer][j][h*d+i]
		}
	}
	for i := range out {
		out[i] /= total
	}
	return out
}

// answerOptions are those of a short answer that does not end early.
var answerOptions = MeasureOptions{MaxTokens: 5, Sampling: Sampling{IgnoreEOS: true}}

// TestAnswerOutputErrors compares errors with attention recomputed on the cut
// cache, in a plain float64 forward pass.
func TestAnswerOutputErrors(t *testing.T) {
	for _, shape := range testShapes {
		t.Run(shape.name, func(t *testing.T) {
			const T = 40
			m := shape.open(t, WithPrecision(PrecisionF32), WithThreads(2))
			text, question := randomTokens(T, 97, 1), randomTokens(4, 97, 2)
			ob, err := m.Observe(t.Context(), text, SessionOptions{})
			require.NoError(t, err)
			defer ob.Close()
			a, err := ob.Answer(t.Context(), question, answerOptions)
			require.NoError(t, err)
			defer a.Close()
			require.Equal(t, 5, a.Steps())
			require.Equal(t, 1, a.Passes())

			order := make([]int32, T)
			for j := range order {
				order[j] = int32(j * 7 % T)
			}
			counts := []int{3, 11, T}
			for i, n := range counts {
				kept := order[:n]
				e := &exactModel{cfg: m.cfg, rope: m.net.Ropes[0], w: m.weights, mats: map[*byte][]float64{}}
				e.reset()
				x := &exactErrors{e: e, context: T, sums: map[[2]int]float64{}, kept: func(_, _, j int) bool { return slices.Contains(kept, int32(j)) }}
				e.saw = x.saw
				for at, token := range slices.Concat(text, a.tail) {
					x.counts = at >= T+len(question)-1
					e.next(token, 0)
				}
				for l := range m.cfg.Layers {
					for h := range m.cfg.KVHeads {
						if m.cfg.Windows[l] > 0 {
							_, err := a.OutputErrors(t.Context(), l, h, [][]int32{order}, counts)
							require.ErrorContains(t, err, "nothing to measure")
							continue
						}
						got, err := a.OutputErrors(t.Context(), l, h, [][]int32{order, order}, counts)
						require.NoError(t, err)
						require.Equal(t, got[0], got[1])
						require.InDelta(t, x.sums[[2]int{l, h}], got[0][i], 1e-3*got[0][0], "layer %d head %d, %d kept", l, h, n)
						require.Zero(t, got[0][2])
					}
				}
			}
		})
	}
}

// TestAnswerCutAlone: in a pass over a cache with one head cut, the queries of its
// layer are bit-identical to those of the full cache, so that its error is what the
// pass changes in the layer's attention; and the divergence is that of the logits.
func TestAnswerCutAlone(t *testing.T) {
	shape := testShapes[0]
	m := shape.open(t, WithThreads(2))
	ob, err := m.Observe(t.Context(), randomTokens(60, 97, 3), SessionOptions{})
	require.NoError(t, err)
	defer ob.Close()
	a, err := ob.Answer(t.Context(), randomTokens(6, 97, 4), answerOptions)
	require.NoError(t, err)
	defer a.Close()

	const layer, head = 1, 1
	slots := []int32{0, 5, 6, 30, 59}
	s, err := ob.fork()
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.cache.Keep(layer, head, slots))
	s.answer = make([]*lukv.QueryWindow, m.cfg.Layers)
	for l := range s.answer {
		s.answer[l] = lukv.NewQueryWindow(m.cfg.Heads, m.cfg.HeadDim, a.Steps())
	}
	want := 0.0
	require.NoError(t, s.PrefillEach(t.Context(), a.tail, func(i int, logits []float32) error {
		if row := i - (len(a.tail) - a.Steps()); row >= 0 {
			want += plainDivergence(a.logits[row], logits)
		}
		return nil
	}))
	for l := range layer + 1 {
		require.Equal(t, a.queries[l], s.answer[l], "layer %d", l)
	}
	require.NotEqual(t, a.queries[layer+1], s.answer[layer+1])

	kept := make([][][]int32, m.cfg.Layers)
	whole := make([]int32, 60)
	for j := range whole {
		whole[j] = int32(j)
	}
	kept[layer] = [][]int32{whole, slots}
	got, err := a.Divergence(t.Context(), kept)
	require.NoError(t, err)
	require.InEpsilon(t, want, got, 1e-9)
	require.Positive(t, got)

	// Nothing cut, and a layer cut to its full length.
	for _, nothing := range [][][][]int32{nil, {nil, {whole, whole}, nil}} {
		got, err := a.Divergence(t.Context(), nothing)
		require.NoError(t, err)
		require.Zero(t, got)
	}
	require.Equal(t, 4, a.Passes())
	_, err = a.Divergence(t.Context(), [][][]int32{{{70}}})
	require.ErrorContains(t, err, "cut layer 0")
}

// plainDivergence is Σ p·ln(p/q) with both softmaxes written out.
func plainDivergence(p, q []float32) float64 {
	softmax := func(x []float32) []float64 {
		out, sum := make([]float64, len(x)), 0.0
		for i, v := range x {
			out[i] = math.Exp(float64(v) - float64(slices.Max(x)))
			sum += out[i]
		}
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	a, b, kl := softmax(p), softmax(q), 0.0
	for i := range a {
		kl += a[i] * math.Log(a[i]/b[i])
	}
	return kl
}

// TestAnswerWithoutOutput: a layer whose output projection is 0 has no errors and
// no effect.
func TestAnswerWithoutOutput(t *testing.T) {
	shape := testShapes[0]
	cfg := shape.config()
	w := randomWeights(t, cfg, tensor.BF16, 7)
	clear(w.Layers[1].Tensors[arch.RoleO].Data)
	m, err := New(cfg, w)
	require.NoError(t, err)
	defer m.Close()
	ob, err := m.Observe(t.Context(), randomTokens(50, 97, 3), SessionOptions{})
	require.NoError(t, err)
	defer ob.Close()
	a, err := ob.Answer(t.Context(), randomTokens(6, 97, 4), answerOptions)
	require.NoError(t, err)
	defer a.Close()
	order := make([]int32, 50)
	for j := range order {
		order[j] = int32(j)
	}
	for l := range cfg.Layers {
		rows, err := a.OutputErrors(t.Context(), l, 0, [][]int32{order}, []int{2, 50})
		require.NoError(t, err)
		kept := make([][][]int32, cfg.Layers)
		kept[l] = [][]int32{{1, 2}, {1, 2}}
		d, err := a.Divergence(t.Context(), kept)
		require.NoError(t, err)
		if l == 1 {
			require.Zero(t, rows[0][0])
			require.Zero(t, d)
		} else {
			require.Positive(t, rows[0][0])
			require.Positive(t, d)
		}
	}
	_, err = ob.Answer(t.Context(), nil, answerOptions)
	require.ErrorContains(t, err, "empty")
}

// TestRetrieved compares how strongly heads read a fact with the definition, in a plain
// float64 forward pass: of the k largest entries of every step's attention, those that
// lie in a fact of k entries add theirs, divided by k.
func TestRetrieved(t *testing.T) {
	for _, shape := range []testShape{testShapes[0], testShapes[2]} {
		const T = 40
		m := shape.open(t, WithPrecision(PrecisionF32), WithThreads(2))
		c := m.cfg
		text, question := randomTokens(T, 97, 1), randomTokens(4, 97, 2)
		ob, err := m.Observe(t.Context(), text, SessionOptions{})
		require.NoError(t, err)
		defer ob.Close()
		a, err := ob.Answer(t.Context(), question, answerOptions)
		require.NoError(t, err)
		defer a.Close()

		e := &exactModel{cfg: c, rope: m.net.Ropes[0], w: m.weights, mats: map[*byte][]float64{}}
		e.reset()
		counts := false
		queries := make([][][]float64, c.Layers) // [L][steps]
		e.saw = func(layer int, q []float64) {
			if counts {
				queries[layer] = append(queries[layer], slices.Clone(q))
			}
		}
		for at, token := range slices.Concat(text, a.tail) {
			counts = at >= T+len(question)-1
			e.next(token, 0)
		}
		d, group := c.HeadDim, c.Heads/c.KVHeads
		for _, fact := range [][2]int{{0, T}, {0, 1}, {17, 29}, {T - 1, T}} {
			for l := range c.Layers {
				if c.Windows[l] > 0 {
					_, err := a.Retrieved(t.Context(), l, 0, fact[0], fact[1])
					require.ErrorContains(t, err, "nothing to measure")
					continue
				}
				for h := range c.KVHeads {
					got, err := a.Retrieved(t.Context(), l, h, fact[0], fact[1])
					require.NoError(t, err)
					require.Len(t, got, group)
					for g, v := range got {
						want, k := 0.0, fact[1]-fact[0]
						for step, q := range queries[l] {
							keys := e.keys[l][:T+len(question)+step]
							weights, total := make([]float64, len(keys)), 0.0
							for j := range keys {
								for i := range d {
									weights[j] += q[(h*group+g)*d+i] * keys[j][h*d+i]
								}
								weights[j] = math.Exp(weights[j] / math.Sqrt(float64(d)))
								total += weights[j]
							}
							sorted := slices.Sorted(slices.Values(weights))
							for j := fact[0]; j < fact[1]; j++ {
								if weights[j] >= sorted[len(sorted)-k] {
									want += weights[j] / total / float64(k)
								}
							}
						}
						require.InDelta(t, want, v, 1e-4, "%s, layer %d, head %d of KV head %d, fact %v", shape.name, l, g, h, fact)
					}
				}
			}
		}
		for _, at := range [][2]int{{-1, 0}, {c.Layers, 0}, {0, -1}, {0, c.KVHeads}} {
			_, err := a.Retrieved(t.Context(), at[0], at[1], 0, 1)
			require.ErrorContains(t, err, "nothing to measure")
			_, err = a.OutputErrors(t.Context(), at[0], at[1], nil, nil)
			require.ErrorContains(t, err, "nothing to measure")
		}
		for _, fact := range [][2]int{{-1, 3}, {3, 3}, {4, 3}, {T - 1, T + 1}} {
			_, err := a.Retrieved(t.Context(), 0, 0, fact[0], fact[1])
			require.ErrorContains(t, err, fmt.Sprintf("positions %d to %d of %d", fact[0], fact[1], T))
		}
	}
}
