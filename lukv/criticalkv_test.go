package lukv

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// normsOf computes the mean over the group of ‖v_t W_O‖₁ by its definition.
func normsOf(l *Layer, h int) []float64 {
	D, G := l.HeadDim, l.Group()
	values := l.Values(h, 0, l.T, nil)
	out := make([]float64, l.T)
	for q := h * G; q < (h+1)*G; q++ {
		w := l.Output(q, 0, l.OutputDim, nil)
		for t := range out {
			for m := range l.OutputDim {
				var y float64
				for i := range D {
					y += float64(values[t*D+i]) * float64(w[m*D+i])
				}
				out[t] += math.Abs(y) / float64(G)
			}
		}
	}
	return out
}

func TestOutputNorms(t *testing.T) {
	for _, T := range []int{1, 7, 300} {
		l := randomAttention(T, 6, 2, 10)
		got, err := l.OutputNorms(context.Background())
		require.NoError(t, err)
		for h := range 2 {
			for i, want := range normsOf(l, h) {
				require.InEpsilon(t, want, got[h][i], 1e-5, "T=%d head %d entry %d", T, h, i)
			}
		}
	}
	l := randomAttention(10, 2, 1, 4)
	l.Output = func(int, int, int, []float32) []float32 { return nil }
	_, err := l.OutputNorms(context.Background())
	require.ErrorContains(t, err, "read the output projection of layer 0, query head 0: found 0 weights")
}

// TestCriticalKVKeepsInTwoStages: the inner metric decides the first stage,
// inner score times norm the rest, and protected entries stay.
func TestCriticalKVKeepsInTwoStages(t *testing.T) {
	ctx := context.Background()
	l := randomAttention(200, 6, 2, 10)
	m := mustMetric(t, configured("criticalkv", "metric", MetricConfig{Name: "snapkv", Params: `{"window":16}`}, "first_stage", 0.25))
	inner := mustMetric(t, configured("snapkv", "window", 16))
	s, err := Score(ctx, m, l)
	require.NoError(t, err)
	plain, err := Score(ctx, inner, l)
	require.NoError(t, err)
	require.Equal(t, plain, s, "budgets go by the inner scores")
	budgets := []int{80, 41}
	refined, err := Refine(ctx, m, l, s, budgets)
	require.NoError(t, err)
	prot := m.Protection(200, 60)
	require.Equal(t, Protection{Window: 16}, prot)
	for h, b := range budgets {
		kept := Keep(nil, refined[h], b, prot)
		require.Len(t, kept, b)
		first := Keep(nil, s[h], b/4, prot)
		require.Subset(t, kept, first, "first stage")
		norms := normsOf(l, h)
		chosen := map[int32]bool{}
		for _, i := range kept {
			chosen[i] = true
		}
		lowest, best := math.Inf(1), math.Inf(-1)
		for i := range 184 {
			v := (float64(s[h][i]) + 1e-4) * norms[i]
			switch {
			case !chosen[int32(i)]:
				best = max(best, v)
			case !math.IsInf(float64(refined[h][i]), 1):
				lowest = min(lowest, v)
			}
		}
		require.LessOrEqual(t, best, lowest*(1+1e-5), "second stage of head %d", h)
	}
	// If the first stage decides everything, the inner metric alone does.
	all := mustMetric(t, configured("criticalkv", "metric", "snapkv", "first_stage", 1))
	refined, err = Refine(ctx, all, l, s, budgets)
	require.NoError(t, err)
	for h, b := range budgets {
		require.Equal(t, Keep(nil, s[h], b, Protection{}), Keep(nil, refined[h], b, Protection{}))
	}
	// What an allocator secures also stays.
	l.GuaranteedBudget = 60
	refined, err = Refine(ctx, m, l, s, budgets)
	require.NoError(t, err)
	require.Subset(t, Keep(nil, refined[0], 80, prot), Keep(nil, s[0], 60, prot))
}

