package eval

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/lukv/lukv/model/sampling"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// measured returns the divergences of a run.
func measured(t *testing.T, m *model.Model, items []Item, methods []Method, o Options) []Divergence {
	var out []Divergence
	last := 0
	o.Framing = builtinFraming
	o.Progress = func(done, total int) {
		require.LessOrEqual(t, done, total)
		last = done
	}
	require.NoError(t, Divergences(context.Background(), m, items, methods, o, func(d Divergence) error {
		out = append(out, d)
		return nil
	}))
	require.Len(t, out, last)
	return out
}

// TestDivergences: nothing for a cache that stays whole, the same with prefills of
// their own, and what stepping through the answer of the full cache gives.
func TestDivergences(t *testing.T) {
	m := open(t)
	items := append(few("niah_single_2", 256, 2), few("qa_1", 256, 1)...)
	items[1].Context = items[0].Context
	policy := func(ratio float64) *lukv.Policy {
		return &lukv.Policy{Metric: lukv.MetricConfig{Name: "key_distance"}, Allocator: lukv.AllocatorConfig{Name: "uniform"}, Ratio: ratio}
	}
	whole := &lukv.Policy{Metric: lukv.MetricConfig{Name: "key_distance"}, BudgetTokens: 4000}
	methods := []Method{{Name: "full"}, {Name: "whole", Policy: whole}, {Name: "half", Policy: policy(0.5)}, {Name: "little", Policy: policy(0.9)}}
	got := measured(t, m, items, methods, Options{MaxNewTokens: 8})
	require.Equal(t, got, measured(t, m, items, methods, Options{MaxNewTokens: 8, OwnPrefills: true}), "the context is prefilled once in any case")
	require.Len(t, got, 3*3)
	byMethod := map[string][]float64{}
	for _, d := range got {
		require.Empty(t, d.Error)
		require.Equal(t, items[d.Item].Task, d.Task)
		require.Positive(t, d.AnswerTokens)
		require.LessOrEqual(t, d.AnswerTokens, 8)
		byMethod[d.Method] = append(byMethod[d.Method], d.KL)
	}
	require.NotContains(t, byMethod, "full")
	require.Equal(t, []float64{0, 0, 0}, byMethod["whole"], "exactly")
	require.Greater(t, sum(byMethod["little"]), sum(byMethod["half"]))
	require.Positive(t, sum(byMethod["half"]))

	// Token by token.
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	a, b := builtinFraming.Prompt(items[2].Context, items[2].Question, items[2].AnswerPrefix)
	session := func(p *lukv.Policy) *model.Session {
		s, err := m.NewSession(model.SessionOptions{Compression: p})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		require.NoError(t, s.Prefill(t.Context(), a.Encode(tok)))
		require.NoError(t, s.Prefill(t.Context(), b.Encode(tok)))
		return s
	}
	full, cut := session(nil), session(policy(0.9))
	sampler, err := m.NewSampler(model.Sampling{}, 0)
	require.NoError(t, err)
	want, n := 0.0, 0
	for {
		p, q := full.Logits(), cut.Logits()
		for i, x := range p {
			lp := float64(x) - sampling.LogSumExp(p)
			want += math.Exp(lp) * (lp - (float64(q[i]) - sampling.LogSumExp(q)))
		}
		n++
		id, err := sampler.Next(p, nil)
		require.NoError(t, err)
		if n == 8 || m.Ends(id, &model.Sampling{}) {
			break
		}
		require.NoError(t, full.Append(t.Context(), id))
		require.NoError(t, cut.Append(t.Context(), id))
	}
	i := slices.IndexFunc(got, func(d Divergence) bool { return d.Item == 2 && d.Method == "little" })
	require.Equal(t, n, got[i].AnswerTokens)
	require.InDelta(t, want/float64(n), got[i].KL, 1e-9)
}

func TestDivergenceErrors(t *testing.T) {
	m := open(t)
	items := few("niah_single_2", 256, 1)
	p := &lukv.Policy{Ratio: 0.5, Decode: lukv.DecodeConfig{Mode: "tova", TargetSize: 40}}
	emit := func(Divergence) error { return nil }
	o := Options{Framing: builtinFraming}
	err := Divergences(t.Context(), m, items, []Method{{Name: "d", Policy: p}}, o, emit)
	require.EqualError(t, err, "evaluate: method d: found compression while decoding, expected none: an answer is read in one pass")

	methods := []Method{{Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	stop := errors.New("stop")
	err = Divergences(t.Context(), m, items, methods, o, func(Divergence) error { return stop })
	require.ErrorIs(t, err, stop)

	items[0].Context = strings.Repeat(items[0].Context, 20)
	o.Truncate = TruncateError
	got := measured(t, m, items, methods, o)
	require.Len(t, got, 1)
	require.NotEmpty(t, got[0].Error)
	require.Empty(t, SummarizeDivergences(got))
	o.Truncate = TruncateHead
	got = measured(t, m, items, methods, o)
	require.Empty(t, got[0].Error)
	require.Positive(t, got[0].Truncated)
}

func TestSummarizeDivergences(t *testing.T) {
	var all []Divergence
	for i := range 12 {
		for k, task := range []string{"a", "b"} {
			all = append(all, Divergence{Item: i, Task: task, Method: "m|x", Ratio: 0.5, KL: float64(k) + float64(i)/10, AnswerTokens: 2, RatioAchieved: 0.5, CacheBytes: 10, FullBytes: 20})
		}
	}
	all = append(all, Divergence{Item: 12, Task: "b", Method: "m|x", Ratio: 0.5, Error: "too long"}, Divergence{Item: 0, Task: "a", Method: "n", KL: 3})
	rows := SummarizeDivergences(all)
	require.Len(t, rows, 4)
	assert.InDelta(t, 0.55, rows[0].KL, 1e-12)
	assert.Equal(t, 12, rows[1].N)
	assert.Equal(t, 1, rows[1].Failed)
	assert.InDelta(t, 1.05, rows[2].KL, 1e-12)
	assert.Equal(t, [3]int{2, 24, 48}, [3]int{rows[2].Tasks, rows[2].N, rows[2].AnswerTokens})
	assert.Equal(t, IntervalBootstrap, rows[2].Interval)
	assert.Less(t, rows[2].Low, rows[2].KL)
	assert.Greater(t, rows[2].High, rows[2].KL)
	assert.Equal(t, "", rows[3].Interval, "one item")

	var b bytes.Buffer
	require.NoError(t, WriteDivergenceTable(&b, rows))
	assert.Contains(t, b.String(), "12 (1 failed)")
	b.Reset()
	require.NoError(t, WriteDivergenceMarkdown(&b, rows))
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	require.Len(t, lines, 2+len(rows))
	for _, line := range lines {
		assert.Equal(t, len(divergenceHeader)+1, strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"), line)
	}
	b.Reset()
	require.NoError(t, WriteDivergenceCSV(&b, rows, map[string]string{"n": "{}"}))
	assert.Contains(t, b.String(), "m|x,,,0.5,average,24,1,1.05")
}

func TestDivergenceOfLogits(t *testing.T) {
	p, q := []float32{0, 0}, []float32{0, float32(math.Log(3))} // halves, and a quarter and three
	require.Zero(t, sampling.Divergence(p, slices.Clone(p)))
	require.InDelta(t, 0.5*math.Log(2)+0.5*math.Log(2.0/3), sampling.Divergence(p, q), 1e-6)
}
