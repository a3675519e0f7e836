package model

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/tensor"
)

// unattended is how far below the largest a score lies, in nats, whose weight is 0 in
// float32, with a margin.
const unattended = 120

// attendedBy marks the slots of s that a row of a probe's tails attends to, [L][K][slot].
func attendedBy(t *testing.T, p *LossProbe, s *Session, scale float64) [][][]bool {
	c := s.m.cfg
	out := make([][][]bool, c.Layers)
	for at := range out {
		out[at] = make([][]bool, c.KVHeads)
		for h := range out[at] {
			out[at][h] = make([]bool, p.span.To)
		}
	}
	for i := range p.passages {
		f, err := s.probing(p.span.To, p.limit)
		require.NoError(t, err)
		defer f.Close()
		tail := p.tail(&p.passages[i])
		f.answer = make([]*lukv.QueryWindow, c.Layers)
		for at := range f.answer {
			f.answer[at] = lukv.NewQueryWindow(c.Heads, c.HeadDim, len(tail))
		}
		require.NoError(t, f.Prefill(t.Context(), tail))
		for at, window := range f.answer {
			for q := range c.Heads {
				h := q / (c.Heads / c.KVHeads)
				keys := f.cache.Keys(at, h, 0, p.span.To+len(tail), nil)
				for row := range window.Len() {
					mark(out[at][h], window.Row(row, q), keys[:(window.Position(row)+1)*c.HeadDim], scale)
				}
			}
		}
	}
	return out
}

// mark marks the keys that a query attends to.
func mark(attended []bool, query, keys []float32, scale float64) {
	d := len(query)
	scores, most := make([]float64, len(keys)/d), math.Inf(-1)
	for slot := range scores {
		for i, x := range query {
			scores[slot] += scale * float64(x) * float64(keys[slot*d+i])
		}
		most = max(most, scores[slot])
	}
	for slot := range attended {
		attended[slot] = attended[slot] || scores[slot] > most-unattended
	}
}

// TestUnattendedEntriesLoseNothing: without the entries that no row of the passages attends
// to, every row says what it said, so no fact is lost whatever the facts are; without those
// that rows do attend to, some say something else. A model whose scores are far apart
// attends to few entries.
func TestUnattendedEntriesLoseNothing(t *testing.T) {
	ctx := t.Context()
	cfg := testShapes[0].config()
	cfg.Windows = make([]int, cfg.Layers)
	m, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithPrecision(PrecisionF32))
	require.NoError(t, err)
	defer m.Close()
	scale := 0.0
	for at := range m.net.Plan {
		m.net.Plan[at].ScoreScale *= 400
		scale = m.net.Plan[at].ScoreScale
	}
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(ctx, randomTokens(300, cfg.Vocab, 3)))
	span := Span{To: 300}
	p := newLossProbe(s, s.tokens, span, LossOptions{Frame: []int32{5}})
	p.take(passagesByPosition(span.To)[:6])
	said := func(c *Session) (rows []int32) {
		require.NoError(t, p.feed(ctx, c, func(_, _ int, logits []float32) { rows = append(rows, mostLikely(logits)) }))
		return rows
	}
	full := said(s)
	require.Len(t, full, 6*(sweepTokens-lossRead))
	attended := attendedBy(t, p, s, scale)
	without := func(attendedOnes bool) []int32 {
		kept, removed := make([][][]int32, cfg.Layers), 0
		for at, layer := range attended {
			kept[at] = make([][]int32, cfg.KVHeads)
			for h, slots := range layer {
				for slot, yes := range slots {
					if yes != attendedOnes {
						kept[at][h] = append(kept[at][h], int32(slot))
					}
				}
				removed += len(slots) - len(kept[at][h])
			}
		}
		require.Greater(t, removed, cfg.Layers*cfg.KVHeads*span.To/10)
		c, err := s.Fork()
		require.NoError(t, err)
		defer c.Close()
		require.NoError(t, c.keepOf(span, kept))
		return said(c)
	}
	require.Equal(t, full, without(false))
	require.NotEqual(t, full, without(true))
}
