package lukv

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRepetitionMatchesDefinition: the queries of a repetition attend to the first
// sinks, to the chunk and to what has been repeated so far, in one softmax; an entry
// gets the most that any query of its group pays to it, for KVzip+ times the length of
// what its value adds to the output, divided by the length of the query's input. Two
// chunks, with more repeated rows than are computed at a time, fill everything after
// the prefix.
func TestRepetitionMatchesDefinition(t *testing.T) {
	const T, K, G, D, prefix, sinks = 90, 2, 2, 6, 2, 4
	rng := rand.New(rand.NewPCG(6, 6))
	for _, plus := range []bool{false, true} {
		l := randomAttention(T, K*G, K, D)
		l.Keys, l.Values = filling(l.Keys, D), filling(l.Values, D)
		got := NewRepeatScores([]int{T, T})
		want := [][]float64{make([]float64, T), make([]float64, T)}
		for _, bounds := range [][2]int{{prefix, 10}, {10, T}} {
			from, to := bounds[0], bounds[1]
			m := to - from + 3 // preceded by an instruction
			queries, own := make([]float32, m*K*G*D), [][]float32{make([]float32, m*D), make([]float32, m*D)}
			for _, x := range [][]float32{queries, own[0], own[1]} {
				for i := range x {
					x[i] = float32(rng.NormFloat64())
				}
			}
			r := Repetition{From: from, To: to, Sinks: sinks, Queries: queries, Keys: func(h int) []float32 { return own[h] }}
			if plus {
				for range m {
					r.Inputs = append(r.Inputs, 0.5+rng.Float32())
				}
			}
			for h := range K {
				require.NoError(t, got.Add(context.Background(), l, h, r))
				keys, values := l.Keys(h, 0, T, make([]float32, T*D)), l.Values(h, 0, T, make([]float32, T*D))
				for q := h * G; q < (h+1)*G; q++ {
					for i := range m {
						exp := func(k []float32) float64 {
							z := 0.0
							for c := range D {
								z += float64(queries[(i*K*G+q)*D+c]) * float64(k[c])
							}
							return math.Exp(z / math.Sqrt(D))
						}
						sum := 0.0
						for j := range min(sinks, from) {
							sum += exp(keys[j*D:])
						}
						for j := from; j < to; j++ {
							sum += exp(keys[j*D:])
						}
						for j := range i + 1 {
							sum += exp(own[h][j*D:])
						}
						for j := from; j < to; j++ {
							v := exp(keys[j*D:]) / sum
							if plus {
								v *= outputLength(l, q, values[j*D:(j+1)*D]) / float64(r.Inputs[i])
							}
							want[h][j] = max(want[h][j], v)
						}
					}
				}
			}
		}
		l.Repeats = got
		s, err := Score(context.Background(), mustMetric(t, configured("kvzip", "plus", plus, "prefix", prefix)), l)
		require.NoError(t, err)
		for h := range K {
			require.Equal(t, []float32{0, 0}, s[h][:prefix], "nobody repeats the prefix")
			for i := prefix; i < T; i++ {
				require.InEpsilon(t, want[h][i], s[h][i], 1e-4, "plus %v head %d entry %d", plus, h, i)
			}
		}
	}
}

// outputLength returns ‖v·W_O‖₂ for a query head.
func outputLength(l *Layer, q int, v []float32) float64 {
	w, sum := l.Output(q, 0, l.OutputDim, make([]float32, l.OutputDim*l.HeadDim)), 0.0
	for m := range l.OutputDim {
		y := 0.0
		for i, x := range v {
			y += float64(x) * float64(w[m*l.HeadDim+i])
		}
		sum += y * y
	}
	return math.Sqrt(sum)
}

// filling returns a reader that fills the buffer it is given, like a cache of
// another element type.
func filling(rows rowReader, D int) rowReader {
	return func(h, lo, hi int, dst []float32) []float32 {
		dst = dst[:(hi-lo)*D]
		copy(dst, rows(h, lo, hi, nil))
		return dst
	}
}

func TestKVzipProtection(t *testing.T) {
	for _, c := range []struct{ prefix, sinks, T, want int }{{0, 4, 100, 4}, {20, 4, 100, 20}, {3, 4, 100, 4}, {20, 4, 11, 11}} {
		m := mustMetric(t, configured("kvzip", "prefix", c.prefix, "sinks", c.sinks))
		require.Equal(t, Protection{Sinks: c.want}, m.Protection(c.T, 0))
	}
}

func TestRepetitionErrors(t *testing.T) {
	l := randomAttention(10, 2, 1, 4)
	good := Repetition{From: 2, To: 10, Sinks: 4, Queries: make([]float32, 3*8), Keys: func(int) []float32 { return make([]float32, 3*4) }}
	require.NoError(t, NewRepeatScores([]int{10}).Add(context.Background(), l, 0, good))
	for want, change := range map[string]func(r *Repetition){
		"found a chunk of slots [-1,10), expected some of 10":                                    func(r *Repetition) { r.From = -1 },
		"found a chunk of slots [2,11), expected some of 10":                                     func(r *Repetition) { r.To = 11 },
		"found a chunk of slots [10,10), expected some of 10":                                    func(r *Repetition) { r.From = 10 },
		"found 23 query values, 12 key values and 0 input norms":                                 func(r *Repetition) { r.Queries = r.Queries[1:] },
		"found 24 query values, 11 key values and 0 input norms":                                 func(r *Repetition) { r.Keys = func(int) []float32 { return make([]float32, 11) } },
		"found 24 query values, 12 key values and 2 input norms, expected those of equally many": func(r *Repetition) { r.Inputs = []float32{1, 1} },
	} {
		r := good
		change(&r)
		require.ErrorContains(t, NewRepeatScores([]int{10}).Add(context.Background(), l, 0, r), "score layer 0 by repetition: "+want)
	}
}
