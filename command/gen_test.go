package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Questions are written as RULER's scripts write them, equal arguments give equal
// files, and eval reads them.
func TestGenRuler(t *testing.T) {
	dir := t.TempDir()
	args := []string{"gen", "ruler", "builtin", "--length", "1024", "--task", "niah_single_2,qa_1", "--samples", "2", "-o"}
	assert.Contains(t, ok(t, append(args, dir)...), "2 questions for each of 2 tasks at 1 length")
	again := t.TempDir()
	ok(t, append(args, again)...)
	for _, task := range []string{"niah_single_2", "qa_1"} {
		name := filepath.Join("1024", task, "validation.jsonl")
		a, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(again, name))
		require.NoError(t, err)
		assert.Equal(t, a, b)
	}
	r := decode[evalResult](t, ok(t, "eval", "builtin", "--json", "--ratio", "0.5", "--max-new-tokens", "8",
		"--data", filepath.Join(dir, "1024/niah_single_2/validation.jsonl"), "--limit", "1"))
	assert.Len(t, r.Rows, 2)
	assert.Equal(t, "niah_single_2", r.Rows[0].Task)

	fails(t, exitUsage, "poetry", "gen", "ruler", "builtin", "-o", dir, "--task", "poetry")
	fails(t, exitUsage, "--length", "gen", "ruler", "builtin", "-o", dir, "--length", "long")
	fails(t, exitFailed, "expected at least", "gen", "ruler", "builtin", "-o", dir, "--length", "100", "--task", "vt")

	words := filepath.Join(dir, "more.txt")
	require.NoError(t, os.WriteFile(words, []byte("apple\npear\n"), 0o600))
	ok(t, append(args, dir, "--more-words", words)...)
	fails(t, exitFailed, "read SQuAD", append(args, dir, "--squad", words)...)
}
