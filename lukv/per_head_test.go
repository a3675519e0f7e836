package lukv

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lukv/lukv/lukv/solve"
	"github.com/stretchr/testify/require"
)

func threeMetrics(t *testing.T) perHead {
	t.Helper()
	return mustMetric(t, configured("per_head", "metrics", []any{"keydiff", "knorm", "snapkv"})).(perHead)
}

// TestPerHeadAsksEachMetricForItsHeads: rows are those of the chosen metrics, and no
// head's keys are read for another.
func TestPerHeadAsksEachMetricForItsHeads(t *testing.T) {
	const T = 90
	l := randomAttention(T, 8, 4, 8)
	l.Index = 1
	m := threeMetrics(t)
	require.Equal(t, Protection{Sinks: 4, Window: 1}, ProfiledProtection(m), "what all protect")
	m.choice = [][]int{nil, {1, 0, 2, 1}}
	got, err := Score(t.Context(), m, l)
	require.NoError(t, err)
	for h, i := range m.choice[1] {
		want, err := Score(t.Context(), m.Metrics[i].Metric, l)
		require.NoError(t, err)
		for at, v := range want[h] {
			if i == 2 && at >= T-32 { // snapkv's window ranks first
				v = math.MaxFloat32
			}
			if i != 2 && (at < 4 || at == T-1) {
				v = math.MaxFloat32
			}
			if i == 2 && at < 4 {
				v = math.MaxFloat32
			}
			require.Equal(t, v, got[h][at], "head %d entry %d", h, at)
		}
	}

	m.choice[1] = []int{0, 0, 1, 0}
	plain, read := l.Keys, make([]int, 4)
	l.Queries = nil // no chosen metric needs them
	l.Keys = func(h, lo, hi int, dst []float32) []float32 {
		read[h] += hi - lo
		return plain(h, lo, hi, dst)
	}
	_, err = Score(t.Context(), m, l)
	require.NoError(t, err)
	require.Equal(t, []int{2 * T, 2 * T, T, 2 * T}, read, "keydiff reads keys twice, knorm once")
}

func TestPerHeadProfile(t *testing.T) {
	id := errorIdentity(WeightsCut)
	id.Metric = MetricConfigOf(threeMetrics(t))
	b := errorBuilder(t, id)
	require.Len(t, b.Metrics(), 3)
	for i, T := range []int{400, 90} {
		require.NoError(t, b.Add(i, syntheticAnswer(b, T, uint64(i))))
	}
	p, err := b.Profile()
	require.NoError(t, err)
	e := p.OutputErrors
	require.Len(t, e.Errors, 3)
	seen := map[int]bool{}
	for i := range e.MetricOf {
		for u, chosen := range e.MetricOf[i] {
			seen[chosen] = true
			x := []float64{min(max(1-p.at(i)[u], e.Grid[0]), 1)}
			least := math.Inf(1)
			for _, errors := range e.Errors {
				least = min(least, at(x, e.Grid, errors[u])[0])
			}
			require.InDelta(t, least, at(x, e.Grid, e.Errors[chosen][u])[0], 1e-6)
		}
	}
	require.Greater(t, len(seen), 1)
	for u, row := range e.Error {
		for i, v := range row {
			require.Equal(t, min(e.Errors[0][u][i], e.Errors[1][u][i], e.Errors[2][u][i]), v)
		}
	}

	// Metrics that the profile does not have.
	for _, m := range []int{-1, 3} {
		chosen := e.MetricOf[7][2]
		e.MetricOf[7][2] = m
		_, err := ReadProfile(bytes.NewReader(profileBytes(t, p)))
		require.ErrorContains(t, err, fmt.Sprintf("profile: level 8: metric %d of 3", m))
		e.MetricOf[7][2] = chosen
	}

	// A policy uses the nearest level's metrics, and accepts nothing but a ratio.
	shape := CacheShape{Layers: 3, KVHeads: 2, BytesPerEntry: 4}
	policy := Policy{Metric: id.Metric, Allocator: AllocatorConfig{Name: "lukv"}, Ratio: .503, Profile: p}
	c, err := policy.Compile("test", shape)
	require.NoError(t, err)
	bound := c.Metric().(perHead)
	for l, row := range bound.choice {
		require.Equal(t, e.MetricOf[49][2*l:2*l+2], row)
	}
	require.Equal(t, id.Metric.String(), c.Policy().Metric.String())
	for want, change := range map[string]func(*Policy){
		"expected lukv with a profile": func(p *Policy) { p.Allocator.Name, p.Profile = "uniform", nil },
		"expected a ratio alone":       func(p *Policy) { p.Ratio, p.BudgetTokens = 0, 30 },
		"no profile that names": func(p *Policy) {
			stripped := *p.Profile
			stripped.OutputErrors = nil
			p.Profile = &stripped
		},
	} {
		bad := policy
		change(&bad)
		_, err := bad.Compile("test", shape)
		require.ErrorContains(t, err, want)
	}
	id.Objective, id.Weights = ObjectiveUtility, nil
	require.ErrorContains(t, id.Validate(), "per_head")
}

func TestPerHeadRefuses(t *testing.T) {
	for want, metrics := range map[string][]any{
		"expected 2 to 16":          {"snapkv"},
		"found {":                   {"snapkv", "snapkv"},
		"rank once":                 {"snapkv", "criticalkv"},
		"leave out 4 and 2":         {"ea", map[string]any{"name": "ea", "sinks": 2}},
		"repeat the context in dif": {"kvzip", map[string]any{"name": "kvzip", "chunk": 7}},
	} {
		_, err := NewMetric(configured("per_head", "metrics", metrics))
		require.ErrorContains(t, err, want)
	}
}

// TestPerHeadOfAProfileWithMoreMetrics: a profile can name a metric that the
// configuration does not have.
func TestPerHeadOfAProfileWithMoreMetrics(t *testing.T) {
	m := mustMetric(t, MetricConfig{Name: "per_head"}).(perHead)
	p := testProfile(t, 2, 2, 300)
	p.OutputErrors = &OutputErrors{MetricOf: slices.Repeat([][]int{{0, 1, 3, 2}}, solve.Levels)}
	_, err := m.bind(p, 0.5)
	require.ErrorContains(t, err, "the profile gives a head metric 3 of 3")
}
