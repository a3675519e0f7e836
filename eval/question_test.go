package eval

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// Answers are decoded together; each is what a session would generate by itself.
func TestAnswersTogetherAreThoseAlone(t *testing.T) {
	m := open(t)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	items := few("niah_single_2", 256, 1)
	items[0].MaxNewTokens = 0
	short := items[0]
	short.MaxNewTokens = 1
	items = append(items, short)
	methods := []Method{
		{Name: "full"},
		{Name: "half", Policy: &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "keydiff"}}},
		{Name: "while decoding", Policy: &lukv.Policy{Ratio: 0.5, Decode: lukv.DecodeConfig{Mode: "periodic", TargetSize: 100, Interval: 4}}},
	}
	framed := builtinFraming
	a, b := framed.Prompt(items[0].Context, items[0].Question, items[0].AnswerPrefix)
	head, tail := a.Encode(tok), b.Encode(tok)
	for _, room := range []int{0, len(head) + len(tail), len(head) + len(tail) + 2} { // MaxTokens
		o := Options{Framing: framed, MaxNewTokens: 12, Session: model.SessionOptions{MaxTokens: room}}
		got := collect(t, m, items, methods, o)
		require.Len(t, got, len(items)*len(methods))
		for _, a := range got {
			t.Run(fmt.Sprint(a.Method, a.Item, room), func(t *testing.T) {
				so := o.Session
				for _, method := range methods {
					if method.Name == a.Method {
						so.Compression = method.Policy
					}
				}
				s, err := m.NewSession(so)
				require.NoError(t, err)
				defer s.Close()
				require.NoError(t, s.Prefill(t.Context(), head))
				require.NoError(t, s.Prefill(t.Context(), tail))
				var ids []int32
				for x, err := range s.Generate(t.Context(), model.Sampling{MaxTokens: max(items[a.Item].MaxNewTokens, 12*(1-a.Item))}) {
					require.NoError(t, err)
					ids = append(ids, x.ID)
				}
				assert.Equal(t, [3]any{tok.Decode(ids, true), len(ids), string(s.FinishReason())}, [3]any{a.Prediction, a.NewTokens, a.Stop})
				assert.Empty(t, a.Error)
			})
		}
	}
}

// Every answer says how long each part took.
func TestAnswerTimes(t *testing.T) {
	m := open(t)
	items := few("niah_single_2", 256, 1)
	methods := []Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	for _, own := range []bool{false, true} {
		require.NoError(t, Run(t.Context(), m, items, methods, Options{Framing: builtinFraming, OwnPrefills: own}, func(a Answer) error {
			assert.Positive(t, a.PrefillMS)
			assert.GreaterOrEqual(t, a.FirstTokenMS, a.PrefillMS+a.EvictMS)
			assert.Positive(t, a.DecodeMS)
			if a.Method == "half" {
				assert.Positive(t, a.EvictMS)
			}
			return nil
		}))
	}
}

// Times are to the microsecond, those up to the first token count in full, and the sum
// over all answers counts what questions and methods share once.
func TestSharesOfTime(t *testing.T) {
	m := open(t)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	items := few("niah_single_2", 256, 1)
	o := Options{Framing: builtinFraming, MaxNewTokens: 1}
	r := &runner{m: m, tok: tok, o: o, items: items}
	r.sampler, err = m.NewSampler(model.Sampling{}, 0)
	require.NoError(t, err)
	s, err := m.NewSession(o.Session)
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Prefill(t.Context(), []int32{1, 2, 3}))
	require.NoError(t, r.ask(t.Context(), s, Answer{PrefillMS: 1e9, EvictMS: 3e9}))
	assert.InDelta(t, 4e9, r.asked[0].answer.FirstTokenMS, 1e8)
	r.forget()
	assert.Nil(t, r.asked[0].session)
	assert.Equal(t, 0.3, r.scored(&question{answer: Answer{DecodeMS: 0.30000000000000004, Error: "none"}}).DecodeMS)
	assert.Equal(t, 1.234, milliseconds(1234567*time.Nanosecond))

	items = append(items, items[0], items[0])
	methods := []Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	begun, sum := time.Now(), time.Duration(0)
	require.NoError(t, Run(t.Context(), m, items, methods, o, func(a Answer) error {
		sum += a.Time
		return nil
	}))
	assert.LessOrEqual(t, sum, time.Since(begun))
	assert.Positive(t, sum)
}

// Answers with no length limit of their own have at most 64 tokens.
func TestLengthOfAnswers(t *testing.T) {
	items := []Item{{Context: "one two three four five six seven", Question: "eight", Answers: []string{"x"}, Task: "x"}}
	a := collect(t, open(t), items, []Method{{Name: "full"}}, Options{})[0]
	assert.Equal(t, [2]any{64, "length"}, [2]any{a.NewTokens, a.Stop})
}

// A run closes what it opens: it gets through many contexts in a model whose
// sessions together have room for only one.
func TestRunClosesSessions(t *testing.T) {
	s, err := open(t).NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Prefill(t.Context(), make([]int32, 256)))
	m, err := builtin.Open(t.Context(), model.WithMaxMemory(4*s.Stats().CacheBytes))
	require.NoError(t, err)
	defer m.Close()
	methods := []Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}}
	for _, own := range []bool{false, true} {
		for _, a := range collect(t, m, few("niah_single_2", 256, 8), methods, Options{Framing: builtinFraming, MaxNewTokens: 1, OwnPrefills: own}) {
			assert.Empty(t, a.Error)
			assert.Empty(t, a.Notes)
		}
	}
}

// A run that is stopped while it decodes many answers leaves none of their
// sessions behind (the test's Model.Close would wait), and resumes to the same
// answers.
func TestStoppedWhileAnswering(t *testing.T) {
	m := open(t)
	items := few("niah_single_2", 256, 2)
	methods := []Method{{Name: "full"}, {Name: "half", Policy: &lukv.Policy{Ratio: 0.5}}, {Name: "most", Policy: &lukv.Policy{Ratio: 0.9}}}
	o := Options{Framing: builtinFraming, MaxNewTokens: 6}
	want := map[string]Answer{}
	for _, a := range collect(t, m, items, methods, o) {
		want[fmt.Sprint(a.Item, a.Method)] = a
	}
	stop := errors.New("stop")
	got := map[string]Answer{}
	keep := func(a Answer) {
		a.Time, a.PrefillMS, a.EvictMS, a.FirstTokenMS, a.DecodeMS = 0, 0, 0, 0, 0
		got[fmt.Sprint(a.Item, a.Method)] = a
	}
	require.ErrorIs(t, Run(t.Context(), m, items, methods, o, func(a Answer) error {
		if len(got) == 2 {
			return stop
		}
		keep(a)
		return nil
	}), stop)
	ctx, cancel := context.WithCancel(t.Context())
	o.Progress = func(done, _ int) {
		if done == 1 {
			cancel()
		}
	}
	o.Done = func(item int, method string) bool { _, ok := got[fmt.Sprint(item, method)]; return ok }
	require.ErrorIs(t, Run(ctx, m, items, methods, o, func(a Answer) error { keep(a); return nil }), context.Canceled)
	o.Progress = nil
	for _, a := range collect(t, m, items, methods, o) {
		keep(a)
	}
	assert.Equal(t, want, got)
}
