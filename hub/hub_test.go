package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

var ref = Ref{Owner: "acme", Name: "Tiny-1.0"}

func sha256Of(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }

func gitBlobOf(b []byte) string {
	s := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...))
	return hex.EncodeToString(s[:])
}

func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

// fakeHub answers as the hub does: it serves small files itself and redirects to a
// second server for large ones. Hooks see each request first and may answer
// instead.
type fakeHub struct {
	t     *testing.T
	files map[string][]byte
	large map[string]bool // stored as LFS: named by sha256, on the other server
	bare  bool            // the listing has names only, as some mirrors give

	hub, store *httptest.Server
	onAPI      func(w http.ResponseWriter, r *http.Request) bool
	onFile     func(w http.ResponseWriter, r *http.Request, name string) bool // the hub's own
	onStore    func(w http.ResponseWriter, r *http.Request, name string) bool

	mu       sync.Mutex
	requests []string // "METHOD path", followed by the range, if there was one
	tokens   map[string]bool
}

func newHub(t *testing.T, files map[string][]byte, large ...string) *fakeHub {
	h := &fakeHub{t: t, files: files, large: make(map[string]bool), tokens: make(map[string]bool)}
	for _, n := range large {
		h.large[n] = true
	}
	h.hub = httptest.NewServer(http.HandlerFunc(h.serve))
	h.store = httptest.NewServer(http.HandlerFunc(h.serveStore))
	t.Cleanup(h.hub.Close)
	t.Cleanup(h.store.Close)
	return h
}

func (h *fakeHub) note(server string, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	line := server + " " + r.Method + " " + r.URL.EscapedPath()
	if rg := r.Header.Get("Range"); rg != "" {
		line += " " + rg
	}
	h.requests = append(h.requests, line)
	h.tokens[server+":"+r.Header.Get("Authorization")] = true
}

// seen counts the requests that contain all of parts.
func (h *fakeHub) seen(parts ...string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, r := range h.requests {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(r, p) }) {
			n++
		}
	}
	return n
}

func (h *fakeHub) hash(name string) string {
	if h.large[name] {
		return sha256Of(h.files[name])
	}
	return gitBlobOf(h.files[name])
}

func (h *fakeHub) serve(w http.ResponseWriter, r *http.Request) {
	h.note("hub", r)
	if rest, ok := strings.CutPrefix(r.URL.Path, "/api/models/acme/Tiny-1.0/revision/"); ok {
		if h.onAPI != nil && h.onAPI(w, r) {
			return
		}
		if rest != "main" && rest != "refs/pr/1" && rest != commit {
			w.Header().Set("X-Error-Code", "RevisionNotFound")
			w.Header().Set("X-Error-Message", "Invalid rev id: "+rest)
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Write(h.listing())
		return
	}
	name, ok := strings.CutPrefix(r.URL.Path, "/acme/Tiny-1.0/resolve/"+commit+"/")
	data, have := h.files[name]
	if !ok || !have {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if h.onFile != nil && h.onFile(w, r, name) {
		return
	}
	w.Header().Set("X-Repo-Commit", commit)
	if h.large[name] {
		w.Header().Set("X-Linked-Etag", strconv.Quote(h.hash(name)))
		w.Header().Set("X-Linked-Size", strconv.Itoa(len(data)))
		http.Redirect(w, r, h.store.URL+"/signed/"+name+"?signature=secret", http.StatusFound)
		return
	}
	w.Header().Set("ETag", strconv.Quote(h.hash(name)))
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

func (h *fakeHub) serveStore(w http.ResponseWriter, r *http.Request) {
	h.note("store", r)
	name := strings.TrimPrefix(r.URL.Path, "/signed/")
	if h.onStore != nil && h.onStore(w, r, name) {
		return
	}
	w.Header().Set("ETag", `"storage-has-its-own"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(h.files[name]))
}

func (h *fakeHub) listing() []byte {
	var siblings []map[string]any
	for _, name := range slices.Sorted(maps.Keys(h.files)) {
		e := map[string]any{"rfilename": name}
		if !h.bare {
			e["size"] = len(h.files[name])
			e["blobId"] = gitBlobOf(h.files[name])
			if h.large[name] {
				e["lfs"] = map[string]any{"sha256": h.hash(name), "size": len(h.files[name]), "pointerSize": 134}
			}
		}
		siblings = append(siblings, e)
	}
	data, err := json.Marshal(map[string]any{"id": ref.Repo(), "sha": commit, "siblings": siblings, "tags": []string{"x"}})
	if err != nil {
		panic(err)
	}
	return data
}

// client returns a client with an empty cache that does not really wait.
func (h *fakeHub) client() *Client {
	return &Client{
		Endpoint: h.hub.URL, CacheDir: h.t.TempDir(), Token: "hf_secret",
		sleep: func(ctx context.Context, _ time.Duration) error { return ctx.Err() },
	}
}

func repository() (map[string][]byte, []string) {
	index := `{"metadata":{},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors","c":"model-00001-of-00002.safetensors"}}`
	return map[string][]byte{
		".gitattributes":                    []byte("*.bin lfs\n"),
		"README.md":                         []byte("# hello\n"),
		"config.json":                       []byte(`{"model_type":"llama"}`),
		"generation_config.json":            []byte(`{}`),
		"tokenizer.json":                    noise(300_000, 1),
		"tokenizer_config.json":             []byte(`{"bos_token":"<s>"}`),
		"special_tokens_map.json":           {},
		"additional_chat_templates/x.jinja": []byte("{{ x }}"),
		"model.safetensors.index.json":      []byte(index),
		"model-00001-of-00002.safetensors":  noise(1_500_000, 2),
		"model-00002-of-00002.safetensors":  noise(700_001, 3),
		"consolidated.safetensors":          noise(10, 4),
		"pytorch_model.bin":                 noise(10, 5),
		"original/consolidated.00.pth":      noise(10, 6),
		"onnx/model.onnx":                   noise(10, 7),
		"model-q4.gguf":                     noise(10, 8),
	}, []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "consolidated.safetensors", "tokenizer.json"}
}

var chosen = []string{
	"additional_chat_templates/x.jinja", "config.json", "generation_config.json",
	"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
	"special_tokens_map.json", "tokenizer.json", "tokenizer_config.json",
}

// checkSnapshot compares the result of a pull with the repository, links included.
func checkSnapshot(t *testing.T, h *fakeHub, c *Client, names []string) {
	t.Helper()
	root := filepath.Join(c.CacheDir, "models--acme--Tiny-1.0")
	dir := filepath.Join(root, "snapshots", commit)
	var found []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(dir, path)
			found = append(found, filepath.ToSlash(rel))
		}
		return err
	}))
	assert.Equal(t, names, found, "files of the snapshot")
	for _, n := range found {
		path := filepath.Join(dir, filepath.FromSlash(n))
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.True(t, bytes.Equal(h.files[n], got), "%s: %d bytes, want %d", n, len(got), len(h.files[n]))
		if runtime.GOOS != "windows" {
			target, err := os.Readlink(path)
			require.NoError(t, err)
			up := strings.Repeat("../", 2+strings.Count(n, "/"))
			assert.Equal(t, up+"blobs/"+h.hash(n), filepath.ToSlash(target), "link of %s", n)
		}
	}
	left, err := filepath.Glob(filepath.Join(root, "blobs", "*.incomplete"))
	require.NoError(t, err)
	assert.Empty(t, left, "unfinished blobs")
}

func TestPullLayout(t *testing.T) {
	for _, bare := range []bool{false, true} {
		t.Run(fmt.Sprintf("bare=%v", bare), func(t *testing.T) {
			h := newHub(t, first2(repository()))
			_, large := repository()
			for _, n := range large {
				h.large[n] = true
			}
			h.bare = bare
			c := h.client()

			_, err := c.Find(ref)
			require.ErrorIs(t, err, ErrNotCached)

			var last Progress
			p, err := c.Pull(t.Context(), ref, PullOptions{Progress: func(p Progress) {
				last = p
				assert.GreaterOrEqual(t, p.FileSize, int64(0), "%s: every size is known, from the listing or from a HEAD request", p.File)
			}})
			require.NoError(t, err)
			checkSnapshot(t, h, c, chosen)
			text, err := os.ReadFile(filepath.Join(c.CacheDir, "models--acme--Tiny-1.0", "refs", "main"))
			require.NoError(t, err)
			assert.Equal(t, commit, string(text))

			assert.Equal(t, commit, p.Commit)
			assert.Equal(t, p.Size, p.Fetched)
			assert.Equal(t, len(chosen), len(p.Files))
			assert.Equal(t, Progress{File: last.File, FileBytes: last.FileBytes, FileSize: last.FileSize,
				Bytes: p.Size, Fetched: p.Size, Size: p.Size, Done: len(chosen), Files: len(chosen)}, last)
			dir, err := c.Find(ref)
			require.NoError(t, err)
			assert.Equal(t, p.Dir, dir)

			assert.Zero(t, h.seen("bytes="), "nothing is asked for in part")
			assert.True(t, h.tokens["hub:Bearer hf_secret"], "the hub gets the token")
			assert.Equal(t, map[string]bool{"hub:Bearer hf_secret": true, "store:": true}, h.tokens, "nobody else gets it")

			// A second pull finds everything there.
			before := h.seen("GET", "/resolve/")
			p, err = c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			assert.Zero(t, p.Fetched)
			assert.Equal(t, before, h.seen("GET", "/resolve/"), "downloads")
			for _, f := range p.Files {
				assert.True(t, f.Cached, f.Name)
			}

			// So does an offline one.
			h.hub.Close()
			c.Offline = true
			offline, err := c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			assert.Equal(t, dir, offline.Dir)
			assert.Equal(t, p, offline)
		})
	}
}

