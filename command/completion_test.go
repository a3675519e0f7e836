package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
)

// TestCompletion: every command and flag is in the script of every shell, and the
// shells installed here accept its syntax.
func TestCompletion(t *testing.T) {
	parser, err := newParser(new(cli))
	require.NoError(t, err)
	check := map[string][]string{"bash": {"-n"}, "zsh": {"-n"}, "fish": {"--no-execute"}}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		script := ok(t, "completion", shell)
		for _, c := range commandsOf(parser.Model) {
			assert.Contains(t, script, c.Name)
			for _, f := range flagsOf(parser.Model, c) {
				long := "--" + f.Name
				if shell == "fish" {
					long = "-l " + f.Name
				}
				assert.Contains(t, script, long)
			}
		}
		for _, name := range []string{lukv.Metrics()[0], lukv.Allocators()[0], lukv.PolicyPresets()[0]} {
			assert.Contains(t, script, name)
		}
		assert.NotContains(t, script, "Regenerate docs", "hidden commands stay so")
		if program, err := exec.LookPath(shell); err == nil && check[shell] != nil {
			file := filepath.Join(t.TempDir(), shell)
			require.NoError(t, os.WriteFile(file, []byte(script), 0o600))
			out, err := exec.Command(program, append(check[shell], file)...).CombinedOutput()
			assert.NoError(t, err, string(out))
		}
	}
	fails(t, exitUsage, "tcsh", "completion", "tcsh")
}

// TestBashCompletes asks bash what it would complete.
func TestBashCompletes(t *testing.T) {
	program, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	file := filepath.Join(t.TempDir(), "lukv.bash")
	require.NoError(t, os.WriteFile(file, []byte(ok(t, "completion", "bash")), 0o600))
	for typed, want := range map[string]string{
		"lukv ins":                        "inspect",
		"lukv run x --rat":                "--ratio",
		"lukv -q run x --precision b":     "bf16",
		"lukv ana":                        "analyze",
		"lukv analyze lo":                 "losses",
		"lukv -q analyze losses x --prof": "--profile",
		"lukv analyze losses x --met":     "--metric",
		"lukv gen r":                      "ruler",
		"lukv gen ruler x --len":          "--length",
		"lukv template x --no-generation": "--no-generation-prompt",
	} {
		words := strings.Fields(typed)
		script := `source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lukv; printf "%s\n" "${COMPREPLY[@]}"`
		out, err := exec.Command(program, append([]string{"-c", script, file}, words...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		assert.Equal(t, want, strings.TrimSpace(string(out)), typed)
	}
}

// TestBashCompletesModels: names of models in the hub's cache are completed beside files.
func TestBashCompletesModels(t *testing.T) {
	program, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	dir := t.TempDir()
	t.Chdir(dir)
	require.NoError(t, os.WriteFile("lukv", []byte("#!/bin/sh\nprintf 'ann/one\\t5 MB\\nann/two\\t6 MB\\n'\n"), 0o700))
	require.NoError(t, os.WriteFile("script", []byte(ok(t, "completion", "bash")), 0o600))
	require.NoError(t, os.Mkdir("annex", 0o700))
	for typed, want := range map[string]string{
		"./lukv run ann": "ann/one ann/two annex", "./lukv inspect ann/t": "ann/two", "./lukv rm ann/o": "ann/one", "./lukv serve x bui": "builtin", "./lukv score ann": "annex",
	} {
		script := `source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lukv; printf "%s\n" "${COMPREPLY[@]}"`
		out, err := exec.Command(program, append([]string{"-c", script, "./script"}, strings.Fields(typed)...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		got := strings.Fields(string(out))
		slices.Sort(got)
		assert.Equal(t, want, strings.Join(got, " "), typed)
	}
}

func TestMan(t *testing.T) {
	page := ok(t, "man")
	parser, err := newParser(new(cli))
	require.NoError(t, err)
	for _, c := range commandsOf(parser.Model) {
		assert.Contains(t, page, ".SS lukv "+c.Path())
		for _, f := range c.Flags {
			assert.Contains(t, page, `\-\-`+strings.ReplaceAll(f.Name, "-", `\-`))
		}
	}
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, ".") {
			request, _, _ := strings.Cut(strings.TrimSpace(line), " ")
			assert.Contains(t, []string{".TH", ".SH", ".SS", ".PP", ".TP", ".B", ".I", ".nf", ".fi", ".RS", ".RE"}, request)
		}
	}
}

// TestPowerShellTables: in PowerShell the keys of a table are equal where only their case
// differs, and a table with equal keys is an error.
func TestPowerShellTables(t *testing.T) {
	script := ok(t, "completion", "powershell")
	require.Equal(t, strings.Count(script, "{"), strings.Count(script, "}"))
	seen, entries := map[string]bool{}, 0
	for line := range strings.Lines(script) {
		switch key, value, found := strings.Cut(strings.TrimSpace(line), "' = "); {
		case strings.HasSuffix(line, "= @{\n"):
			clear(seen)
		case found && strings.HasPrefix(line, "\t\t'"):
			require.False(t, seen[strings.ToLower(key)], key)
			require.Zero(t, strings.Count(value, "'")%2, "quotes end: %s", line)
			seen[strings.ToLower(key)] = true
			entries++
		}
	}
	require.Greater(t, entries, 300)
	require.Contains(t, script, "\t\t'run --metric' = @('snapkv', ")
	require.Contains(t, script, "\t\t'analyze losses' = '")
}
