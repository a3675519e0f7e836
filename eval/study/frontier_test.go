package study

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
)

// measured is a run with methods of given bytes and numbers of right answers out of twelve
// in each of two tasks.
func measured(name, cache string, methods ...any) *runs.Measured {
	r := &runs.Measured{Name: name, Settings: runs.Settings{Model: "m", Cache: cache, Data: json.RawMessage(`[1]`)}}
	for i := 0; i < len(methods); i += 3 {
		for _, task := range []string{"a", "b"} {
			for k := range 12 {
				a := eval.Answer{Item: k, Task: task, Method: methods[i].(string), CacheBytes: int64(methods[i+1].(int)), RatioAchieved: 0.5}
				if parts := strings.Split(a.Method, "/"); len(parts) == 3 {
					a.Metric, a.Allocator = parts[0], parts[1]
				}
				if k < methods[i+2].(int) {
					a.Score = 1
				}
				r.Answers = append(r.Answers, a)
			}
		}
	}
	return r
}

func pointNamed(t *testing.T, points []FrontierPoint, name string) *FrontierPoint {
	t.Helper()
	for i := range points {
		if points[i].name == name {
			return &points[i]
		}
	}
	t.Fatalf("no point %s", name)
	return nil
}

func TestFrontierFindsWhatNothingDominates(t *testing.T) {
	wide := measured("w", "bf16", "full", 1000, 12, "x/uniform/0.5", 500, 9, "x/uniform/0.8", 200, 3, "y/uniform/0.5", 500, 10)
	narrow := measured("n", "int8", "full", 540, 12, "x/uniform/0.5", 270, 9, "x/uniform/0.8", 200, 3)
	figures, points, err := Frontier([]*runs.Measured{wide, narrow})
	require.NoError(t, err)
	require.Len(t, points, 7)
	best := map[string]bool{}
	for i, p := range points {
		assert.True(t, i == 0 || points[i-1].CacheBytes <= p.CacheBytes)
		assert.Equal(t, 24, p.N)
		assert.InDelta(t, float64(p.CacheBytes)/1000, p.Share, 1e-12)
		assert.LessOrEqual(t, p.Low, p.Value)
		assert.GreaterOrEqual(t, p.High, p.Value)
		assert.Equal(t, p.Best, p.Difference == nil)
		if p.Best {
			best[p.name] = true
		}
	}
	assert.Equal(t, map[string]bool{"bf16, x/uniform/0.8": true, "int8, x/uniform/0.8": true, "int8, x/uniform/0.5": true,
		"bf16, y/uniform/0.5": true, "int8, full": true}, best, "equal points do not dominate each other")
	p := pointNamed(t, points, "bf16, x/uniform/0.5")
	assert.Equal(t, "bf16, y/uniform/0.5", p.By, "the best of those that dominate it, not the smallest")
	assert.InDelta(t, 100.0/12, p.Difference.Diff, 1e-9)
	assert.Equal(t, "int8, full", pointNamed(t, points, "bf16, full").By)

	require.Len(t, figures, 1)
	f := figure(t, figures, "frontier")
	assert.True(t, f.LogX)
	l := line(t, f.Lines, "bf16, x/uniform")
	assert.Equal(t, []float64{200. / 1024, 500. / 1024, 1000. / 1024}, l.X, "the full cache ends the line")
	assert.Equal(t, []bool{true, false, false}, l.Best)
	assert.Equal(t, []float64{25, 75, 100}, l.Y)
}

// Only items that every method answered count, in every run.
func TestFrontierSharesItems(t *testing.T) {
	wide := measured("w", "bf16", "full", 1000, 12, "x/uniform/0.5", 500, 6)
	narrow := measured("n", "int8", "full", 540, 12)
	narrow.Answers[0].Error = "did not fit"
	_, points, err := Frontier([]*runs.Measured{wide, narrow})
	require.NoError(t, err)
	for _, p := range points {
		assert.Equal(t, 23, p.N, p.name)
	}
	for i := range narrow.Answers {
		narrow.Answers[i].Item += 100
	}
	_, _, err = Frontier([]*runs.Measured{wide, narrow})
	require.ErrorContains(t, err, "no question was answered by every method")
}

