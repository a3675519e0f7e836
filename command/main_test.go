package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// outcome is the result of a command line.
type outcome struct {
	code     int
	out, err string
}

// command runs a command line without standard input.
func command(t *testing.T, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return outcome{code, out.String(), errs.String()}
}

// ok runs a command line that must succeed and returns its standard output.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	o := command(t, args...)
	require.Equal(t, exitOK, o.code, "lukv %s\n%s", strings.Join(args, " "), o.err)
	return o.out
}

// fails runs a command line that must fail with one clear line and nothing on
// standard output.
func fails(t *testing.T, code int, want string, args ...string) {
	t.Helper()
	o := command(t, args...)
	assert.Equal(t, code, o.code, "lukv %s\n%s", strings.Join(args, " "), o.err)
	assert.Contains(t, o.err, want)
	assert.True(t, strings.HasPrefix(o.err, "lukv: "), "found %q", o.err)
	assert.Equal(t, 1, strings.Count(o.err, "\n"), "expected one line, found %q", o.err)
	assert.Empty(t, o.out)
}

// watchWriter cancels a context once text has been written to it left times.
type watchWriter struct {
	bytes.Buffer
	text   string
	left   int
	cancel context.CancelFunc
}

func (w *watchWriter) Write(p []byte) (int, error) {
	if w.left -= strings.Count(string(p), w.text); w.left <= 0 {
		w.cancel()
	}
	return w.Buffer.Write(p)
}

// interrupted runs a command line and cancels it once text has appeared n times on
// standard error.
func interrupted(t *testing.T, text string, n int, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	errs := &watchWriter{text: text, left: n, cancel: cancel}
	code := run(ctx, args, strings.NewReader(""), &out, errs)
	return outcome{code, out.String(), errs.String()}
}

// A command that waits for its standard input can be interrupted.
func TestInterruptedAtStandardInput(t *testing.T) {
	never, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	for _, args := range [][]string{{"eval", "builtin", "--data", "-"}, {"run", "builtin", "--context", "-", "Who?"}} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		codes := make(chan int, 1)
		go func() { codes <- run(ctx, args, never, io.Discard, io.Discard) }()
		select {
		case code := <-codes:
			assert.Equal(t, exitInterrupted, code, args)
		case <-time.After(time.Minute):
			t.Fatalf("%v still waits", args)
		}
	}
}

// decode parses a JSON output.
func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

// sample returns the first embedded sample of a task and length, and a file
// with its context.
func sample(t *testing.T, task string, length int) (builtin.Sample, string) {
	t.Helper()
	for _, s := range builtin.Samples() {
		if s.Task == task && s.Length == length {
			path := filepath.Join(t.TempDir(), "context.txt")
			require.NoError(t, os.WriteFile(path, []byte(s.Context), 0o644))
			return s, path
		}
	}
	t.Fatalf("no sample of task %s and length %d", task, length)
	return builtin.Sample{}, ""
}

// checkpoint writes the embedded model as a folder. edit may change its tensors.
func checkpoint(t *testing.T, edit func(map[string]tensor.Tensor)) string {
	t.Helper()
	dir := t.TempDir()
	files := builtin.Files()
	names, err := fs.Glob(files, "*.json")
	require.NoError(t, err)
	for _, name := range names {
		data, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o644))
	}
	weights, err := safetensors.OpenCheckpointFS(files)
	require.NoError(t, err)
	all := map[string]tensor.Tensor{}
	for name, x := range weights.All() {
		all[name] = x
	}
	if edit != nil {
		edit(all)
	}
	var list []safetensors.Named
	for _, name := range weights.Names() {
		if x, ok := all[name]; ok {
			list = append(list, safetensors.Named{Name: name, Tensor: x})
		}
	}
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, safetensors.SingleName), list, nil))
	return dir
}

// otherModel writes the embedded model with one number changed: another model of
// the same shape.
func otherModel(t *testing.T) string {
	return checkpoint(t, func(all map[string]tensor.Tensor) {
		const name = "model.norm.weight"
		x := all[name]
		x.Data = bytes.Clone(x.Data)
		x.Data[0] ^= 1
		all[name] = x
	})
}

// holds asserts that a folder holds nothing but the named files: no incomplete and
// no temporary ones.
func holds(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	found := []string{}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	assert.ElementsMatch(t, names, found)
}

func TestHelp(t *testing.T) {
	assert.Contains(t, ok(t, "--help"), "Exit status")
	assert.Contains(t, ok(t), "Commands:")
	parser, err := newParser(new(cli))
	require.NoError(t, err)
	for _, c := range append(commandsOf(parser.Model), groupsOf(parser.Model)...) {
		_, examples, found := strings.Cut(ok(t, append(strings.Fields(c.Path()), "--help")...), "Examples:")
		assert.True(t, found, "lukv %s --help has no examples", c.Path())
		examples, _, _ = strings.Cut(examples, "\nFlags:")
		assert.Contains(t, examples, "lukv "+c.Path())
		// The examples can be parsed.
		for line := range strings.Lines(examples) {
			if command, ok := strings.CutPrefix(strings.TrimSpace(line), "lukv "); ok {
				fresh, err := newParser(new(cli))
				require.NoError(t, err)
				_, err = fresh.Parse(shellWords(command))
				assert.NoError(t, err, "example %s", line)
			}
		}
	}
	assert.Contains(t, ok(t, "demo", "--help"), "AdaKV")
	assert.Equal(t, ok(t, "demo", "--help"), ok(t, "help", "demo"))
	assert.Equal(t, ok(t, "--help"), ok(t, "help"))
}

