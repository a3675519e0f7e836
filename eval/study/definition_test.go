package study

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/calibration"
)

// TestRecallKeepsWhatTheRatioSays: of T entries, floor((1-r)·T) are kept, exactly; 1-0.9 in
// floating point is less than 0.1.
func TestRecallKeepsWhatTheRatioSays(t *testing.T) {
	for _, T := range []int{50, 100, 199, 1000} {
		o := &LossOptions{Ratio: 0.5, Metrics: []lukv.MetricConfig{{Name: "snapkv"}}, Profiles: make([]*lukv.Profile, 1)}
		l, err := newLosses(t.Context(), "m", &model.Config{Layers: 1, KVHeads: 1, Windows: []int{0}}, o)
		require.NoError(t, err)
		same := make([]float32, T)
		for i := range same {
			same[i] = 1
		}
		require.NoError(t, l.add("task", T, [][][]float32{{same}}, [][][][]float32{{{same}}}))
		for i, y := range line(t, figure(t, l.figures(), "recall").Lines, "snapkv").Y {
			removed := 2 * i // percent
			assert.InDelta(t, float64((100-removed)*T/100)/float64(T), y, 1e-12, "%d %% of %d", removed, T)
		}
	}
}

// TestRanked: importances stand in the order of the scores, equal ones in that of entries.
func TestRanked(t *testing.T) {
	assert.Equal(t, []float32{7, 8, 5, 6}, ranked([]float32{5, 7, 6, 8}, []float32{2, 3, 1, 3}))
}

// TestRanksThatAreAllEqual: two profiles without any order agree, one does not with an order.
func TestRanksThatAreAllEqual(t *testing.T) {
	assert.Equal(t, 1.0, spearman([]float64{1, 1}, []float64{2, 2}))
	assert.Zero(t, spearman([]float64{1, 2}, []float64{3, 3}))
	assert.Zero(t, spearman([]float64{3, 3}, []float64{1, 2}))
}

// TestSumsOfNoQuestions: a task of which no question was measured has no sums.
func TestSumsOfNoQuestions(t *testing.T) {
	o := &LossOptions{Ratio: 0.5, Metrics: []lukv.MetricConfig{{Name: "snapkv"}}, Profiles: make([]*lukv.Profile, 1)}
	l, err := newLosses(t.Context(), "m", &model.Config{Layers: 1, KVHeads: 1, Windows: []int{0}}, o)
	require.NoError(t, err)
	l.N, l.Local["a"] = 1, [][][]float64{{make([]float64, len(localGrid))}}
	l.Tasks["a"] = 1
	require.True(t, l.fit(1))
	l.Tasks["a"] = 0
	require.False(t, l.fit(1))
}

// TestContinuedParts: the parts of a piece have names of their own, and one with another number
// of values is refused.
func TestContinuedParts(t *testing.T) {
	p := &continuedPiece{number: 3}
	names := map[string]bool{}
	for shape := -1; shape < 2; shape++ {
		for ratio := range 2 {
			names[p.part(shape, ratio)] = true
		}
	}
	require.Len(t, names, 1+2*2, "the full cache has no ratio")

	m := open(t)
	o := ContinuationOptions{Texts: [][]int32{{5, 6, 7, 8, 9, 10, 11, 12}}, Prefix: 5, Tokens: 3, Windows: 1, Ratios: []float64{0.5},
		Shapes: []Shape{{"a", lukv.Policy{Metric: lukv.MetricConfig{Name: "keydiff"}}}}, State: &State{}}
	_, err := Continuation(t.Context(), m, o)
	require.NoError(t, err)
	for part := range o.State.Parts {
		broken := &State{Inputs: o.State.Inputs, Parts: map[string]json.RawMessage{part: json.RawMessage(`[1,2]`)}}
		again := o
		again.State = broken
		_, err := Continuation(t.Context(), m, again)
		require.ErrorContains(t, err, part+": 2 values, expected 3")
	}
}

// TestCostOfOneToken: the shortest context is measured, as often as asked.
func TestCostOfOneToken(t *testing.T) {
	var seen [][3]int
	figures, err := Cost(t.Context(), open(t), CostOptions{Lengths: []int{1, 2}, Repeats: 3, Methods: []eval.Method{{Name: "full"}},
		Progress: func(from, done, total int) { seen = append(seen, [3]int{from, done, total}) }})
	require.NoError(t, err)
	assert.Equal(t, [][3]int{{0, 0, 9}, {0, 1, 9}, {0, 2, 9}, {0, 3, 9}, {0, 5, 9}, {0, 7, 9}}, seen)
	for _, f := range figures {
		assert.Equal(t, "median of 3", f.Subtitle)
		require.Len(t, f.Lines, 1)
		assert.Equal(t, []float64{1, 2}, f.Lines[0].X)
	}
}