func TestCriticalKVConfigurations(t *testing.T) {
	for in, want := range map[string]string{
		`{"name":"criticalkv","metric":"keydiff"}`:                                 "metric criticalkv: metric: found keydiff, whose scores may be negative, expected shift to be set",
		`{"name":"criticalkv","metric":"ea"}`:                                      "metric criticalkv: metric: found expected_attention with value_norm, expected it off",
		`{"name":"criticalkv","metric":"criticalkv"}`:                              "which refines by itself",
		`{"name":"criticalkv","metric":{"name":"snapkv","kernel":4}}`:              "metric criticalkv: metric snapkv: kernel: found 4, expected an odd number",
		`{"name":"criticalkv","metric":{"name":"snap"}}`:                           `metric "snap" is unknown`,
		`{"name":"criticalkv","metric":5}`:                                         "found '5', expected an object",
		`{"name":"criticalkv","first_stage":1.5}`:                                  "first_stage: found 1.5, expected 0 to 1",
		`{"name":"criticalkv","epsilon":-1}`:                                       "epsilon: found -1",
		`{"name":"criticalkv","window":3}`:                                         "it has no parameter window",
		`{"name":"defensivekv","mass":2}`:                                          "metric defensivekv: mass: found 2, expected 0 to 1",
		`{"name":"defensivekv","kernel":0}`:                                        "metric defensivekv: kernel: found 0, expected an odd number",
		`{"name":"cake","gamma":-1}`:                                               "metric cake: gamma: found -1",
		`{"name":"cake","window":"wide"}`:                                          "metric cake: window: found string, expected a whole number",
		`{"name":"criticalkv","metric":` + nested(30, `{"a":`, "1", "}") + `}`:     "nested more than 16 deep",
		`{"name":"criticalkv","metric":` + nested(20, `[`, "1", "]") + `,"x":"{"}`: "nested more than 16 deep",
	} {
		c, err := ParseMetricConfig(in)
		if err == nil {
			_, err = NewMetric(c)
		}
		require.ErrorContains(t, err, want, in)
	}
	for in, want := range map[string]string{
		`{"name":"criticalkv","preset":"keydiff"}`: `{"name":"criticalkv","metric":{"name":"keydiff","block":0},"first_stage":0.5,"epsilon":0.0001,"shift":true}`,
		`{"name":"defensivekv"}`:                   `{"name":"defensivekv","window":32,"kernel":5,"mass":0.9,"compat":false}`,
		`{"name":"cake","window":8}`:               `{"name":"cake","window":8,"kernel":5,"gamma":200}`,
	} {
		c, err := ParseMetricConfig(in)
		require.NoError(t, err)
		require.Equal(t, want, MetricConfigOf(mustMetric(t, c)).String())
	}
	for in, want := range map[string]string{
		`headkv`: "allocator headkv: importance: found none",
		`{"name":"headkv","importance":[[1,2],[1]]}`:            "importance: layer 1, query head 0: found 1 in a row of 1",
		`{"name":"headkv","importance":[[1,-2]]}`:               "found -2",
		`{"name":"headkv","importance":[[1]],"tau":0}`:          "tau: found 0",
		`{"name":"headkv","importance":{"0-0":[1],"0-2":[1]}}`:  `importance: found 1 scores of head "0-2"`,
		`{"name":"headkv","importance":{"0-0":[1],"1-1":[1]}}`:  "importance: found 2 heads of 2 layers of 2, expected every head once",
		`{"name":"headkv","importance":{"0-0":[1],"00-0":[1]}}`: "expected every head once",
		`{"name":"headkv","importance":{"0-0":[]}}`:             `found 0 scores of head "0-0"`,
		`{"name":"headkv","importance":{"head":[1]}}`:           `found 1 scores of head "head"`,
		`{"name":"headkv","importance":{"0-x":[1]}}`:            `found 1 scores of head "0-x"`,
		`{"name":"headkv","importance":{"x-0":[1]}}`:            `found 1 scores of head "x-0"`,
		`{"name":"headkv","importance":{"0--1":[1]}}`:           `found 1 scores of head "0--1"`,
		`{"name":"headkv","importance":{"1-0":[1]}}`:            `found 1 scores of head "1-0"`,
		`{"name":"cake","tau1":0}`:                              "allocator cake: tau1: found 0",
		`{"name":"cake","preset":"x"}`:                          `preset: found "x", expected one of default, mistral-7b-1024`,
		`{"name":"global","pool":"head"}`:                       `allocator global: pool: found "head", expected one of model, layer`,
	} {
		c, err := ParseAllocatorConfig(in)
		require.NoError(t, err)
		require.ErrorContains(t, c.Validate(), want, in)
	}
	_, err := (&Policy{Ratio: 0.5, Metric: MetricConfig{Name: "criticalkv"}, Allocator: AllocatorConfig{Name: "cake"}}).Compile("m", CacheShape{Layers: 2, KVHeads: 2})
	require.ErrorContains(t, err, "expected cascade to be off")
	published := mustAllocator(t, "headkv", "importance", map[string][]float64{"0-1": {1, 3}, "0-0": {1}, "1-0": {0, 0, 6}, "1-1": {5}})
	require.Equal(t, mustAllocator(t, "headkv", "importance", [][]float64{{1, 2}, {2, 5}}), published)
	a := mustAllocator(t, "headkv", "importance", [][]float64{{1, 2, 3}})
	_, err = Allocate(a, Demand{T: 100, Layers: 2, KVHeads: 1, Ratio: 0.5}, nil)
	require.ErrorContains(t, err, "allocator headkv: importance: found 1 layers of 3 query heads, expected 2 layers of a multiple of 1")
}

func nested(n int, open, core, end string) string {
	for range n {
		core = open + core + end
	}
	return core
}

func TestCriticalKVRefusesNegativeScores(t *testing.T) {
	l := randomAttention(40, 2, 1, 4)
	m := criticalKV{Metric: InnerMetric{kNorm{}}, FirstStage: 0.5}
	s, err := Score(context.Background(), m, l)
	require.NoError(t, err)
	_, err = Refine(context.Background(), m, l, s, []int{10})
	require.ErrorContains(t, err, "refine scores of layer 0, kv head 0: found an inner score of -")
	m.Shift = true
	_, err = Refine(context.Background(), m, l, s, []int{10})
	require.NoError(t, err)
}

// TestDefensiveKVFirstStage: with the whole budget the first stage holds the
// mass that it is given, and nothing if the window takes all of the budget.
func TestDefensiveKVFirstStage(t *testing.T) {
	x := defensiveHead{window: 2, plain: []float64{0.1, 0.4, 0.2, 0.3}}
	require.Equal(t, []int32{1, 3}, x.first(1, 0.8, false), "0.4 and 0.3 stay below 0.8")
	require.Empty(t, x.first(1, 0.4, false))
	require.Equal(t, []int32{1}, x.first(0.75, 0.8, false), "room for one beside the window")
	require.Empty(t, x.first(0.5, 0.8, false), "no room beside the window")
	require.Empty(t, x.first(0.2, 0.8, false), "the published clamp goes below 0 here")
	require.Len(t, x.first(10, 1.5, false), 4, "never reached: all")
	require.Empty(t, x.first(10, 1.5, true), "never reached: none, as published")
}
