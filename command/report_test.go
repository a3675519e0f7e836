package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval"
	"github.com/lukv/lukv/eval/runs"
)

// A run in a folder resumes after an interruption, with several contexts at a time or
// one, and score and report read it.
func TestEvalFolder(t *testing.T) {
	data := shortData(t)
	dir := filepath.Join(t.TempDir(), "run")
	args := []string{"eval", "builtin", "--data", data, "--allocator", "uniform,adakv", "--ratio", "0.8", "--json"}
	want := decode[evalResult](t, ok(t, args...))
	args = append(args, "--out", dir)
	o := interrupted(t, "answered", 4, append(args, "-v", "--parallel", "2")...)
	assert.Equal(t, exitInterrupted, o.code, o.err)
	assert.Contains(t, o.err, "the answers so far are in "+dir)
	got := decode[evalResult](t, ok(t, args...))
	assert.Equal(t, untimed(want.Rows), untimed(got.Rows))
	holds(t, dir, "answers.jsonl", "ruler", "run.json", "scores.csv", "scores.json")

	raw, err := os.ReadFile(filepath.Join(dir, "run.json"))
	require.NoError(t, err)
	info := decode[runs.Info](t, string(raw))
	assert.Equal(t, want.Hash, info.Hash)
	assert.Contains(t, info.Command, "--parallel 2", "the first command")
	raw, err = os.ReadFile(filepath.Join(dir, "scores.json"))
	require.NoError(t, err)
	assert.Equal(t, untimed(want.Rows), untimed(decode[[]eval.Row](t, string(raw))))
	fails(t, exitFailed, "other settings", append(args, "--match", "part")...)

	text := ok(t, "score", dir, "--json")
	plainJSON(t, scoreFormat, text)
	scored := decode[struct{ Rows []eval.Row }](t, text)
	require.Len(t, scored.Rows, len(want.Rows))
	for i, r := range scored.Rows {
		assert.Equal(t, want.Rows[i].Score, r.Score)
	}
	assert.Contains(t, ok(t, "score", dir, dir), "run: snapkv/adakv/0.8")
	assert.Contains(t, ok(t, "score", dir, "--markdown"), "| method |")
	assert.Contains(t, ok(t, "score", dir, "--csv"), "method,metric")

	text = ok(t, "report", dir, "--against", "uniform", "--json")
	plainJSON(t, reportFormat, text)
	table := decode[runs.Table](t, text)
	assert.Len(t, table.Rows, 3)
	assert.Len(t, table.Differences, 1)
	assert.Contains(t, ok(t, "report", dir, "--ci"), "| full | 100.00 (")
	assert.Contains(t, ok(t, "report", dir, "--latex", "--by", "category"), "\\toprule")
	assert.Contains(t, ok(t, "report", dir, "--csv", "--by", "ratio"), "snapkv,adakv,0.8,average")
	reference := filepath.Join(t.TempDir(), "r.csv")
	require.NoError(t, os.WriteFile(reference, []byte("model,allocator,metric,ratio,qa_1\nm,full,,0,50\n"), 0o600))
	assert.Contains(t, ok(t, "report", dir, "--reference", reference), "| full (published, m) |  | 50.00 |")

}

// LongBench's files go through the whole path.
func TestEvalLongBench(t *testing.T) {
	args := []string{"eval", "builtin", "--data", "../eval/testdata/longbench", "--ratio", "0.5", "--limit", "1", "--no-full", "--json"}
	r := decode[evalResult](t, ok(t, args...))
	assert.Len(t, r.Rows, 16+6+1)
	assert.Len(t, r.Settings.Data, 16)
	e := decode[evalResult](t, ok(t, append(args, "--longbench-e", "--max-gen", "official")...))
	assert.Equal(t, "hotpotqa-e", e.Rows[0].Task)
	fails(t, exitFailed, "dataset2", append(args, "--longbench-config", t.TempDir())...)
}

func TestScoreForeign(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pred", "niah_single_1.jsonl")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	line, err := json.Marshal(map[string]any{"index": 0, "input": "i", "outputs": []string{"1234567"}, "pred": "It is\n1234567", "others": map[string]int{}, "length": 10})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(line, '\n'), 0o600))
	assert.Contains(t, strings.Join(strings.Fields(ok(t, "score", path)), " "), "niah_single_1 1 0 100.00 *20.7-100.0 - - - -")
	fails(t, exitFailed, "read run", "score", filepath.Join(t.TempDir(), "absent"))
}
