package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
	"github.com/lukv/lukv/model/builtin"
)

// shortTexts writes calibration texts that are quick to measure: samples of
// 256 tokens with their question.
func shortTexts(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "texts.jsonl")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	for _, s := range builtin.Samples() {
		if s.Length == 256 && n > 0 {
			n--
			require.NoError(t, json.NewEncoder(f).Encode(map[string]any{
				"context": s.Context,
				"questions": []any{
					map[string]string{"question": s.Question, "answer_prefix": s.AnswerPrefix},
					s.Question,
				},
			}))
		}
	}
	return path
}

func TestProfile(t *testing.T) {
	texts := shortTexts(t, 3)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	args := func(name string, more ...string) []string {
		return append([]string{"profile", "builtin", "--metric", "keydiff", "--data", texts, "-o", file(name)}, more...)
	}
	read := func(name string) string {
		data, err := os.ReadFile(file(name))
		require.NoError(t, err)
		return string(data)
	}

	text := ok(t, args("a", "--json", "--npy", file("a.npy"))...)
	plainJSON(t, profileFormat, text)
	s := decode[profileSummary](t, text)
	assert.NotEmpty(t, s.Notes, "a tenth of 250 entries is nearly nothing")
	for _, l := range s.Levels {
		require.GreaterOrEqual(t, *l.Gap, 0.0)
		require.InDelta(t, l.Loss, l.Bound*(1+*l.Gap), 1e-9*l.Loss, "each level has its own certificate")
	}
	assert.Equal(t, 6, s.Pairs)
	assert.Equal(t, 6, s.Measured)
	assert.Equal(t, 6*solve.Levels, s.Solutions)
	assert.Len(t, s.Levels, solve.Levels)
	assert.InDelta(t, 0.8, s.Levels[79].Mean, 0.02)
	assert.GreaterOrEqual(t, s.Levels[79].Loss, s.Levels[79].Bound)
	holds(t, dir, "a", "a.npy")

	// Again, on one thread: the same bytes.
	out := ok(t, args("b", "--threads", "1")...)
	for _, want := range []string{"6 questions", s.Digest, `"name":"keydiff","block":0`, "4 sinks, window of 1", "above the optimum"} {
		assert.Contains(t, out, want)
	}
	assert.Equal(t, read("a"), read("b"))

	// Standard output: the same bytes and nothing else.
	assert.Equal(t, read("a"), ok(t, "profile", "builtin", "--metric", "keydiff", "--data", texts, "-o", "-"))

	// Interrupted after two questions and resumed: the same bytes.
	o := interrupted(t, "question measured", 2, args("c", "-v")...)
	assert.Equal(t, exitInterrupted, o.code, o.err)
	assert.Contains(t, o.err, "the same command continues from it")
	holds(t, dir, "a", "a.npy", "b", "c.state")
	assert.Contains(t, ok(t, "inspect", file("c.state")), "unfinished")
	fails(t, exitRefused, "remove "+file("c.state"), args("c", "--max-steps", "9")...)
	s = decode[profileSummary](t, ok(t, args("c", "--json")...))
	assert.Equal(t, 2, s.Resumed)
	assert.Equal(t, 4, s.Measured)
	assert.Equal(t, read("a"), read("c"))
	holds(t, dir, "a", "a.npy", "b", "c")

	// Through .npy: the same ratios, another identity.
	ok(t, "profile", "builtin", "--metric", "keydiff", "--from-npy", file("a.npy"), "-o", file("d"))
	a, err := lukv.LoadProfile(file("a"))
	require.NoError(t, err)
	d, err := lukv.LoadProfile(file("d"))
	require.NoError(t, err)
	for i := range solve.Levels {
		assert.Equal(t, a.Level(i), d.Level(i))
	}
	assert.NotEqual(t, a.Identity.Calibration, d.Identity.Calibration)

	// It works where it belongs and nowhere else.
	sample, path := sample(t, "niah_single_2", 512)
	run := func(model string, more ...string) []string {
		return append([]string{"run", model, "-c", path, "--ratio", "0.5", "--allocator", "lukv", sample.Question}, more...)
	}
	ok(t, run("builtin", "--metric", "keydiff", "--profile", file("a"))...)
	fails(t, exitRefused, "metric", run("builtin", "--metric", "snapkv", "--profile", file("a"))...)
	fails(t, exitRefused, "model", run(otherModel(t), "--metric", "keydiff", "--profile", file("a"))...)
	fails(t, exitRefused, "protected window", run("builtin", "--metric", "keydiff", "--profile", file("a"), "--window", "9")...)
	require.NoError(t, os.WriteFile(file("e"), []byte(read("a")[:2000]), 0o644))
	fails(t, exitFailed, file("e"), run("builtin", "--metric", "keydiff", "--profile", file("e"))...)
}

