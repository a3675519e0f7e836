package command

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

func TestRun(t *testing.T) {
	s, path := sample(t, "niah_single_2", 512)
	args := []string{"run", "builtin", "--context", path, "--answer-prefix", s.AnswerPrefix, s.Question}

	o := command(t, append(args, "--stats")...)
	require.Equal(t, exitOK, o.code, o.err)
	assert.Contains(t, o.out, s.Answers[0])
	assert.True(t, strings.HasSuffix(o.out, "\n"))
	for _, want := range []string{"tokens", "tokens/s", "cache", "machine"} {
		assert.Contains(t, o.err, want)
	}

	full := decode[runResult](t, ok(t, append(args, "--json", "--logprobs", "3")...))
	assert.Equal(t, strings.TrimSuffix(o.out, "\n"), full.Answer)
	assert.Equal(t, model.FinishStop, full.Finish)
	assert.Len(t, full.Tokens, full.Stats.NewTokens)
	assert.Len(t, full.Tokens[0].Top, 3)
	assert.Equal(t, full.Tokens[0].ID, full.Tokens[0].Top[0].ID, "greedy takes the most likely token")
	said := ""
	for _, token := range full.Tokens {
		said += token.Text
	}
	assert.Contains(t, said, s.Answers[0])
	assert.NotContains(t, said, "Ġ", "text, not names in the vocabulary")
	assert.Equal(t, full.Stats.FullBytes, full.Stats.CompressedBytes)
	assert.Nil(t, full.Policy)

	// Sizes, with the embedded profile.
	for _, allocator := range []string{"uniform", "lukv"} {
		r := decode[runResult](t, ok(t, append(args, "--json", "--ratio", "0.5", "--metric", "keydiff", "--allocator", allocator)...))
		assert.InDelta(t, 0.5, r.Stats.Ratio, 0.01, allocator)
		assert.Less(t, r.Stats.CompressedBytes, r.Stats.FullBytes)
		assert.Less(t, r.Stats.PeakBytes, r.Stats.FullBytes)
		assert.Equal(t, allocator, r.Policy.Allocator.Name)
	}
	// Compressing a context to nearly nothing gives a warning.
	assert.Contains(t, command(t, append(args, "--ratio", "0.98")...).err, "note: a head keeps only")

	// A ratio of 0 changes nothing.
	assert.Equal(t, o.out, ok(t, append(args, "--ratio", "0")...))

	stopped := decode[runResult](t, ok(t, append(args, "--json", "--stop", s.Answers[0][1:3])...))
	assert.Equal(t, model.FinishStop, stopped.Finish)
	assert.NotContains(t, stopped.Answer, s.Answers[0][1:3])
	short := decode[runResult](t, ok(t, append(args, "--json", "--max-tokens", "1")...))
	assert.Equal(t, model.FinishLength, short.Finish)
	assert.Equal(t, 1, short.Stats.NewTokens)
}

func TestRunInput(t *testing.T) {
	s, path := sample(t, "niah_single_2", 256)
	want := ok(t, "run", "builtin", "-c", path, "--answer-prefix", s.AnswerPrefix, s.Question)
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"run", "builtin", "-c", path, "--answer-prefix", s.AnswerPrefix},
		strings.NewReader(s.Question+"\n"), &out, &errs)
	require.Equal(t, exitOK, code, errs.String())
	assert.Equal(t, want, out.String(), "prompt on standard input")

	out.Reset()
	code = run(t.Context(), []string{"run", "builtin", "-c", "-", "--answer-prefix", s.AnswerPrefix, s.Question},
		strings.NewReader(s.Context), &out, &errs)
	require.Equal(t, exitOK, code, errs.String())
	assert.Equal(t, want, out.String(), "context on standard input")

	// The card's prompt, written out.
	raw := "<|user|>" + s.Context + "\n\n" + s.Question + "<|assistant|>" + s.AnswerPrefix
	assert.Equal(t, want, ok(t, "run", "builtin", "--raw", raw), "raw prompt")

	// The same checkpoint as a folder: prompts by its chat template.
	dir := checkpoint(t, nil)
	assert.Equal(t, want, ok(t, "run", dir, "-c", path, "--answer-prefix", s.AnswerPrefix, s.Question), "folder")
}

