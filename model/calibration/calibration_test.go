package calibration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer/chat"
)

func TestNarrative(t *testing.T) {
	n := Narrative()
	require.NoError(t, n.validate())
	words := len(strings.Fields(n.Context))
	assert.Greater(t, words, 2800)
	assert.Less(t, words, 3500)
	assert.Len(t, n.Questions, 30)
	seen := map[string]bool{}
	for _, q := range n.Questions {
		assert.False(t, seen[q.Question], q.Question)
		seen[q.Question] = true
		assert.True(t, strings.HasSuffix(q.Question, "?"))
		assert.NotEmpty(t, q.AnswerPrefix)
		assert.Equal(t, strings.TrimSpace(q.AnswerPrefix), q.AnswerPrefix)
	}
}

func TestReadTexts(t *testing.T) {
	texts, err := ReadTexts(strings.NewReader("\ufeff"+`{"context":"c","questions":["a",{"question":"b","answer_prefix":"p","answers":["x"]}]}`+"\n\n"+
		`{"context":"d","questions":[{"question":"e"}],"more":1}`), "f")
	require.NoError(t, err)
	assert.Equal(t, []Text{
		{Context: "c", Questions: []Question{{Question: "a"}, {Question: "b", AnswerPrefix: "p", Answers: []string{"x"}}}},
		{Context: "d", Questions: []Question{{Question: "e"}}},
	}, texts)
	assert.Equal(t, 3, Pairs(texts))
	for text, want := range map[string]string{
		"":                                  "no texts",
		"{}":                                "context is empty",
		"\n" + `{"context":"c"}`:            "line 2: no questions",
		`{"context":"c","questions":[""]}`:  "question 1 is empty",
		`{"context":"c","questions":[7]}`:   "line 1",
		`{"context":"c","questions":["a"]`:  "line 1",
		`{"context":"c","questions":["a"]]`: "line 1",
	} {
		_, err := ReadTexts(strings.NewReader(text), "f")
		assert.ErrorContains(t, err, want, text)
	}
}

func TestReadQuestions(t *testing.T) {
	q, err := ReadQuestions(strings.NewReader("Who?\n  \n{\"question\":\"b\",\"answer_prefix\":\"p\"}\n"), "f")
	require.NoError(t, err)
	assert.Equal(t, []Question{{Question: "Who?"}, {Question: "b", AnswerPrefix: "p"}}, q)
	for _, text := range []string{"", " \n", "{}", "{", `{"question":1}`} {
		_, err := ReadQuestions(strings.NewReader(text), "f")
		assert.Error(t, err, text)
	}
}

func TestNotes(t *testing.T) {
	assert.Empty(t, Notes([]Text{Narrative()}))
	few := Narrative()
	few.Questions = few.Questions[:15]
	notes := Notes([]Text{few})
	require.Len(t, notes, 1)
	assert.Contains(t, notes[0], "small: 15 questions, expected at least 16")
	var alike Text
	for i := range 30 {
		question := "What is the number for it?"
		if i%3 == 0 {
			question = fmt.Sprintf("Who lives in house number %d?", i)
		}
		alike.Questions = append(alike.Questions, Question{Question: question})
	}
	assert.Empty(t, Notes([]Text{alike}), "two thirds")
	alike.Questions[0].Question = "What is the number there?"
	notes = Notes([]Text{alike})
	require.Len(t, notes, 1)
	assert.Contains(t, notes[0], `one-sided: 21 of 30 questions begin with "What is the number"`)
}

func FuzzReadTexts(f *testing.F) {
	f.Add([]byte(`{"context":"c","questions":["a",{"question":"b","answer_prefix":"p"}]}`))
	f.Add([]byte("Who?\n{\"question\":\"b\"}"))
	f.Add(narrativeQuestions)
	f.Fuzz(func(t *testing.T, data []byte) {
		defer testfuzz.Bound(t, len(data))()
		texts, err := ReadTexts(bytes.NewReader(data), "f")
		if err == nil && Pairs(texts) == 0 {
			t.Fatal("nothing to measure and no error")
		}
		questions, err := ReadQuestions(bytes.NewReader(data), "f")
		if err == nil && len(questions) == 0 {
			t.Fatal("no questions and no error")
		}
	})
}

// short returns texts that are quick to measure.
func short(n int) []Text {
	var out []Text
	for _, s := range builtin.Samples() {
		if s.Length == 256 && len(out) < n {
			out = append(out, Text{Context: s.Context, Questions: []Question{
				{Question: s.Question, AnswerPrefix: s.AnswerPrefix},
				{Question: s.Question},
			}})
		}
	}
	return out
}

func open(t *testing.T, opts ...model.Option) *model.Model {
	t.Helper()
	m, err := builtin.Open(t.Context(), opts...)
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func content(t *testing.T, p *lukv.Profile) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, p.Write(&b))
	return b.String()
}