// TestFrontierInPercent: differences and their bounds are percentages like the scores, a
// figure has a line for each method and says what it is made from.
func TestFrontierInPercent(t *testing.T) {
	figures, points, err := Frontier([]*runs.Measured{measured("w", "bf16", "full", 4, 12, "x/uniform/0.5", 1, 9, "x/uniform/0.8", 1, 3)})
	require.NoError(t, err)
	f := figure(t, figures, "frontier")
	require.Len(t, f.Lines, 1, "the full cache is the end of the line")
	assert.Equal(t, "24 items per point", f.Subtitle)
	d := pointNamed(t, points, "x/uniform/0.8").Difference
	assert.InDelta(t, 50, d.Diff, 1e-9)
	assert.Greater(t, d.Diff, d.Low)
	assert.Greater(t, d.High, d.Diff)
	assert.Greater(t, d.Low, 10.0)
	assert.LessOrEqual(t, d.High, 100.0)
	assert.InDelta(t, 0.25, pointNamed(t, points, "x/uniform/0.5").Share, 1e-12)

	_, points, err = Frontier([]*runs.Measured{measured("w", "bf16", "full", 1, 12)})
	require.NoError(t, err)
	assert.Equal(t, 1.0, points[0].Share, "the largest cache, of one byte")
}

// TestWriteDivergences: nats have four decimals, and a table of its own after the scores.
func TestWriteDivergences(t *testing.T) {
	r := measured("w", "bf16", "full", 2048, 12)
	r.Settings.From = "bf16"
	for i := range 24 {
		for k, kl := range []float64{0.125, 0.5} {
			r.Divergences = append(r.Divergences, eval.Divergence{Item: i, Task: "a", Method: []string{"x/uniform/0.5", "y/uniform/0.5"}[k], Metric: "x",
				KL: kl, CacheBytes: 1024, RatioAchieved: 0.5})
		}
	}
	_, points, err := Frontier([]*runs.Measured{r})
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, WriteFrontier(&b, points, false))
	scores, nats, ok := strings.Cut(b.String(), "\n\n")
	require.True(t, ok, "two tables")
	assert.Contains(t, scores, "| score |")
	rows := strings.Split(strings.TrimSpace(nats), "\n")
	require.Len(t, rows, 4)
	assert.Contains(t, rows[0], "| nats per token |")
	assert.Equal(t, "| **`x/uniform/0.5`** | 1.0 | 100.0 % | 50.0 % | 0.1250 | 0.1250 to 0.1250 | 24 |  |", rows[2])
	assert.Equal(t, "| `y/uniform/0.5` | 1.0 | 100.0 % | 50.0 % | 0.5000 | 0.5000 to 0.5000 | 24 | `x/uniform/0.5`, -0.3750 (-0.3750 to -0.3750) |", rows[3])
}

// TestNeedlesGoOn: answers of an earlier run stand beside those of this one.
func TestNeedlesGoOn(t *testing.T) {
	m := open(t)
	items, err := Needles([]int{60}, []int{0, 100}, func(s string) int { return len(strings.Fields(s)) })
	require.NoError(t, err)
	for i, it := range items {
		require.Equal(t, i+1, it.Line)
		require.Positive(t, it.MaxNewTokens)
	}
	o := eval.Options{Framing: dialog.Framing{Before: "<s><|user|>", Between: "\n\n", After: "<|assistant|>"}}
	methods := []eval.Method{{Name: "full"}}
	state := &State{}
	want, err := AskNeedles(t.Context(), m, items, methods, o, state, nil)
	require.NoError(t, err)
	require.Len(t, want, 2)
	require.Len(t, state.Parts, 2)
	delete(state.Parts, needleTask(60, 100)+", full")
	var first []int
	got, err := AskNeedles(t.Context(), m, items, methods, o, state, func(from, _, total int) { first = append(first, from, total) })
	require.NoError(t, err)
	require.Len(t, got, 2)
	for i := range got {
		assert.Equal(t, want[i].Task, got[i].Task)
		assert.Equal(t, want[i].Prediction, got[i].Prediction)
	}
	assert.Equal(t, []int{1, 2}, first[:2])
	require.Len(t, state.Parts, 2)
}

// TestNeedleLengths: a context has the most sentences that fit, of a story that begins again.
func TestNeedleLengths(t *testing.T) {
	count := func(s string) int { return len(strings.Fields(s)) }
	story := strings.Join(strings.Fields(calibration.Narrative().Context), " ")
	first, _, _ := strings.Cut(story, ". ")
	least := count(first) + count(needleText)
	_, err := Needles([]int{least - 1}, []int{0}, count)
	require.ErrorContains(t, err, "has no room")
	items, err := Needles([]int{least}, []int{0, 100}, count)
	require.NoError(t, err)
	assert.Equal(t, needleText+" "+first+".", items[0].Context)
	assert.Equal(t, first+". "+needleText, items[1].Context)
	items, err = Needles([]int{3 * count(story)}, []int{50}, count)
	require.NoError(t, err)
	assert.Equal(t, 3, strings.Count(items[0].Context, first))
	assert.Greater(t, count(items[0].Context), 3*count(story)-60)
}
