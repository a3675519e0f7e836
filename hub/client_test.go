package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseRef(t *testing.T) {
	for s, want := range map[string]Ref{
		"a/b":                      {"a", "b", "", ""},
		"Qwen/Qwen2.5-0.5B":        {"Qwen", "Qwen2.5-0.5B", "", ""},
		"meta-llama/x_y@refs/pr/1": {"meta-llama", "x_y", "refs/pr/1", ""},
		"a/b@v1.0":                 {"a", "b", "v1.0", ""},
	} {
		got, err := ParseRef(s)
		require.NoError(t, err, s)
		assert.Equal(t, want, got)
		assert.Equal(t, s, got.String())
	}
	for _, s := range []string{"", "a", "a/", "/b", "a/b/c", "a/b@", "a/b@../x", "a/b@/x", "a/b@x//y", "a b/c", "a--b/c", "a/b.git",
		"../b", "a/..", "a/.b", "-a/b", "a/b-", "a/ü", strings.Repeat("a", 97) + "/b", "a/b@x\ny", `a/b@x\y`} {
		_, err := ParseRef(s)
		assert.Error(t, err, "%q", s)
	}
	_, err := new(Client).Find(Ref{"..", "..", "x", ""})
	assert.Error(t, err)
}

func TestEnvironment(t *testing.T) {
	clear := func(t *testing.T) {
		for _, n := range []string{"HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN",
			"HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME", "HF_HUB_DISABLE_IMPLICIT_TOKEN"} {
			t.Setenv(n, "")
		}
	}
	home := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(home, "token"), []byte(" from-file\n"), 0o600))
	userHome, err := os.UserHomeDir()
	if err != nil {
		t.Skip("needs a home folder: ", err)
	}
	for _, tc := range []struct {
		name string
		env  map[string]string
		want Client
	}{
		{"defaults", nil, Client{Endpoint: DefaultEndpoint, CacheDir: filepath.Join(userHome, ".cache", "huggingface", "hub")}},
		{"xdg", map[string]string{"XDG_CACHE_HOME": home}, Client{Endpoint: DefaultEndpoint, CacheDir: filepath.Join(home, "huggingface", "hub")}},
		{"home", map[string]string{"HF_HOME": home}, Client{Endpoint: DefaultEndpoint, CacheDir: filepath.Join(home, "hub"), Token: "from-file"}},
		{"all", map[string]string{"HF_HOME": home, "HF_HUB_CACHE": "~/elsewhere", "HF_ENDPOINT": "http://mirror:8080/x/", "HF_TOKEN": "mine", "HF_HUB_OFFLINE": "YES"},
			Client{Endpoint: "http://mirror:8080/x", CacheDir: filepath.Join(userHome, "elsewhere"), Token: "mine", Offline: true}},
		{"variables and blanks", map[string]string{"LUKV_TEST_PLACE": home, "HF_HUB_CACHE": "$LUKV_TEST_PLACE/cache", "HF_TOKEN": " mine ", "HF_ENDPOINT": " https://mirror "},
			Client{Endpoint: "https://mirror", CacheDir: filepath.Join(home, "cache"), Token: "mine"}},
		{"no token", map[string]string{"HF_HOME": home, "HF_TOKEN": "mine", "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"},
			Client{Endpoint: DefaultEndpoint, CacheDir: filepath.Join(home, "hub")}},
		{"token path", map[string]string{"HF_HOME": t.TempDir(), "HF_HUB_CACHE": home, "HF_TOKEN_PATH": filepath.Join(home, "token")},
			Client{Endpoint: DefaultEndpoint, CacheDir: home, Token: "from-file"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			clear(t)
			for k, v := range tc.env {
				t.Setenv(k, v)
			}
			c, err := New()
			require.NoError(t, err)
			if tc.name == "defaults" {
				c.Token = "" // whatever token this user has
			}
			assert.Equal(t, tc.want, *c)
		})
	}
	clear(t)
	t.Setenv("HF_ENDPOINT", "ftp://x")
	_, err = New()
	assert.ErrorContains(t, err, "MODEL_ENDPOINT or HF_ENDPOINT")

	// Find takes the cache from the environment.
	clear(t)
	t.Setenv("HF_HUB_CACHE", home)
	snapshot := filepath.Join(home, "models--a--b", "snapshots", commit)
	require.NoError(t, os.MkdirAll(snapshot, 0o777))
	require.NoError(t, os.MkdirAll(filepath.Join(home, "models--a--b", "refs"), 0o777))
	require.NoError(t, os.WriteFile(filepath.Join(home, "models--a--b", "refs", "main"), []byte(commit+"\n"), 0o666))
	dir, err := Find("a/b")
	require.NoError(t, err)
	assert.Equal(t, snapshot, dir)
	require.NoError(t, os.WriteFile(filepath.Join(home, "models--a--b", "refs", "main"), []byte("../../.."), 0o666))
	_, err = Find("a/b")
	assert.ErrorContains(t, err, "expected a commit")
}
