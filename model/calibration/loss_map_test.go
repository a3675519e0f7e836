package calibration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// answered returns the embedded model's first n calibration texts, with answers.
func answered(n int) []Text {
	var out []Text
	for _, t := range builtin.Calibration()[:n] {
		text := Text{Context: t.Context}
		for _, q := range t.Questions {
			text.Questions = append(text.Questions, Question{Question: q.Question, AnswerPrefix: q.AnswerPrefix, Answers: q.Answers})
		}
		out = append(out, text)
	}
	return out
}

func TestNarrativeAnswersAreInTheText(t *testing.T) {
	n := Narrative()
	for _, q := range n.Questions {
		require.NotEmpty(t, q.Answers, q.Question)
		for _, a := range q.Answers {
			assert.Contains(t, strings.ToLower(n.Context), strings.ToLower(a))
			assert.NotContains(t, strings.ToLower(q.AnswerPrefix), strings.ToLower(a), "the prefix gives it away")
		}
	}
}

// A loss map ascends, is the same for any number of threads, and needs answers and facts.
func TestLossMap(t *testing.T) {
	p, err := builtin.Profile(lukv.MetricConfig{Name: "key_distance"})
	require.NoError(t, err)
	o := Options{Prompt: builtin.Prompt}
	texts := answered(1)
	var first *lukv.LossMap
	for threads := 1; threads <= 2; threads++ {
		calls, last := 0, 0
		m, err := LossMap(t.Context(), open(t, model.WithThreads(threads)), texts, p, o, func(done, total int) {
			assert.Greater(t, done, last)
			assert.Equal(t, 14, total)
			calls, last = calls+1, done
		})
		require.NoError(t, err)
		assert.Positive(t, calls)
		if threads == 1 {
			first = m
		}
		assert.Equal(t, first, m)
	}
	assert.LessOrEqual(t, first.At(0), 0.1, "where no fact is lost, few answers are")
	assert.Greater(t, first.At(1), first.At(0))

	for i := range texts {
		for k := range texts[i].Questions {
			texts[i].Questions[k].Answers = nil
		}
	}
	_, err = LossMap(t.Context(), open(t), texts, p, o, nil)
	require.ErrorIs(t, err, ErrNoLossMap)
	require.ErrorContains(t, err, "found 0 answers")
	same := []Text{{Context: strings.Repeat("the ", 300), Questions: []Question{{Question: "Which word?", Answers: []string{"the"}}}}}
	_, err = LossMap(t.Context(), open(t), same, p, o, nil)
	require.ErrorIs(t, err, ErrNoLossMap, "nothing surprises in the text")
}
