package hub

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSelectGGUF: the rules of llama.cpp's -hf.
func TestSelectGGUF(t *testing.T) {
	names := []string{
		".gitattributes", "README.md", "config.json", "imatrix_unsloth.dat", "mmproj-F16.gguf", "mtp-m-Q4_K_M.gguf",
		"BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf",
		"UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL/m-UD-Q4_K_XL-00002-of-00003.gguf", "UD-Q4_K_XL/m-UD-Q4_K_XL-00003-of-00003.gguf",
		"m-Q3_K_M.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q8_0.gguf", "m.IQ2_M.gguf",
	}
	for tag, want := range map[string][]string{
		"":        {"m-Q4_K_M.gguf"},
		"Q4_K_M":  {"m-Q4_K_M.gguf"},
		"q8_0":    {"m-Q8_0.gguf"},
		"UD-Q8_0": {"m-UD-Q8_0.gguf"},
		"IQ2_M":   {"m.IQ2_M.gguf"},
		"bf16":    {"BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf"},
		"Q4_K_XL": {"UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00003.gguf", "UD-Q4_K_XL/m-UD-Q4_K_XL-00002-of-00003.gguf", "UD-Q4_K_XL/m-UD-Q4_K_XL-00003-of-00003.gguf"},
		"K_M":     {"m-Q3_K_M.gguf"}, // anywhere before a point or a hyphen
	} {
		got, err := selectGGUF(names, tag)
		require.NoError(t, err, tag)
		assert.Equal(t, want, got, tag)
	}
	_, err := selectGGUF(names, "Q5_K_M")
	require.ErrorContains(t, err, `with the tag "Q5_K_M", expected one of BF16, Q4_K_XL, Q3_K_M, Q4_K_M, Q8_0, IQ2_M`)
	_, err = selectGGUF(names, "F16")
	require.NoError(t, err, "BF16 contains F16")
	_, err = selectGGUF(names[:6], "")
	require.ErrorContains(t, err, "found no GGUF model")
	_, err = selectGGUF([]string{"a-00001-of-00003.gguf", "a-00003-of-00003.gguf"}, "")
	require.ErrorContains(t, err, "part 2 of 3, a-00002-of-00003.gguf, is missing")
	_, err = selectGGUF([]string{"a-00001-of-00000.gguf"}, "")
	require.ErrorContains(t, err, "0 parts")

	// Without a tag: Q8_0 where there is no Q4_K_M, else the first.
	got, err := selectGGUF([]string{"a-Q2_K.gguf", "a-Q8_0.gguf"}, "")
	require.NoError(t, err)
	assert.Equal(t, []string{"a-Q8_0.gguf"}, got)
	got, err = selectGGUF([]string{"a-Q2_K.gguf", "a-Q3_K.gguf"}, "")
	require.NoError(t, err)
	assert.Equal(t, []string{"a-Q2_K.gguf"}, got)
}

func ggufFiles() map[string][]byte {
	return map[string][]byte{
		"README.md": []byte("x"), "m-Q2_K.gguf": noise(500, 1), "m-Q4_K_M.gguf": noise(600, 2), "mmproj-F16.gguf": noise(50, 3),
		"big/m-F16-00001-of-00002.gguf": noise(700, 4), "big/m-F16-00002-of-00002.gguf": noise(800, 5),
	}
}

// TestPullGGUF: what llama.cpp would fetch, in the hub's layout, and found again offline.
func TestPullGGUF(t *testing.T) {
	for tag, want := range map[string][]string{
		"": {"m-Q4_K_M.gguf"}, "q2_k": {"m-Q2_K.gguf"}, "F16": {"big/m-F16-00001-of-00002.gguf", "big/m-F16-00002-of-00002.gguf"},
	} {
		h := newHub(t, ggufFiles(), "m-Q2_K.gguf", "m-Q4_K_M.gguf", "big/m-F16-00001-of-00002.gguf", "big/m-F16-00002-of-00002.gguf")
		c := h.client()
		ref := ref
		ref.Tag = tag
		got, err := c.Pull(t.Context(), ref, PullOptions{})
		require.NoError(t, err, tag)
		var names []string
		for _, f := range got.Files {
			names = append(names, f.Name)
		}
		assert.ElementsMatch(t, want, names, tag)
		assert.Equal(t, filepath.Join(got.Dir, filepath.FromSlash(want[0])), got.Model)
		data, err := os.ReadFile(got.Model)
		require.NoError(t, err)
		assert.Equal(t, h.files[want[0]], data)

		found, err := c.Find(ref)
		require.NoError(t, err, tag)
		assert.Equal(t, got.Model, found)
		c.Offline = true
		again, err := c.Pull(t.Context(), ref, PullOptions{})
		require.NoError(t, err, tag)
		assert.Equal(t, got.Model, again.Model)

		ref.Tag = "Q9_X"
		_, err = c.Find(ref)
		require.ErrorIs(t, err, ErrNotCached)
		assert.ErrorContains(t, err, `"Q9_X", expected one of `)
		c.Offline = false
		_, err = c.Pull(t.Context(), ref, PullOptions{})
		assert.ErrorContains(t, err, `"Q9_X", expected one of F16, Q2_K, Q4_K_M`)
	}
}

