package command

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/dialog"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/tokenizer"
)

// invoke runs the command with text as its standard input.
func invoke(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(stdin), &out, &err)
	return code, out.String(), err.String()
}

// chatSample returns a short sample that the embedded model answers even with 30 % of
// the entries removed.
func chatSample(t *testing.T) builtin.Sample {
	for _, s := range builtin.Samples() {
		if s.Task == "niah_single_2" {
			return s
		}
	}
	require.FailNow(t, "no sample of the embedded model fits")
	return builtin.Sample{}
}

func TestChatPiped(t *testing.T) {
	sample := chatSample(t)
	path := filepath.Join(t.TempDir(), "document.txt")
	require.NoError(t, os.WriteFile(path, []byte(sample.Context), 0o600))
	code, out, msg := invoke(t, sample.Question+"\n", "chat", builtin.Name, "--load", path, "--ratio", "0.3")
	require.Equal(t, exitOK, code, msg)
	assert.Contains(t, out, sample.Answers[0])
	assert.Empty(t, msg)
	// The prompt is the card's, as in run.
	_, same, _ := invoke(t, "", "run", builtin.Name, "--context", path, "--ratio", "0.3", sample.Question)
	assert.Equal(t, same, out)

	_, _, msg = invoke(t, sample.Question, "chat", builtin.Name, "--load", path, "--ratio", "0.98")
	assert.Contains(t, msg, "note: a head keeps only")

	for _, tc := range []struct {
		name, stdin, want string
		code              int
		args              []string
	}{
		{"nothing", " \n", "standard input is empty", exitUsage, nil},
		{"no document", "x", "no such file", exitFailed, []string{"--load", path + "x"}},
		{"bad ratio", "x", "ratio", exitUsage, []string{"--ratio", "2"}},
		{"bad sampling", "x", "temperature", exitUsage, []string{"--temperature", "-1"}},
		{"too long", strings.Repeat("word ", 4000), "context full", exitFull, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, msg := invoke(t, tc.stdin, append([]string{"chat", builtin.Name}, tc.args...)...)
			assert.Equal(t, tc.code, code)
			assert.Empty(t, out)
			assert.Contains(t, msg, tc.want)
			assert.Equal(t, 1, strings.Count(msg, "\n"), "one line: %q", msg)
			assert.NotContains(t, msg, "/clear", "nobody can type that here")
		})
	}
}

// TestChatSystem: the embedded model's template has no place for a system prompt.
func TestChatSystem(t *testing.T) {
	_, _, msg := invoke(t, "Who?", "chat", builtin.Name, "--system", "Be kind")
	assert.Equal(t, "the model's chat template leaves the system prompt out\n", msg)
}

// TestChatGoesOnWithSavedContext loads what run --save wrote.
func TestChatGoesOnWithSavedContext(t *testing.T) {
	sample := chatSample(t)
	dir := t.TempDir()
	path, saved := filepath.Join(dir, "document.txt"), filepath.Join(dir, "saved")
	require.NoError(t, os.WriteFile(path, []byte(sample.Context), 0o600))
	code, want, msg := invoke(t, "", "run", builtin.Name, "--context", path, "--ratio", "0.3", "--save", saved, sample.Question)
	require.Equal(t, exitOK, code, msg)
	code, got, msg := invoke(t, sample.Question, "chat", builtin.Name, "--load", saved)
	require.Equal(t, exitOK, code, msg)
	assert.Equal(t, want, got)

	require.NoError(t, os.WriteFile(dialog.StateFile(saved), []byte(`{"messages":[],"head_tokens":100000}`), 0o600))
	code, _, msg = invoke(t, "x", "chat", builtin.Name, "--load", saved)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, msg, "100000 tokens")
	require.NoError(t, os.WriteFile(dialog.StateFile(saved), []byte(`{`), 0o600))
	code, _, msg = invoke(t, "x", "chat", builtin.Name, "--load", saved)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, msg, "messages in")
}