func TestFrontierOfDivergences(t *testing.T) {
	r := &runs.Measured{Name: "kl", Settings: runs.Settings{Model: "m", Cache: "bf16", From: "bf16"}}
	for i := range 30 {
		for k, x := range []float64{0, 0.5, 0.25} {
			r.Divergences = append(r.Divergences, eval.Divergence{Item: i, Task: "a", Method: fmt.Sprintf("x/uniform/%d", k), Metric: "x", Allocator: "uniform",
				KL: x * (1 + float64(i%3)), CacheBytes: []int64{900, 300, 300}[k]})
		}
	}
	figures, points, err := Frontier([]*runs.Measured{r})
	require.NoError(t, err)
	f := figure(t, figures, "frontier-kl")
	assert.True(t, f.LogY)
	assert.Equal(t, 1e-6, f.Lines[0].Y[2], "a logarithmic axis has no 0")
	assert.True(t, pointNamed(t, points, "x/uniform/0").Best)
	assert.True(t, pointNamed(t, points, "x/uniform/2").Best)
	p := pointNamed(t, points, "x/uniform/1")
	assert.Equal(t, "x/uniform/2", p.By, "less diverges less")
	assert.InDelta(t, -0.5, p.Difference.Diff, 1e-9)
	assert.InDelta(t, 1, p.Value, 1e-9)

	other := &runs.Measured{Name: "kl8", Settings: runs.Settings{Model: "m", Cache: "int8", From: "int8"}, Divergences: r.Divergences}
	_, _, err = Frontier([]*runs.Measured{r, other})
	require.ErrorContains(t, err, "caches of bf16 and int8: expected one reference")
	other.Settings.From = "bf16"
	_, points, err = Frontier([]*runs.Measured{r, other})
	require.NoError(t, err)
	require.Len(t, points, 6)
}

func TestFrontierRefusesDifferentRuns(t *testing.T) {
	a, b := measured("a", "bf16", "full", 10, 1), measured("b", "bf16", "full", 10, 1)
	b.Settings.Model = "other"
	_, _, err := Frontier([]*runs.Measured{a, b})
	require.ErrorContains(t, err, "expected one model")
	b.Settings.Model, b.Settings.Data = "m", json.RawMessage(`[2]`)
	_, _, err = Frontier([]*runs.Measured{a, b})
	require.ErrorContains(t, err, "asked different questions")
	_, _, err = Frontier([]*runs.Measured{measured("a", "bf16", "full", 0, 1)})
	require.ErrorContains(t, err, "no bytes of caches")

	_, points, err := Frontier([]*runs.Measured{a, a})
	require.NoError(t, err)
	assert.Equal(t, "a: full", points[0].name, "the run tells equal methods apart")
}

func TestWriteFrontier(t *testing.T) {
	_, points, err := Frontier([]*runs.Measured{measured("w", "bf16", "full", 2048, 12, "x/uniform/0.5", 1024, 6, "y/uniform/0.5", 1024, 3)})
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, WriteFrontier(&b, points, false))
	rows := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, rows, 5)
	assert.Regexp(t, `^\| \*\*`+"`x/uniform/0.5`"+`\*\* \| 1\.0 \| 50\.0 % \| 50\.0 % \| 50\.0 \| [0-9.]+ to [0-9.]+ \| 24 \|  \|$`, rows[2])
	assert.Contains(t, rows[3], "`x/uniform/0.5`, +25.0 (")
	points[1].Difference.Interval = "" // too few items
	b.Reset()
	require.NoError(t, WriteFrontier(&b, points, false))
	assert.Contains(t, b.String(), "`x/uniform/0.5`, +25.0 |")
	b.Reset()
	require.NoError(t, WriteFrontier(&b, points, true))
	assert.NotContains(t, b.String(), "y/uniform")
	assert.False(t, math.IsNaN(points[0].Low))
}