func TestRunSaveLoad(t *testing.T) {
	s, path := sample(t, "niah_single_2", 512)
	dir := t.TempDir()
	file := filepath.Join(dir, "context.session")
	policy := []string{"--ratio", "0.6", "--metric", "keydiff"}
	question := []string{"--answer-prefix", s.AnswerPrefix, s.Question}
	direct := ok(t, append(append([]string{"run", "builtin", "-c", path}, policy...), question...)...)

	assert.Empty(t, ok(t, append([]string{"run", "builtin", "-c", path, "--save", file}, policy...)...))
	holds(t, dir, "context.session")
	for range 2 {
		assert.Equal(t, direct, ok(t, append([]string{"run", "builtin", "--load", file}, question...)...))
	}

	// What inspect says about it.
	info := decode[cacheInfo](t, ok(t, "inspect", file, "--json"))
	assert.Equal(t, "session", info.Kind)
	assert.InDelta(t, 0.6, info.Ratio, 0.01)
	assert.Equal(t, "keydiff", info.Policy.Metric.Name)
	assert.Len(t, info.Lengths, 6)
	out := ok(t, "inspect", file)
	assert.Contains(t, out, "entries per layer")
	assert.NotContains(t, out, "\x1b", "no escape codes where there is no terminal")

	// Damaged, and of another model.
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	data[len(data)/2] ^= 1
	broken := filepath.Join(dir, "broken.session")
	require.NoError(t, os.WriteFile(broken, data, 0o644))
	fails(t, exitFailed, "checksum", "run", "builtin", "--load", broken, "x")
	fails(t, exitFailed, "checksum", "inspect", broken)
	fails(t, exitRefused, "another model", "run", otherModel(t), "--load", file, "x")
	fails(t, exitFailed, "no such file", "run", "builtin", "--load", filepath.Join(dir, "none"), "x")
	holds(t, dir, "context.session", "broken.session")
}

// A trace has what the session holds; it changes no answer, and appears only once it
// is complete.
func TestRunTrace(t *testing.T) {
	s, path := sample(t, "niah_single_2", 512)
	dir := t.TempDir()
	session, trace := filepath.Join(dir, "s.session"), filepath.Join(dir, "s.trace")
	run := []string{"run", "builtin", "-c", path, "--ratio", "0.6", "--allocator", "adakv", "--metric", "keydiff"}
	question := []string{"--answer-prefix", s.AnswerPrefix, s.Question}
	plain := ok(t, append(run, question...)...)
	assert.Equal(t, plain, ok(t, append(append(run, "--trace", trace, "--save", session), question...)...))

	holding := decode[cacheInfo](t, ok(t, "inspect", session, "--positions", "--json"))
	out := ok(t, "inspect", trace, "--positions", "--json")
	plainJSON(t, inspectFormat, out)
	info := decode[traceInfo](t, out)
	assert.Equal(t, "trace", info.Kind)
	assert.Equal(t, holding.Model, info.Model)
	assert.Equal(t, holding.Policy, info.Policy)
	assert.Equal(t, []int{0, holding.Position}, []int{info.From, info.To})
	assert.Equal(t, holding.Positions, info.Positions)
	assert.Equal(t, holding.Lengths, info.Lengths)
	assert.Equal(t, info.Lengths, info.Budgets)
	assert.Equal(t, holding.Ratio, info.Ratio)
	assert.Nil(t, decode[traceInfo](t, ok(t, "inspect", trace, "--json")).Positions)

	// As text, both give the same list, a line of bounded length per head.
	list := func(file string) []string {
		_, text, found := strings.Cut(ok(t, "inspect", file, "--positions"), "\npositions: ")
		require.True(t, found)
		return strings.Split(text, "\n")[1:25]
	}
	assert.Equal(t, list(session), list(trace))
	for _, line := range list(trace) {
		assert.Less(t, len(line), 140)
	}
	assert.True(t, strings.HasPrefix(ok(t, "inspect", trace, "--svg", "-"), "<svg"))
	fails(t, exitUsage, "--verify", "inspect", trace, "--verify")

	fails(t, exitFailed, "no/such", append(append(run, "--trace", filepath.Join(dir, "no/such/file")), question...)...)
	o := interrupted(t, "model ready", 1, append(append(run, "-v", "--trace", filepath.Join(dir, "never")), question...)...)
	assert.Equal(t, exitInterrupted, o.code, o.err)

	// A context in which too few facts are found to bound a loss stays whole: an answer, and no trace.
	short := filepath.Join(t.TempDir(), "short.txt")
	require.NoError(t, os.WriteFile(short, []byte("A few words."), 0o600))
	o = command(t, "run", "builtin", "-c", short, "--max-loss", "0.1", "--max-tokens", "2", "--trace", filepath.Join(dir, "none"), "What?")
	assert.Equal(t, exitOK, o.code, o.err)
	assert.Contains(t, o.err, "there is no trace to write")
	holds(t, dir, "s.session", "s.trace")
}

