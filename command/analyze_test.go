package command

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/eval/study"
)

// Every analysis makes a file that plot draws.
func TestAnalyzeAndPlot(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	data, profile := shortData(t), builtinProfileFile(t)
	ok(t, "eval", "builtin", "--data", data, "--limit", "1", "--ratio", "0.5,0.8", "--share-prefill", "--out", at("run"))
	ok(t, "analyze", "losses", "builtin", "--data", data, "--limit", "1", "--steps", "4", "--exact", "1", "--metric", "snapkv", "--profile", profile, "-o", at("losses.json"))
	ok(t, "analyze", "cost", "builtin", "--length", "64,128", "--repeats", "1", "-o", at("cost.json"))
	ok(t, "analyze", "needle", "builtin", "--length", "128", "--depth", "0,100", "-o", at("needle.json"))
	ok(t, "analyze", "profiles", profile, profile, "-o", at("profiles.json"))
	ok(t, "analyze", "continuation", "builtin", "--prefix", "256", "--tokens", "64", "--windows", "2", "--metric", "snapkv,keydiff", "--allocator", "uniform,lukv", "--ratio", "0,0.8", "-o", at("continuation.json"))
	text := ok(t, "analyze", "scores", at("run"), "-o", "-")
	plainJSON(t, "lukv analysis 1", text)
	scores := decode[study.File](t, text)
	assert.Equal(t, "lukv analyze scores "+at("run")+" -o -", scores.Command)
	require.Len(t, scores.Figures[0].Lines, 1)
	assert.Equal(t, []float64{0, 0.5, 0.8}, scores.Figures[0].Lines[0].X)

	ok(t, "eval", "builtin", "--data", data, "--limit", "1", "--ratio", "0.5,0.8", "--cache-type", "int8", "--out", at("run8"))
	text = ok(t, "analyze", "frontier", at("run"), at("run8"), "-o", at("frontier.json"))
	assert.Equal(t, 2+6, strings.Count(text, "\n"), text)
	frontier := file[study.File](t, at("frontier.json"))
	require.Len(t, frontier.Frontier, 6)
	assert.Equal(t, "int8", frontier.Frontier[0].CacheType)
	assert.Less(t, frontier.Frontier[0].CacheBytes, frontier.Frontier[1].CacheBytes)
	require.NoError(t, os.WriteFile(at("kl.json"), []byte(ok(t, "eval", "builtin", "--data", data, "--limit", "1", "--ratio", "0.5", "--measure", "kl", "--json")), 0o600))
	plainJSON(t, "lukv analysis 1", ok(t, "analyze", "frontier", at("run"), at("kl.json"), "-o", "-"))
	only := ok(t, "analyze", "frontier", at("run"), "--best", "-o", at("best.json"))
	assert.Contains(t, only, "| **`")
	assert.NotContains(t, only, "| `")
	fails(t, exitFailed, "expected those of lukv eval", "analyze", "frontier", predictionsWithoutBytes(t), "-o", "-")
	fails(t, exitUsage, "--best", "analyze", "frontier", at("run"), "--best", "-o", "-")

	files := []string{at("frontier.json"), at("losses.json"), at("cost.json"), at("needle.json"), at("profiles.json"), at("continuation.json")}
	page := ok(t, append([]string{"plot", "--html", "-", "--svg", at("svg"), "--csv", at("csv")}, files...)...)
	assert.Equal(t, 1+5+4+1+2+1, strings.Count(page, "<svg "))
	holds(t, at("csv"), "continuation.csv", "decoding.csv", "first-token.csv", "frontier.csv", "head-loss-snapkv.csv", "layer-loss-snapkv.csv", "local-ratios.csv", "memory-peak.csv",
		"memory.csv", "needles.csv", "profile-correlation.csv", "profile-distance.csv", "recall.csv", "solver.csv")

	fails(t, exitUsage, "nothing to draw", "plot", files[0])
	fails(t, exitUsage, "--svg and --csv name folders", "plot", files[0], "--svg", "-")
	fails(t, exitFailed, "read analysis", "plot", profile, "--html", "-")
	fails(t, exitUsage, "two or more", "analyze", "profiles", profile, "-o", "-")
	fails(t, exitUsage, "--length", "analyze", "cost", "builtin", "--length", "long", "-o", "-")
	fails(t, exitUsage, "depth 200", "analyze", "needle", "builtin", "--length", "128", "--depth", "200", "-o", "-")
	code, _, msg := invoke(t, "", "analyze", "needle", "builtin", "--length", "128,5000", "--depth", "0", "--max-context", "512", "-o", "-")
	assert.Equal(t, exitFailed, code, msg)
	assert.Contains(t, msg, "2 questions could not be asked")
	assert.Contains(t, msg, "failed: full, needle 5000 0: ")
	assert.NotContains(t, msg, "needle 128")
	fails(t, exitUsage, "nothing uses it", "analyze", "losses", "builtin", "--data", data, "--limit", "1", "--metric", "keydiff", "--profile", profile, "-o", "-")
	fails(t, exitUsage, "nothing uses it", "eval", "builtin", "--data", data, "--metric", "snapkv", "--allocator", "lukv", "--profile", builtinOutputErrors, "--profile", profile)
	fails(t, exitUsage, "nothing uses it", "bench", "builtin", "--tg", "1", "--ratio", "0.5", "--metric", "keydiff", "--allocator", "lukv", "--profile", builtinOutputErrors, "--profile", profile)
	fails(t, exitFailed, builtinOutputErrors, "analyze", "profiles", builtinOutputErrors, builtinOutputErrors, "-o", "-")
	fails(t, exitUsage, "--ratio", "analyze", "losses", "builtin", "--ratio", "2", "-o", "-")
	fails(t, exitUsage, "--steps: found 0", "analyze", "losses", "builtin", "--steps", "0", "-o", "-")
	fails(t, exitUsage, "--exact: found -1", "analyze", "losses", "builtin", "--exact", "-1", "-o", "-")
}