// A profile of output errors: interrupted, resumed, shown and used.
func TestProfileOfOutputErrors(t *testing.T) {
	texts := shortTexts(t, 2)
	dir := t.TempDir()
	args := func(name string, more ...string) []string {
		return append([]string{"profile", "builtin", "--metric", "keydiff", "--data", texts, "-o", filepath.Join(dir, name),
			"--objective", "output-error", "--max-steps", "6"}, more...)
	}
	r := decode[profileSummary](t, ok(t, args("a", "--json")...))
	assert.Equal(t, 4, r.Measured)
	assert.Equal(t, 4+4*6, r.Passes, "one of the full cache and one of each layer cut")
	assert.Contains(t, r.Notes[0], "small")
	assert.Equal(t, lukv.ObjectiveOutputError, r.Identity.Objective)
	want := lukv.DefaultWeights(lukv.WeightsCut)
	assert.Equal(t, &want, r.Identity.Weights)

	o := interrupted(t, "question measured", 2, args("b", "-v")...)
	assert.Equal(t, exitInterrupted, o.code, o.err)
	assert.Contains(t, ok(t, "inspect", filepath.Join(dir, "b.state")), "unfinished")
	out := ok(t, args("b")...)
	assert.Contains(t, out, "passes of question and answer")
	assert.NotContains(t, out, "above the optimum")
	a, err := os.ReadFile(filepath.Join(dir, "a"))
	require.NoError(t, err)
	b, err := os.ReadFile(filepath.Join(dir, "b"))
	require.NoError(t, err)
	assert.Equal(t, string(a), string(b))

	out = ok(t, "inspect", filepath.Join(dir, "a"))
	for _, text := range []string{"objective output-error", "cut, power 0.5, floor 0.01", "output errors per answer step", "layer  weight"} {
		assert.Contains(t, out, text)
	}
	info := decode[profileInfo](t, ok(t, "inspect", filepath.Join(dir, "a"), "--json"))
	assert.Len(t, info.OutputErrors.Effects, 6)
	assert.Len(t, info.OutputErrors.Error, 24)
	_, path := sample(t, "niah_single_2", 512)
	ok(t, "run", "builtin", "-c", path, "--ratio", "0.5", "--allocator", "lukv", "--metric", "keydiff", "--profile", filepath.Join(dir, "a"), "Who?")

	// The embedded ones, by name.
	run := func(metric, profile string) []string {
		return []string{"run", "builtin", "-c", path, "--ratio", "0.5", "--allocator", "lukv", "--metric", metric, "--profile", profile, "Who?"}
	}
	ok(t, run("tova", "builtin:output-error")...)
	fails(t, exitRefused, "none of builtin:output-error was made", run(`{"name":"cake","window":16}`, "builtin:output-error")...)
}