// shellWords splits a command line as a shell does, up to a redirection, a pipe or a comment.
func shellWords(line string) []string {
	var words []string
	var word strings.Builder
	quote, inWord := rune(0), false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '"' || r == '\'':
			quote, inWord = r, true
		case r == ' ' || r == '\n':
			if inWord {
				words = append(words, word.String())
			}
			word.Reset()
			inWord = false
		case (r == '>' || r == '<' || r == '|' || r == '#') && !inWord:
			return words
		default:
			word.WriteRune(r)
			inWord = true
		}
	}
	return words
}

func TestVersion(t *testing.T) {
	assert.Contains(t, ok(t, "--version"), "lukv ")
	assert.Contains(t, ok(t, "version"), "cpu")
	v := decode[versionInfo](t, ok(t, "version", "--json"))
	assert.NotEmpty(t, v.Go)
	assert.NotEmpty(t, v.CPU)
}

func TestUsageErrors(t *testing.T) {
	none, empty := filepath.Join(t.TempDir(), "none"), filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"unexpected argument", []string{"nonsense"}},
		{"unknown flag", []string{"run", "builtin", "--nonsense", "x"}},
		{"--precision", []string{"run", "builtin", "--precision", "f8", "x"}},
		{"--cpu", []string{"run", "builtin", "--cpu", "z80", "x"}},
		{"--threads", []string{"run", "builtin", "--threads", "-1", "x"}},
		{"expected 0 to 1024", []string{"run", "builtin", "--threads", "100000", "x"}},
		{"--max-context", []string{"run", "builtin", "--max-context", "-1", "x"}},
		{"--max-cache", []string{"run", "builtin", "--max-cache", "lots", "x"}},
		{"ratio 1.5", []string{"run", "builtin", "--ratio", "1.5", "x"}},
		{"at most one", []string{"run", "builtin", "--ratio", "0.5", "--budget-tokens", "7", "x"}},
		{"--budget-tokens: found 0", []string{"run", "builtin", "--context", none, "--budget-tokens", "0", "x"}},
		{"--budget-bytes: found 0", []string{"chat", "builtin", "--budget-bytes", "0"}},
		{"--metric", []string{"run", "builtin", "--ratio", "0.5", "--metric", "guess", "x"}},
		{"--metric", []string{"run", "builtin", "--ratio", "0.5", "--metric", `{"name":"snapkv","kernel":4}`, "x"}},
		{"--allocator", []string{"run", "builtin", "--ratio", "0.5", "--allocator", "guess", "x"}},
		{"nothing would be compressed", []string{"run", "builtin", "--allocator", "adakv", "x"}},
		{"needs --context", []string{"run", "builtin", "--ratio", "0.5", "x"}},
		{"--context is empty", []string{"run", "builtin", "--ratio", "0.5", "--context", empty, "x"}},
		{"--decode", []string{"run", "builtin", "--decode", "{", "x"}},
		{"--sinks", []string{"run", "builtin", "--ratio", "0.5", "--sinks", "-2", "x"}},
		{"temperature", []string{"run", "builtin", "--temperature", "-1", "x"}},
		{"--stop", []string{"run", "builtin", "--stop", "", "x"}},
		{"--logprobs", []string{"run", "builtin", "--logprobs", "2", "x"}},
		{"--save needs", []string{"run", "builtin", "--save", none, "x"}},
		{"expected one of them", []string{"run", "builtin", "--load", none, "--context", none, "x"}},
		{"standard input is the context", []string{"run", "builtin", "--context", "-"}},
		{"standard input is empty", []string{"run", "builtin"}},
		{"--output", []string{"profile", "builtin"}},
		{"expected pairs", []string{"profile", "builtin", "-o", none, "--text", none}},
		{"--max-steps", []string{"profile", "builtin", "-o", none, "--max-steps", "0"}},
		{"--min-retention", []string{"profile", "builtin", "-o", none, "--min-retention", "1"}},
		{"--normalization", []string{"profile", "builtin", "-o", none, "--normalization", "odd"}},
		{"--ratio", []string{"eval", "builtin", "--ratio", "0.5,2"}},
		{"fraction", []string{"eval", "builtin", "--fraction", "2"}},
		{"--data is missing", []string{"eval", t.TempDir()}},
		{"can't be used together", []string{"eval", "builtin", "--csv", "--json"}},
		{"--ratio", []string{"inspect", "builtin", "--ratio", "1"}},
		{"--ratio", []string{"demo", "--ratio", "0"}},
	} {
		fails(t, exitUsage, c.want, c.args...)
	}
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "17": 17, "17B": 17, "2k": 2048, "2KiB": 2048, "3 MB": 3e6, "1.5GiB": 3 << 29, "1T": 1 << 40,
	} {
		var b byteSize
		require.NoError(t, b.UnmarshalText([]byte(text)), text)
		assert.Equal(t, want, int64(b), text)
	}
	for _, text := range []string{"", "-1", "x", "1PiB", "NaN", "1e30", "inf"} {
		var b byteSize
		assert.Error(t, b.UnmarshalText([]byte(text)), text)
	}
}

