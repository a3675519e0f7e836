package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
)

// Answers end at the engine's limits: the default where a request has none, the maximum
// whatever it asks for, and the time after which no answer goes on.
func TestAnswerLimits(t *testing.T) {
	m := openModel(t)
	for name, test := range map[string]struct {
		o           Options
		asked, want int
	}{
		"default":             {Options{DefaultAnswer: 5}, 0, 5},
		"asked for more":      {Options{DefaultAnswer: 5}, 7, 7},
		"maximum":             {Options{MaxAnswer: 5}, 7, 5},
		"maximum, none asked": {Options{MaxAnswer: 5}, 0, 5},
		"below the maximum":   {Options{MaxAnswer: 5}, 3, 3},
		"time":                {Options{AnswerTime: time.Nanosecond}, 9, 1},
		"context":             {Options{MaxTokens: 7, DefaultAnswer: 9}, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, m, test.o)
			s, err := e.Submit(within(t), Request{Prompt: []int32{1, 2, 3}, Sampling: model.Sampling{MaxTokens: test.asked, IgnoreEOS: true}})
			require.NoError(t, err)
			finish := model.FinishNone
			for event, err := range s.Events() {
				require.NoError(t, err)
				finish = event.Finish
			}
			require.Equal(t, test.want, s.Usage().Generated)
			require.Equal(t, model.FinishLength, finish)
		})
	}
}

// The counters move with every step, and at the end of a request they have its usage.
func TestCountersMove(t *testing.T) {
	e := newEngine(t, openModel(t), Options{})
	prompt := make([]int32, 40)
	for i := range prompt {
		prompt[i] = int32(i + 1)
	}
	policy := &lukv.Policy{Ratio: 0.5, Metric: lukv.MetricConfig{Name: "knorm"}}
	s, err := e.Submit(within(t), Request{Prompt: prompt, Policy: policy, Context: len(prompt), Sampling: model.Sampling{MaxTokens: 2 * streamRoom, IgnoreEOS: true}})
	require.NoError(t, err)
	first, err := s.Next(within(t))
	require.NoError(t, err)
	require.True(t, first.HasToken)
	require.EqualValues(t, len(prompt), e.Stats().PromptTokens)
	require.Eventually(t, func() bool { return e.Stats().GeneratedTokens >= streamRoom }, time.Minute, time.Millisecond)
	require.Less(t, e.Stats().GeneratedTokens, int64(2*streamRoom), "events that nobody reads hold the answer up")
	for _, err := range s.Events() {
		require.NoError(t, err)
	}
	require.EqualValues(t, len(prompt), e.Stats().PromptTokens)
	require.EqualValues(t, 2*streamRoom, e.Stats().GeneratedTokens)
	u, c := s.Usage(), s.Cache()
	require.Equal(t, 2*streamRoom, u.Generated)
	require.EqualValues(t, c.FullEntries-c.Entries, int64(u.Evicted)*c.FullEntries/int64(len(prompt)))
}

// Without a target, steps with answers take 128 tokens of prompts, or as many as take eight
// passes without prompts, however long they last; with one, no more than its time allows,
// and 16 at least. Those without answers last a second, or take 128.
func TestDefaultPace(t *testing.T) {
	for _, test := range []struct {
		target           time.Duration
		perToken, decode float64
		want             int
	}{
		{0, 0, 0, efficientTokens}, {0, 0.01, 0, efficientTokens}, {0, 0.003, 0.05, efficientTokens},
		{0, 0.01, 0.05, 40}, {0, 0.1, 0.05, leastTokens}, {0, 0.000125, 0.05, 400},
		{100 * time.Millisecond, 0.01, 0.05, leastTokens},
		{2 * time.Second, 0.0125, 0.05, 156}, {200 * time.Millisecond, 0.0001, 0.05, 512},
	} {
		p := newPace(test.target, 512)
		p.perToken, p.decode = test.perToken, test.decode
		require.Equal(t, test.want, p.tokens(8), "%v", test)
	}
	for perToken, want := range map[float64]int{0: 512, 0.0001: 512, 0.004: 250, 0.02: efficientTokens} { // without answers
		p := newPace(0, 512)
		p.perToken = perToken
		require.Equal(t, want, p.tokens(0), "%g s per token", perToken)
	}
}

// A share of the time of each piece of a prompt follows it as passes for answers alone, unless
// there are none.
func TestPaceOfAnswers(t *testing.T) {
	run := func(answers, steps int, share float64) (pieces int) {
		p := newPace(0, 512)
		for range steps {
			n := p.tokens(answers)
			took := 20 * time.Millisecond
			if n > 0 {
				pieces++
				took = 480 * time.Millisecond
			}
			p.measured(took, n, answers, share)
		}
		return pieces
	}
	require.InDelta(t, 25, run(8, 100, answersShare), 1, "of four steps, three are for answers alone: 60 of 480 ms")
	require.InDelta(t, 20, run(8, 500, othersShare), 1, "24 of 25: 480 of 480 ms")
	require.Equal(t, 100, run(0, 100, othersShare))
	require.Equal(t, 100, run(8, 100, 0))
}
