package command

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/builtin"
)

// shortData writes a data file of the embedded samples of two tasks at 256 tokens.
func shortData(t *testing.T) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(string(builtin.SamplesJSONL())) {
		if strings.Contains(line, `"length": 256`) && (strings.Contains(line, `"niah_single_2"`) || strings.Contains(line, `"qa_1"`)) {
			lines = append(lines, line)
		}
	}
	require.Greater(t, len(lines), 3)
	path := filepath.Join(t.TempDir(), "data.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "")), 0o644))
	return path
}

// untimed returns rows without their times, which differ from run to run.
func untimed(rows []eval.Row) []eval.Row {
	out := append([]eval.Row{}, rows...)
	for i := range out {
		out[i].Seconds = 0
	}
	return out
}

func TestEval(t *testing.T) {
	data := shortData(t)
	args := []string{"eval", "builtin", "--data", data, "--metric", "keydiff,snapkv", "--allocator", "uniform,lukv", "--ratio", "0.5,0.8"}
	r := decode[evalResult](t, ok(t, append(args, "--json", "--no-share-prefill")...))
	assert.Empty(t, r.Failed)
	assert.Len(t, r.Rows, 9*3, "full and 2x2x2 methods, two tasks and their average")
	first := r.Rows[2]
	assert.Equal(t, "full", first.Method)
	assert.Equal(t, eval.Average, first.Task)
	assert.Equal(t, 1.0, first.Score, "the model answers these with its full cache")
	for _, row := range r.Rows {
		assert.InDelta(t, row.Ratio, row.RatioAchieved, 0.02, row.Method)
		assert.Positive(t, row.CacheBytes)
		assert.GreaterOrEqual(t, row.PeakBytes, row.CacheBytes)
	}

	// One prefill for all gives the same answers.
	shared := decode[evalResult](t, ok(t, append(args, "--json")...))
	for i, row := range shared.Rows {
		assert.Equal(t, r.Rows[i].Score, row.Score, row.Method)
		assert.Zero(t, row.PeakBytes)
	}

	// The other formats say the same.
	short := []string{"eval", "builtin", "--data", data, "--ratio", "0.5", "--limit", "1"}
	table := ok(t, short...)
	assert.Contains(t, table, "snapkv/uniform/0.5")
	assert.NotContains(t, table, "\x1b")
	records, err := csv.NewReader(strings.NewReader(ok(t, append(short, "--csv")...))).ReadAll()
	require.NoError(t, err)
	assert.Len(t, records, 1+2*3)
	assert.Equal(t, "method", records[0][0])
	policy := records[4][len(records[4])-1]
	assert.Contains(t, policy, `"window":32`)
	assert.Contains(t, table, policy, "the same policy in every format")
	assert.Contains(t, ok(t, append(short, "--markdown")...), policy)
	assert.Len(t, decode[evalResult](t, ok(t, append(short, "--json", "--no-full", "--query-aware")...)).Rows, 3)
}

// plainJSON checks that text is one JSON object of a format, and that its keys are
// all in docs/json.md and are not Go field names.
func plainJSON(t *testing.T, format, text string) {
	t.Helper()
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	assert.Equal(t, format, v["format"])
	page, err := os.ReadFile("../docs/json.md")
	require.NoError(t, err)
	key := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	var walk func(x any)
	walk = func(x any) {
		switch x := x.(type) {
		case map[string]any:
			for k, y := range x {
				assert.Regexp(t, key, k)
				assert.True(t, strings.Contains(string(page), "`"+k+"`"), "docs/json.md does not have %q", k)
				if k != "metadata" && k != "metric" && k != "allocator" { // their keys come from a file or a method
					walk(y)
				}
			}
		case []any:
			for _, y := range x {
				walk(y)
			}
		}
	}
	walk(v)
}

