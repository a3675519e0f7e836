package command

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
)

// tinyGGUF returns a GGUF file whose vocabulary has the tokens a, b and ab.
func tinyGGUF(t *testing.T) []byte {
	pairs := []gguf.Pair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "llama.attention.layer_norm_rms_epsilon", Value: float32(1e-5)},
		{Key: "tokenizer.ggml.model", Value: "gpt2"}, {Key: "tokenizer.ggml.pre", Value: "gpt-2"},
		{Key: "tokenizer.ggml.tokens", Value: []string{"a", "b", "ab", "<end>"}},
		{Key: "tokenizer.ggml.merges", Value: []string{"a b"}},
		{Key: "tokenizer.ggml.token_type", Value: []int32{1, 1, 1, 3}},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(3)},
	}
	for key, n := range map[string]uint32{
		"block_count": 1, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96,
		"attention.head_count": 4, "attention.head_count_kv": 2,
	} {
		pairs = append(pairs, gguf.Pair{Key: "llama." + key, Value: n})
	}
	path := filepath.Join(t.TempDir(), "x.gguf")
	require.NoError(t, gguf.WriteFile(path, pairs, []gguf.Entry{{
		Name: "token_embd.weight", Type: gguf.F32, Shape: []int{4, 64},
		Stream: func(w io.Writer) error { _, err := w.Write(make([]byte, 4*4*64)); return err },
	}}))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return data
}

// TestGGUFByName: one GGUF file as llama.cpp, ollama and LM Studio keep it.
func TestGGUFByName(t *testing.T) {
	const commit = "0000111122223333444455556666777788889999"
	data := tinyGGUF(t)
	hash := fmt.Sprintf("%x", sha256.Sum256(data))
	put := func(path string, data []byte) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, data, 0o666))
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/models/acme/tiny-GGUF/revision/main":
			json.NewEncoder(w).Encode(map[string]any{"sha": commit, "siblings": []map[string]any{
				{"rfilename": "README.md"}, {"rfilename": "tiny-Q8_0.gguf", "lfs": map[string]any{"sha256": hash, "size": len(data)}},
			}})
		case "/acme/tiny-GGUF/resolve/" + commit + "/tiny-Q8_0.gguf":
			w.Write(data)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	cache, store, studio := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "acme", "tiny-GGUF")
	for name, value := range map[string]string{
		"HF_ENDPOINT": server.URL, "MODEL_ENDPOINT": "", "HF_HUB_CACHE": cache, "LLAMA_CACHE": "", "HF_HUB_OFFLINE": "",
		"TRANSFORMERS_OFFLINE": "", "HF_TOKEN": "", "HF_HOME": cache, "OLLAMA_MODELS": store,
	} {
		t.Setenv(name, value)
	}
	code, _, msg := invoke(t, "", "tokenize", "acme/tiny-GGUF:Q8_0", "aab", "--count")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, msg, "lukv pull acme/tiny-GGUF:Q8_0")
	code, _, msg = invoke(t, "", "pull", "acme/tiny-GGUF:Q4_K_M")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, msg, `the tag "Q4_K_M", expected one of Q8_0`)
	code, out, msg := invoke(t, "", "pull", "acme/tiny-GGUF:q8_0")
	require.Equal(t, exitOK, code, msg)
	assert.Equal(t, filepath.Join(cache, "models--acme--tiny-GGUF", "snapshots", commit, "tiny-Q8_0.gguf"), strings.TrimSpace(out))

	config := []byte(`{"model_format":"gguf"}`)
	configHash := fmt.Sprintf("%x", sha256.Sum256(config))
	put(filepath.Join(store, "blobs", "sha256-"+hash), data)
	put(filepath.Join(store, "blobs", "sha256-"+configHash), config)
	put(filepath.Join(store, "manifests/registry.ollama.ai/library/tiny/latest"), fmt.Appendf(nil,
		`{"config":{"digest":"sha256:%s","size":%d},"layers":[{"mediaType":"application/vnd.ollama.image.model","digest":"sha256:%s","size":%d}]}`,
		configHash, len(config), hash, len(data)))
	put(filepath.Join(studio, "tiny-Q8_0.gguf"), data)

	for _, name := range []string{"acme/tiny-GGUF:Q8_0", "acme/tiny-GGUF", "ollama:tiny", studio, filepath.Join(studio, "tiny-Q8_0.gguf")} {
		code, out, msg := invoke(t, "", "tokenize", name, "aab", "--count")
		require.Equal(t, exitOK, code, "%s: %s", name, msg)
		assert.Equal(t, "2\n", out, name)
	}
	code, _, msg = invoke(t, "", "tokenize", "ollama:other", "a")
	assert.Equal(t, exitFailed, code)
	assert.Contains(t, msg, `found no model "other": not in the cache (found tiny)`)
}