func TestRanges(t *testing.T) {
	assert.Equal(t, "", ranges(nil))
	assert.Equal(t, "3", ranges([]int32{3}))
	assert.Equal(t, "0-3 7 9-10", ranges([]int32{0, 1, 2, 3, 7, 9, 10}))
	var odd []int32
	for i := range int32(1000) {
		odd = append(odd, 2*i+1)
	}
	text := ranges(odd)
	assert.Regexp(t, `^1 3 5 [0-9 ]* … \d+ more$`, text)
	shown, left := len(strings.Fields(text))-3, 0
	_, err := fmt.Sscanf(text[strings.Index(text, "…")+len("…"):], "%d more", &left)
	require.NoError(t, err)
	assert.Equal(t, 1000, shown+left)
}

func TestRunRefuses(t *testing.T) {
	s, path := sample(t, "niah_single_2", 512)
	dir := t.TempDir()

	unknown := filepath.Join(dir, "unknown")
	require.NoError(t, os.Mkdir(unknown, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(unknown, "config.json"),
		[]byte(`{"architectures":["GPT2LMHeadModel"],"model_type":"gpt2"}`), 0o644))
	fails(t, exitRefused, "not supported", "run", unknown, "x")
	fails(t, exitRefused, "not supported", "inspect", unknown)

	const missing = "model.layers.3.mlp.up_proj.weight"
	broken := checkpoint(t, func(all map[string]tensor.Tensor) { delete(all, missing) })
	fails(t, exitFailed, missing, "run", broken, "x")
	fails(t, exitFailed, missing, "inspect", broken)

	fails(t, exitFailed, "none", "run", filepath.Join(dir, "none"), "x")
	fails(t, exitFailed, "none.txt", "run", "builtin", "-c", filepath.Join(dir, "none.txt"), "x")
	save := filepath.Join(dir, "never.session")
	fails(t, exitFull, "context full", "run", "builtin", "-c", path, "--max-context", "300", "--save", save, s.Question)
	fails(t, exitFull, "cache is full", "run", "builtin", "-c", path, "--max-cache", "64KiB", "--save", save, s.Question)
	fails(t, exitFailed, "no/such", "run", "builtin", "-c", path, "--save", filepath.Join(dir, "no/such/file"), s.Question)
	fails(t, exitFailed, "none.profile", "run", "builtin", "-c", path, "--ratio", "0.5", "--allocator", "lukv",
		"--profile", filepath.Join(dir, "none.profile"), s.Question)
	fails(t, exitUsage, `lukv profile builtin --metric '{"name":"snapkv`, "run", "builtin", "-c", path, "--ratio", "0.5",
		"--allocator", "lukv", "--metric", `{"name":"snapkv","window":16}`, s.Question)
	fails(t, exitUsage, "found 'm' after the value, expected the end", "run", "builtin", "-c", path, "--decode", `{"mode":"h2o"} more`, s.Question)
	holds(t, dir, "unknown")

	o := interrupted(t, "model ready", 1, "run", "builtin", "-v", "-c", path, "--save", save, s.Question)
	assert.Equal(t, exitInterrupted, o.code, o.err)
	holds(t, dir, "unknown")
}

func TestRunPolicyFile(t *testing.T) {
	s, path := sample(t, "niah_single_2", 512)
	args := []string{"run", "builtin", "-c", path, "--json", s.Question}
	want := decode[runResult](t, ok(t, append(args, "--ratio", "0.7", "--metric", `{"name":"snapkv","window":16}`, "--allocator", "adakv", "--sinks", "2")...))
	assert.Equal(t, &lukv.Protection{Sinks: 2, Window: 16}, want.Policy.Protection)

	file := filepath.Join(t.TempDir(), "policy.json")
	require.NoError(t, os.WriteFile(file, []byte(want.Policy.String()), 0o644))
	got := decode[runResult](t, ok(t, append(args, "--policy", file)...))
	assert.Equal(t, want.Answer, got.Answer)
	assert.Equal(t, want.Stats.Entries, got.Stats.Entries)
	fails(t, exitUsage, "--policy", append(args, "--policy", file, "--ratio", "0.5")...)
	require.NoError(t, os.WriteFile(file, []byte(`{"ratio":7}`), 0o644))
	fails(t, exitUsage, "ratio 7", append(args, "--policy", file)...)
}