// A profile with a loss map says what a loss of facts means for answers, wherever it is
// used; one without says nothing.
func TestProfileWithLossMap(t *testing.T) {
	dir := t.TempDir()
	with, without := filepath.Join(dir, "with"), filepath.Join(dir, "without")
	args := []string{"profile", "builtin", "--metric", "key_distance", "--texts", "1", "--json"}
	s := decode[profileSummary](t, ok(t, append(args, "--loss-map", "-o", with)...))
	require.NotNil(t, s.LossMap)
	assert.Nil(t, decode[profileSummary](t, ok(t, append(args, "-o", without)...)).LossMap)
	assert.Contains(t, ok(t, "inspect", with), "to answers lost, in percent: ")
	assert.Equal(t, s.LossMap, decode[profileInfo](t, ok(t, "inspect", with, "--json")).LossMap)

	_, context := sample(t, "niah_multikey_3", 512)
	run := func(more ...string) runResult {
		return decode[runResult](t, ok(t, append([]string{"run", "builtin", "-c", context, "--json", "--max-tokens", "1", "--metric", "key_distance", "--allocator", "lukv"}, append(more, "x")...)...))
	}
	for _, how := range [][]string{{"--ratio", "0.95", "--measure-loss"}, {"--max-loss", "1"}} {
		l := run(append(how, "--profile", with)...).Loss
		require.True(t, l.Measured())
		require.NotNil(t, l.Answers)
		assert.Equal(t, s.LossMap.At(l.Share()), *l.Answers)
		assert.Nil(t, run(append(how, "--profile", without)...).Loss.Answers)
	}
	o := command(t, "run", "builtin", "-c", context, "--max-tokens", "1", "--metric", "knorm", "--ratio", "0.9", "--measure-loss", "--stats", "x")
	assert.Contains(t, o.err, "answers   not measured for this model and policy")
	o = command(t, "run", "builtin", "-c", context, "--max-tokens", "1", "--metric", "key_distance", "--allocator", "lukv", "--profile", with, "--ratio", "0.95", "--measure-loss", "--stats", "x")
	assert.Regexp(t, `loss      .*; when the profile was made, that meant [0-9]+ % of answers lost`, o.err)

	bare := filepath.Join(dir, "texts.jsonl")
	require.NoError(t, os.WriteFile(bare, []byte(`{"context":"Rupert works in a mill.","questions":["Where?"]}`), 0o600))
	none := command(t, "profile", "builtin", "--metric", "key_distance", "--data", bare, "--loss-map", "-o", filepath.Join(dir, "bare"))
	assert.Equal(t, exitOK, none.code, none.err)
	assert.Contains(t, none.err, "note: loss map not measured: ")
}

func TestProfileRefusesWhatItWouldIgnore(t *testing.T) {
	dir := t.TempDir()
	for want, args := range map[string][]string{
		"--template":       {"--template"},
		"--top-p":          {"--top-p", "0.9"},
		"measures nothing": {"--from-npy", "x.npy", "--limit", "3"},
		"only one of them": {"--json", "--npy", "-"},
		"weighs layers":    {"--weights", "span"},
		"no choice":        {"--objective", "output-error", "--scope", "layer"},
		"ratios alone":     {"--from-npy", "x.npy", "--objective", "output-error", "--metric", `{"name":"per_head","metrics":["keydiff","snapkv"]}`},
	} {
		fails(t, exitUsage, want, append([]string{"profile", "builtin", "-o", filepath.Join(dir, "p")}, args...)...)
	}
	fails(t, exitUsage, "only one of them", "profile", "builtin", "-o", "-", "--json")
	holds(t, dir)
}

func TestProfileOptions(t *testing.T) {
	texts := shortTexts(t, 1)
	dir := t.TempDir()
	file := filepath.Join(dir, "p")
	ok(t, "profile", "builtin", "--data", texts, "--limit", "1", "-o", file,
		"--metric", `{"name":"snapkv","window":16}`, "--normalization", "layer", "--objective", "capacity", "--scope", "layer",
		"--solver", "greedy+repair", "--max-steps", "8", "--min-retention", "0.05", "--include-question", "--sinks", "2", "--window", "20")
	p, err := lukv.LoadProfile(file)
	require.NoError(t, err)
	id := p.Identity
	assert.Equal(t, 1, p.Pairs)
	assert.Contains(t, id.Metric.String(), `"window":16`)
	assert.Equal(t, lukv.Protection{Sinks: 2, Window: 20}, id.Protection)
	id.Metric, id.Model, id.Calibration, id.Protection = lukv.MetricConfig{}, "", "", lukv.Protection{}
	assert.Equal(t, lukv.ProfileIdentity{
		Normalization: lukv.NormLayer, Objective: lukv.ObjectiveCapacity, Scope: solve.ScopePerLayer,
		Solver: lukv.SolverRepair, MinRetention: 0.05, MaxSteps: 8,
	}, id)
}

