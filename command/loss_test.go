package command

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
)

// TestMaxLoss: the ratio is chosen by its loss; the answer is that of the ratio given by
// hand, and a report inside the prefill does not change it.
func TestMaxLoss(t *testing.T) {
	_, context := sample(t, "niah_multikey_3", 512)
	run := func(args ...string) runResult {
		return decode[runResult](t, ok(t, append([]string{"run", "builtin", "-c", context, "--json", "--max-tokens", "4"}, append(args, "x")...)...))
	}
	chosen := run("--metric", "key_distance", "--max-loss", "0.6")
	require.NotNil(t, chosen.Loss)
	require.True(t, chosen.Loss.Measured())
	assert.LessOrEqual(t, chosen.Loss.Share(), 0.6)
	assert.NotEmpty(t, chosen.Loss.Tried)
	require.NotNil(t, chosen.Policy, "a ratio was chosen")
	ratio, err := json.Marshal(chosen.Policy.Ratio)
	require.NoError(t, err)
	given := run("--metric", "key_distance", "--ratio", string(ratio))
	assert.Nil(t, given.Loss)
	assert.Equal(t, given.Answer, chosen.Answer)
	assert.Equal(t, given.Policy, chosen.Policy)
	assert.Equal(t, given.Stats.Entries, chosen.Stats.Entries)

	measured := run("--metric", "key_distance", "--ratio", string(ratio), "--measure-loss")
	require.NotNil(t, measured.Loss)
	assert.True(t, measured.Loss.Measured())
	assert.Equal(t, given.Answer, measured.Answer)
	assert.Equal(t, given.Policy, measured.Policy)

	whole := run("--budget-tokens", "5000", "--measure-loss").Loss
	require.True(t, whole.Measured(), "facts do not depend on the policy")
	assert.Equal(t, measured.Loss.Facts, whole.Facts)
	assert.Zero(t, whole.Lost)
	assert.Zero(t, whole.Nats)

	o := command(t, "run", "builtin", "-c", context, "--ratio", "0.95", "--metric", "knorm", "--measure-loss", "--max-tokens", "2", "x")
	assert.Contains(t, o.err, "warning: ", "nearly everything is lost")
	o = command(t, "run", "builtin", "-c", context, "--ratio", "0.8", "--metric", "snapkv", "--allocator", "adakv", "--stats", "--max-tokens", "1", "x")
	assert.Contains(t, o.err, "evidence  snapkv with adakv budgets lost 0.230 nats a token at 80 % removed, on SmolLM2 135M")
	assert.Contains(t, given.Evidence, "key_distance with adakv budgets lost ")
	o = command(t, "run", "builtin", "-c", context, "--stats", "--max-tokens", "1", "x")
	assert.NotContains(t, o.err, "evidence")
	o = command(t, "run", "builtin", "-c", context, "--max-loss", "1", "--stats", "--max-tokens", "2", "x")
	assert.Contains(t, o.err, "95 % removed: ", "the ratio that was chosen")
	assert.NotContains(t, o.err, "warning", "a bound was given")
	assert.Contains(t, o.err, "loss      ")

	short := filepath.Join(t.TempDir(), "short")
	require.NoError(t, os.WriteFile(short, []byte("Rupert works in a mill."), 0o600))
	o = command(t, "run", "builtin", "-c", short, "--max-loss", "0.1", "--max-tokens", "2", "x")
	assert.Equal(t, exitOK, o.code)
	assert.Contains(t, o.err, "note: loss not measured")

	for _, args := range [][]string{{"--max-loss", "2"}, {"--max-loss", "0.1", "--ratio", "0.5"}, {"--max-loss", "0.1", "--decode", `{"mode":"h2o"}`}} {
		fails(t, exitUsage, "--max-loss", append([]string{"run", "builtin", "-c", context, "x"}, args...)...)
	}
	code, _, msg := invoke(t, "Where?", "chat", "builtin", "--load", context, "--ratio", "0.9", "--measure-loss", "--max-tokens", "2")
	assert.Equal(t, exitOK, code)
	assert.Contains(t, msg, "facts repeated")
	_, _, msg = invoke(t, "Where?", "chat", "builtin", "--load", context, "--max-loss", "1", "--max-tokens", "2")
	assert.Contains(t, msg, "95 % removed: ")
}