// predictionsWithoutBytes is a file of answers that another program gave.
func predictionsWithoutBytes(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "vt.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"pred":"x","outputs":["x"]}`+"\n"), 0o600))
	return path
}

// Profiles of one metric are lines of their own; texts that are too short and
// profiles that nothing uses are refused.
func TestAnalyzeContinuation(t *testing.T) {
	profile := builtinProfileFile(t)
	again := filepath.Join(t.TempDir(), "again.profile")
	data, err := os.ReadFile(profile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(again, data, 0o600))
	args := []string{"analyze", "continuation", "builtin", "--prefix", "200", "--tokens", "64", "-o", "-"}
	f := decode[study.File](t, ok(t, append(args, "--allocator", "lukv,uniform", "--ratio", "0,0.8", "--profile", profile, "--profile", again)...)).Figures[0]
	require.Len(t, f.Lines, 3)
	assert.Equal(t, []string{"snapkv, lukv of snapkv", "snapkv, lukv of again", "snapkv, uniform"}, []string{f.Lines[0].Name, f.Lines[1].Name, f.Lines[2].Name})
	assert.Equal(t, f.Lines[0].Y, f.Lines[1].Y)
	for _, l := range f.Lines {
		assert.Zero(t, l.Y[0], "nothing is removed")
		assert.NotZero(t, l.Y[1])
	}
	f = decode[study.File](t, ok(t, append(args, "--metric", "learned", "--ratio", "0.8")...)).Figures[0]
	assert.Equal(t, "learned, uniform", f.Lines[0].Name, "its ranking is in the profile, whatever the allocator")
	short := filepath.Join(t.TempDir(), "short.txt")
	require.NoError(t, os.WriteFile(short, []byte("A few words."), 0o600))
	fails(t, exitFailed, "expected at least 264", append(args, "--text", short)...)
	fails(t, exitUsage, "nothing uses it", append(args, "--profile", profile)...)
	fails(t, exitUsage, "--tokens", "analyze", "continuation", "builtin", "--tokens", "0", "-o", "-")
	fails(t, exitUsage, "needs a profile", "analyze", "continuation", "builtin", "--metric", `{"name":"lagkv","lag":64}`, "--allocator", "lukv", "-o", "-")
}

// An analysis resumes where it was interrupted, and yields the same figures.
func TestAnalyzeGoesOn(t *testing.T) {
	data := shortData(t)
	for what, flags := range map[string][]string{
		"cost":         {"--length", "64,128,32", "--repeats", "1"},
		"losses":       {"--data", data, "--limit", "4", "--steps", "4", "--exact", "2", "--metric", "snapkv"},
		"needle":       {"--length", "128,192,256", "--depth", "0,100"},
		"continuation": {"--prefix", "64", "--tokens", "32", "--windows", "4", "--metric", "snapkv"},
	} {
		t.Run(what, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.json")
			args := append(append([]string{"-v", "analyze", what, "builtin"}, flags...), "-o", out)
			o := interrupted(t, "part measured", 2, args...)
			assert.Equal(t, exitInterrupted, o.code, o.err)
			assert.Contains(t, o.err, "unfinished work is in "+out+".state; the same command continues from it")
			assert.True(t, strings.HasSuffix(o.err, "\nlukv: interrupted\n"), o.err)
			require.NoFileExists(t, out)
			before := file[study.State](t, out+".state")
			require.NotEmpty(t, before.Parts)

			fails(t, exitFailed, "another command", "analyze", "cost", "builtin", "--length", "16", "-o", out)
			o = command(t, args[1:]...) // without -v, the same work
			require.Equal(t, exitOK, o.code, o.err)
			assert.Contains(t, o.err, "resuming from "+out+".state")
			require.NoFileExists(t, out+".state")
			got := file[study.File](t, out)
			if what == "cost" { // whose times differ
				assert.Equal(t, []float64{64, 128, 32}, got.Figures[2].Lines[0].X)
				return
			}
			require.Equal(t, exitOK, command(t, args...).code)
			assert.Equal(t, file[study.File](t, out).Figures, got.Figures)
		})
	}
	fails(t, exitFull, "the largest length is 2031", "analyze", "cost", "builtin", "--length", "64,2048", "-o", "-")

	out := filepath.Join(t.TempDir(), "out.json")
	require.NoError(t, os.WriteFile(out+".state", []byte("{}"), 0o600))
	fails(t, exitFailed, "out.json.state: format \"\", expected \"lukv analysis state 1\" (remove it to begin anew)", "analyze", "needle", "builtin", "-o", out)
}

// file parses a JSON file.
func file[T any](t *testing.T, path string) T {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return decode[T](t, string(data))
}
