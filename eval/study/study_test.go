package study

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/internal/report"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/model/calibration"
)

func open(t *testing.T) *model.Model {
	t.Helper()
	m, err := builtin.Open(t.Context(), model.WithThreads(2))
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func figure(t *testing.T, figures []report.Figure, id string) report.Figure {
	t.Helper()
	for _, f := range figures {
		require.NoError(t, f.Validate())
		if f.ID == id {
			return f
		}
	}
	t.Fatalf("no figure %s", id)
	return report.Figure{}
}

func line(t *testing.T, lines []report.Line, name string) report.Line {
	t.Helper()
	for _, l := range lines {
		if l.Name == name {
			return l
		}
	}
	t.Fatalf("no line %s", name)
	return report.Line{}
}

// The checks that spec evaluation 8.1 names for each analysis.
func TestLosses(t *testing.T) {
	m := open(t)
	var questions []Question
	for _, s := range builtin.Samples() {
		if s.Length == 256 && len(questions) < 3 {
			questions = append(questions, Question{s.Task, calibration.Text{Context: s.Context, Questions: []calibration.Question{{Question: s.Question, AnswerPrefix: s.AnswerPrefix}}}})
		}
	}
	profile, err := builtin.Profile(lukv.MetricConfig{Name: "snapkv"})
	require.NoError(t, err)
	o := LossOptions{Calibration: calibration.Options{Prompt: builtin.Prompt, MaxSteps: 8}, Ratio: 0.8, ExactItems: 1,
		Metrics:    []lukv.MetricConfig{{Name: "snapkv"}, {Name: "keydiff"}},
		Allocators: []lukv.AllocatorConfig{{Name: "uniform"}, {Name: "adakv"}, {Name: "lukv"}},
		Profiles:   []*lukv.Profile{profile, nil}}
	figures, err := Losses(t.Context(), m, questions, o)
	require.NoError(t, err)

	recall := figure(t, figures, "recall")
	oracle := line(t, recall.Lines, "oracle").Y
	for _, l := range recall.Lines {
		assert.InDelta(t, 1, l.Y[0], 1e-9, "nothing removed")
		assert.Zero(t, l.Y[len(l.Y)-1], "everything removed")
		for i, y := range l.Y {
			assert.LessOrEqual(t, y, oracle[i]+1e-12, l.Name)
			assert.True(t, i == 0 || y <= l.Y[i-1], "%s does not rise", l.Name)
		}
	}

	// Layers are sums of heads.
	layers, heads := figure(t, figures, "layer-loss-snapkv"), figure(t, figures, "head-loss-snapkv")
	require.Len(t, heads.Heat, 3)
	for _, p := range heads.Heat {
		l := line(t, layers.Lines, p.Name)
		for i, row := range p.Values {
			sum := 0.0
			for _, v := range row {
				sum += *v / 100
			}
			assert.InDelta(t, l.Y[i], sum, 1e-9)
		}
	}
	assert.Len(t, figure(t, figures, "head-loss-keydiff").Heat, 2, "no profile, no lukv")

	solver := figure(t, figures, "solver")
	greedy, repaired, uniform := line(t, solver.Lines, "greedy").Y, line(t, solver.Lines, "greedy and repair").Y, line(t, solver.Lines, "uniform").Y
	for i := range greedy {
		assert.LessOrEqual(t, repaired[i], greedy[i]+1e-12)
		assert.Less(t, repaired[i], uniform[i])
	}

	// The solvers' losses are shares of the importance of the questions that they worked
	// on: the first one alone gives the same, and uniform budgets lose what is not recalled.
	one, err := Losses(t.Context(), m, questions[:1], o)
	require.NoError(t, err)
	require.Equal(t, solver.Lines, figure(t, one, "solver").Lines)
	kept := line(t, figure(t, one, "recall").Lines, "snapkv")
	for i, x := range line(t, solver.Lines, "uniform").X {
		at := slices.Index(kept.X, x)
		require.GreaterOrEqual(t, at, 0)
		assert.InDelta(t, 1-kept.Y[at], uniform[i], 0.01, "at %v", x)
	}

	// The mean over heads of local ratios is the global one.
	local := figure(t, figures, "local-ratios")
	require.Len(t, local.Charts, m.Config().Layers*m.Config().KVHeads)
	for g, ratio := range localGrid {
		sum := 0.0
		for _, c := range local.Charts {
			y := line(t, c.Lines, "mean of tasks").Y[g]
			assert.True(t, y >= 0 && y <= 1)
			sum += y
		}
		assert.InDelta(t, ratio, sum/float64(len(local.Charts)), 1e-3)
	}

	// A file gives the same figures again.
	var b bytes.Buffer
	f := &File{Title: "t", Data: "d", Figures: figures}
	require.NoError(t, f.Write(&b))
	again, err := Read(&b, "x")
	require.NoError(t, err)
	assert.Equal(t, f, again)
	assert.Contains(t, again.Figures[0].Subtitle, "; d")
	for text, want := range map[string]string{"": "EOF", "{}": `format ""`, `{"format":"lukv analysis 1"}`: "no figures", `{"format":"lukv analysis 1","figures":[{}]}`: "file name"} {
		_, err := Read(strings.NewReader(text), "x")
		assert.ErrorContains(t, err, want)
	}
}

// Layers with a sliding window are never compressed: they have no budgets, and no
// figure mentions them.
func TestLossesOfWindows(t *testing.T) {
	o := &LossOptions{Ratio: 0.5, Metrics: []lukv.MetricConfig{{Name: "snapkv"}}, Profiles: make([]*lukv.Profile, 1),
		Allocators: []lukv.AllocatorConfig{{Name: "uniform"}, {Name: "pyramidkv"}, {Name: "adakv"}}}
	l, err := newLosses(t.Context(), "m", &model.Config{Layers: 3, KVHeads: 1, Windows: []int{16, 0, 16}}, o)
	require.NoError(t, err)
	importance, scores := make([]float32, 1000), make([]float32, 1000)
	for i := range importance {
		importance[i], scores[i] = float32(i%7), float32(i%5)
	}
	require.NoError(t, l.add("task", len(scores), [][][]float32{nil, {importance}, nil}, [][][][]float32{{nil, {scores}, nil}}))
	figures := l.figures()
	lines := figure(t, figures, "layer-loss-snapkv").Lines
	assert.Equal(t, line(t, lines, "uniform").Y, line(t, lines, "pyramidkv").Y, "one layer only")
	assert.Equal(t, line(t, lines, "uniform").Y, line(t, lines, "adakv").Y, "one head only")
	assert.Len(t, figure(t, figures, "local-ratios").Charts, 1)
}

// The loss is what the kept entries lack. Protected ones are kept, however badly a
// metric ranks them.
func TestLossesOfProtected(t *testing.T) {
	const T = 100
	ratios := make([]float64, 99)
	for i := range ratios {
		ratios[i] = float64(i+1) / 100
	}
	id := lukv.DefaultProfileIdentity()
	metric, err := lukv.NewMetric(lukv.MetricConfig{Name: "keydiff"})
	require.NoError(t, err)
	id.Model, id.Metric, id.Protection = "m", lukv.MetricConfigOf(metric), lukv.ProfiledProtection(metric)
	profile, err := lukv.NewProfile(id, 1, 1, ratios, nil)
	require.NoError(t, err)
	importance, scores := make([]float32, T), make([]float32, T)
	for i := range importance {
		importance[i], scores[i] = 1, float32(i)
	}
	for keep, lost := range map[int]float64{
		50: 50.0 / 200, // of 200, 101 of which are the first entry's
		4:  96.0 / 200, // fewer than are protected
	} {
		importance[0] = 101
		o := &LossOptions{Ratio: 1 - float64(keep)/T, Metrics: []lukv.MetricConfig{{Name: "keydiff"}}, Profiles: []*lukv.Profile{profile},
			Allocators: []lukv.AllocatorConfig{{Name: "lukv"}}}
		l, err := newLosses(t.Context(), "m", &model.Config{Layers: 1, KVHeads: 1, Windows: []int{0}}, o)
		require.NoError(t, err)
		require.NoError(t, l.add("task", T, [][][]float32{{importance}}, [][][][]float32{{{scores}}}))
		y := line(t, figure(t, l.figures(), "layer-loss-keydiff").Lines, "lukv").Y
		assert.InDelta(t, lost, y[0], 1e-9, "%d kept", keep)
	}
}

// Metrics and allocators with the same name but different parameters are told apart.
func TestLossesOfOneName(t *testing.T) {
	window := lukv.MetricConfig{Name: "snapkv", Params: `{"window":8}`}
	o := &LossOptions{Ratio: 0.5, Metrics: []lukv.MetricConfig{{Name: "snapkv"}, window}, Profiles: make([]*lukv.Profile, 2),
		Allocators: []lukv.AllocatorConfig{{Name: "uniform"}, {Name: "adakv"}, {Name: "adakv", Params: `{"alpha":1}`}}}
	l, err := newLosses(t.Context(), "m", &model.Config{Layers: 1, KVHeads: 1, Windows: []int{0}}, o)
	require.NoError(t, err)
	head := []float32{4, 3, 2, 1}
	scores := [][][]float32{{head}}
	require.NoError(t, l.add("task", len(head), scores, [][][][]float32{scores, scores}))
	figures := l.figures()
	for _, l := range figure(t, figures, "recall").Lines {
		assert.Equal(t, 1.0, l.Y[0], l.Name)
	}
	for _, id := range []string{"head-loss-snapkv", "head-loss-snapkv-2"} {
		assert.Len(t, figure(t, figures, id).Heat, 3)
	}
}

// What cannot be compared is refused before any question is measured.
func TestLossesRefuse(t *testing.T) {
	m := open(t)
	for _, c := range []struct{ metric, allocator, want string }{
		{"snapkv", "cake", "allocator cake, which looks at the layers themselves"},
		{"per_head", "uniform", "metric per_head: found allocator global, expected lukv"},
		{"snapkv", "nothing", "nothing"},
	} {
		_, err := Losses(t.Context(), m, nil, LossOptions{Metrics: []lukv.MetricConfig{{Name: "keydiff"}, {Name: c.metric}},
			Allocators: []lukv.AllocatorConfig{{Name: "global"}, {Name: c.allocator}}, Profiles: make([]*lukv.Profile, 2), Ratio: 0.5})
		require.ErrorContains(t, err, c.want)
		assert.NotContains(t, err.Error(), "measure")
	}
}

func TestAgreement(t *testing.T) {
	a, err := builtin.Profile(lukv.MetricConfig{Name: "snapkv"})
	require.NoError(t, err)
	b, err := builtin.Profile(lukv.MetricConfig{Name: "keydiff"})
	require.NoError(t, err)
	figures, err := Agreement([]string{"a", "a again", "b"}, []*lukv.Profile{a, a, b})
	require.NoError(t, err)
	for _, y := range line(t, figures[0].Lines, "a and a again").Y {
		assert.Zero(t, y)
	}
	for _, y := range line(t, figures[1].Lines, "a and a again").Y {
		assert.InDelta(t, 1, y, 1e-12)
	}
	assert.Positive(t, line(t, figures[0].Lines, "a and b").Y[9])
	assert.Less(t, line(t, figures[1].Lines, "a and b").Y[9], 1.0)

	// Layers without ratios of their own do not count as agreement.
	up, down := windowed(t, "up", false), windowed(t, "down", true)
	figures, err = Agreement([]string{"up", "down"}, []*lukv.Profile{up, down})
	require.NoError(t, err)
	assert.InDelta(t, 0.2, line(t, figures[0].Lines, "up and down").Y[9], 1e-12)
	assert.InDelta(t, -1, line(t, figures[1].Lines, "up and down").Y[9], 1e-12)

	other := *b
	other.Identity.Model = "another"
	_, err = Agreement([]string{"a", "b"}, []*lukv.Profile{a, &other})
	require.ErrorIs(t, err, lukv.ErrProfileMismatch)
	assert.InDelta(t, -1, spearman([]float64{1, 2, 3}, []float64{3, 2, 1}), 1e-12)
	assert.InDelta(t, math.Sqrt(3)/2, spearman([]float64{1, 1, 3}, []float64{1, 2, 3}), 1e-12)
	assert.Zero(t, spearman([]float64{1, 1}, []float64{1, 2}))
}

// windowed is a profile of one layer of two heads, whose ratios differ by 0.2 at 0.5,
// among layers with sliding windows.
func windowed(t *testing.T, name string, swap bool) *lukv.Profile {
	t.Helper()
	var ratios []float64
	for i := range 99 {
		r := float64(i+1) / 100
		apart := min(0.1, r, 1-r)
		if swap {
			apart = -apart
		}
		ratios = append(ratios, 0, 0, r-apart, r+apart, 0, 0)
	}
	id := lukv.DefaultProfileIdentity()
	id.Model = "m"
	p, err := lukv.NewProfile(id, 3, 2, ratios, []int{0, 2})
	require.NoError(t, err, name)
	return p
}

func TestCost(t *testing.T) {
	m := open(t)
	figures, err := Cost(t.Context(), m, CostOptions{Lengths: []int{64, 256}, Repeats: 1, Methods: []eval.Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.8}}}})
	require.NoError(t, err)
	kept := figure(t, figures, "memory")
	full, half := line(t, kept.Lines, "full").Y, line(t, kept.Lines, "half").Y
	assert.Less(t, half[1], full[1]/2)
	assert.Less(t, full[0], full[1])
	peak := line(t, figure(t, figures, "memory-peak").Lines, "half").Y
	assert.Greater(t, peak[1], half[1])
	for _, l := range figure(t, figures, "first-token").Lines {
		assert.Positive(t, l.Y[1])
	}
}

