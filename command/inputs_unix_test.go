//go:build unix

package command

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/lineedit"
)

// inputCommands has every argument and flag that names an input file, as % or as a
// folder that contains one.
var inputCommands = []string{
	"run % x", "run builtin -c % x", "run builtin --load % x", "run builtin --policy % -c TEXT x",
	"run builtin -c TEXT --ratio 0.5 --allocator lukv --profile % x",
	"chat %", "chat builtin --load %", "chat builtin --policy %", "chat builtin --load TEXT --ratio 0.5 --allocator lukv --profile %",
	"profile % -o OUT", "profile builtin -o OUT --text % --questions TEXT", "profile builtin -o OUT --text TEXT --questions %",
	"choose % -d TEXT", "choose builtin -d %", "choose builtin -d TEXT --allocator lukv --profile %",
	"probe % -o OUT", "probe builtin -o OUT --data %",
	"profile builtin -o OUT --data %", "profile builtin -o OUT --from-npy %",
	"eval % --data TEXT", "eval builtin --data %", "eval builtin --data RULER", "eval builtin --data LONGBENCH",
	"eval builtin --data LONGBENCH --longbench-config LBCONFIG", "eval builtin --data TEXT --longbench-config %", "eval builtin --allocator lukv --profile %", "eval builtin --limit 1 --items %",
	"score %", "score RULER", "score RUN", "report %", "report RUN", "report TEXT --reference %",
	"analyze losses % -o OUT", "analyze losses builtin --data % -o OUT", "analyze losses builtin --profile % -o OUT",
	"analyze needle % -o OUT", "analyze needle builtin --allocator lukv --profile % -o OUT", "analyze cost % -o OUT", "analyze cost builtin --allocator lukv --profile % -o OUT",
	"analyze continuation % -o OUT", "analyze continuation builtin --text % -o OUT", "analyze continuation builtin --allocator lukv --profile % -o OUT",
	"analyze profiles % TEXT -o OUT", "analyze scores % -o OUT", "analyze frontier % -o OUT", "plot % --html OUT",
	"inspect %", "bench % --tg 1", "bench builtin --ratio 0.5 --allocator lukv --profile % --tg 1", "bench builtin --tg 1 --resume %", "bench --compare % TEXT", "bench --compare TEXT %",
	"convert % OUT", "quantize % OUT", "quantize MODEL OUT --calibrate %", "gen ruler % -o OUT", "gen ruler builtin -o OUT --essays %", "gen ruler builtin -o OUT --essays ESSAYS", "gen ruler builtin -o OUT --noise %",
	"gen ruler builtin -o OUT --words %", "gen ruler builtin -o OUT --words WORDS", "gen ruler builtin -o OUT --more-words %", "gen ruler builtin -o OUT --squad %",
	"gen ruler builtin -o OUT --hotpot %", "gen ruler builtin -o OUT --templates %",
	"serve %", "serve builtin --key-file %", "serve builtin --profile %",
	"serve builtin --listen 127.0.0.1:0 --tls-cert % --tls-key TEXT", "serve builtin --listen 127.0.0.1:0 --tls-cert TEXT --tls-key %",
	"embed % x", "tokenize % x", "template % --user x", "template builtin --messages %", "template builtin --user x --tools %",
}

// noInputs lists the arguments and flags that look like input files but are not.
var noInputs = strings.Fields(`run:--save run:--trace run:prompt chat:--save profile:--output profile:--npy probe:--output eval:--out inspect:--svg
	analyze-losses:--out analyze-cost:--out analyze-needle:--out analyze-continuation:--out analyze-profiles:--out analyze-scores:--out analyze-frontier:--out plot:--html plot:--svg plot:--csv
	gen-ruler:--out convert:out quantize:out serve:--store embed:text tokenize:text pull:name rm:name completion:shell`)

// TestInputCommandsAreAll: no argument or flag that takes a file is missing above.
func TestInputCommandsAreAll(t *testing.T) {
	parser, err := newParser(new(cli))
	require.NoError(t, err)
	for _, node := range parser.Model.Leaves(false) {
		command := strings.TrimPrefix(node.FullPath(), "lukv ")
		name := strings.ReplaceAll(command, " ", "-")
		given := func(is func(before string) bool) bool {
			return slices.ContainsFunc(inputCommands, func(line string) bool {
				rest, ok := strings.CutPrefix(line, command+" ")
				fields := strings.Fields(rest)
				for i, f := range fields {
					if strings.HasPrefix(f, "%") || f != "OUT" && f != "TEXT" && len(f) > 2 && f == strings.ToUpper(f) {
						before := ""
						if i > 0 {
							before = fields[i-1]
						}
						if ok && is(before) {
							return true
						}
					}
				}
				return false
			})
		}
		for _, flag := range node.Flags {
			if p := flag.PlaceHolder; strings.Contains(p, "FILE") || strings.Contains(p, "DIR") || strings.Contains(p, "PATH") {
				ok := given(func(before string) bool {
					return before == "--"+flag.Name || flag.Short != 0 && before == "-"+string(flag.Short)
				})
				assert.True(t, ok != slices.Contains(noInputs, name+":--"+flag.Name), "lukv %s --%s", command, flag.Name)
			}
		}
		for _, arg := range node.Positional {
			ok := given(func(before string) bool { return !strings.HasPrefix(before, "-") || before == "--compare" })
			if out := slices.Contains(noInputs, name+":"+arg.Name); !out {
				assert.True(t, ok, "lukv %s %s", command, arg.Summary())
			}
		}
	}
}