// TestFindGGUF: what other programs have put into the caches.
func TestFindGGUF(t *testing.T) {
	put := func(cache, revision, file string) string {
		root := filepath.Join(cache, "models--acme--Tiny-1.0")
		path := filepath.Join(root, "snapshots", commit, filepath.FromSlash(file))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o666))
		require.NoError(t, os.MkdirAll(filepath.Join(root, "refs"), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(root, "refs", revision), []byte(commit), 0o666))
		return path
	}
	c := &Client{CacheDir: t.TempDir(), GGUFDir: t.TempDir()}
	tagged := Ref{Owner: "acme", Name: "Tiny-1.0", Tag: "Q8_0"}
	_, err := c.Find(tagged)
	require.ErrorIs(t, err, ErrNotCached)

	own := put(c.CacheDir, "master", "m-Q8_0.gguf") // any revision will do
	got, err := c.Find(tagged)
	require.NoError(t, err)
	assert.Equal(t, own, got)
	theirs := put(c.GGUFDir, "main", "sub/m-Q8_0.gguf")
	got, err = c.Find(tagged)
	require.NoError(t, err)
	assert.Equal(t, theirs, got, "LLAMA_CACHE comes first")

	// Beside safetensors, a GGUF file has to be asked for.
	put(c.CacheDir, "main", "model.safetensors")
	got, err = c.Find(Ref{Owner: "acme", Name: "Tiny-1.0"})
	require.NoError(t, err)
	assert.Equal(t, filepath.Dir(own), got)
}

func TestParseTag(t *testing.T) {
	for text, want := range map[string]Ref{
		"a/b:Q4_K_M":      {Owner: "a", Name: "b", Tag: "Q4_K_M"},
		"a/b@v1:UD-Q2_K":  {Owner: "a", Name: "b", Revision: "v1", Tag: "UD-Q2_K"},
		"a/b@refs/pr/1:x": {Owner: "a", Name: "b", Revision: "refs/pr/1", Tag: "x"},
	} {
		got, err := ParseRef(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got)
		assert.Equal(t, text, got.String())
	}
	for _, text := range []string{"a/b:", "a:b", "a/b:x/y", "a/b:x:y", "a/b/c:x", ":x", "a/b:../x"} {
		_, err := ParseRef(text)
		assert.Error(t, err, text)
	}
}

// store is a folder as ollama leaves it.
type store struct {
	t    *testing.T
	root string
}

func (s store) blob(mediaType string, data []byte) ollamaBlob {
	hash := sha256Of(data)
	require.NoError(s.t, os.MkdirAll(filepath.Join(s.root, "blobs"), 0o777))
	require.NoError(s.t, os.WriteFile(filepath.Join(s.root, "blobs", "sha256-"+hash), data, 0o666))
	return ollamaBlob{mediaType, "sha256:" + hash, int64(len(data))}
}

func (s store) manifest(path string, config string, layers ...ollamaBlob) {
	file := filepath.Join(s.root, "manifests", filepath.FromSlash(path))
	require.NoError(s.t, os.MkdirAll(filepath.Dir(file), 0o777))
	text, err := json.Marshal(map[string]any{"schemaVersion": 2, "config": s.blob("application/vnd.docker.container.image.v1+json", []byte(config)), "layers": layers})
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(file, text, 0o666))
}

