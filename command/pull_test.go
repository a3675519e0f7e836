package command

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/hub"
	"github.com/lukv/lukv/model/builtin"
)

func unmarshal(t *testing.T, text string, v any) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(text), v), text)
}

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

// TestPull downloads the embedded model from a test hub and chats with it by name.
func TestPull(t *testing.T) {
	const commit = "0000111122223333444455556666777788889999"
	files := make(map[string][]byte)
	var siblings []map[string]any
	for _, name := range []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"} {
		data, err := builtin.Files().(interface {
			ReadFile(string) ([]byte, error)
		}).ReadFile(name)
		require.NoError(t, err)
		files[name] = data
		siblings = append(siblings, map[string]any{"rfilename": name,
			"lfs": map[string]any{"sha256": fmt.Sprintf("%x", sha256.Sum256(data)), "size": len(data)}})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/models/acme/needle/revision/main" {
			json.NewEncoder(w).Encode(map[string]any{"sha": commit, "siblings": siblings})
			return
		}
		data, ok := files[strings.TrimPrefix(r.URL.Path, "/acme/needle/resolve/"+commit+"/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Write(data)
	}))
	defer server.Close()
	cache := t.TempDir()
	for name, value := range map[string]string{
		"HF_ENDPOINT": server.URL, "HF_HUB_CACHE": cache, "HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "", "HF_TOKEN": "", "HF_HOME": cache,
	} {
		t.Setenv(name, value)
	}
	code, _, msg := invoke(t, "Who?", "chat", "acme/needle")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, msg, "lukv pull acme/needle")

	code, out, msg := invoke(t, "", "pull", "acme/needle")
	require.Equal(t, exitOK, code, msg)
	dir := strings.TrimSpace(out)
	assert.Equal(t, filepath.Join(cache, "models--acme--needle", "snapshots", commit), dir)
	assert.Contains(t, msg, "acme/needle: 5 files")

	code, out, msg = invoke(t, "", "pull", "acme/needle", "--json", "--exclude", "*.safetensors")
	require.Equal(t, exitOK, code, msg)
	plainJSON(t, "lukv pull 1", out)
	var got hub.Pulled
	unmarshal(t, out, &got)
	assert.Equal(t, commit, got.Commit)
	assert.Len(t, got.Files, 4)
	assert.Zero(t, got.Fetched)

	code, byName, msg := invoke(t, "Who is it?", "chat", "acme/needle", "--max-tokens", "10")
	require.Equal(t, exitOK, code, msg)
	_, byPath, _ := invoke(t, "Who is it?", "chat", dir, "--max-tokens", "10")
	_, embedded, _ := invoke(t, "Who is it?", "chat", builtin.Name, "--max-tokens", "10")
	assert.Equal(t, embedded, byName)
	assert.Equal(t, embedded, byPath)

	_, inspected, msg := invoke(t, "", "inspect", "acme/needle")
	assert.Contains(t, inspected, dir, msg)

	for _, tc := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "expected OWNER/NAME", []string{"needle"}},
		{exitUsage, "--parallel", []string{"acme/needle", "--parallel", "0"}},
		{exitFailed, "not found on the hub", []string{"acme/other"}},
		{exitFailed, "none of the repository's 5 files", []string{"acme/needle", "--include", "*.gguf"}},
	} {
		code, out, msg := invoke(t, "", append([]string{"pull"}, tc.args...)...)
		assert.Equal(t, tc.code, code)
		assert.Empty(t, out)
		assert.Contains(t, msg, tc.want)
		assert.Equal(t, 1, strings.Count(msg, "\n"), msg)
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	server.Close()
	code, out, msg = invoke(t, "", "pull", "acme/needle")
	require.Equal(t, exitOK, code, msg)
	assert.Equal(t, dir, strings.TrimSpace(out))

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	code, _, msg = invoke(t, "x", "chat", file)
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, msg, "found a file")
}
