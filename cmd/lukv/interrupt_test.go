package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval/study"
)

// An analysis of costs goes on where it was interrupted.
func TestAnalyzeCostGoesOn(t *testing.T) {
	out := filepath.Join(t.TempDir(), "cost.json")
	args := []string{"-v", "analyze", "cost", "builtin", "--length", "64,128,32", "--repeats", "1", "-o", out}
	o := interrupted(t, "point measured", 2, args...)
	assert.Equal(t, exitInterrupted, o.code, o.err)
	assert.Contains(t, o.err, "unfinished work is in "+out+".state; the same command goes on from there")
	assert.True(t, strings.HasSuffix(o.err, "\nlukv: interrupted\n"), o.err)
	require.NoFileExists(t, out)
	data, err := os.ReadFile(out + ".state")
	require.NoError(t, err)
	before := decode[study.File](t, string(data))

	fails(t, exitFailed, "another command", "analyze", "cost", "builtin", "--length", "64", "-o", out)
	o = command(t, args...)
	require.Equal(t, exitOK, o.code, o.err)
	assert.Contains(t, o.err, "resuming from "+out+".state")
	require.NoFileExists(t, out+".state")
	data, err = os.ReadFile(out)
	require.NoError(t, err)
	f := decode[study.File](t, string(data)).Figures[2]
	assert.Equal(t, []float64{64, 128, 32}, f.Lines[0].X)
	assert.Equal(t, before.Figures[2].Lines[0].Y, f.Lines[0].Y[:2])
	assert.Equal(t, before.Figures[2].Subtitle, f.Subtitle)

	fails(t, exitFull, "the largest length is 2031", "analyze", "cost", "builtin", "--length", "64,2048", "-o", "-")
}

// A negative number is a value, also behind a space.
func TestNegativeNumbers(t *testing.T) {
	fails(t, exitUsage, "temperature is -1, want 0 or more", "run", "builtin", "--temperature", "-1", "Hello")
	fails(t, exitUsage, "-5", "run", "builtin", "--max-tokens", "-5", "Hello")
	assert.Equal(t, []string{"run", "--top-p=-.5", "-o", "-1", "--", "--a", "-1"}, joinNegative([]string{"run", "--top-p", "-.5", "-o", "-1", "--", "--a", "-1"}))
}

// A text where questions are expected is told apart.
func TestEvalOfAText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "book.txt")
	require.NoError(t, os.WriteFile(path, []byte("\nIt was a dark night.\n"), 0o600))
	fails(t, exitFailed, `line 2: found "It was a dark night.", expected one question per line as a JSON object`, "eval", "builtin", "--data", path)
}