// TestEvalMeasuresLoss: every answer says how many facts of its context its cache lost; the
// full cache lost none, and answers are as without it.
func TestEvalMeasuresLoss(t *testing.T) {
	s, _ := sample(t, "niah_multikey_3", 512)
	data := filepath.Join(t.TempDir(), "data.jsonl")
	line, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(data, line, 0o600))
	answers := func(args ...string) []eval.Answer {
		path := filepath.Join(t.TempDir(), "items")
		ok(t, append([]string{"eval", "builtin", "--data", data, "--metric", "knorm,keydiff", "--ratio", "0.9", "--items", path}, args...)...)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		out, err := eval.ReadPredictions(bytes.NewReader(text), path)
		require.NoError(t, err)
		return out
	}
	plain, shared, own := answers(), answers("--measure-loss"), answers("--measure-loss", "--no-share-prefill")
	for i := range plain {
		require.Nil(t, plain[i].FactsLost)
		require.Equal(t, plain[i].Prediction, shared[i].Prediction)
		require.Equal(t, plain[i].Prediction, own[i].Prediction)
		if shared[i].Method == "full" {
			require.Zero(t, *shared[i].FactsLost)
			require.Nil(t, own[i].FactsLost, "nothing was compressed")
			continue
		}
		require.Positive(t, *shared[i].FactsLost)
		require.Positive(t, *own[i].FactsLost)
		require.Greater(t, own[i].Facts, shared[i].Facts, "the sweep has longer passages")
	}
}

// TestEvalWithinLoss: each context's ratio is chosen by its loss, whether methods share the
// prefill or not.
func TestEvalWithinLoss(t *testing.T) {
	s, _ := sample(t, "niah_multikey_3", 512)
	data := filepath.Join(t.TempDir(), "data.jsonl")
	line, err := json.Marshal(s)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(data, line, 0o600))
	var first []eval.Answer
	for _, how := range []string{"--share-prefill", "--no-share-prefill"} {
		path := filepath.Join(t.TempDir(), "items")
		ok(t, "eval", "builtin", "--data", data, "--metric", "key_distance", "--max-loss", "0.6,1", "--items", path, how)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		answers, err := eval.ReadPredictions(bytes.NewReader(text), path)
		require.NoError(t, err)
		require.Len(t, answers, 3)
		assert.LessOrEqual(t, *answers[1].FactsLost, 0.6)
		assert.Positive(t, answers[1].RatioAchieved)
		assert.InDelta(t, 0.95, answers[2].RatioAchieved, 0.01)
		for i := range first {
			assert.Equal(t, first[i].KeptEntries, answers[i].KeptEntries)
			assert.Equal(t, first[i].Prediction, answers[i].Prediction)
		}
		first = answers
	}
	fails(t, exitUsage, "--max-loss", "eval", "builtin", "--data", data, "--max-loss", "2")
	fails(t, exitUsage, "--max-loss", "eval", "builtin", "--data", data, "--max-loss", "0.1", "--decode", `{"mode":"h2o"}`)
}

// TestChoose: policies are ranked by the facts that they lose, which grow with the ratio at
// its ends; documents without enough facts do not count.
func TestChoose(t *testing.T) {
	_, first := sample(t, "niah_multikey_3", 512)
	short := filepath.Join(t.TempDir(), "short")
	require.NoError(t, os.WriteFile(short, []byte("Rupert works in a mill."), 0o600))
	r := decode[chooseResult](t, ok(t, "choose", "builtin", "-d", first, "-d", short, "--metric", "knorm,keydiff", "--ratio", "0.2,0.95", "--json"))
	require.Len(t, r.Documents, 2)
	assert.True(t, r.Documents[0].Measured)
	assert.False(t, r.Documents[1].Measured)
	require.Len(t, r.Policies, 2)
	assert.Equal(t, "keydiff", r.Policies[0].Metric.Name)
	assert.Less(t, r.Policies[0].Mean, r.Policies[1].Mean)
	for _, p := range r.Policies {
		require.Len(t, p.Ratios, 2)
		assert.Equal(t, 1, p.Ratios[0].N)
		assert.Less(t, p.Ratios[0].Lost, p.Ratios[1].Lost+1e-9)
		assert.InDelta(t, p.Mean, (p.Ratios[0].Lost+p.Ratios[1].Lost)/2, 1e-9)
	}
	alone := decode[chooseResult](t, ok(t, "choose", "builtin", "-d", first, "--metric", "keydiff", "--ratio", "0.95", "--json"))
	assert.Equal(t, r.Documents[:1], alone.Documents, "facts do not depend on what is compared")
	assert.Equal(t, r.Policies[0].Ratios[1:], alone.Policies[0].Ratios)
	text := ok(t, "choose", "builtin", "-d", first, "--metric", "knorm,keydiff", "--ratio", "0.2,0.95")
	assert.Less(t, strings.Index(text, "keydiff/adakv"), strings.Index(text, "knorm/adakv"))
	fails(t, exitFailed, "not measured", "choose", "builtin", "-d", short, "--metric", "knorm")
	fails(t, exitUsage, "--ratio", "choose", "builtin", "-d", short, "--ratio", "2")
	// The text would fit, but not with what is around it.
	fails(t, exitFull, "tokens with those around it, expected fewer than", "choose", "builtin", "-d", first, "--metric", "knorm",
		"--max-context", strconv.Itoa(r.Documents[0].Tokens))
}