// Results carry the policies that were in force, with every parameter written out,
// and the profile's digest.
func TestEvalPolicies(t *testing.T) {
	profile := builtinProfileFile(t)
	p, err := lukv.LoadProfile(profile)
	require.NoError(t, err)
	digest, err := p.Digest()
	require.NoError(t, err)
	text := ok(t, "eval", "builtin", "--data", shortData(t), "--limit", "1", "--seed", "7", "--ratio", "0.9",
		"--allocator", "uniform,lukv", "--profile", profile, "--json")
	plainJSON(t, evalFormat, text)
	r := decode[evalResult](t, text)
	require.Len(t, r.Settings.Methods, 3)
	assert.Nil(t, r.Settings.Methods[0].Policy)
	for _, m := range r.Settings.Methods[1:] {
		assert.Contains(t, m.Policy.Metric.String(), `"window":32`)
		assert.Equal(t, 0.9, m.Policy.Ratio)
	}
	assert.Equal(t, digest, r.Settings.Methods[2].Policy.ProfileDigest)
	assert.Equal(t, uint64(7), r.Settings.Seed)
	for _, row := range r.Rows {
		assert.Equal(t, eval.IntervalWilson, row.Interval, "one question a task")
		assert.Less(t, row.Low, row.High)
	}
	require.NotEmpty(t, r.Notes, "25 of 250 entries are few")
	assert.Contains(t, r.Notes[0].Note, "a head keeps only")
	assert.Equal(t, 2, r.Notes[0].Answers)
}

// With a reference of another type, the full cache is measured like other methods: it moves
// answers a little, and not at all where the types are the same.
func TestEvalDivergenceOfCacheTypes(t *testing.T) {
	dir, data := t.TempDir(), shortData(t)
	measure := func(cache string) (*divergenceResult, string) {
		text := ok(t, "eval", "builtin", "--data", data, "--limit", "1", "--measure", "kl", "--metric", "key_distance", "--ratio", "0.5", "--cache-type", cache, "--reference-cache", "bf16", "--json")
		path := filepath.Join(dir, cache)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		r := decode[divergenceResult](t, text)
		require.Equal(t, "full", r.Rows[0].Method)
		require.Equal(t, "bf16", r.Settings.Reference)
		return &r, path
	}
	same, a := measure("bf16")
	assert.Zero(t, same.Rows[0].KL)
	other, b := measure("int4")
	assert.Positive(t, other.Rows[0].KL)
	assert.Less(t, other.Rows[0].KL, 0.05)
	assert.Greater(t, other.Rows[3].KL, other.Rows[0].KL)
	assert.Contains(t, ok(t, "analyze", "frontier", a, b, "-o", filepath.Join(dir, "frontier.json")), "`int4, full`")
}

// With another model as the reference, what its quantised weights lose is measured, alone and
// with compression; a model with other tokens is refused.
func TestEvalDivergenceOfModels(t *testing.T) {
	source, few := filepath.Join(t.TempDir(), "model"), filepath.Join(t.TempDir(), "int4")
	require.NoError(t, os.CopyFS(source, builtin.Files()))
	ok(t, "quantize", source, few, "--type", "int4", "-q")
	measure := func(m string) []eval.DivergenceRow {
		r := decode[divergenceResult](t, ok(t, "eval", m, "--data", shortData(t), "--limit", "1", "--measure", "kl", "--raw",
			"--metric", "key_distance", "--ratio", "0.5", "--reference-model", few, "--json"))
		require.NotEmpty(t, r.Settings.Original)
		require.Equal(t, "full", r.Rows[0].Method)
		return r.Rows
	}
	same, other := measure(few), measure(source)
	assert.Zero(t, same[0].KL)
	assert.Positive(t, other[0].KL)
	assert.Less(t, other[0].KL, 0.5)
	assert.Greater(t, same[3].KL, 0.0)
	fails(t, 1, "reference: ", "eval", "builtin", "--measure", "kl", "--limit", "1", "--reference-model", "../model/testdata/models/llama32-tied-bf16")
}