// TestInputsAreFiles puts a pipe, an endless device, and a directory in place of
// every input file of every command: each is an immediate error.
func TestInputsAreFiles(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skip("no named pipes here: ", err)
	}
	folder := filepath.Join(dir, "folder")
	require.NoError(t, os.Mkdir(folder, 0o700))
	text := filepath.Join(dir, "text")
	require.NoError(t, os.WriteFile(text, []byte("Some words."), 0o600))

	bad := map[string]string{"pipe": pipe, "device": "/dev/zero", "directory": folder}
	check := func(what string, args []string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var out, errs bytes.Buffer
		code := run(ctx, args, strings.NewReader("x"), &out, &errs)
		line := what + ": lukv " + strings.Join(args, " ") + ": " + errs.String()
		assert.Contains(t, []int{exitFailed, exitUsage, exitRefused}, code, line)
		assert.NoError(t, ctx.Err(), line)
		assert.Equal(t, 1, strings.Count(errs.String(), "\n"), line)
		if args[0] != "bench" { // which has measured the machine by then
			assert.Empty(t, out.String(), line)
		}
	}
	// The kinds of folder, each with a file that it contains.
	within := map[string]string{
		"RULER": "4096/niah_single_1/validation.jsonl", "LONGBENCH": "data/hotpotqa.jsonl", "LBCONFIG": "dataset2prompt.json",
		"RUN": "run.json", "WORDS": "nounlist.txt", "ESSAYS": "a.txt",
	}
	for what, path := range bad {
		replace := []string{"%", path, "MODEL", checkpoint(t, nil), "TEXT", text, "OUT", filepath.Join(dir, "out")}
		for name, file := range within {
			root := filepath.Join(dir, what+name)
			require.NoError(t, os.MkdirAll(filepath.Join(root, filepath.Dir(file)), 0o700))
			require.NoError(t, os.Symlink(path, filepath.Join(root, file)))
			replace = append(replace, name, root)
		}
		for _, command := range inputCommands {
			check(what, strings.Fields(strings.NewReplacer(replace...).Replace(command)))
		}
	}

	for what, path := range bad {
		var h lineedit.History
		assert.Error(t, h.Open(path), what)
	}

	// Files that are found rather than named: those of a checkpoint, the state of a
	// profile, and the file beside a session.
	files := []string{
		"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
		"model.safetensors", "model.safetensors.index.json", "model-00001-of-00001.safetensors", "tokenizer.model", "tekken.json",
	}
	for what, path := range bad {
		for _, name := range files {
			model := checkpoint(t, nil)
			switch name { // those read only in place of, or through, others
			case "tokenizer.model", "tekken.json":
				os.Remove(filepath.Join(model, "tokenizer.json"))
			case "model.safetensors.index.json":
				os.Remove(filepath.Join(model, "model.safetensors"))
			case "model-00001-of-00001.safetensors":
				os.Remove(filepath.Join(model, "model.safetensors"))
				index := `{"weight_map":{"model.norm.weight":"` + name + `"}}`
				require.NoError(t, os.WriteFile(filepath.Join(model, "model.safetensors.index.json"), []byte(index), 0o600))
			}
			os.Remove(filepath.Join(model, name))
			require.NoError(t, os.Symlink(path, filepath.Join(model, name)))
			check(what+" as "+name, []string{"run", model, "--max-tokens", "1", "x"})
		}
		out := filepath.Join(dir, "p-"+what)
		require.NoError(t, os.Symlink(path, out+".state"))
		check(what, []string{"profile", "builtin", "-o", out, "--texts", "1", "--limit", "1", "--max-steps", "1"})
		session := filepath.Join(dir, "s-"+what)
		ok(t, "run", "builtin", "-c", text, "--save", session)
		require.NoError(t, os.Symlink(path, session+".chat.json"))
		check(what, []string{"chat", "builtin", "--load", session})
	}
}
