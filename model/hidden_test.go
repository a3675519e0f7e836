package model

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
)

// hiddenValues is a metric that computes the values of a layer from its hidden states, in
// float64, and scores an entry by their largest difference from those in the cache, which
// hiddenSeen keeps.
type hiddenValues struct {
	Last int `json:"last"` // tokens; 0: all
}

var hiddenSeen struct {
	sync.Mutex
	m      *Model
	most   float64
	states map[int][]float32 // by layer
	tokens int
}

const hiddenName = "hidden_values"

func init() { lukv.RegisterMetric(hiddenName, hiddenValues{}) }

func (h hiddenValues) Needs(T, _ int) lukv.Needs {
	n := lukv.Needs{Values: true, Hidden: h.Last}
	if h.Last == 0 {
		n.Hidden = T
	}
	return n
}

func (hiddenValues) Protection(int, int) lukv.Protection { return lukv.Protection{} }

func (hiddenValues) Score(ctx context.Context, l *lukv.Layer) (lukv.Scores, error) {
	seen := &hiddenSeen
	seen.Lock()
	defer seen.Unlock()
	v, bias, dim := &seen.m.weights.Layers[l.Index].Tensors[arch.RoleV], []float32(nil), seen.m.cfg.Hidden
	w := kernels.Matrix{Type: v.Type, Rows: v.Shape[0], Cols: v.Shape[1], Data: v.Data}
	if b := &seen.m.weights.Layers[l.Index].Tensors[arch.RoleVBias]; b.Data != nil {
		bias = b.Float32s(nil)
	}
	if l.Hidden.Dim != dim {
		return nil, errors.New("hidden states of another width")
	}
	row := make([]float32, dim)
	s := make(lukv.Scores, l.KVHeads)
	for h := range s {
		s[h] = make([]float32, l.Len(h))
		values, positions := l.Values(h, 0, l.Len(h), nil), l.Positions(h)
		for t, p := range positions {
			x := l.Hidden.At(int(p))
			if x == nil {
				continue
			}
			seen.tokens++
			for d := range l.HeadDim {
				i := h*l.HeadDim + d
				seen.m.net.CPU.WidenRow(row, &w, i, 0)
				sum := 0.0
				if bias != nil {
					sum = float64(bias[i])
				}
				for k, v := range row {
					sum += float64(v) * float64(x[k])
				}
				off := sum - float64(values[t*l.HeadDim+d])
				seen.most = max(seen.most, off, -off)
				s[h][t] += float32(sum)
			}
		}
	}
	seen.states[l.Index] = append([]float32(nil), l.Hidden.Rows...)
	return s, ctx.Err()
}