func TestEvalDivergence(t *testing.T) {
	args := []string{"eval", "builtin", "--data", shortData(t), "--limit", "1", "--measure", "kl", "--metric", "key_distance,learned",
		"--allocator", "lukv", "--profile", "builtin:output-error", "--ratio", "0.5,0.9"}
	text := ok(t, append(args, "--json")...)
	plainJSON(t, runs.DivergenceFormat, text)
	r := decode[divergenceResult](t, text)
	assert.Equal(t, "kl", r.Settings.Measure)
	require.Len(t, r.Rows, 4*3, "two tasks and their average")
	require.Len(t, r.Items, 4*2)
	for i, row := range r.Rows {
		assert.InDelta(t, row.Ratio, row.RatioAchieved, 0.02)
		if row.Task == eval.Average {
			assert.InDelta(t, (r.Rows[i-2].KL+r.Rows[i-1].KL)/2, row.KL, 1e-12)
		}
	}
	assert.Contains(t, ok(t, args...), "nats/token")
	assert.Contains(t, ok(t, append(args, "--markdown")...), "| learned/lukv/0.9 | average | 2 |")
	assert.Contains(t, ok(t, append(args, "--csv")...), "learned/lukv/0.9,learned,lukv,0.9,average,2,0,")
}

// Divergences that a run had measured when it was stopped are not measured again, and those
// of more questions are added.
func TestEvalDivergenceResumes(t *testing.T) {
	items := filepath.Join(t.TempDir(), "divergences.jsonl")
	args := []string{"eval", "builtin", "--data", shortData(t), "--measure", "kl", "--ratio", "0.5,0.8", "--json"}
	want := decode[divergenceResult](t, ok(t, args...))
	args = append(args, "--items", items)

	o := interrupted(t, "measured", 2, append(args, "--limit", "1", "-v")...)
	assert.Equal(t, exitInterrupted, o.code, o.err)
	assert.Contains(t, o.err, "the same command continues")
	before, err := os.ReadFile(items)
	require.NoError(t, err)
	lines := strings.Count(string(before), "\n")
	assert.GreaterOrEqual(t, lines, 2)
	require.NoError(t, os.WriteFile(items, append(before, `{"item":3,"ta`...), 0o644))

	got := command(t, args...)
	require.Zero(t, got.code, got.err)
	assert.Contains(t, got.err, "resuming from "+items)
	r := decode[divergenceResult](t, got.out)
	assert.Equal(t, want.Rows, r.Rows)
	assert.Equal(t, want.Items, r.Items)
	after, err := os.ReadFile(items)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(after), string(before)))
	assert.Equal(t, 1+len(want.Items), strings.Count(string(after), "\n"))

	fails(t, exitFailed, "made with other settings (methods): choose another place", "eval", "builtin", "--data", shortData(t), "--measure", "kl", "--ratio", "0.5", "--items", items)
	fails(t, exitFailed, "not a file of answers", "eval", "builtin", "--data", shortData(t), "--ratio", "0.5", "--items", items)
}

func TestEvalRefusesWhatItWouldIgnore(t *testing.T) {
	data, profile := shortData(t), builtinProfileFile(t)
	fails(t, exitUsage, "--profile", "eval", "builtin", "--data", data, "--profile", profile)
	other, err := builtin.Profile(lukv.MetricConfig{Name: "keydiff"})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "keydiff.profile")
	require.NoError(t, other.Save(path))
	fails(t, exitUsage, "nothing uses it", "eval", "builtin", "--data", data, "--allocator", "lukv", "--profile", profile, "--profile", path)
	fails(t, exitUsage, "--seed", "eval", "builtin", "--data", data, "--seed", "1")
	fails(t, exitUsage, "--items", "eval", "builtin", "--data", data, "--items", "-")
}

// A second evaluation that would write to the same file is refused.
func TestEvalItemsHaveOneWriter(t *testing.T) {
	data := shortData(t)
	items := filepath.Join(t.TempDir(), "items.jsonl")
	args := []string{"eval", "builtin", "--data", data, "--ratio", "0.5", "--limit", "1", "--items", items}
	ok(t, args...)
	before, err := os.ReadFile(items)
	require.NoError(t, err)
	var head struct {
		Hash     string          `json:"settings_hash"`
		Settings json.RawMessage `json:"settings"`
	}
	line, _, _ := strings.Cut(string(before), "\n")
	require.NoError(t, json.Unmarshal([]byte(line), &head))
	log, err := eval.OpenLog[eval.Answer](items, head.Hash, head.Settings)
	require.NoError(t, err)
	defer log.Close()
	fails(t, exitFailed, "another evaluation is writing it", args...)
	after, err := os.ReadFile(items)
	require.NoError(t, err)
	assert.Equal(t, before, after)
}

