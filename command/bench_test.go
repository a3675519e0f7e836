package command

import (
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/bench"
)

func TestBench(t *testing.T) {
	dir := checkpoint(t, nil)
	args := []string{"bench", dir, "--pp", "32", "--tg", "2", "--depth", "0,200", "--ratio", "0,0.5", "--allocator", "lukv", "--reps", "1", "--json"}
	text := ok(t, args...)
	r := decode[bench.Report](t, text)
	assert.Equal(t, args, r.Command)
	assert.NotEmpty(t, r.Version)
	require.Len(t, r.Points, 2*2+1+2)
	for _, p := range r.Points {
		assert.Equal(t, dir, p.Model)
		assert.Positive(t, p.Speed)
		if p.Ratio > 0 {
			assert.Equal(t, "snapkv/lukv/0.5", p.Key.Compression())
		}
	}

	path := filepath.Join(t.TempDir(), "result.json")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	table := ok(t, "bench", "--compare", path, path)
	assert.Contains(t, table, "~ (+0.0%)")
	assert.Contains(t, table, "too few observations")
	list := decode[struct{ Differences []bench.Difference }](t, ok(t, "bench", "--compare", "--json", path+","+path, path)).Differences
	require.Len(t, list, 2*len(r.Points))
	assert.Equal(t, 2, list[0].OldN)
}

func TestBenchFormats(t *testing.T) {
	rows, err := csv.NewReader(strings.NewReader(ok(t, "bench", "builtin", "--tg", "1", "--reps", "1", "--csv"))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 2)
	assert.Equal(t, "model", rows[0][0])
	assert.Equal(t, "builtin", rows[1][0])
	assert.Contains(t, ok(t, "bench", "builtin", "--pp", "8", "--reps", "1", "--markdown"), "| pp8 |")
	assert.Contains(t, ok(t, "bench", "builtin", "--pp", "8", "--reps", "1", "--cpu", "portable"), "cpu portable")
}

func TestBenchRefuses(t *testing.T) {
	fails(t, exitUsage, "--shape: shape \"gpt\"", "bench", "--shape", "gpt")
	fails(t, exitUsage, "--cpu: instruction set", "bench", "--cpu", "z80")
	fails(t, exitUsage, "--ratio: found \"1\"", "bench", "--ratio", "0,1")
	fails(t, exitUsage, "--metric would have no effect", "bench", "--metric", "keydiff")
	fails(t, exitUsage, "--reps: found 0", "bench", "--reps", "0")
	fails(t, exitUsage, "threads: found -2", "bench", "--threads=-2")
	fails(t, exitUsage, "threads: found 1025", "bench", "builtin", "--threads", "1025")
	fails(t, exitUsage, "--compare: found 1 results", "bench", "--compare", "a.json")
	fails(t, exitUsage, "--compare: found --csv or --markdown", "bench", "--compare", "--csv", "a", "b")
	fails(t, exitFailed, "no such folder", "bench", filepath.Join(t.TempDir(), "none"))
	fails(t, exitFailed, "read measurements", "bench", "--compare", filepath.Join(t.TempDir(), "none"), "b")
}

// A second run takes over what the first has measured.
func TestBenchResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	args := []string{"bench", "builtin", "--tg", "1", "--reps", "1", "--resume", path}
	ok(t, args...)
	first, err := os.ReadFile(path)
	require.NoError(t, err)
	r := decode[bench.Report](t, ok(t, append(args, "--pp", "8", "--json")...))
	require.Len(t, r.Points, 2)
	assert.Equal(t, decode[bench.Report](t, string(first)).Points[0], r.Points[0])
	fails(t, exitFailed, "--resume: read measurements", append(args[:len(args)-1], t.TempDir())...)
}

// What does not fit is listed; the rest is measured.
func TestBenchDoesNotFit(t *testing.T) {
	if _, err := os.Stat("/proc/meminfo"); err != nil {
		t.Skip("free memory is not known on this system")
	}
	o := command(t, "bench", "builtin", "--tg", "1", "--depth", "16777216,0", "--batch", "1000", "--reps", "1")
	assert.Equal(t, exitFull, o.code, o.err)
	assert.Contains(t, o.err, "not enough free memory: it needs")
	assert.Contains(t, o.out, "not measured: builtin")
	assert.Contains(t, o.out, "tg1")

	o = command(t, "bench", "builtin", "--tg", "1", "--max-memory", "100MiB", "--reps", "1")
	assert.Equal(t, exitFull, o.code, o.err)
	assert.Contains(t, o.err, "the limit is 100.0 MiB")
}

func TestBenchInterrupted(t *testing.T) {
	o := interrupted(t, " pp31 ", 1, "-v", "bench", "builtin", "--pp", "30,31", "--reps", "1")
	assert.Equal(t, exitInterrupted, o.code)
	assert.Contains(t, o.out, "pp30")
	assert.Contains(t, o.out, "interrupted: points are missing")
}