func TestSplitList(t *testing.T) {
	for _, c := range []struct{ in, want []string }{
		{[]string{"a,b", " c "}, []string{"a", "b", "c"}},
		{[]string{`{"name":"x","y":[1,2]},b`}, []string{`{"name":"x","y":[1,2]}`, "b"}},
		{[]string{`{"name":"a,\"}b"},c`}, []string{`{"name":"a,\"}b"}`, "c"}},
		{[]string{",", ""}, []string{}},
	} {
		assert.Equal(t, c.want, splitList(c.in), "%q", c.in)
	}
}

func TestQuoteArg(t *testing.T) {
	assert.Equal(t, "a-b.c", quoteArg("a-b.c"))
	assert.Equal(t, "''", quoteArg(""))
	assert.Equal(t, `'it'\''s'`, quoteArg("it's"))
}

// A negative number is a value even after a space.
func TestNegativeNumbers(t *testing.T) {
	fails(t, exitUsage, "temperature is -1, expected 0 or more", "run", "builtin", "--temperature", "-1", "Hello")
	fails(t, exitUsage, "-5", "run", "builtin", "--max-tokens", "-5", "Hello")
	assert.Equal(t, []string{"run", "--top-p=-.5", "-o", "-1", "--", "--a", "-1"}, joinNegative([]string{"run", "--top-p", "-.5", "-o", "-1", "--", "--a", "-1"}))
}

// TestOutputsComeFirst: a file that cannot be written is noticed before the work, here
// before the model, which does not exist either.
func TestOutputsComeFirst(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "no", "x")
	for _, path := range []string{missing, dir} {
		for _, args := range [][]string{
			{"run", "./none", "-c", "x", "--save", path},
			{"run", "./none", "-c", "x", "--ratio=0.5", "--trace", path, "y"},
			{"profile", "./none", "-o", path},
			{"profile", "./none", "-o", filepath.Join(dir, "p"), "--npy", path},
			{"probe", "./none", "-o", path},
			{"analyze", "losses", "./none", "-o", path},
			{"analyze", "continuation", "./none", "--text=x", "-o", path},
		} {
			fails(t, exitFailed, "create "+path, args...)
		}
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

// TestNothingWritten: what standard output does not take is an error.
func TestNothingWritten(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}, {"--help"}, {"run", "--help"}, {"man"}} {
		full := &fs.PathError{Op: "write", Path: "/dev/stdout", Err: errors.New("no space")}
		var errs bytes.Buffer
		code := run(t.Context(), args, strings.NewReader(""), brokenWriter{full}, &errs)
		assert.Equal(t, exitFailed, code, args)
		assert.Equal(t, "lukv: "+full.Error()+"\n", errs.String(), args)
	}
}

// TestHintsNameTheCommand: the help that an error points to has the flags it is about.
func TestHintsNameTheCommand(t *testing.T) {
	fails(t, exitUsage, "(see lukv analyze losses --help)", "analyze", "losses", "--none")
	fails(t, exitUsage, "(see lukv gen ruler --help)", "gen", "ruler", "builtin")
	fails(t, exitUsage, "(see lukv run --help)", "run", "--none")
	fails(t, exitUsage, "(see lukv --help)", "none")
}

// TestWrongFiles: a file of another kind is told what was expected.
func TestWrongFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notes.txt")
	require.NoError(t, os.WriteFile(path, []byte("The gardener keeps the key.\n"), 0o600))
	object := path + ".jsonl"
	require.NoError(t, os.WriteFile(object, []byte("{}\n{}\n"), 0o600))
	for _, c := range []struct {
		want string
		args []string
	}{
		{`expected an object of the format "lukv profile"`, []string{"run", "builtin", "-c", path, "--ratio=0.5", "--allocator=lukv", "--profile", path, "x"}},
		{"not a safetensors file", []string{"run", "builtin", "--load", path, "x"}},
		{`expected an object of the format "lukv analysis 1"`, []string{"plot", path, "--html=-"}},
		{"expected an answer or a prediction", []string{"score", path}},
		{"expected a profile", []string{"inspect", object}},
		{"expected a JSON array of messages", []string{"template", "builtin", "--messages", path}},
		{"expected a JSON array of tools", []string{"template", "builtin", "-u", "x", "--tools", object}},
	} {
		fails(t, exitFailed, c.want, c.args...)
	}
}

// brokenWriter fails.
type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }
