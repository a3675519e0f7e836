package model

import (
	"encoding/json"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/internal/forward"
)

func TestWilson(t *testing.T) {
	for _, x := range []struct {
		k, n int
		want float64
	}{{4, 40, .205}, {0, 40, .063}, {0, 8, .253}, {0, 0, 1}} {
		require.InDelta(t, x.want, wilson(x.k, x.n), .0006)
	}
	for n := 8; n < 200; n += 8 { // of a quarter
		require.Greater(t, wilson(n/4, n), wilson(n/2, 2*n))
		require.LessOrEqual(t, wilson(n, n), 1+1e-12)
	}
}

// TestPassagesBySurprise: with 362 tokens there are 22 strata of 16; tokens are new where
// the test says so.
func TestPassagesBySurprise(t *testing.T) {
	o := LossOptions{Strata: 32, New: 1}
	readings := make([]float64, 362)
	require.Empty(t, passagesBySurprise(readings, o), "nothing is new")
	set := func(x float64, at ...int) {
		for _, t := range at {
			readings[t] = x
		}
	}
	set(-2, 20, 21, 22, 23, 60, 61)
	readings[22], readings[9], readings[61] = -5, -9, -2
	for i := range 12 {
		readings[350+i] = -3
	}
	require.Equal(t, []passageRange{{12, 24}, {52, 62}, {342, 358}}, passagesBySurprise(readings, o), "the second stratum's least is the first of equals; eight tokens at most")
	o.New = 3
	require.Equal(t, []passageRange{{14, 23}}, passagesBySurprise(readings, o))
	require.Empty(t, passagesBySurprise(readings[:41], o))
	readings[10], readings[41] = -4, -8
	require.Equal(t, []passageRange{{14, 23}, {33, 42}}, passagesBySurprise(readings[:42], o))
}

func TestPassagesByPosition(t *testing.T) {
	require.Empty(t, passagesByPosition(41))
	require.Equal(t, []passageRange{{2, 42}}, passagesByPosition(42))
	all := passagesByPosition(2048)
	require.Len(t, all, 16)
	require.Equal(t, passageRange{2, 42}, all[0])
	require.Equal(t, passageRange{2008, 2048}, all[15])
	require.Equal(t, passageRange{2 + 7*2006/15, 42 + 7*2006/15}, all[7])
}

// lossOf returns the loss of a probe of one or two passages of which the full cache
// recalls some tokens and the other cache answers wrongly at some.
func lossOf(p *LossProbe, recalled, wrong map[int]bool) Loss {
	full, other := newRecall(p), newRecall(p)
	for i, c := range p.passages {
		for at := range c.recalled {
			t := c.from + at
			full.right[i][at], full.logp[i][at] = recalled[t], -1
			other.right[i][at], other.logp[i][at] = !wrong[t], -1.5
		}
	}
	p.settle(full, func(int) float64 { return -2 }, LossOptions{New: 1})
	return p.loss(other)
}

// TestFacts is the example of the definition.
func TestFacts(t *testing.T) {
	probe := func(ranges ...passageRange) *LossProbe {
		p := &LossProbe{limit: 100, tokens: make([]int32, 50), span: Span{0, 50}}
		p.take(ranges)
		return p
	}
	recalled := map[int]bool{20: true, 21: true, 22: true, 30: true, 31: true}
	l := lossOf(probe(passageRange{12, 24}, passageRange{22, 33}), recalled, map[int]bool{21: true})
	want := []LostRange{{20, 23, true}, {22, 23, false}, {30, 32, false}}
	require.Equal(t, want, l.Ranges)
	l = lossOf(probe(passageRange{12, 24}, passageRange{24, 33}), recalled, map[int]bool{21: true})
	require.Equal(t, []LostRange{{20, 23, true}, {30, 32, false}}, l.Ranges)
	require.Equal(t, 1, l.Lost)
	require.Equal(t, .5, l.Share())
	require.InDelta(t, .5, l.Nats, 1e-12)
	require.Equal(t, 11+8, l.Rows)
	require.False(t, l.Measured())
	l = lossOf(probe(passageRange{12, 24}, passageRange{13, 24}), recalled, map[int]bool{22: true})
	require.Equal(t, []LostRange{{20, 23, true}}, l.Ranges, "equal ranges are one fact")
	require.Empty(t, probe(passageRange{12, 24}).tail(&passage{from: 5, to: 6}))
	tight := &LossProbe{limit: 57, span: Span{0, 50}}
	tight.take([]passageRange{{12, 24}, {12, 20}})
	require.Len(t, tight.passages, 1, "a tail that does not fit is left out")
}

func TestLossJSON(t *testing.T) {
	l := Loss{Facts: 40, Lost: 4, Upper: wilson(4, 40), Nats: .25, Rows: 327, Ranges: []LostRange{{3, 5, true}}, Tried: []LossTried{{.5, 4}}}
	require.Equal(t, "36 of 40 facts repeated (90 %; loss at most 21 % at 95 %)", l.String())
	text, err := json.Marshal(l)
	require.NoError(t, err)
	var back Loss
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, l, back)
	few, err := json.Marshal(Loss{Facts: 7, Lost: 3, Rows: 100})
	require.NoError(t, err)
	require.JSONEq(t, `{"measured":false,"facts":7,"probe_rows":100}`, string(few))
	require.Error(t, json.Unmarshal([]byte(`{"measured":true,"facts":40}`), &back))
}

func TestLossOptions(t *testing.T) {
	m := testShapes[0].open(t)
	for _, o := range []LossOptions{{Strata: -1}, {New: math.NaN()}, {New: -1}, {Ratios: []float64{.5, .5}}, {Ratios: []float64{1}}, {Frame: []int32{97}}, {}} {
		_, err := o.withDefaults(m)
		require.Error(t, err, "%+v", o)
	}
	o, err := LossOptions{Frame: []int32{}}.withDefaults(m)
	require.NoError(t, err)
	require.Equal(t, 32, o.Strata)
}

// TestPeakOfSweep: a report inside a prefill that compresses adds a page per head of one layer
// to the peak, and what is said beforehand about the peak holds.
func TestPeakOfSweep(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	prompt := randomTokens(6000, 97, 1)
	peak := func(o *LossOptions) (held int64) {
		options := SessionOptions{Compression: &lukv.Policy{Ratio: 0.8, Metric: lukv.MetricConfig{Name: "knorm"}}, ProbeLoss: o}
		s := newTestSession(t, m, options)
		require.NoError(t, s.Prefill(t.Context(), prompt))
		need, err := m.CacheEstimate(options, Lengths{Context: len(prompt)})
		require.NoError(t, err)
		held = s.Stats().PeakBytes
		require.LessOrEqual(t, held, need.Peak)
		require.LessOrEqual(t, need.Peak, held*102/100)
		return held
	}
	plain, with := peak(nil), peak(&LossOptions{Frame: []int32{1, 2}})
	require.Greater(t, with, plain)
	require.LessOrEqual(t, with, plain*102/100)
}

// TestSweepOnEveryShape: inside a prefill that compresses, the full cache answers as it does
// when it is whole, also with sliding windows, after other tokens, and in small chunks;
// and what is left of the cache afterwards is the same.
func TestSweepOnEveryShape(t *testing.T) {
	ctx := t.Context()
	// Everything is new, so that a model of random weights recalls something.
	o := LossOptions{Frame: []int32{1, 2}, New: 1e-9, Sweep: true}
	found := 0
	for _, shape := range testShapes {
		m := shape.open(t, WithThreads(2))
		before, doc := randomTokens(20, 97, 1), randomTokens(300, 97, 2)
		for i := 150; i < 300; i++ { // repeats give facts
			doc[i] = doc[i%30]
		}
		for _, front := range [][]int32{nil, before} {
			span := Span{len(front), len(front) + len(doc)}
			policy := &lukv.Policy{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "knorm"}}
			full := newTestSession(t, m, SessionOptions{ProbeLoss: &LossOptions{}})
			require.NoError(t, full.Prefill(ctx, front))
			require.NoError(t, full.Prefill(ctx, doc))
			want, err := full.ProbeLoss(ctx, span, o)
			require.NoError(t, err)
			inside := newTestSession(t, m, SessionOptions{ProbeLoss: &o, ChunkTokens: 33})
			require.NoError(t, inside.Prefill(ctx, front))
			require.NoError(t, inside.PrefillCompressed(ctx, doc, policy))
			got := inside.LossProbe()
			require.Equal(t, want.facts, got.facts, "%v", shape)
			require.Equal(t, want.passages, got.passages)
			found += len(want.facts)
			plain := newTestSession(t, m, SessionOptions{})
			require.NoError(t, plain.Prefill(ctx, front))
			require.NoError(t, plain.PrefillCompressed(ctx, doc, policy))
			l, err := want.Measure(ctx, plain)
			require.NoError(t, err)
			again, err := got.Measure(ctx, inside)
			require.NoError(t, err)
			require.Equal(t, l, again)
			sameSession(t, shape.name, plain, inside)
		}
	}
	require.Greater(t, found, 10)
}

