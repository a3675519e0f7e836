//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/lineedit"
)

// TestInputsAreFiles puts a pipe, a device that never ends, and a directory in
// the place of every input file of every command: each is an error at once.
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

	// A % stands for the bad file.
	commands := []string{
		"run % x", "run builtin -c % x", "run builtin --load % x", "run builtin --policy % -c TEXT x",
		"run builtin -c TEXT --ratio 0.5 --allocator lukv --profile % x",
		"chat %", "chat builtin --load %", "chat builtin --policy %", "chat builtin --load TEXT --ratio 0.5 --allocator lukv --profile %",
		"profile % -o OUT", "profile builtin -o OUT --text % --questions TEXT", "profile builtin -o OUT --text TEXT --questions %",
		"profile builtin -o OUT --data %", "profile builtin -o OUT --from-npy %",
		"eval % --data TEXT", "eval builtin --data %", "eval builtin --allocator lukv --profile %", "eval builtin --limit 1 --items %",
		"score %", "report %", "report TEXT --reference %", "analyze scores % -o OUT", "analyze profiles % TEXT -o OUT", "analyze losses builtin --data % -o OUT",
		"plot % --html OUT", "eval builtin --data TEXT --longbench-config %",
		"inspect %", "bench % --tg 1", "bench builtin --ratio 0.5 --allocator lukv --profile % --tg 1", "bench --compare % TEXT", "bench --compare TEXT %",
		"convert % OUT", "serve %", "serve builtin --key-file %", "serve builtin --profile %",
		"serve builtin --listen 127.0.0.1:0 --tls-cert % --tls-key TEXT", "serve builtin --listen 127.0.0.1:0 --tls-cert TEXT --tls-key %", "tokenize % x", "template % --user x", "template builtin --messages %", "template builtin --user x --tools %",
	}
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
		if args[0] != "bench" { // which has measured the machine before
			assert.Empty(t, out.String(), line)
		}
	}
	for what, path := range bad {
		for _, command := range commands {
			check(what, strings.Fields(strings.NewReplacer("%", path, "TEXT", text, "OUT", filepath.Join(dir, "out")).Replace(command)))
		}
	}

	for what, path := range bad {
		var h lineedit.History
		assert.Error(t, h.Open(path), what)
	}

	// Files that are not named but found: those of a checkpoint, the state of a
	// profile, and what lies beside a session.
	files := []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors", "chat_template.jinja"}
	for what, path := range bad {
		for _, name := range files {
			model := checkpoint(t, nil)
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