func TestProfileTexts(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		return path
	}
	s, context := sample(t, "niah_single_2", 256)
	questions := write("q.txt", s.Question+"\n\n"+`{"question":"Who?","answer_prefix":"It was"}`+"\n")
	out := filepath.Join(dir, "p")
	r := decode[profileSummary](t, ok(t, "profile", "builtin", "--text", context, "--questions", questions, "-o", out, "--json", "--max-steps", "4"))
	assert.Equal(t, 2, r.Pairs)

	fails(t, exitFailed, "none", "profile", "builtin", "--text", filepath.Join(dir, "none"), "--questions", questions, "-o", out)
	fails(t, exitFailed, "line 1", "profile", "builtin", "--data", write("bad.jsonl", `{"context":1}`), "-o", out)
	fails(t, exitFailed, "no questions", "profile", "builtin", "--data", write("bad.jsonl", `{"context":"a"}`), "-o", out)

	// An ordinary checkpoint takes the package's own narrative, which is longer
	// than this one can read.
	fails(t, exitFull, "context full", "profile", checkpoint(t, nil), "-o", filepath.Join(dir, "never"))
	fails(t, exitFailed, "no/such", "profile", "builtin", "--data", shortTexts(t, 1), "--limit", "1", "--max-steps", "2", "-o", filepath.Join(dir, "no/such/p"))
	holds(t, dir, "q.txt", "p", "bad.jsonl")
}

// The query centres in a profile of triattention are shown, and are read under any
// allocator and while decoding; a profile without them is refused.
func TestProfileOfCenters(t *testing.T) {
	dir := t.TempDir()
	make := func(metric string) string {
		file := filepath.Join(dir, metric)
		ok(t, "profile", "builtin", "--metric", metric, "--data", shortTexts(t, 1), "-o", file, "--max-steps", "2")
		return file
	}
	centers, plain := make("triattention"), make("knorm")
	assert.Contains(t, ok(t, "inspect", centers), "6 layers of 8 query heads; the mean query is")
	info := decode[profileInfo](t, ok(t, "inspect", centers, "--json"))
	assert.Len(t, info.QueryCenters, 6)
	assert.NotContains(t, ok(t, "inspect", plain), "query centres")

	_, path := sample(t, "niah_single_2", 512)
	run := func(profile string, more ...string) []string {
		return append([]string{"run", "builtin", "-c", path, "--json", "--profile", profile, "Who?"}, more...)
	}
	digest := `"profile":"` + info.Digest
	for _, more := range [][]string{
		{"--metric", "triattention", "--ratio", "0.5"},
		{"--decode", `{"mode":"periodic","target_size":64,"metric":{"name":"triattention"}}`},
	} {
		assert.Contains(t, strings.ReplaceAll(ok(t, run(centers, more...)...), `": "`, `":"`), digest)
		fails(t, exitRefused, "without centres of queries", run(plain, more...)...)
	}
	fails(t, exitUsage, "no effect", run(centers, "--ratio", "0.5", "--metric", "keydiff")...)
	fails(t, exitUsage, "no effect", run(centers, "--ratio", "0.5", "--metric", `{"name":"triattention","centers":`+"[[{\"mean\":[1,2],\"lengths\":[3]}]]}")...)

	eval := []string{"eval", "builtin", "--fraction", "0.02", "--ratio", "0.5", "--profile", centers, "--metric"}
	ok(t, append(eval, "triattention")...)
	fails(t, exitUsage, "no effect", append(eval, "keydiff")...)
}

