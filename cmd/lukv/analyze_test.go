package main

import (
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
	text := ok(t, "analyze", "scores", at("run"), "-o", "-")
	plainJSON(t, "lukv analysis 1", text)
	scores := decode[study.File](t, text)
	assert.Equal(t, "lukv analyze scores "+at("run")+" -o -", scores.Command)
	require.Len(t, scores.Figures[0].Lines, 1)
	assert.Equal(t, []float64{0, 0.5, 0.8}, scores.Figures[0].Lines[0].X)

	files := []string{at("losses.json"), at("cost.json"), at("needle.json"), at("profiles.json")}
	page := ok(t, append([]string{"plot", "--html", "-", "--svg", at("svg"), "--png", at("png"), "--csv", at("csv")}, files...)...)
	assert.Equal(t, 5+4+1+2, strings.Count(page, "<svg "))
	holds(t, at("csv"), "decoding.csv", "first-token.csv", "head-loss-snapkv.csv", "layer-loss-snapkv.csv", "local-ratios.csv", "memory-peak.csv",
		"memory.csv", "needles.csv", "profile-correlation.csv", "profile-distance.csv", "recall.csv", "solver.csv")

	fails(t, exitUsage, "nothing to draw", "plot", files[0])
	fails(t, exitFailed, "read analysis", "plot", profile, "--html", "-")
	fails(t, exitUsage, "two or more", "analyze", "profiles", profile, "-o", "-")
	fails(t, exitUsage, "--length", "analyze", "cost", "builtin", "--length", "long", "-o", "-")
	fails(t, exitUsage, "depth 200", "analyze", "needle", "builtin", "--length", "128", "--depth", "200", "-o", "-")
	fails(t, exitUsage, "nothing uses it", "analyze", "losses", "builtin", "--data", data, "--limit", "1", "--metric", "keydiff", "--profile", profile, "-o", "-")
	fails(t, exitUsage, "nothing uses it", "eval", "builtin", "--data", data, "--metric", "snapkv", "--allocator", "lukv", "--profile", builtinOutputErrors, "--profile", profile)
	fails(t, exitFailed, builtinOutputErrors, "analyze", "profiles", builtinOutputErrors, builtinOutputErrors, "-o", "-")
	fails(t, exitUsage, "--ratio", "analyze", "losses", "builtin", "--ratio", "2", "-o", "-")
}