func TestEvalResumes(t *testing.T) {
	data := shortData(t)
	dir := t.TempDir()
	items := filepath.Join(dir, "items.jsonl")
	args := []string{"eval", "builtin", "--data", data, "--ratio", "0.5", "--json"}
	want := decode[evalResult](t, ok(t, args...))

	args = append(args, "--items", items)
	o := interrupted(t, "answered", 4, append(args, "-v")...) // the first comes before any answer
	assert.Equal(t, exitInterrupted, o.code, o.err)
	before, err := os.ReadFile(items)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, strings.Count(string(before), "\n"), 3)

	// As if the run had died in the middle of a line.
	require.NoError(t, os.WriteFile(items, append(before, `{"item":3,"ta`...), 0o644))
	got := decode[evalResult](t, ok(t, args...))
	assert.Equal(t, untimed(want.Rows), untimed(got.Rows))
	assert.Equal(t, want.Hash, got.Hash)
	after, err := os.ReadFile(items)
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(string(after), string(before)))

	// Complete: nothing to do, nothing written.
	got = decode[evalResult](t, ok(t, args...))
	assert.Equal(t, untimed(want.Rows), untimed(got.Rows))
	again, err := os.ReadFile(items)
	require.NoError(t, err)
	assert.Equal(t, after, again)

	fails(t, exitFailed, "other settings", append(args, "--match", "part")...)
	fails(t, exitFailed, "not a file of answers", append(args[:len(args)-1], data)...)
	holds(t, dir, "items.jsonl")
}

// A run with more questions of each task builds on the answers to fewer, and one
// with fewer shows only those.
func TestEvalGrows(t *testing.T) {
	data := shortData(t)
	dir := filepath.Join(t.TempDir(), "run")
	args := []string{"eval", "builtin", "--data", data, "--ratio", "0.5", "--json"}
	some := decode[evalResult](t, ok(t, append(args, "--limit", "1", "--out", dir)...))
	all := decode[evalResult](t, ok(t, args...))
	require.NotEqual(t, untimed(some.Rows), untimed(all.Rows))

	o := command(t, append(args, "--out", dir)...)
	require.Zero(t, o.code, o.err)
	assert.Contains(t, o.err, fmt.Sprintf("resuming from %s: 4 answers are there", dir))
	got := decode[evalResult](t, o.out)
	assert.Equal(t, untimed(all.Rows), untimed(got.Rows))
	assert.Equal(t, all.Hash, got.Hash)

	got = decode[evalResult](t, ok(t, append(args, "--limit", "1", "--out", dir)...))
	assert.Equal(t, untimed(some.Rows), untimed(got.Rows))
	answers, err := os.ReadFile(filepath.Join(dir, "answers.jsonl"))
	require.NoError(t, err)
	assert.Equal(t, 1+2*all.Settings.Items, strings.Count(string(answers), "\n"), "nothing is answered twice")
	fails(t, exitFailed, "other settings", append(args, "--out", dir, "--match", "part")...)
}

// longbenchConfig writes LongBench's configuration with the given wording.
func longbenchConfig(t *testing.T, wording string) string {
	t.Helper()
	prompts, lengths := map[string]string{}, map[string]int{}
	for ends, names := range map[string]string{
		"Question: {input}\nAnswer:":              "narrativeqa qasper multifieldqa_en hotpotqa 2wikimqa musique",
		"Query: {input}\nAnswer:":                 "qmsum",
		"Now, write it.\nSummary:":                "gov_report multi_news",
		"{input}":                                 "trec triviaqa samsum",
		"Please enter it.\nThe final answer is: ": "passage_count",
		"{input}\nThe answer is: ":                "passage_retrieval_en",
		"{input}Next line of code:\n":             "lcc repobench-p",
	} {
		for name := range strings.FieldsSeq(names) {
			prompts[name], lengths[name] = wording+"\n{context}\n"+ends, 4
		}
	}
	dir := t.TempDir()
	for name, v := range map[string]any{"dataset2prompt.json": prompts, "dataset2maxlen.json": lengths} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(compact(v)), 0o644))
	}
	return dir
}

