package model

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// TestPoliciesAreCompiledOnce: estimates and sessions with the same policy compile it once;
// policies that differ in anything are apart.
func TestPoliciesAreCompiledOnce(t *testing.T) {
	m := testShapes[0].open(t)
	protect := func(sinks int) *lukv.Protection { return &lukv.Protection{Sinks: sinks} }
	seen := map[string]bool{}
	for i, p := range []*lukv.Policy{
		{Ratio: 0.5}, {Ratio: 0.25}, {BudgetTokens: 40}, {Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}},
		{Ratio: 0.5, Protection: protect(4)}, {Ratio: 0.5, Protection: protect(5)}, {Decode: lukv.DecodeConfig{Mode: "streaming", TargetSize: 64}},
	} {
		for range 3 {
			again := *p // equal, not the same
			if p.Protection != nil {
				again.Protection = protect(p.Protection.Sinks)
			}
			_, err := m.CacheEstimate(SessionOptions{Compression: &again}, Lengths{Context: 100, Rest: 10})
			require.NoError(t, err)
			s, err := m.NewSession(SessionOptions{Compression: &again})
			require.NoError(t, err)
			seen[fmt.Sprint(s.Policy(), s.Policy().Protection)] = true
			require.NoError(t, s.Close())
		}
		require.Equal(t, i+1, m.plans.compiled)
		require.Len(t, seen, i+1)
	}
	_, err := m.NewSession(SessionOptions{Compression: &lukv.Policy{Ratio: 2}})
	require.ErrorContains(t, err, "ratio")
	for i := range 3 * maxPlans {
		_, err := m.CacheEstimate(SessionOptions{Compression: &lukv.Policy{BudgetTokens: 100 + i}}, Lengths{Context: 100})
		require.NoError(t, err)
	}
	require.Len(t, m.plans.list, maxPlans)
}

// TestBudgetsAreDividedOnce: what an estimate divided is what the prefill cuts by.
func TestBudgetsAreDividedOnce(t *testing.T) {
	m := testShapes[0].open(t, WithMaxMemory(1<<30))
	tokens := randomTokens(100, 97, 1)
	for i, p := range []*lukv.Policy{
		{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "pyramidkv"}},
		{Ratio: 0.25, Metric: lukv.MetricConfig{Name: "keydiff"}, Allocator: lukv.AllocatorConfig{Name: "uniform"}},
	} {
		var kept [2]string
		for j := range kept {
			o := SessionOptions{Compression: p}
			_, err := m.CacheEstimate(o, Lengths{Context: len(tokens)})
			require.NoError(t, err)
			s := newTestSession(t, m, o)
			require.NoError(t, s.Prefill(t.Context(), tokens))
			for at := range m.cfg.Layers {
				for h := range m.cfg.KVHeads {
					kept[j] += fmt.Sprint(s.cache.Positions(at, h, nil))
				}
			}
		}
		require.Equal(t, i+1, m.plans.divided)
		require.Equal(t, kept[0], kept[1])
	}
	_, err := m.CacheEstimate(SessionOptions{Compression: &lukv.Policy{Ratio: 0.5, Allocator: lukv.AllocatorConfig{Name: "adakv"}}}, Lengths{Context: 100})
	require.NoError(t, err)
	require.Equal(t, 2, m.plans.divided, "unknown before the scores")
}