// TestSweepInPieces: each piece of a prefill with a report is about as much work as was asked
// for, also after the last layer, and gives the same report.
func TestSweepInPieces(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	layers, doc := m.Config().Layers, randomTokens(300, 97, 2)
	for i := 150; i < 300; i++ {
		doc[i] = doc[i%30]
	}
	done, total := 0, 0
	options := SessionOptions{
		Compression: &lukv.Policy{Ratio: 0.6, Metric: lukv.MetricConfig{Name: "knorm"}},
		ProbeLoss:   &LossOptions{Frame: []int32{1, 2}, New: 1e-9, Sweep: true},
		Progress:    func(n, all int) { done, total = n, all },
	}
	for _, n := range []int{1, 7, 64} {
		whole := newTestSession(t, m, options)
		require.NoError(t, whole.Prefill(t.Context(), doc))
		require.Equal(t, total, done)
		done = 0
		s := newTestSession(t, m, options)
		p, err := s.StartPrefill(doc, nil)
		require.NoError(t, err)
		for !p.Done() {
			before, left := done, p.Remaining()
			require.Positive(t, left)
			require.NoError(t, p.Advance(t.Context(), n))
			require.Less(t, p.Remaining(), left)
			require.LessOrEqual(t, done-before, n*layers+max(n*layers, sweepTokens+2), "%d tokens", n)
		}
		require.Equal(t, total, done)
		require.Equal(t, whole.LossProbe().facts, s.LossProbe().facts)
		sameSession(t, "pieces", whole, s)
	}
}

// TestProbeWithoutMemory: a probe that does not fit into the memory of all sessions fails and
// leaves the session as it was; so does one whose session is closed meanwhile or in use.
func TestProbeWithoutMemory(t *testing.T) {
	m := testShapes[0].open(t, WithThreads(2))
	prompt := randomTokens(200, 97, 1)
	s := newTestSession(t, m, SessionOptions{})
	require.NoError(t, s.Prefill(t.Context(), prompt))
	o := LossOptions{Frame: []int32{1}, New: 1e-9}
	p, err := s.ProbeLoss(t.Context(), Span{0, 200}, o)
	require.NoError(t, err)
	held := s.cache.Bytes()

	tight := testShapes[0].open(t, WithThreads(2), WithMaxMemory(held+8192))
	small := newTestSession(t, tight, SessionOptions{})
	require.NoError(t, small.Prefill(t.Context(), prompt))
	_, err = small.ProbeLoss(t.Context(), Span{0, 200}, o)
	require.ErrorIs(t, err, kvcache.ErrFull)
	sameSession(t, "after a probe that failed", s, small)

	other := newTestSession(t, m, SessionOptions{})
	require.NoError(t, other.Prefill(t.Context(), randomTokens(200, 97, 2)))
	_, err = p.Measure(t.Context(), other)
	require.ErrorContains(t, err, "other tokens")
	_, err = p.Measure(t.Context(), small)
	require.ErrorContains(t, err, "another model")
	require.NoError(t, other.Close())
	_, err = other.ProbeLoss(t.Context(), Span{0, 200}, o)
	require.ErrorIs(t, err, ErrClosed)
}

// TestReportKeepsThePeak: a report inside the prefill adds at most two percent to the peak of
// the cache from 4,096 tokens on, and from 2,048 where at most 80 % is removed, in all shapes
// of models without sliding windows.
func TestReportKeepsThePeak(t *testing.T) {
	for _, name := range arch.Shapes() {
		cfg, err := arch.ShapeConfig(name)
		require.NoError(t, err)
		if len(cfg.Windows) > 0 && slices.Max(cfg.Windows) > 0 {
			continue
		}
		m := &Model{cfg: cfg, net: &forward.Network{Config: cfg}, precision: PrecisionBF16}
		for _, T := range []int{1024, 2048, 4096, 32768} {
			if T > cfg.MaxPositions {
				continue
			}
			for _, ratio := range []float64{0.5, 0.8, 0.9} {
				o := SessionOptions{Compression: &lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}, Ratio: ratio}}
				plain, err := m.CacheEstimate(o, Lengths{Context: T})
				require.NoError(t, err)
				o.ProbeLoss = &LossOptions{Frame: []int32{1}}
				with, err := m.CacheEstimate(o, Lengths{Context: T})
				require.NoError(t, err)
				more := float64(with.Peak)/float64(plain.Peak) - 1
				require.Positive(t, more)
				t.Logf("%s, %d tokens, %g removed: %.2f %%", name, T, ratio, 100*more)
				if T >= 4096 || T >= 2048 && ratio <= 0.8 {
					require.LessOrEqual(t, more, 0.02, "%s, %d tokens, %g removed", name, T, ratio)
				}
			}
		}
	}
}
