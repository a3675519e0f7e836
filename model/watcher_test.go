package model

import (
	"context"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// everythingSeen is a metric that asks for everything that passes by and records it
// in seenLayers.
type everythingSeen struct{}

const (
	everythingName   = "everything_seen"
	everythingWindow = 12
	everythingHidden = 9
	everythingSkip   = 4
)

func init() { lukv.RegisterMetric(everythingName, everythingSeen{}) }

// seenLayers is what everythingSeen was shown, by layer.
var seenLayers struct {
	sync.Mutex
	of    map[int]*seenLayer
	times int // how often it was asked for scores
}

type seenLayer struct {
	positions []int       // of the window's queries
	queries   [][]float32 // [window][H*D]
	sums      [][]float64 // [K][T] attention received, averaged over a group's heads
	seen      [][]int64   // [K][T] rows that could see an entry
	counts    []int       // [H] queries in the statistics
	hidden    int         // position of the first hidden state
}

func (everythingSeen) Needs(T, _ int) lukv.Needs {
	return lukv.Needs{
		Keys: true, Window: min(T, everythingWindow), Hidden: min(T, everythingHidden), ColumnSums: true, Stats: true, StatsSkip: everythingSkip,
	}
}

func (everythingSeen) Protection(int, int) lukv.Protection { return lukv.Protection{} }

func (everythingSeen) Score(_ context.Context, l *lukv.Layer) (lukv.Scores, error) {
	x := &seenLayer{hidden: l.Hidden.From}
	for i := range l.Queries.Len() {
		var row []float32
		for q := range l.Heads {
			row = append(row, l.Queries.Row(i, q)...)
		}
		x.positions, x.queries = append(x.positions, l.Queries.Position(i)), append(x.queries, row)
	}
	for q := range l.Heads {
		x.counts = append(x.counts, l.Stats.Count(q))
	}
	s := make(lukv.Scores, l.KVHeads)
	for h := range s {
		var sums []float64
		var seen []int64
		for e := range l.Sums.Len(h) {
			sums, seen = append(sums, l.Sums.Mean(h, e)), append(seen, l.Sums.Seen(h, e))
		}
		x.sums, x.seen = append(x.sums, sums), append(x.seen, seen)
		s[h] = make([]float32, l.Len(h))
		for e := range s[h] {
			s[h][e] = float32(e)
		}
	}
	seenLayers.Lock()
	defer seenLayers.Unlock()
	seenLayers.times++
	if seenLayers.of != nil {
		seenLayers.of[l.Index] = x
	}
	return s, nil
}

// TestWhatMetricsSee: whether a span is the whole prompt, a later one that passes by, or
// one that passes by again, even if shorter than the window of queries, metrics see its
// queries, its attention and nothing of other layers and spans, compared with a plain
// float64 forward pass.
func TestWhatMetricsSee(t *testing.T) {
	ctx := context.Background()
	policy := &lukv.Policy{Metric: lukv.MetricConfig{Name: everythingName}, Ratio: 0.5}
	for _, shape := range []testShape{testShapes[0], testShapes[3]} {
		m := shape.open(t, WithPrecision(PrecisionF32), WithThreads(2))
		c := m.cfg
		tokens := randomTokens(60, 97, 1)
		for _, tt := range []struct {
			name     string
			from, to int
			run      func(s *Session) error
		}{
			{"a prompt", 0, 60, func(s *Session) error { return s.Prefill(ctx, tokens) }},
			{"a span that passes by", 40, 60, func(s *Session) error {
				require.NoError(t, s.Prefill(ctx, tokens[:40]))
				return s.PrefillCompressed(ctx, tokens[40:], policy)
			}},
			{"a short span that passes by", 40, 45, func(s *Session) error {
				require.NoError(t, s.Prefill(ctx, tokens[:40]))
				return s.PrefillCompressed(ctx, tokens[40:45], policy)
			}},
			{"a short span that passes by again", 40, 45, func(s *Session) error {
				require.NoError(t, s.Prefill(ctx, tokens))
				return s.Compress(ctx, Span{40, 45}, policy)
			}},
		} {
			seenLayers.of = map[int]*seenLayer{}
			o := SessionOptions{ChunkTokens: 7}
			if tt.from == 0 {
				o.Compression = policy
			}
			s := newTestSession(t, m, o)
			require.NoError(t, tt.run(s), tt.name)

			e := &exactModel{cfg: c, rope: m.net.Ropes[0], w: m.weights, mats: map[*byte][]float64{}}
			e.reset()
			queries := make([][][]float64, c.Layers) // [L][T][H*D]
			e.saw = func(layer int, q []float64) { queries[layer] = append(queries[layer], append([]float64(nil), q...)) }
			for _, token := range tokens[:tt.to] {
				e.next(token, 0)
			}
			for l := range c.Layers {
				what := fmt.Sprintf("%s, %s, layer %d", shape.name, tt.name, l)
				got := seenLayers.of[l]
				require.NotNil(t, got, what)
				n := tt.to - tt.from
				require.Len(t, got.positions, min(n, everythingWindow), what)
				for i, p := range got.positions {
					require.Equal(t, tt.to-len(got.positions)+i, p, what)
					for k, v := range queries[l][p] {
						require.InDelta(t, v, float64(got.queries[i][k]), 1e-3, "%s, query %d at %d", what, k, p)
					}
				}
				require.Equal(t, tt.to-min(n, everythingHidden), got.hidden, what)
				for _, count := range got.counts {
					require.Equal(t, tt.to-max(tt.from, everythingSkip), count, what)
				}
				for h := range c.KVHeads {
					want := attentionReceived(c, e.keys[l], queries[l], h, tt.from)
					require.Len(t, got.sums[h], tt.to, what)
					for j, v := range want {
						require.InDelta(t, v, got.sums[h][j], 1e-3, "%s, head %d entry %d", what, h, j)
						require.EqualValues(t, tt.to-max(j, tt.from), got.seen[h][j], "%s, head %d entry %d", what, h, j)
					}
				}
			}
		}
	}
}

// attentionReceived returns the attention that the entries of a KV head receive from the
// queries at position from and above, averaged over the group's query heads.
func attentionReceived(c *Config, keys, queries [][]float64, h, from int) []float64 {
	d, group := c.HeadDim, c.Heads/c.KVHeads
	out := make([]float64, len(keys))
	for p := from; p < len(queries); p++ {
		for g := h * group; g < (h+1)*group; g++ {
			weights, total := make([]float64, p+1), 0.0
			for j := range weights {
				for i := range d {
					weights[j] += queries[p][g*d+i] * keys[j][h*d+i]
				}
				weights[j] = math.Exp(weights[j] / math.Sqrt(float64(d)))
				total += weights[j]
			}
			for j, w := range weights {
				out[j] += w / total / float64(group)
			}
		}
	}
	return out
}