func TestMedian(t *testing.T) {
	assert.Equal(t, 2.0, median([]float64{2}))
	assert.Equal(t, 2.5, median([]float64{4, 1}), "of an even number not the larger one")
	assert.Equal(t, 3.0, median([]float64{9, 1, 3}))
	assert.Equal(t, 2.5, median([]float64{9, 1, 3, 2}))
}

// TestCostRefusesBeforeWork: a context that leaves no room for the tokens after it
// is refused before any work, even if it is the last in the list.
func TestCostRefusesBeforeWork(t *testing.T) {
	m := open(t)
	o := CostOptions{Repeats: 1, Methods: []eval.Method{{Name: "full"}}, Progress: func(int, int, int) { t.Error("work began") }}
	for _, n := range []int{m.Config().MaxPositions, m.Config().MaxPositions - decoded, 1 << 20} {
		o.Lengths = []int{64, n}
		_, err := Cost(t.Context(), m, o)
		require.ErrorIs(t, err, model.ErrContextFull)
		require.ErrorContains(t, err, "the largest length is 2031")
	}
	o.Lengths = []int{64, 0}
	_, err := Cost(t.Context(), m, o)
	require.ErrorContains(t, err, "expected at least 1")
	o.Lengths, o.Progress = []int{2031}, nil
	_, err = Cost(t.Context(), m, o)
	require.NoError(t, err)
}