func first2(files map[string][]byte, _ []string) map[string][]byte { return files }

func TestPullRevisions(t *testing.T) {
	h := newHub(t, map[string][]byte{"config.json": []byte("{}"), "model.safetensors": noise(9, 1)})
	c := h.client()
	for _, rev := range []string{"refs/pr/1", commit} {
		r := Ref{"acme", "Tiny-1.0", rev, ""}
		p, err := c.Pull(t.Context(), r, PullOptions{})
		require.NoError(t, err)
		dir, err := c.Find(r)
		require.NoError(t, err)
		assert.Equal(t, p.Dir, dir)
	}
	assert.Equal(t, 1, h.seen("/revision/refs%2Fpr%2F1"))
	_, err := c.Find(ref)
	require.ErrorIs(t, err, ErrNotCached)
	assert.ErrorContains(t, err, "refs/pr/1", "what is cached is named")
	_, err = c.Find(Ref{"acme", "Tiny-1.0", "refs", ""})
	require.ErrorIs(t, err, ErrNotCached)
	_, err = c.Pull(t.Context(), Ref{"acme", "Tiny-1.0", "v9", ""}, PullOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	assert.ErrorContains(t, err, "Invalid rev id: v9")
}

func TestPullSelection(t *testing.T) {
	files, large := repository()
	for _, tc := range []struct {
		name string
		drop []string
		add  string
		o    PullOptions
		want []string
		err  string
	}{
		{name: "single file beside an old index", drop: []string{"model-00002-of-00002.safetensors"}, add: "model.safetensors",
			want: []string{"additional_chat_templates/x.jinja", "config.json", "generation_config.json", "model.safetensors",
				"special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"}},
		{name: "include", o: PullOptions{Include: []string{"*.gguf", "onnx/"}}, want: []string{"model-q4.gguf", "onnx/model.onnx"}},
		{name: "exclude", o: PullOptions{Exclude: []string{"*.safetensors", "additional_chat_templates/", "special*"}},
			want: []string{"config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"}},
		{name: "bad pattern", o: PullOptions{Include: []string{"[a"}}, err: "syntax error in pattern"},
		{name: "nothing", o: PullOptions{Include: []string{"*.xyz"}}, err: "none of the repository's 16 files"},
		{name: "shard missing", drop: []string{"model-00002-of-00002.safetensors"}, err: `names "model-00002-of-00002.safetensors", which the repository does not have`},
		{name: "no safetensors", drop: []string{"model.safetensors.index.json", "model-q4.gguf"}, err: "no weights in the safetensors layout: found consolidated.safetensors, model-00001-of-00002.safetensors, model-00002-of-00002.safetensors …"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := maps.Clone(files)
			for _, n := range tc.drop {
				delete(f, n)
			}
			if tc.add != "" {
				f[tc.add] = noise(1000, 9)
			}
			h := newHub(t, f, large...)
			c := h.client()
			_, err := c.Pull(t.Context(), ref, tc.o)
			if tc.err != "" {
				require.ErrorContains(t, err, tc.err)
				_, err = c.Find(ref)
				assert.ErrorIs(t, err, ErrNotCached, "a failed pull leaves no ref")
				return
			}
			require.NoError(t, err)
			checkSnapshot(t, h, c, tc.want)
		})
	}
}

// oneFile is a repository with a single large file of weights.
func oneFile(t *testing.T, size int) *fakeHub {
	return newHub(t, map[string][]byte{"model.safetensors": noise(size, 9)}, "model.safetensors")
}