func TestTokenize(t *testing.T) {
	tok, err := tokenizer.Load(builtin.Files())
	require.NoError(t, err)
	const text = "Grüße <|user|> an alle\n"
	ids := tok.Encode(text, tokenizer.EncodeOptions{})

	code, out, msg := invoke(t, "", "tokenize", builtin.Name, text)
	require.Equal(t, exitOK, code, msg)
	assert.Equal(t, len(ids), strings.Count(out, "\n"))
	assert.Contains(t, out, "3\t8-16\t<|user|>\t\"<|user|>\"\n")
	_, fromInput, _ := invoke(t, text, "tokenize", builtin.Name)
	assert.Equal(t, out, fromInput)

	_, out, _ = invoke(t, text, "tokenize", builtin.Name, "--count", "")
	assert.Equal(t, "0\n", out, "an empty text is a text")
	_, out, _ = invoke(t, text, "tokenize", builtin.Name, "--count")
	assert.Equal(t, len(ids), atoi(t, strings.TrimSpace(out)))
	_, out, _ = invoke(t, text, "tokenize", builtin.Name, "--count", "--special-as-text")
	assert.Greater(t, atoi(t, strings.TrimSpace(out)), len(ids))

	_, out, _ = invoke(t, text, "tokenize", builtin.Name, "--json", "--add-special")
	var got struct {
		Count  int
		Tokens []tokenInfo
	}
	unmarshal(t, out, &got)
	assert.Equal(t, len(got.Tokens), got.Count)
	assert.Equal(t, tokenInfo{1, "<s>", 0, 0}, got.Tokens[0])
	var list []string
	for i, tk := range got.Tokens[1:] {
		assert.Equal(t, ids[i], tk.ID)
		list = append(list, itoa(tk.ID))
	}
	for _, sep := range []string{" ", ",", ", ", "\n"} {
		_, out, _ = invoke(t, "["+strings.Join(list, sep)+"]", "tokenize", builtin.Name, "--decode")
		assert.Equal(t, text, out)
	}
	_, out, _ = invoke(t, "", "tokenize", builtin.Name, "--decode", "--skip-special", "--json", strings.Join(list, " "))
	var decoded struct{ Text string }
	unmarshal(t, out, &decoded)
	assert.Equal(t, strings.Replace(text, "<|user|>", "", 1), decoded.Text)

	file := filepath.Join(t.TempDir(), "tokenizer.json")
	data, err := builtin.Files().(interface {
		ReadFile(string) ([]byte, error)
	}).ReadFile("tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, data, 0o600))
	code, out, msg = invoke(t, "", "tokenize", file, "a")
	require.Equal(t, exitOK, code, msg)
	assert.Equal(t, 1, strings.Count(out, "\n"))

	for _, args := range [][]string{
		{"--decode", "1 x"}, {"--decode", "99999"}, {"--decode", "-1"}, {"--skip-special", "a"}, {"--decode", "--count", "1"},
	} {
		code, out, msg = invoke(t, "", append([]string{"tokenize", builtin.Name}, args...)...)
		assert.Equal(t, exitUsage, code, "%q", args)
		assert.Empty(t, out)
		assert.Equal(t, 1, strings.Count(msg, "\n"), msg)
	}
	code, _, msg = invoke(t, "", "tokenize", "no/such", "a")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, msg, "lukv pull no/such")
}

func TestTemplate(t *testing.T) {
	const want = "<s><|user|>Hi\n<|assistant|>Yes?<|end|><|user|>Bye<|assistant|>"
	dir := t.TempDir()
	messages := filepath.Join(dir, "messages.json")
	list := `[{"role":"user","content":"Hi\n"},{"role":"assistant","content":"Yes?"}]`
	for _, text := range []string{list, `{"messages":` + list + `,"tools":[{"type":"function"}]}`} {
		require.NoError(t, os.WriteFile(messages, []byte(text), 0o600))
		code, out, msg := invoke(t, "", "template", builtin.Name, "--messages", messages, "--user", "Bye")
		require.Equal(t, exitOK, code, msg)
		assert.Equal(t, want, out)
	}
	_, out, _ := invoke(t, list, "template", builtin.Name, "--messages", "-", "--user", "Bye", "--no-generation-prompt")
	assert.Equal(t, strings.TrimSuffix(want, "<|assistant|>"), out)

	_, out, _ = invoke(t, "", "template", builtin.Name, "--user", "Bye", "--json")
	var got struct {
		Prompt string
		Tokens []int32
	}
	unmarshal(t, out, &got)
	assert.Equal(t, "<s><|user|>Bye<|assistant|>", got.Prompt)
	_, out, _ = invoke(t, "", "template", builtin.Name, "--user", "Bye", "--tokens")
	assert.Equal(t, len(got.Tokens), strings.Count(out, "\n"))
	assert.True(t, strings.HasPrefix(out, "1\t<s>\n3\t<|user|>\n"), out)

	// Variables and tools reach the template.
	own := filepath.Join(dir, "model")
	require.NoError(t, os.Mkdir(own, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(own, "chat_template.jinja"),
		[]byte(`{{ mood }} {{ tools | tojson }} {% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}`), 0o600))
	tools := filepath.Join(dir, "tools.json")
	require.NoError(t, os.WriteFile(tools, []byte(`[{"name":"f","z":1,"a":2}]`), 0o600))
	code, out, msg := invoke(t, "", "template", own, "-s", "sys", "-u", "one", "-u", "two", "--tools", tools, "--vars", `{"mood":"calm"}`)
	require.Equal(t, exitOK, code, msg)
	assert.Equal(t, `calm [{"name": "f", "z": 1, "a": 2}] system=sys;user=one;user=two;`, out)

	for _, tc := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "no messages", nil},
		{exitUsage, "--vars", []string{"-u", "x", "--vars", "["}},
		{exitFailed, "read tools", []string{"-u", "x", "--tools", filepath.Join(dir, "nothing")}},
		{exitFailed, "read messages", []string{"--messages", filepath.Join(own, "chat_template.jinja")}},
		{exitFailed, `expected "rag"`, []string{"-u", "x", "--name", "rag"}},
	} {
		code, out, msg := invoke(t, "", append([]string{"template", builtin.Name}, tc.args...)...)
		assert.Equal(t, tc.code, code, msg)
		assert.Empty(t, out)
		assert.Contains(t, msg, tc.want)
		assert.Equal(t, 1, strings.Count(msg, "\n"), msg)
	}
}