// The sentence is where it should be, once, and the map has every cell.
func TestNeedles(t *testing.T) {
	count := func(s string) int { return len(strings.Fields(s)) }
	lengths, depths := []int{100, 5000}, []int{0, 50, 100}
	items, err := Needles(lengths, depths, count)
	require.NoError(t, err)
	require.Len(t, items, 6)
	var answers []eval.Answer
	for i, it := range items {
		n := count(it.Context)
		assert.LessOrEqual(t, n, lengths[i/3])
		assert.Greater(t, n, lengths[i/3]-60)
		assert.Equal(t, 1, strings.Count(it.Context, needleText))
		before, _, _ := strings.Cut(it.Context, needleText)
		assert.InDelta(t, float64(depths[i%3])/100, float64(count(before))/float64(n), 0.2)
		answers = append(answers, eval.Answer{Item: i, Task: it.Task, Method: "full", Score: float64(i % 2)})
	}
	f := NeedleMap(lengths, depths, answers)
	require.NoError(t, f.Validate())
	assert.Equal(t, 100.0, *f.Heat[0].Values[1][0])
	assert.Equal(t, 100.0, *f.Heat[0].Values[0][1])
	assert.Equal(t, 0.0, *f.Heat[0].Values[2][0])
	_, err = Needles([]int{3}, depths, count)
	require.ErrorContains(t, err, "has no room")
	_, err = Needles(lengths, []int{101}, count)
	require.ErrorContains(t, err, "depth 101")
}