func TestFindOllama(t *testing.T) {
	s := store{t, t.TempDir()}
	t.Setenv("OLLAMA_MODELS", s.root)
	weights := func(n uint64) ollamaBlob { return s.blob(ollamaLayers+"model", noise(300, n)) }
	const gguf = `{"model_format":"gguf","model_family":"qwen3"}`
	s.manifest("registry.ollama.ai/library/qwen3/8b", gguf, weights(1), s.blob(ollamaLayers+"params", []byte(`{}`)))
	s.manifest("registry.ollama.ai/library/qwen3/latest", gguf, weights(2))
	s.manifest("registry.ollama.ai/me/own/v1", gguf, weights(3))
	s.manifest("hf.co/Acme/Tiny-GGUF/Q4_K_M", gguf, weights(4))
	for name, n := range map[string]uint64{
		"qwen3:8b": 1, "Qwen3:8B": 1, "qwen3": 2, "library/qwen3:latest": 2, "me/own:v1": 3, "hf.co/acme/tiny-gguf:q4_k_m": 4,
		"registry.ollama.ai/library/qwen3:8b": 1,
	} {
		file, err := FindOllama(name)
		require.NoError(t, err, name)
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.Equal(t, noise(300, n), data, name)
	}
	s.manifest("registry.ollama.ai/library/bad/remote", `{"remote_host":"https://ollama.com"}`, weights(1))
	s.manifest("registry.ollama.ai/library/bad/mlx", gguf, s.blob(ollamaLayers+"tensor", []byte("t")))
	s.manifest("registry.ollama.ai/library/bad/format", `{"model_format":"safetensors"}`, weights(1))
	s.manifest("registry.ollama.ai/library/bad/adapter", gguf, weights(1), s.blob(ollamaLayers+"adapter", []byte("t")))
	s.manifest("registry.ollama.ai/library/bad/two", gguf, weights(1), weights(2))
	s.manifest("registry.ollama.ai/library/bad/none", gguf)
	s.manifest("registry.ollama.ai/library/bad/config", `[]`, weights(1))
	short := weights(5)
	short.Size++
	s.manifest("registry.ollama.ai/library/bad/short", gguf, short)
	s.manifest("registry.ollama.ai/library/bad/gone", gguf, ollamaBlob{ollamaLayers + "model", "sha256:" + strings.Repeat("0", 64), 1})
	s.manifest("registry.ollama.ai/library/bad/path", gguf, ollamaBlob{ollamaLayers + "model", "sha256:../../../etc/passwd", 1})
	require.NoError(t, os.WriteFile(filepath.Join(s.root, "manifests/registry.ollama.ai/library/bad/json"), []byte("{"), 0o666))
	for name, want := range map[string]string{
		"bad:remote":  `runs on "https://ollama.com" and has no weights here`,
		"bad:mlx":     "single tensors (MLX)",
		"bad:format":  `format "safetensors"`,
		"bad:adapter": "found an adapter",
		"bad:two":     "several files of weights",
		"bad:none":    "found no weights",
		"bad:config":  "config",
		"bad:short":   "found 300 bytes, expected a file of 301",
		"bad:gone":    "no such file",
		"bad:path":    "expected sha256: and 64 hexadecimal digits",
		"bad:json":    "manifest",
		"qwen3:4b":    `no tag "4b": not in the cache (found 8b, latest)`,
		"llama":       `no model "llama": not in the cache (found bad, qwen3)`,
		"you/x":       `no namespace "you"`,
		"../x":        "expected letters",
		"a/b/c/d":     "4 parts",
		"":            "expected letters",
		"x:":          "expected letters",
		"a//b":        "expected letters",
	} {
		_, err := FindOllama(name)
		require.ErrorContains(t, err, want, name)
		assert.ErrorContains(t, err, fmt.Sprintf("find ollama:%s in %s", name, s.root))
	}
}

// TestFolderGGUFIsNear: a file in the folder or in one within it is the folder's model, one further
// down is that of another folder.
func TestFolderGGUFIsNear(t *testing.T) {
	for file, found := range map[string]bool{"m.gguf": true, "q4/m.gguf": true, "models/q4/m.gguf": false} {
		dir := t.TempDir()
		path := filepath.Join(dir, filepath.FromSlash(file))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, []byte("GGUF"), 0o600))
		got, err := FolderGGUF(dir, "")
		require.NoError(t, err)
		if !found {
			path = ""
		}
		require.Equal(t, path, got, file)
	}
}
