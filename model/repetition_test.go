package model

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// TestRepetition compares a repetition's scores of the context (specification 3.4) with
// a plain float64 forward pass: each chunk is fed again after the whole context, and an
// entry's score is the most attention that a query pays to it among the sinks, its chunk
// and the queries' own keys.
func TestRepetition(t *testing.T) {
	ctx := context.Background()
	const T, chunk, prefix, sinks, suffix = 45, 16, 5, 3, "\n"
	for _, shape := range []testShape{testShapes[0], testShapes[2]} {
		cfg := shape.config()
		cfg.Vocab = 2176
		m, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithPrecision(PrecisionF32), WithThreads(2))
		require.NoError(t, err)
		defer m.Close()
		m.tokOnce.Do(func() { m.tok, m.tokErr = tokenizer.Load(os.DirFS("builtin")) })
		tok, err := m.Tokenizer()
		require.NoError(t, err)
		tokens := randomTokens(T, cfg.Vocab, 1)
		words := func(s string) []int32 { return tok.Encode(s, tokenizer.EncodeOptions{}) }

		// By definition, without and with the norms of "KVzip+".
		e := &exactModel{cfg: cfg, rope: m.net.Ropes[0], w: m.weights, mats: map[*byte][]float64{}}
		e.reset()
		weigher := newExactImportance(e, T)
		queries, inputs := make([][][]float64, cfg.Layers), make([][]float64, cfg.Layers)
		e.saw = func(l int, q []float64) { queries[l] = append(queries[l], slices.Clone(q)) }
		e.fed = func(l int, x []float64) {
			square := 0.0
			for _, v := range x {
				square += v * v
			}
			inputs[l] = append(inputs[l], math.Sqrt(square))
		}
		for _, token := range tokens {
			e.next(token, 0)
		}
		want, norms := map[[4]int]float64{}, map[[3]int]float64{} // by plus, layer, KV head and position; by layer, head and position
		for l := range cfg.Layers {
			for g := range cfg.Heads {
				for j := range T {
					norms[[3]int{l, g, j}] = weigher.norm(l, g, j)
				}
			}
		}
		for from := prefix; from < T; from += chunk {
			to := min(from+chunk, T)
			lead := words("\n\nRepeat the previous context exactly.")
			if from > prefix {
				lead = append(words("\n\nRepeat the part of the previous context exactly, starting with"), tokens[from-8:from]...)
			}
			clear(queries)
			clear(inputs)
			for _, token := range slices.Concat(lead, words(suffix), tokens[from:to]) {
				e.next(token, 0)
			}
			for l := range cfg.Layers {
				for g := range cfg.Heads {
					for i, q := range queries[l] {
						for j, p := range repeatAttention(e, l, g, q, min(sinks, from), from, to, T+i) {
							at := [4]int{0, l, g / (cfg.Heads / cfg.KVHeads), from + j}
							want[at] = max(want[at], p)
							at[0] = 1
							want[at] = max(want[at], p*norms[[3]int{l, g, from + j}]/inputs[l][i])
						}
					}
				}
				e.keys[l], e.vals[l] = e.keys[l][:T], e.vals[l][:T]
			}
		}

		for plus, rows := range []int{7, 512} {
			traced := false
			s := newTestSession(t, m, SessionOptions{
				ChunkTokens: rows,
				Compression: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "kvzip",
					Params: fmt.Sprintf(`{"chunk":%d,"prefix":%d,"sinks":%d,"suffix":%q,"plus":%v}`, chunk, prefix, sinks, suffix, plus > 0)}},
				Trace: func(x *Trace) {
					traced = true
					for l := range cfg.Layers {
						if cfg.Windows[l] > 0 {
							require.Nil(t, x.Scores[l])
							continue
						}
						for h := range cfg.KVHeads {
							for j := prefix; j < T; j++ {
								require.InEpsilon(t, want[[4]int{plus, l, h, j}], float64(x.Scores[l][h][j]), 1e-3, "%s, plus %d, layer %d head %d position %d", shape, plus, l, h, j)
							}
						}
					}
				},
			})
			require.NoError(t, s.Prefill(ctx, tokens))
			require.True(t, traced)
			whole := s

			// In pieces, the repetition is read in pieces as well.
			traced = false
			var before, most int
			opts := s.opts
			opts.Progress = func(done, _ int) { before, most = done, max(most, done-before) }
			s = newTestSession(t, m, opts)
			p, err := s.StartPrefill(tokens, nil)
			require.NoError(t, err)
			for !p.Done() {
				require.NoError(t, p.Advance(ctx, 3))
			}
			require.True(t, traced)
			require.LessOrEqual(t, most, min(rows, 3*cfg.Layers))
			sameSession(t, "pieces", whole, s)
		}
		// If everything is prefix, nothing is repeated, and nothing has a score.
		metric, err := lukv.NewMetric(lukv.MetricConfig{Name: "kvzip", Params: `{"prefix":45}`})
		require.NoError(t, err)
		ob, err := m.Observe(ctx, tokens, SessionOptions{}, metric)
		require.NoError(t, err)
		defer ob.Close()
		scores, err := ob.Scores(ctx, metric, 0, 0)
		require.NoError(t, err)
		require.Equal(t, make([]float32, T), scores[1])
	}
}

// repeatAttention returns the attention that query q of head g, at position last, pays to
// the entries of a chunk, [from, to), if it sees the sinks, the chunk, and the repetition
// up to itself.
func repeatAttention(e *exactModel, layer, g int, q []float64, sinks, from, to, last int) []float64 {
	d, keys := e.cfg.HeadDim, e.keys[layer]
	h := g / (e.cfg.Heads / e.cfg.KVHeads)
	weight := func(j int) float64 {
		z := 0.0
		for i := range d {
			z += q[g*d+i] * keys[j][h*d+i]
		}
		return math.Exp(z / math.Sqrt(float64(d)))
	}
	const T = 45
	total := 0.0
	for j := range sinks {
		total += weight(j)
	}
	for j := T; j <= last; j++ {
		total += weight(j)
	}
	out := make([]float64, to-from)
	for j := range out {
		out[j] = weight(from + j)
		total += out[j]
	}
	for j := range out {
		out[j] /= total
	}
	return out
}

// TestRepetitionTakesItsMemoryFirst: a repetition takes its memory before the first
// layer runs.
func TestRepetitionTakesItsMemoryFirst(t *testing.T) {
	cfg := testShapes[0].config()
	cfg.Vocab = 2176
	m, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithThreads(2), WithMaxMemory(1<<30))
	require.NoError(t, err)
	defer m.Close()
	m.tokOnce.Do(func() { m.tok, m.tokErr = tokenizer.Load(os.DirFS("builtin")) })
	const n = 100
	first, most := int64(0), int64(0)
	o := SessionOptions{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "kvzip", Params: `{"chunk":20}`}, Ratio: 0.5}}
	o.Progress = func(int, int) {
		if first == 0 {
			first = m.memory.Used()
		}
		most = max(most, m.memory.Used())
	}
	s := newTestSession(t, m, o)
	require.NoError(t, s.Prefill(t.Context(), randomTokens(n, cfg.Vocab, 1)))
	require.Greater(t, first, 4*int64(2*n*cfg.Hidden), "the context and its repetition")
}