func TestSensitivity(t *testing.T) {
	r := &runs.Run{Name: "r"}
	for i, method := range []string{"full", "a", "b"} {
		a := eval.Answer{Task: "vt", Method: method, Score: 1 - 0.25*float64(i)}
		if i > 0 {
			a.Metric, a.Allocator, a.Ratio = "snapkv", "uniform", 0.4*float64(i)
		}
		r.Answers = append(r.Answers, a)
	}
	f, err := Sensitivity([]*runs.Run{r})
	require.NoError(t, err)
	require.NoError(t, f.Validate())
	require.Len(t, f.Lines, 1)
	assert.Equal(t, []float64{0, 0.4, 0.8}, f.Lines[0].X)
	assert.Equal(t, []float64{100, 75, 50}, f.Lines[0].Y)
	f, err = Sensitivity([]*runs.Run{r, {Name: "other", Answers: r.Answers}})
	require.NoError(t, err)
	assert.Equal(t, "snapkv, uniform of r", f.Lines[0].Name, "two runs have it")
	assert.Equal(t, "snapkv, uniform of other", f.Lines[1].Name)
	_, err = Sensitivity([]*runs.Run{{Answers: r.Answers[:1]}})
	require.ErrorContains(t, err, "found 1 method without a metric")
	_, err = Sensitivity([]*runs.Run{{}})
	require.ErrorContains(t, err, "none of the 1 runs")
}