// TestLongestAnswer: the flag, else the checkpoint's own limit, else 1024 tokens.
func TestLongestAnswer(t *testing.T) {
	dir := checkpoint(t, nil)
	limit := func(args ...string) int {
		return decode[runResult](t, ok(t, append([]string{"run", dir, "--json", "x"}, args...)...)).Sample.MaxTokens
	}
	for limits, want := range map[string]int{"": 1024, `, "max_new_tokens": 3`: 3} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": 2`+limits+`}`), 0o600))
		assert.Equal(t, want, limit())
	}
	assert.Equal(t, 5, limit("--max-tokens", "5"))
	assert.Equal(t, 0, limit("--max-tokens", "0"))
}

// TestRunTraceWhileDecoding: entries evicted while decoding are in the trace, with a
// compressed context and without, and tracing changes no answer.
func TestRunTraceWhileDecoding(t *testing.T) {
	s, path := sample(t, "niah_single_2", 256)
	trace := filepath.Join(t.TempDir(), "s.trace")
	run := []string{"run", "builtin", "-c", path, "--decode", `{"mode":"tova","target_size":60}`, "--max-tokens", "5", s.Question}
	for _, more := range [][]string{nil, {"--ratio", "0.2"}} {
		args := append(run[:len(run):len(run)], more...)
		plain := ok(t, args...)
		assert.Equal(t, plain, ok(t, append(args, "--trace", trace)...))
		info := decode[traceInfo](t, ok(t, "inspect", trace, "--json"))
		assert.Equal(t, more != nil, info.Entries > 0)
		assert.Greater(t, info.Evicted, int64(1000))
		assert.Contains(t, ok(t, "inspect", trace), "entries evicted")
	}
	ok(t, "run", "builtin", "--decode", `{"mode":"tova","target_size":600}`, "--max-tokens", "5", "--trace", trace, "x")
	assert.Zero(t, decode[traceInfo](t, ok(t, "inspect", trace, "--json")).Evicted)
}

// TestImpliedDrawing: flags that restrict the draw turn it on; at the values that restrict
// nothing they do not.
func TestImpliedDrawing(t *testing.T) {
	temperature := func(args ...string) float64 {
		var r struct{ Sampling model.Sampling }
		text := ok(t, append([]string{"run", "builtin", "--json", "--max-tokens=1", "x"}, args...)...)
		require.NoError(t, json.Unmarshal([]byte(text), &r))
		return r.Sampling.Temperature
	}
	for _, arg := range []string{"--top-k=0", "--top-p=1", "--min-p=0"} {
		assert.Zero(t, temperature(arg), arg)
	}
	for _, arg := range []string{"--top-k=3", "--top-p=0.5", "--min-p=0.1"} {
		assert.Equal(t, 1.0, temperature(arg), arg)
		assert.Equal(t, 0.5, temperature(arg, "--temperature=0.5"), arg)
	}
	fails(t, exitUsage, "--top-p: found 0", "run", "builtin", "--top-p=0", "x")
	fails(t, exitUsage, "--repetition-penalty: found 0", "run", "builtin", "--repetition-penalty=0", "x")
}

// TestNoteText: a document that is no text is read, with a note.
func TestNoteText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pdf")
	for text, noted := range map[string]bool{"Käse": false, "K\xe4se": true} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		o := command(t, "run", "builtin", "-c", path, "--max-tokens=1", "x")
		require.Equal(t, exitOK, o.code, o.err)
		assert.Equal(t, noted, strings.Contains(o.err, path+" is not text in UTF-8"), "%q: %s", text, o.err)
	}
}

// TestByteOrderMarks: the mark before a text and the end of a line are no part of what the
// model reads.
func TestByteOrderMarks(t *testing.T) {
	dir := t.TempDir()
	tokens := func(input string, args ...string) (context, prompt float64) {
		code, out, msg := invoke(t, input, append([]string{"run", "builtin", "--json", "--max-tokens=1"}, args...)...)
		require.Equal(t, exitOK, code, msg)
		var r struct{ Stats map[string]any }
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		return r.Stats["context_tokens"].(float64), r.Stats["prompt_tokens"].(float64)
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	plain, asked := tokens("Where is it?", "-c", file("a", "The cat sat."))
	for _, x := range []struct{ input, text string }{
		{"Where is it?", "\ufeffThe cat sat."}, {"\ufeffWhere is it?", "The cat sat."}, {"Where is it?\r\n", "The cat sat."},
	} {
		context, prompt := tokens(x.input, "-c", file("b", x.text))
		require.Equal(t, plain, context, "%q", x)
		require.Equal(t, asked, prompt, "%q", x)
	}
}