// TestHiddenStates: what a metric gets as hidden states is what the values in the cache
// are computed from, in every layer, for the tokens that it asks for, whether its span is
// the whole prompt or comes after something, passes by or has passed by, and for
// observations; the states are the same however the prompt is cut into chunks.
func TestHiddenStates(t *testing.T) {
	ctx := context.Background()
	seen := &hiddenSeen
	for _, shape := range testShapes {
		m := shape.open(t, WithThreads(2), WithMaxMemory(1<<30), WithPrecision(PrecisionF32))
		layers := 0 // those that are compressed
		for _, w := range m.cfg.Windows {
			if w == 0 {
				layers++
			}
		}
		tokens := randomTokens(60, m.cfg.Vocab, 1)
		look := func(what string, n int, run func()) map[int][]float32 {
			t.Helper()
			seen.m, seen.most, seen.tokens, seen.states = m, 0, 0, map[int][]float32{}
			run()
			require.Less(t, seen.most, 1e-4, what)
			require.Equal(t, n*layers*m.cfg.KVHeads, seen.tokens, what)
			require.Len(t, seen.states, layers)
			return seen.states
		}
		all := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: hiddenName}}
		last := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: hiddenName, Params: `{"last":7}`}}
		var sessions []*Session
		session := func(o SessionOptions) *Session {
			sessions = append(sessions, newTestSession(t, m, o))
			return sessions[len(sessions)-1]
		}
		want := look("first", 60, func() {
			require.NoError(t, session(SessionOptions{Compression: all}).Prefill(ctx, tokens))
		})
		same := func(what string, n int, states map[int][]float32) {
			t.Helper()
			for at, rows := range states {
				require.Len(t, rows, n*m.cfg.Hidden, what)
				testnum.SameBits(t, what, want[at][len(want[at])-len(rows):], rows)
			}
		}
		same("chunks", 60, look("chunks", 60, func() {
			require.NoError(t, session(SessionOptions{Compression: all, ChunkTokens: 7}).Prefill(ctx, tokens))
		}))
		same("the last ones", 7, look("the last ones", 7, func() {
			require.NoError(t, session(SessionOptions{Compression: last, ChunkTokens: 4}).Prefill(ctx, tokens))
		}))
		same("behind something", 40, look("behind something", 40, func() {
			s := session(SessionOptions{})
			require.NoError(t, s.Prefill(ctx, tokens[:20]))
			require.NoError(t, s.PrefillCompressed(ctx, tokens[20:], all))
		}))
		if shape.window == 0 { // otherwise what the windows have left behind cannot be computed again
			for p, n := range map[*lukv.Policy]int{all: 40, last: 7} {
				same("later", n, look("later", n, func() {
					s := session(SessionOptions{})
					require.NoError(t, s.Prefill(ctx, tokens))
					require.NoError(t, s.Compress(ctx, Span{20, 60}, p))
				}))
			}
		}
		for on := range shape.layers { // 0: all
			m, _ := shape.onDevice(t, on, WithThreads(2), WithPrecision(PrecisionF32))
			seen.m = m
			seen.states = map[int][]float32{}
			s := newTestSession(t, m, SessionOptions{Compression: all, ChunkTokens: 13})
			require.NoError(t, s.Prefill(ctx, tokens))
			same("on a device", 60, seen.states)
			require.Len(t, seen.states, layers)
		}
		metric, err := lukv.NewMetric(all.Metric)
		require.NoError(t, err)
		same("observed", 60, look("observed", 60, func() {
			ob, err := m.Observe(ctx, tokens, SessionOptions{}, metric)
			require.NoError(t, err)
			defer ob.Close()
			require.Greater(t, ob.charged, int64(4*60*m.cfg.Hidden*m.cfg.Layers))
			derived, err := ob.Compress(ctx, all)
			require.NoError(t, err)
			sameSession(t, "observed", sessions[0], derived)
			require.NoError(t, derived.Close())
		}))
		for _, s := range sessions {
			require.NoError(t, s.Close())
		}
		require.Zero(t, m.memory.Used(), "all memory is given back")
	}

	// The memory is counted before the work and while it is done.
	m := testShapes[0].open(t, WithThreads(2), WithMaxMemory(1<<40))
	seen.m, seen.states = m, map[int][]float32{}
	most := int64(0)
	o := SessionOptions{Progress: func(int, int) { most = max(most, m.memory.Used()) }}
	var cost [2]int64
	for i, name := range []string{"knorm", hiddenName} {
		o.Compression = &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: name}}
		s := newTestSession(t, m, o)
		_, work, err := s.growth(60, s.comp)
		require.NoError(t, err)
		most = 0
		require.NoError(t, s.Prefill(ctx, randomTokens(60, 97, 1)))
		cost[i] = most
		if i == 1 {
			require.Equal(t, int64(4*60*m.cfg.Hidden), cost[1]-cost[0])
			require.GreaterOrEqual(t, work, int64(2*4*60*m.cfg.Hidden))
		}
		require.NoError(t, s.Close())
	}
	_, err := m.NewSession(SessionOptions{Compression: &lukv.Policy{
		Metric: lukv.MetricConfig{Name: hiddenName}, Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 50}}})
	require.ErrorContains(t, err, "reads a whole context at once")
}
