package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServe runs the server on the embedded model, asks, and lets it drain.
func TestServe(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("# ours\nsecret\n"), 0o600))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, w := io.Pipe()
	var log bytes.Buffer
	done := make(chan int, 1)
	go func() {
		done <- run(ctx, []string{"serve", "small=builtin", "--listen", "127.0.0.1:0", "--key-file", keys, "--max-cache", "16MiB", "--max-memory", "1GiB"}, strings.NewReader(""), w, &log)
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	url := strings.TrimSpace(strings.TrimPrefix(line, "listening on "))
	q, err := http.NewRequest("POST", url+"/v1/chat/completions", strings.NewReader(`{"model":"small","messages":[{"role":"user","content":"hello"}],"max_tokens":3}`))
	require.NoError(t, err)
	q.Header.Set("Content-Type", "application/json")
	q.Header.Set("Authorization", "Bearer secret")
	resp, err := http.DefaultClient.Do(q)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, 200, resp.StatusCode, string(text))
	require.Contains(t, string(text), `"finish_reason":`)
	cancel()
	require.Equal(t, exitOK, <-done)
	require.Contains(t, log.String(), "status=200")
	require.NotContains(t, log.String(), "hello")
	require.NotContains(t, log.String(), "secret")
}

func TestServeUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"can be reached from other machines": {"serve", "builtin", "--listen", "0.0.0.0:0"},
		"--listen":                           {"serve", "builtin", "--listen", "nothing"},
		"both or none":                       {"serve", "builtin", "--tls-cert", "x"},
		"--kv-compression":                   {"serve", "builtin", "--kv-compression", "{"},
		"one of this name":                   {"serve", "builtin", "builtin", "--listen", "127.0.0.1:0"},
		"one of this name ":                  {"serve", "builtin", "builtin", "--listen", "127.0.0.1:0", "--unload-after", "1m"},
		"--max-memory needs --max-cache":     {"serve", "builtin", "--max-memory", "1GiB"},
		"--unload-after":                     {"serve", "builtin", "--unload-after", "-1m"},
		"no/such":                            {"serve", "builtin", "no/such", "--unload-after", "1m"},
		"read API keys":                      {"serve", "builtin", "--key-file", os.DevNull},
	} {
		var out, log bytes.Buffer
		code := run(context.Background(), args, strings.NewReader(""), &out, &log)
		require.NotEqual(t, exitOK, code, want)
		require.Contains(t, log.String(), strings.TrimSpace(want))
	}
}
