package main

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/model/builtin"
)

// shortData writes the embedded samples of two tasks and 256 tokens as data.
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

// untimed are rows without what differs from run to run.
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
	r := decode[evalResult](t, ok(t, append(args, "--json")...))
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
	shared := decode[evalResult](t, ok(t, append(args, "--json", "--share-prefill")...))
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
	markdown := ok(t, append(short, "--markdown")...)
	assert.Equal(t, strings.Count(table, "\n")+1, strings.Count(markdown, "\n"))
	assert.Len(t, decode[evalResult](t, ok(t, append(short, "--json", "--no-full", "--query-aware")...)).Rows, 3)
}

func TestEvalResumes(t *testing.T) {
	data := shortData(t)
	dir := t.TempDir()
	items := filepath.Join(dir, "items.jsonl")
	args := []string{"eval", "builtin", "--data", data, "--ratio", "0.5", "--share-prefill", "--json"}
	want := decode[evalResult](t, ok(t, args...))

	args = append(args, "--items", items)
	o := interrupted(t, "answered", 4, append(args, "-v")...) // the first comes before any answer
	assert.Equal(t, exitInterrupted, o.code, o.err)
	before, err := os.ReadFile(items)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, strings.Count(string(before), "\n"), 3)

	// As if it had died in the middle of a line.
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