func TestProfileIsRepeatable(t *testing.T) {
	texts := short(2)
	for _, metric := range []string{"snapkv", "keydiff", "expected_attention"} {
		o := ProfileOptions{Options: Options{Prompt: builtin.Prompt, MaxSteps: 16}, Metric: lukv.MetricConfig{Name: metric}}
		want, err := Profile(t.Context(), open(t, model.WithThreads(2)), texts, o)
		require.NoError(t, err)
		assert.Equal(t, 4, want.Pairs)
		got, err := Profile(t.Context(), open(t, model.WithThreads(1)), texts, o)
		require.NoError(t, err)
		assert.Equal(t, content(t, want), content(t, got), metric)
	}
}

// stopInAndBetween makes a profile up to its last but one pair, stopping after
// every second one: within and between texts of two questions.
func stopInAndBetween(t *testing.T, m *model.Model, texts []Text, o ProfileOptions) {
	t.Helper()
	done := 0
	for stop := 1; stop < Pairs(texts); stop += 2 {
		ctx, cancel := context.WithCancel(t.Context())
		o.Progress = func(p Progress) {
			assert.Equal(t, Pairs(texts), p.Total)
			if p.Pair == nil {
				assert.Equal(t, done, p.Done)
				assert.Equal(t, done, p.Resumed)
			} else {
				assert.Equal(t, p.Done-1, p.Pair.Index)
				assert.Positive(t, p.Pair.Steps)
			}
			if done = p.Done; done == stop {
				cancel()
			}
		}
		_, err := Profile(ctx, m, texts, o)
		cancel()
		require.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, stop, done)
	}
}

func TestProfileResumes(t *testing.T) {
	m := open(t, model.WithThreads(2))
	texts := short(3)
	o := ProfileOptions{Options: Options{Prompt: builtin.Prompt, MaxSteps: 8}, Metric: lukv.MetricConfig{Name: "keydiff"}}
	want, err := Profile(t.Context(), m, texts, o)
	require.NoError(t, err)

	o.State = filepath.Join(t.TempDir(), "state")
	stopInAndBetween(t, m, texts, o)

	other := o
	other.IncludeQuestion = true
	_, err = Profile(t.Context(), m, texts, other)
	assert.ErrorIs(t, err, lukv.ErrProfileMismatch, "a state of other options")

	got, err := Profile(t.Context(), m, texts, o)
	require.NoError(t, err)
	assert.Equal(t, content(t, want), content(t, got))
	// With the complete state there is nothing left to do.
	got, err = Profile(t.Context(), m, texts, o)
	require.NoError(t, err)
	assert.Equal(t, content(t, want), content(t, got))
	require.NoError(t, os.WriteFile(o.State, []byte("{}"), 0o644))
	_, err = Profile(t.Context(), m, texts, o)
	assert.ErrorContains(t, err, "state")
}

func TestIdentity(t *testing.T) {
	m := open(t)
	texts := short(1)
	base := ProfileOptions{Options: Options{Prompt: builtin.Prompt}}
	id, err := base.Identity(m, texts)
	require.NoError(t, err)
	assert.Equal(t, "snapkv", id.Metric.Name)
	assert.Equal(t, m.ID(), id.Model)
	assert.Equal(t, lukv.Protection{Sinks: 4, Window: 32}, id.Protection)
	assert.Equal(t, 64, id.MaxSteps)

	// Whatever changes the measurement changes the calibration's hash.
	seen := map[string]string{id.Calibration: "base"}
	for name, change := range map[string]func(*ProfileOptions, *[]Text){
		"include": func(o *ProfileOptions, _ *[]Text) { o.IncludeQuestion = true },
		"seed":    func(o *ProfileOptions, _ *[]Text) { o.Sampling = model.Sampling{Temperature: 1, Seed: 3} },
		"prompt": func(o *ProfileOptions, _ *[]Text) {
			o.Prompt = func(c, q, a string) (chat.Prompt, chat.Prompt) { return chat.Prompt{Text: c}, chat.Prompt{Text: q + a} }
		},
		"text": func(_ *ProfileOptions, x *[]Text) { *x = []Text{{Context: "c", Questions: texts[0].Questions}} },
		"question": func(_ *ProfileOptions, x *[]Text) {
			*x = []Text{{Context: texts[0].Context, Questions: texts[0].Questions[:1]}}
		},
		"limit": func(o *ProfileOptions, _ *[]Text) { o.Session.MaxTokens = 1000 },
	} {
		o, x := base, texts
		change(&o, &x)
		id, err := o.Identity(m, x)
		require.NoError(t, err)
		assert.Empty(t, seen[id.Calibration], "%s gives the hash of %s", name, seen[id.Calibration])
		seen[id.Calibration] = name
	}
	for _, bad := range []ProfileOptions{
		{},
		{Options: base.Options, Metric: lukv.MetricConfig{Name: "guess"}},
		{Options: base.Options, Normalization: "odd"},
		{Options: base.Options, MinRetention: 2},
	} {
		_, err := Profile(t.Context(), m, texts, bad)
		assert.Error(t, err)
	}
}

