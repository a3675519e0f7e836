package command

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
)

func TestDemo(t *testing.T) {
	out := ok(t, "demo", "--limit", "1", "--texts", "1")
	for _, want := range []string{"full", "uniform", "adakv", "lukv", "KV head", "average", "removed", "held", "lukv minus adakv", "output-error minus lukv", "of output errors",
		"+ right, ~ partly right, - wrong; * the best", "too few questions", "policies", `"profile":"sha256:`} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "\x1b", "no escape codes where there is no terminal")

	// Figures are right-aligned in their column, and the best in a row is marked.
	end := 0
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); strings.HasPrefix(line, "  niah_") && strings.Trim(strings.Join(f[3:], ""), "0.") != "" {
			assert.Contains(t, line, "*", "the best that is not 0")
		}
		if strings.HasPrefix(line, "  average ") || strings.HasPrefix(line, "  accuracy in percent") {
			n := len(strings.TrimRight(line, " *\n"))
			if end == 0 {
				end = n
			}
			assert.Equal(t, end, n)
		}
	}

	text := ok(t, "demo", "--limit", "1", "--texts", "1", "--metric", "snapkv", "--json")
	plainJSON(t, demoFormat, text)
	r := decode[demoResult](t, text)
	assert.Len(t, r.Methods, 5)
	assert.Equal(t, r.OutputErrors, r.Methods[4].Policy.ProfileDigest)
	assert.NotEqual(t, r.Profile, r.OutputErrors)
	for _, m := range r.Methods[1:] {
		assert.Contains(t, m.Policy.Metric.String(), `"window":32`, "defaults are written out")
	}
	assert.Equal(t, r.Profile, r.Methods[3].Policy.ProfileDigest)
	assert.Equal(t, "snapkv", r.Metric)
	assert.Equal(t, 10, r.ProfilePairs)
	for _, x := range r.Examples {
		assert.Len(t, x.Answers, 5)
		assert.NotEmpty(t, x.Rule)
	}
	require.Len(t, r.Gains, 3)
	for _, g := range r.Gains {
		assert.Equal(t, 13, g.Wins+g.Ties+g.Losses)
		assert.Empty(t, g.Interval, "13 questions are too few for one")
	}
	for _, row := range r.Rows {
		if row.Task == eval.Average && row.Method != "full" {
			assert.InDelta(t, 0.8, row.RatioAchieved, 0.01, row.Method)
			assert.Less(t, row.CacheBytes, row.FullBytes/3, "what is removed is freed: %s", row.Method)
		}
	}
}

// The examples are chosen by their rules, whatever comes out.
func TestDemoExamples(t *testing.T) {
	d := &demo{items: []eval.Item{
		{Context: "longest, all right", Answers: []string{"a"}},
		{Context: "won", Answers: []string{"a"}},
		{Context: "won, longer", Answers: []string{"a"}},
		{Context: "won, longer", Answers: []string{"a"}},
		{Context: "lost", Answers: []string{"a"}},
		{Context: "all lost", Answers: []string{"a"}},
	}}
	score := func(full, uniform, adakv, lukv float64) map[string]float64 {
		return map[string]float64{"full": full, "uniform": uniform, "adakv": adakv, "lukv": lukv}
	}
	scores := []map[string]float64{
		score(1, 1, 1, 1), score(1, 0, 1, 1), score(1, 1, 0.5, 1), score(1, 1, 0.5, 1), score(0, 0, 1, 0.5), score(1, 0, 0, 0),
	}
	var chosen []int
	for _, rule := range exampleRules {
		chosen = append(chosen, d.choose(scores, rule.admit))
	}
	assert.Equal(t, []int{2, 4, 5}, chosen)
	for _, rule := range exampleRules {
		assert.Equal(t, -1, d.choose(scores, func(full, lukv, worst, best float64) bool {
			return rule.admit(full, lukv, worst, best) && full == 2
		}))
	}
}

func TestDemoRefuses(t *testing.T) {
	fails(t, exitUsage, "at most 8", "demo", "--texts", "9")
	fails(t, exitUsage, "--limit", "demo", "--limit", "-1")
}
