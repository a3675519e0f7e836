package calibration

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
)

// someProbes returns facts from the embedded model's own calibration texts.
func someProbes(t *testing.T) []Probe {
	t.Helper()
	text := builtin.Calibration()[1]
	var out []Probe
	for _, q := range text.Questions {
		if !strings.Contains(q.Question, "magic number") || len(q.Answers) != 1 {
			continue
		}
		at := strings.Index(text.Context, q.Answers[0])
		start := strings.LastIndex(text.Context[:at], "One of the")
		out = append(out, Probe{Context: text.Context, Needle: text.Context[start : at+len(q.Answers[0])],
			Question: q.Question, AnswerPrefix: q.AnswerPrefix, Answer: q.Answers[0]})
	}
	require.Len(t, out, 2)
	return out
}

// TestProbeHeads: the heads of the layer that finds things stand out, whatever the
// number of threads; wrong answers do not count.
func TestProbeHeads(t *testing.T) {
	probes := someProbes(t)
	asked := 0
	o := ProbeOptions{
		Options: Options{Prompt: builtin.Prompt, MaxSteps: 8},
		Correct: func(p *Probe, answer string) bool {
			assert.Contains(t, answer, p.Answer)
			return true
		},
		Progress: func(done int) { asked = done },
	}
	got, err := ProbeHeads(t.Context(), open(t, model.WithThreads(2)), probes, o)
	require.NoError(t, err)
	assert.Equal(t, 2, asked)
	assert.Equal(t, []int{2, 2}, []int{got.Probes, got.Correct})
	require.Len(t, got.Scores, 6)
	sum := func(row []float64) (s float64) {
		for _, v := range row {
			assert.GreaterOrEqual(t, v, 0.0)
			s += v
		}
		return s
	}
	retrieval := sum(got.Scores[1])
	for at, row := range got.Scores {
		require.Len(t, row, 8)
		if at != 1 {
			assert.Greater(t, retrieval, 5*sum(row), "layer %d", at)
		}
	}
	m := open(t, model.WithThreads(1))
	again, err := ProbeHeads(t.Context(), m, probes, o)
	require.NoError(t, err)
	assert.Equal(t, got, again)

	o.Correct = func(p *Probe, _ string) bool { return p.Answer == probes[1].Answer }
	one, err := ProbeHeads(t.Context(), m, probes, o)
	require.NoError(t, err)
	alone, err := ProbeHeads(t.Context(), m, probes[1:], o)
	require.NoError(t, err)
	assert.Equal(t, 1, one.Correct)
	assert.Equal(t, alone.Scores, one.Scores)
	o.Correct = func(*Probe, string) bool { return false }
	_, err = ProbeHeads(t.Context(), m, probes, o)
	assert.ErrorContains(t, err, "none of 2 probes was answered correctly")
	probes[0].Needle = "the"
	_, err = ProbeHeads(t.Context(), m, probes, o)
	assert.ErrorContains(t, err, `probe 1: found the needle "the"`)
	_, err = ProbeHeads(t.Context(), m, nil, o)
	assert.ErrorContains(t, err, "no probes")
}

// TestNeedleTokens: the tokens of a needle are those of its text.
func TestNeedleTokens(t *testing.T) {
	m := open(t)
	tok, err := m.Tokenizer()
	require.NoError(t, err)
	for _, p := range someProbes(t) {
		head, _ := builtin.Prompt(p.Context, "", "")
		tokens := head.Encode(tok)
		w := probeWork{work: &work{tok: tok}, o: &ProbeOptions{Options: Options{Prompt: builtin.Prompt}}, tokens: tokens, probe: &p}
		from, to := w.needle()
		assert.Equal(t, p.Needle, strings.TrimSpace(tok.Decode(tokens[from:to], false)))
	}
}

func TestNarrativeProbes(t *testing.T) {
	probes := NarrativeProbes()
	require.Len(t, probes, 16)
	last := -1
	for _, p := range probes {
		require.Equal(t, probes[0].Context, p.Context)
		require.Equal(t, 1, strings.Count(p.Context, p.Needle))
		words := strings.TrimPrefix(p.Answer, "the ")
		assert.Contains(t, p.Needle, words)
		assert.NotContains(t, narrative, p.Answer, "only the fact answers")
		at := strings.Index(p.Context, p.Needle)
		assert.Greater(t, at, last+len(narrative)/40, "spread over the text")
		last = at
	}
	for text, want := range map[string]string{
		`{`:               "line 1",
		``:                "no probes",
		`{"context":"x"}`: "question or answer is empty",
		`{"context":"a b a","needle":"a","question":"?","answer":"b"}`: `found the needle "a" 2 times`,
	} {
		_, err := ReadProbes(strings.NewReader(text), "f")
		assert.ErrorContains(t, err, want)
	}
	got, err := ReadProbes(strings.NewReader(`{"context":"a b","needle":"a","question":"?","answer":"b"}`+"\n"), "f")
	require.NoError(t, err)
	assert.Equal(t, []Probe{{Context: "a b", Needle: "a", Question: "?", Answer: "b"}}, got)
}