func TestMeasure(t *testing.T) {
	m := open(t)
	texts := short(2)
	var metrics []lukv.Metric
	for _, name := range []string{"snapkv", "keydiff"} {
		metric, err := lukv.NewMetric(lukv.MetricConfig{Name: name})
		require.NoError(t, err)
		metrics = append(metrics, metric)
	}
	var indices []int
	err := Measure(t.Context(), m, texts, metrics, Options{Prompt: builtin.Prompt, MaxSteps: 4}, 1, func(p *Pair) error {
		indices = append(indices, p.Index)
		assert.Equal(t, p.Index, 2*p.Text+p.Question)
		assert.Len(t, p.Scores, 2)
		for _, norm := range lukv.Normalizations() {
			imp, err := p.Importance(norm)
			require.NoError(t, err)
			assert.Len(t, imp, 6)
			assert.Len(t, imp[0][0], p.Tokens)
		}
		assert.Len(t, p.Scores[1][5][3], p.Tokens)
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, []int{1, 2, 3}, indices)
	err = Measure(t.Context(), m, []Text{{Context: "c"}}, metrics, Options{Prompt: builtin.Prompt}, 0, nil)
	assert.ErrorContains(t, err, "no questions")

	// An answer that ends at once is measured on the question's last token.
	var steps []int
	ended := Options{Prompt: builtin.Prompt, MaxSteps: 1}
	err = Measure(t.Context(), m, texts[:1], metrics[:1], ended, 0, func(p *Pair) error {
		assert.True(t, p.FromQuestion)
		steps = append(steps, p.Steps)
		imp, err := p.Importance(lukv.NormNone)
		require.NoError(t, err)
		sum := float32(0)
		for _, v := range imp[0][0] {
			sum += v
		}
		assert.Positive(t, sum)
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, []int{1, 1}, steps)
}

// TestProfileMeasuresCenters: a profile of triattention holds the centres of the
// model's queries, the same for both objectives, for any number of threads, and
// interrupted or not; sessions under it rank with them.
func TestProfileMeasuresCenters(t *testing.T) {
	texts := short(2)
	o := ProfileOptions{Options: Options{Prompt: builtin.Prompt, MaxSteps: 4}, Metric: lukv.MetricConfig{Name: "triattention"}}
	want, err := Profile(t.Context(), open(t, model.WithThreads(2)), texts, o)
	require.NoError(t, err)
	m := open(t, model.WithThreads(1))
	o.State = filepath.Join(t.TempDir(), "state")
	stopInAndBetween(t, m, texts, o)
	got, err := Profile(t.Context(), m, texts, o)
	require.NoError(t, err)
	assert.Equal(t, content(t, want), content(t, got))
	require.Len(t, want.QueryCenters, 6)
	require.Len(t, want.QueryCenters[0], 8)
	c := lukv.Concentration(want.QueryCenters)
	assert.True(t, c > 0.2 && c < 1, "concentration %v", c)

	errors := errorOptions(lukv.WeightsNone)
	errors.Metric = o.Metric
	other, err := Profile(t.Context(), m, texts, errors)
	require.NoError(t, err)
	assert.Equal(t, want.QueryCenters, other.QueryCenters)

	// The centres are those of the texts, not of the prompt.
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	head, _ := builtin.Prompt(texts[1].Context, "", "")
	tokens := head.Encode(tok)
	kept := func(p *lukv.Profile) [][]int32 {
		s, err := m.NewSession(model.SessionOptions{Compression: &lukv.Policy{Metric: o.Metric, Ratio: 0.7, Profile: p}})
		require.NoError(t, err)
		defer s.Close()
		require.NoError(t, s.Prefill(t.Context(), tokens))
		var out [][]int32
		for l := range 6 {
			for h := range 4 {
				out = append(out, s.Cache().Positions(l, h, nil))
			}
		}
		return out
	}
	assert.NotEqual(t, kept(nil), kept(want))
	metric, err := lukv.NewMetric(o.Metric)
	require.NoError(t, err)
	alone, err := measureCenters(t.Context(), m, texts[1:], metric, o.Options)
	require.NoError(t, err)
	ofPrompt := *want
	ofPrompt.QueryCenters = alone
	assert.Equal(t, kept(nil), kept(&ofPrompt), "calibrated on the prompt alone: what passes by")
}
