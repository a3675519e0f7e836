package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Models in the cache are listed with the bytes of their files, links aside, and removed whole.
func TestListAndRemove(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("HF_HUB_CACHE", cache)
	t.Setenv("LLAMA_CACHE", "")
	code, out, msg := invoke(t, "", "list")
	require.Equal(t, exitOK, code, msg)
	require.Empty(t, out)
	require.Contains(t, msg, "lukv pull")
	write := func(name, text string) {
		path := filepath.Join(cache, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	write("models--a--big--one/blobs/x", "12345")
	write("models--a--big--one/refs/main", "0123456789012345678901234567890123456789")
	write("models--b--two/blobs/y", "123")
	write("datasets--a--data/blobs/z", "1")
	write("models--broken", "a file")
	require.NoError(t, os.MkdirAll(filepath.Join(cache, "models--b--two", "snapshots", "c"), 0o700))
	require.NoError(t, os.Symlink("../../blobs/y", filepath.Join(cache, "models--b--two", "snapshots", "c", "model.safetensors")))
	var list struct {
		Format string
		Models []struct {
			Name  string
			Bytes int64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(ok(t, "list", "--json")), &list))
	require.Equal(t, "lukv list 1", list.Format)
	require.Len(t, list.Models, 2)
	require.Equal(t, "a/big--one", list.Models[0].Name)
	require.EqualValues(t, 45, list.Models[0].Bytes)
	require.EqualValues(t, 3, list.Models[1].Bytes)
	require.Regexp(t, "(?m)^b/two\t3 .*\t20..-..-..$", ok(t, "list"))
	for _, wrong := range [][]string{{"b/two", "x"}, {"b/two@main"}, {"c/none"}} {
		code, _, msg := invoke(t, "", append([]string{"rm"}, wrong...)...)
		require.NotEqual(t, exitOK, code, msg)
		require.DirExists(t, filepath.Join(cache, "models--b--two"), "%v", wrong)
	}
	ok(t, "rm", "b/two")
	require.NoDirExists(t, filepath.Join(cache, "models--b--two"))
	require.DirExists(t, filepath.Join(cache, "models--a--big--one"))
	entries, err := os.ReadDir(cache)
	require.NoError(t, err)
	require.Len(t, entries, 3, "nothing is left over")
}

// Where standard error is no terminal, long work prints lines.
func TestLongProgress(t *testing.T) {
	was := lineEvery
	defer func() { lineEvery = was }()
	lineEvery = 0
	dir := t.TempDir()
	code, _, msg := invoke(t, "", "profile", "builtin", "-o", filepath.Join(dir, "p.json"), "--max-steps", "2", "--limit", "1")
	require.Equal(t, exitOK, code, msg)
	require.Regexp(t, `(?m)^profiling: question 1 of \d+`, msg)
	require.NotContains(t, msg, "\r")
	path := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(path, []byte(strings.Repeat("The cat sat. ", 200)), 0o600))
	code, _, msg = invoke(t, "", "run", "builtin", "-c", path, "--ratio", "0.5", "--max-tokens", "1", "Where?")
	require.Equal(t, exitOK, code, msg)
	require.Regexp(t, `(?m)^reading: \d+ of \d+ tokens, \d+s left`, msg)
}

// A binary file is no context.
func TestBinaryContext(t *testing.T) {
	for _, data := range []string{"%PDF-1.7 and so on", "PK\x03\x04\x00\x00", "text\x00text"} {
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, []byte(data), 0o600))
		code, out, msg := invoke(t, "", "run", "builtin", "-c", path, "x")
		require.Equal(t, exitFailed, code)
		require.Empty(t, out)
		require.Contains(t, msg, "found a binary file")
	}
}

// An answer that reaches its limit says so.
func TestCutAnswer(t *testing.T) {
	code, _, msg := invoke(t, "", "run", "builtin", "--max-tokens", "2", "hello there")
	require.Equal(t, exitOK, code)
	require.Contains(t, msg, "cut after 2 tokens")
}