// A profile that lukv profile put into the user's cache is found by the model: if nothing
// is said but how much is removed, and for its metric.
func TestProfilesInTheCacheAreUsed(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := otherModel(t)
	sample, path := sample(t, "niah_single_2", 512)
	policy := func(model string, more ...string) *lukv.Policy {
		r := decode[runResult](t, ok(t, append([]string{"run", model, "-c", path, "--ratio", "0.5", "--raw", "--max-tokens", "1", "--json", sample.Question}, more...)...))
		return r.Policy
	}
	p := policy(dir)
	assert.Equal(t, [2]string{lukv.DefaultMetric, "adakv"}, [2]string{p.Metric.Name, p.Allocator.Name})
	p = policy("builtin")
	assert.Equal(t, [2]string{"learned", "lukv"}, [2]string{p.Metric.Name, p.Allocator.Name}, "its own")

	ok(t, "profile", dir, "--metric", "keydiff", "--data", shortTexts(t, 1), "--limit", "1", "--max-steps", "2")
	p = policy(dir)
	assert.Equal(t, lukv.DefaultMetric, p.Metric.Name, "keydiff is no better than the default")
	p = policy(dir, "--metric", "keydiff", "--allocator", "lukv")
	assert.NotEmpty(t, p.ProfileDigest, "found for its metric")

	s := decode[profileSummary](t, ok(t, "profile", dir, "--metric", "learned", "--data", shortTexts(t, 4), "--limit", "1", "--max-steps", "2", "--json"))
	p = policy(dir)
	assert.Equal(t, s.Digest, p.ProfileDigest)
	assert.Equal(t, [2]string{"learned", "lukv"}, [2]string{p.Metric.Name, p.Allocator.Name})
	assert.Equal(t, "uniform", policy(dir, "--metric", "keydiff").Allocator.Name)
	assert.Empty(t, policy(dir, "--allocator", "uniform").ProfileDigest)
	require.NoError(t, os.WriteFile(s.Path, []byte("damaged"), 0o644))
	assert.Equal(t, lukv.DefaultMetric, policy(dir).Metric.Name, "left out")

	// With --profile alone, the metric is the profile's.
	assert.Equal(t, "snapkv", policy("builtin", "--allocator", "lukv", "--profile", builtinProfileFile(t)).Metric.Name)
	fails(t, exitUsage, "--output is missing", "profile", "builtin")
}

// TestPolicyGivenBack: the policy that a run prints can be given to another, whichever of the
// model's own profiles it used.
func TestPolicyGivenBack(t *testing.T) {
	_, context := sample(t, "niah_single_2", 256)
	run := []string{"run", "builtin", "--context", context, "--max-tokens", "1", "--json", "question"}
	for _, flags := range [][]string{
		{"--ratio", "0.8"}, {"--ratio", "0.8", "--metric", "keydiff", "--allocator", "lukv"},
		{"--ratio", "0.8", "--metric", "keydiff", "--allocator", "lukv", "--profile", builtinOutputErrors},
	} {
		first := decode[runResult](t, ok(t, append(run, flags...)...))
		require.NotEmpty(t, first.Policy.ProfileDigest)
		file := filepath.Join(t.TempDir(), "policy.json")
		require.NoError(t, os.WriteFile(file, []byte(first.Policy.String()), 0o600))
		again := decode[runResult](t, ok(t, append(run, "--policy", file)...))
		require.Equal(t, first.Policy.ProfileDigest, again.Policy.ProfileDigest)
		require.Equal(t, first.Answer, again.Answer)
	}
}

// TestLearnedNeedsItsProfile: where none is given to the metric learned, that is said at once.
func TestLearnedNeedsItsProfile(t *testing.T) {
	fails(t, exitUsage, "give a profile of learned with --profile", "bench", "builtin", "--tg", "1", "--ratio", "0.5", "--metric", "learned")
	fails(t, exitUsage, "see lukv analyze cost, needle and continuation", "analyze", "losses", "builtin", "--limit", "1", "--metric", "learned", "-o", "-")
	fails(t, exitUsage, "-o FILE and give it with --profile FILE", "eval", "builtin", "--metric", `{"name":"snapkv","window":64}`, "--allocator", "lukv", "--ratio", "0.5")
}
