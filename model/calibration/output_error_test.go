package calibration

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

func errorOptions(kind string) ProfileOptions {
	return ProfileOptions{
		Options: Options{Prompt: builtin.Prompt, MaxSteps: 6},
		Metric:  lukv.MetricConfig{Name: "keydiff"}, Objective: lukv.ObjectiveOutputError, Weights: lukv.DefaultWeights(kind),
	}
}

// TestOutputErrorProfileIsRepeatable: the same bytes for any number of threads, and
// the number of passes that effect.md §4 states.
func TestOutputErrorProfileIsRepeatable(t *testing.T) {
	texts := short(1)
	m := open(t, model.WithThreads(1))
	const pairs, layers, ratios = 2, 6, 3
	for kind, passes := range map[string]int{
		lukv.WeightsNone: pairs,
		lukv.WeightsCut:  pairs + pairs*layers,
		lukv.WeightsSpan: pairs + pairs*2*layers*ratios,
	} {
		o := errorOptions(kind)
		count := 0
		o.Progress = func(p Progress) {
			if p.Pair != nil {
				count += p.Pair.Passes
				assert.Positive(t, p.Pair.Steps)
				assert.Nil(t, p.Levels)
			}
		}
		want, err := Profile(t.Context(), m, texts, o)
		require.NoError(t, err)
		assert.Equal(t, passes, count, kind)
		assert.Equal(t, pairs, want.Pairs)
		assert.Equal(t, kind == lukv.WeightsNone, len(want.OutputErrors.Effects) == 0)
		o.Progress = nil
		got, err := Profile(t.Context(), open(t, model.WithThreads(3)), texts, o)
		require.NoError(t, err)
		assert.Equal(t, content(t, want), content(t, got), kind)
	}
}

func TestOutputErrorProfileResumes(t *testing.T) {
	m := open(t, model.WithThreads(2))
	texts := short(2)
	o := errorOptions(lukv.WeightsCut)
	want, err := Profile(t.Context(), m, texts, o)
	require.NoError(t, err)

	o.State = filepath.Join(t.TempDir(), "state")
	stopInAndBetween(t, m, texts, o)

	other := o
	other.Weights = lukv.DefaultWeights(lukv.WeightsSpan)
	_, err = Profile(t.Context(), m, texts, other)
	assert.ErrorIs(t, err, lukv.ErrProfileMismatch, "a state of other weights")
	other = o
	other.Objective = ""
	_, err = Profile(t.Context(), m, texts, other)
	assert.ErrorIs(t, err, lukv.ErrProfileMismatch, "a state of another objective")

	got, err := Profile(t.Context(), m, texts, o)
	require.NoError(t, err)
	assert.Equal(t, content(t, want), content(t, got))
}

// TestPairsDoNotDependOnEachOther: a pair gives the same sums alone and after others.
func TestPairsDoNotDependOnEachOther(t *testing.T) {
	m := open(t, model.WithThreads(2))
	texts := short(1)
	o := errorOptions(lukv.WeightsCut)
	build := func(texts []Text) *lukv.Profile {
		p, err := Profile(t.Context(), m, texts, o)
		require.NoError(t, err)
		return p
	}
	text := texts[0]
	alone, both := build([]Text{{Context: text.Context, Questions: text.Questions[1:]}}), build(texts[:1])
	first := build([]Text{{Context: text.Context, Questions: text.Questions[:1]}})
	e, a, b := both.OutputErrors, first.OutputErrors, alone.OutputErrors
	require.Equal(t, e.AnswerSteps, a.AnswerSteps+b.AnswerSteps)
	sum := func(x, y float64) float64 {
		return (x*float64(a.AnswerSteps) + y*float64(b.AnswerSteps)) / float64(e.AnswerSteps)
	}
	for u := range e.Error {
		for i, v := range e.Error[u] {
			require.InDelta(t, v, sum(a.Error[u][i], b.Error[u][i]), 1e-9*(1+v))
		}
	}
	for l := range e.Effects {
		require.InDelta(t, e.Effects[l][0], sum(a.Effects[l][0], b.Effects[l][0]), 1e-12)
		require.GreaterOrEqual(t, e.Effects[l][0], 0.0)
	}
}

// TestPerHeadProfile: a metric per head takes no extra passes, and a session under
// the profile holds what the budgets say.
func TestPerHeadProfile(t *testing.T) {
	m := open(t, model.WithThreads(2))
	texts := short(1)
	o := errorOptions(lukv.WeightsCut)
	o.Metric = lukv.MetricConfig{Name: "per_head", Params: `{"metrics":["keydiff","snapkv","key_distance"]}`}
	passes := 0
	o.Progress = func(p Progress) {
		if p.Pair != nil {
			passes += p.Pair.Passes
		}
	}
	p, err := Profile(t.Context(), m, texts, o)
	require.NoError(t, err)
	assert.Equal(t, 2+2*6, passes)
	require.Len(t, p.OutputErrors.Errors, 3)
	used := map[int]bool{}
	for _, i := range p.OutputErrors.MetricOf[49] {
		used[i] = true
	}
	assert.Greater(t, len(used), 1)

	policy := &lukv.Policy{Metric: o.Metric, Allocator: lukv.AllocatorConfig{Name: "lukv"}, Ratio: 0.5, Profile: p}
	s, err := m.NewSession(model.SessionOptions{Compression: policy})
	require.NoError(t, err)
	defer s.Close()
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	head, _ := builtin.Prompt(texts[0].Context, "", "")
	tokens := head.Encode(tok)
	require.NoError(t, s.Prefill(t.Context(), tokens))
	entries := 0
	for l := range 6 {
		for h := range 4 {
			entries += s.Cache().Len(l, h)
		}
	}
	assert.InDelta(t, 0.5*24*float64(len(tokens)), entries, 24)
}