// Answers to LongBench's records depend on the wording and the lengths that turned
// them into prompts, which are not part of the data files.
func TestEvalOfLongBenchResumes(t *testing.T) {
	data := filepath.Join(t.TempDir(), "hotpotqa.jsonl")
	require.NoError(t, os.WriteFile(data, []byte(`{"input":"Which ship?","context":"The Marigold left.","answers":["Marigold"],"length":3}`+"\n"), 0o644))
	items := filepath.Join(t.TempDir(), "items.jsonl")
	args := []string{"eval", "builtin", "--data", data, "--ratio", "0.5", "--json", "--items", items}
	settings := decode[evalResult](t, ok(t, args...)).Settings
	assert.Empty(t, settings.MaxGen)
	assert.Empty(t, settings.Longbench)
	ok(t, append(args, "--max-gen", "kvpress")...)
	one, other := longbenchConfig(t, "Read this."), longbenchConfig(t, "Read that.")
	for _, flags := range [][]string{{"--max-gen", "official"}, {"--longbench-config", one}} {
		fails(t, exitFailed, "other settings", append(args, flags...)...)
	}

	items = filepath.Join(t.TempDir(), "items.jsonl")
	args = []string{"eval", "builtin", "--data", data, "--ratio", "0.5", "--items", items, "--longbench-config"}
	ok(t, append(args, one)...)
	ok(t, append(args, longbenchConfig(t, "Read this."))...)
	fails(t, exitFailed, "other settings", append(args, other)...)
}

// TestEvalShortensLongBench: long contexts of LongBench lose their middle, as its own scripts have
// it; those of anything else fail.
func TestEvalShortensLongBench(t *testing.T) {
	dir := t.TempDir()
	write := func(name, record string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(record+"\n"), 0o644))
		return path
	}
	long := strings.Repeat("The Marigold left at noon. ", 60)
	bench := write("hotpotqa.jsonl", `{"input":"Which ship?","context":"`+long+`","answers":["Marigold"],"length":300}`)
	own := write("own.jsonl", `{"task":"ships","question":"Which ship?","context":"`+long+`","answers":["Marigold"],"max_new_tokens":4}`)
	run := func(args ...string) evalResult {
		o := command(t, append([]string{"eval", "builtin", "--ratio", "0.5", "--max-context", "200", "--json"}, args...)...)
		return decode[evalResult](t, o.out)
	}
	got := run("--data", bench)
	require.Equal(t, eval.TruncateMiddle, got.Settings.Truncate)
	require.Empty(t, got.Failed)
	for _, args := range [][]string{{"--data", own}, {"--data", bench, "--data", own}, {"--data", bench, "--truncate", "error"}} {
		got = run(args...)
		require.Equal(t, eval.TruncateError, got.Settings.Truncate)
		require.NotEmpty(t, got.Failed)
	}
	require.Empty(t, run("--data", own, "--truncate", "head").Failed)
}

func TestEvalListsWhatDoesNotFit(t *testing.T) {
	data := shortData(t)
	o := command(t, "eval", "builtin", "--data", data, "--ratio", "0.5", "--max-context", "100", "--json")
	assert.Equal(t, exitFailed, o.code)
	r := decode[evalResult](t, o.out)
	assert.NotEmpty(t, r.Failed)
	assert.Empty(t, r.Rows)
	assert.Contains(t, o.err, "context full")
	assert.Contains(t, o.err, "answers failed")

	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	require.NoError(t, os.WriteFile(bad, []byte("{\"context\":\"a\"}\n"), 0o644))
	fails(t, exitFailed, "line 1", "eval", "builtin", "--data", bad)
	fails(t, exitRefused, "model", "eval", otherModel(t), "--data", data, "--allocator", "lukv", "--profile", builtinProfileFile(t))
}

// builtinProfileFile writes the embedded profile of snapkv.
func builtinProfileFile(t *testing.T) string {
	t.Helper()
	metric, err := parseMetric("snapkv")
	require.NoError(t, err)
	p, err := builtin.Profile(metric)
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "snapkv.profile")
	require.NoError(t, p.Save(path))
	return path
}

// A text given where questions are expected is reported as such.
func TestEvalOfAText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "book.txt")
	require.NoError(t, os.WriteFile(path, []byte("\nIt was a dark night.\n"), 0o600))
	fails(t, exitFailed, `line 2: found "It was a dark night.", expected one question per line as a JSON object`, "eval", "builtin", "--data", path)
}
