package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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
	"sync/atomic"
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

// fakeHub answers as the hub does: small files itself, large ones by a redirect to
// a second server. Hooks see each request first and may answer in its place.
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
	requests []string // "METHOD path" with a range behind it, if there was one
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

// checkSnapshot compares what a pull made with the repository, links included.
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
			p, err := c.Pull(t.Context(), ref, PullOptions{Progress: func(p Progress) { last = p }})
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

			// Offline, too.
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
		r := Ref{"acme", "Tiny-1.0", rev}
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
	_, err = c.Find(Ref{"acme", "Tiny-1.0", "refs"})
	require.ErrorIs(t, err, ErrNotCached)
	_, err = c.Pull(t.Context(), Ref{"acme", "Tiny-1.0", "v9"}, PullOptions{})
	require.ErrorIs(t, err, ErrNotFound)
	assert.ErrorContains(t, err, "Invalid rev id: v9")
}

func TestPullSelection(t *testing.T) {
	files, large := repository()
	for _, tc := range []struct {
		name string
		drop []string
		o    PullOptions
		want []string
		err  string
	}{
		{name: "include", o: PullOptions{Include: []string{"*.gguf", "onnx/"}}, want: []string{"model-q4.gguf", "onnx/model.onnx"}},
		{name: "exclude", o: PullOptions{Exclude: []string{"*.safetensors", "additional_chat_templates/", "special*"}},
			want: []string{"config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"}},
		{name: "bad pattern", o: PullOptions{Include: []string{"[a"}}, err: "syntax error in pattern"},
		{name: "nothing", o: PullOptions{Include: []string{"*.xyz"}}, err: "none of the repository's 16 files"},
		{name: "shard missing", drop: []string{"model-00002-of-00002.safetensors"}, err: `names "model-00002-of-00002.safetensors", which the repository does not have`},
		{name: "no safetensors", drop: []string{"model.safetensors.index.json"}, err: "no weights in the safetensors layout: found consolidated.safetensors, model-00001-of-00002.safetensors, model-00002-of-00002.safetensors …"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := maps.Clone(files)
			for _, n := range tc.drop {
				delete(f, n)
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

func TestPullResumes(t *testing.T) {
	h := oneFile(t, 3_000_000)
	data := h.files["model.safetensors"]
	t.Run("connection breaks off", func(t *testing.T) {
		var n atomic.Int32
		h.onStore = func(w http.ResponseWriter, r *http.Request, _ string) bool {
			if n.Add(1) > 20 {
				return false
			}
			var from int
			fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
			if from > 0 {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(data)-from))
			if from > 0 {
				w.WriteHeader(http.StatusPartialContent)
			}
			w.Write(data[from : from+100_000])
			panic(http.ErrAbortHandler)
		}
		c := h.client()
		_, err := c.Pull(t.Context(), ref, PullOptions{})
		require.NoError(t, err)
		checkSnapshot(t, h, c, []string{"model.safetensors"})
		assert.Equal(t, 20, h.seen("store", "bytes="), "continued by range")
	})
	t.Run("next call goes on", func(t *testing.T) {
		c := h.client()
		ctx, cancel := context.WithCancel(t.Context())
		h.onStore = func(w http.ResponseWriter, r *http.Request, _ string) bool {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			w.Write(data[:1_000_000])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		}
		_, err := c.Pull(ctx, ref, PullOptions{Progress: func(p Progress) {
			if p.Bytes == 1_000_000 {
				cancel()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
		_, err = c.Find(ref)
		require.ErrorIs(t, err, ErrNotCached)
		h.onStore = nil
		p, err := c.Pull(t.Context(), ref, PullOptions{})
		require.NoError(t, err)
		assert.EqualValues(t, 2_000_000, p.Fetched)
		checkSnapshot(t, h, c, []string{"model.safetensors"})
	})
	for name, kept := range map[string][]byte{
		"what was kept is wrong":    noise(1_000_000, 77),
		"what was kept is too long": noise(3_000_001, 9),
		"what was kept is complete": data,
	} {
		t.Run(name, func(t *testing.T) {
			h.onStore = nil
			c := h.client()
			blob := c.repo(ref).blob(h.hash("model.safetensors"))
			require.NoError(t, os.MkdirAll(filepath.Dir(blob), 0o777))
			require.NoError(t, os.WriteFile(blob+".incomplete", kept, 0o666))
			// A blob of the wrong size is none.
			require.NoError(t, os.WriteFile(blob, kept[:10], 0o666))
			_, err := c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			checkSnapshot(t, h, c, []string{"model.safetensors"})
		})
	}
	t.Run("server without ranges", func(t *testing.T) {
		var n atomic.Int32
		h.onStore = func(w http.ResponseWriter, r *http.Request, _ string) bool {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			if n.Add(1) == 1 {
				w.Write(data[:500_000])
				panic(http.ErrAbortHandler)
			}
			w.Write(data)
			return true
		}
		c := h.client()
		_, err := c.Pull(t.Context(), ref, PullOptions{})
		require.NoError(t, err)
		checkSnapshot(t, h, c, []string{"model.safetensors"})
	})
	t.Run("range refused once", func(t *testing.T) {
		h.onStore = func(w http.ResponseWriter, r *http.Request, _ string) bool {
			if r.Header.Get("Range") != "" {
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return true
			}
			return false
		}
		c := h.client()
		blob := c.repo(ref).blob(h.hash("model.safetensors"))
		require.NoError(t, os.MkdirAll(filepath.Dir(blob), 0o777))
		require.NoError(t, os.WriteFile(blob+".incomplete", data[:5], 0o666))
		_, err := c.Pull(t.Context(), ref, PullOptions{})
		require.NoError(t, err)
		checkSnapshot(t, h, c, []string{"model.safetensors"})
	})
}

// TestOddRanges has servers that answer the request for the rest of a file with
// something else, each time. The download begins again with the first byte.
func TestOddRanges(t *testing.T) {
	h := oneFile(t, 400_000)
	data := h.files["model.safetensors"]
	const kept = 100_000
	for name, answer := range map[string]func(w http.ResponseWriter){
		"other start": func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 7-399999/400000")
			w.WriteHeader(http.StatusPartialContent)
			w.Write(data[7:])
		},
		"senseless range": func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes 9-3/4")
			w.WriteHeader(http.StatusPartialContent)
		},
		"no range": func(w http.ResponseWriter) { w.WriteHeader(http.StatusPartialContent) },
		"the rest as if it were all": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)-kept))
			w.Write(data[kept:])
		},
		"all as if it were the rest": func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-399999/400000", kept))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(data)
		},
		"another size": func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-399999/500000", kept))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(data[kept:])
		},
		"nothing":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
		"not satisfied": func(w http.ResponseWriter) { w.WriteHeader(http.StatusRequestedRangeNotSatisfiable) },
		"not satisfied, of another size": func(w http.ResponseWriter) {
			w.Header().Set("Content-Range", "bytes */7")
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h.onStore = func(w http.ResponseWriter, r *http.Request, _ string) bool {
				if r.Header.Get("Range") == "" {
					return false
				}
				answer(w)
				return true
			}
			c := h.client()
			keepPart(t, h, c, data[:kept])
			_, err := c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			checkSnapshot(t, h, c, []string{"model.safetensors"})
		})
	}
}

// keepPart leaves the beginning of a download in the cache.
func keepPart(t *testing.T, h *fakeHub, c *Client, part []byte) {
	blob := c.repo(ref).blob(h.hash("model.safetensors"))
	require.NoError(t, os.MkdirAll(filepath.Dir(blob), 0o777))
	require.NoError(t, os.WriteFile(blob+".incomplete", part, 0o666))
}

// A transfer that got somewhere counts as the first of the next tries.
func TestTriesCountFromTheLastByte(t *testing.T) {
	h := oneFile(t, 400_000)
	data := h.files["model.safetensors"]
	h.onStore = func(w http.ResponseWriter, r *http.Request, _ string) bool {
		if r.Header.Get("Range") == "" {
			w.Header().Set("Content-Length", strconv.Itoa(len(data)))
			w.Write(data[:200_000])
		}
		panic(http.ErrAbortHandler)
	}
	_, err := h.client().Pull(t.Context(), ref, PullOptions{})
	require.ErrorContains(t, err, "(6 tries)")
	assert.Equal(t, maxTries, h.seen("store"), "the one that moved and five more")
}

// TestRequests looks at what every request carries, and at how many redirects it
// follows.
func TestRequests(t *testing.T) {
	var redirects atomic.Int32
	var header atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header.Store(r.Header.Clone())
		if redirects.Add(-1) >= 0 {
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	c := &Client{Endpoint: server.URL}
	ask := func(n int32) error {
		redirects.Store(n)
		resp, err := c.send(t.Context(), http.MethodGet, "/x", 0)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	require.NoError(t, ask(10))
	require.ErrorContains(t, ask(11), "more than 10 in a row")
	got := header.Load().(http.Header)
	assert.Equal(t, "lukv", got.Get("User-Agent"))
	assert.Equal(t, "identity", got.Get("Accept-Encoding"), "lengths and ranges are those of the content")
	assert.Empty(t, got.Get("Authorization"))
	assert.Empty(t, got.Get("Range"))
	c.UserAgent, c.Token = "mine/2", "hf_x"
	require.NoError(t, ask(0))
	got = header.Load().(http.Header)
	assert.Equal(t, "mine/2", got.Get("User-Agent"))
	assert.Equal(t, "Bearer hf_x", got.Get("Authorization"))

	// A failure's text is cut, one that is not long stays as it is.
	for n, want := range map[int]int{100: 100, 5000: 201} {
		c.Transport = failing(strings.Repeat("x", n))
		err := ask(0)
		require.Error(t, err)
		assert.Equal(t, want, strings.Count(err.Error(), "x")+strings.Count(err.Error(), "…"))
	}
}

// failing is a transport that fails with this text.
type failing string

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New(string(f)) }

// TestLink says when a snapshot's file is left alone and when it is replaced.
func TestLink(t *testing.T) {
	c := &Client{CacheDir: t.TempDir()}
	r := c.repo(ref)
	hash := strings.Repeat("a", 64)
	write := func(path, text string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		os.Remove(path)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
	}
	write(r.blob(hash), "four")
	path := filepath.Join(r.snapshot(commit), "sub", "file")
	content := func() string {
		require.NoError(t, r.link(commit, "sub/file", hash))
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	assert.Equal(t, "four", content(), "nothing was there")
	assert.True(t, isLink(path))
	before, err := os.Lstat(path)
	require.NoError(t, err)
	assert.Equal(t, "four", content(), "the link was there")
	after, err := os.Lstat(path)
	require.NoError(t, err)
	assert.True(t, os.SameFile(before, after), "and is left alone")

	write(path, "copy")
	assert.Equal(t, "copy", content(), "a copy of the right size, as systems without links have it")
	assert.False(t, isLink(path))
	write(path, "wrong size")
	assert.Equal(t, "four", content())

	write(filepath.Join(r.dir, "other"), "else")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink(filepath.Join(r.dir, "other"), path))
	assert.Equal(t, "four", content(), "a link to another content of the same size")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o777))
	require.Error(t, r.link(commit, "sub/file", hash), "a folder is in the way")
}

func TestBlobNames(t *testing.T) {
	for _, good := range []string{"0", "9", "a", "z", "A", "Z", "-", "_", strings.Repeat("x", 128)} {
		assert.True(t, isBlobName(good), good)
	}
	for _, bad := range []string{"", "/", ":", "@", "[", "`", "{", ".", "a/b", "é", strings.Repeat("x", 129)} {
		assert.False(t, isBlobName(bad), bad)
	}
}

// TestListedSizes has entries whose own size is that of the pointer file, and blob
// ids of both lengths.
func TestListedSizes(t *testing.T) {
	id40, id64 := strings.Repeat("b", 40), strings.Repeat("c", 64)
	s, err := parseSnapshot([]byte(`{"sha":"` + commit + `","siblings":[
		{"rfilename":"a","size":134,"blobId":"` + id40 + `","lfs":{"sha256":"` + id64 + `","size":5}},
		{"rfilename":"b","size":6,"blobId":"` + id64 + `"},
		{"rfilename":"c","size":0,"blobId":"` + id40 + `"},
		{"rfilename":"d"}]}`))
	require.NoError(t, err)
	assert.Equal(t, []File{{"a", 5, id64}, {"b", 6, id64}, {"c", 0, id40}, {"d", -1, ""}}, s.Files)
	for _, n := range []int{39, 41, 63, 65} {
		_, err := parseSnapshot([]byte(`{"sha":"` + commit + `","siblings":[{"rfilename":"b","blobId":"` + strings.Repeat("c", n) + `"}]}`))
		assert.ErrorContains(t, err, "expected 40 or 64 hexadecimal digits", "%d digits", n)
	}
}

// A download that was complete when its process died is checked and named, even
// where nobody says how long the file is.
func TestCompletePart(t *testing.T) {
	h := oneFile(t, 400_000)
	data := h.files["model.safetensors"]
	for _, listed := range []bool{true, false} {
		t.Run(fmt.Sprintf("size listed %v", listed), func(t *testing.T) {
			c := h.client()
			keepPart(t, h, c, data)
			if !listed {
				h.bare = true
				h.onFile = func(w http.ResponseWriter, r *http.Request, name string) bool {
					if r.Method != http.MethodHead {
						return false
					}
					w.Header().Set("X-Linked-Etag", strconv.Quote(h.hash(name)))
					w.Header().Set("Content-Length", "7") // of the redirect, not of the file
					http.Redirect(w, r, h.store.URL+"/signed/"+name, http.StatusFound)
					return true
				}
			}
			p, err := c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			assert.Zero(t, p.Fetched)
			checkSnapshot(t, h, c, []string{"model.safetensors"})
		})
	}
}

// TestVerify has a cached content with one bit flipped.
func TestVerify(t *testing.T) {
	files, large := repository()
	for _, name := range []string{"model-00001-of-00002.safetensors", "config.json"} { // sha256, git blob
		t.Run(name, func(t *testing.T) {
			h := newHub(t, maps.Clone(files), large...)
			c := h.client()
			_, err := c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			wrong := bytes.Clone(files[name])
			wrong[len(wrong)/2] ^= 4
			require.NoError(t, os.WriteFile(c.repo(ref).blob(h.hash(name)), wrong, 0o666))

			p, err := c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			assert.Zero(t, p.Fetched, "without Verify, sizes are compared")

			c.Offline = true
			_, err = c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			_, err = c.Pull(t.Context(), ref, PullOptions{Verify: true})
			require.ErrorContains(t, err, name+": its content does not have the hash "+h.hash(name))
			cancelled, cancel := context.WithCancel(t.Context())
			cancel()
			_, err = c.Pull(cancelled, ref, PullOptions{Verify: true})
			require.ErrorIs(t, err, context.Canceled)
			c.Offline = false

			p, err = c.Pull(t.Context(), ref, PullOptions{Verify: true})
			require.NoError(t, err)
			assert.EqualValues(t, len(wrong), p.Fetched)
			for _, f := range p.Files {
				assert.Equal(t, f.Name == name, f.Damaged, f.Name)
				assert.Equal(t, f.Name != name, f.Cached, f.Name)
			}
			checkSnapshot(t, h, c, chosen)

			p, err = c.Pull(t.Context(), ref, PullOptions{Verify: true})
			require.NoError(t, err)
			assert.Zero(t, p.Fetched)
		})
	}
}

// TestListingStalls has a hub that begins its listing and goes silent, and one
// that sends a byte now and then without end.
func TestListingStalls(t *testing.T) {
	h := oneFile(t, 10)
	for name, tc := range map[string]struct {
		pause time.Duration
		err   string
	}{
		"silent":   {time.Hour, "no bytes came for 50ms (6 tries)"},
		"trickles": {10 * time.Millisecond, "not complete after 500ms"},
	} {
		t.Run(name, func(t *testing.T) {
			h.onAPI = func(w http.ResponseWriter, r *http.Request) bool {
				for r.Context().Err() == nil {
					w.Write([]byte{' '})
					w.(http.Flusher).Flush()
					sleepReally(r.Context(), tc.pause)
				}
				return true
			}
			c := h.client()
			c.stall = 50 * time.Millisecond
			_, err := c.Pull(t.Context(), ref, PullOptions{})
			require.ErrorContains(t, err, tc.err)
		})
	}
}

// TestWaitsAreReported covers a hub that asks to come back, when it lists and when
// it serves, and a lock that another process holds.
func TestWaitsAreReported(t *testing.T) {
	h := oneFile(t, 10)
	var listings, files atomic.Int32
	busy := func(n *atomic.Int32, w http.ResponseWriter) bool {
		if n.Add(1) > 1 {
			return false
		}
		w.Header().Set("Retry-After", "300")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	}
	h.onAPI = func(w http.ResponseWriter, r *http.Request) bool { return busy(&listings, w) }
	h.onStore = func(w http.ResponseWriter, r *http.Request, _ string) bool { return busy(&files, w) }
	c := h.client()
	release, err := acquire(t.Context(), c.repo(ref).lock(h.hash("model.safetensors")), nil)
	require.NoError(t, err)
	var waits []string
	_, err = c.Pull(t.Context(), ref, PullOptions{Progress: func(p Progress) {
		if len(waits) == 0 || waits[len(waits)-1] != p.Waiting {
			waits = append(waits, p.Waiting)
		}
		if strings.Contains(p.Waiting, "another process") {
			release()
		}
	}})
	require.NoError(t, err)
	require.Len(t, waits, 6, "%q", waits)
	assert.Contains(t, waits[0], "429 (too many requests); next try in 5m0s")
	assert.Contains(t, waits[2], "another process is fetching this file")
	assert.Contains(t, waits[4], "429 (too many requests); next try in 5m0s")
	assert.Empty(t, waits[1]+waits[3]+waits[5])
}

// TestPullRefuses lists servers that are wrong for good: one clear error, no blob,
// no ref.
func TestPullRefuses(t *testing.T) {
	const size = 400_000
	type answer = func(w http.ResponseWriter, r *http.Request, data []byte)
	for _, tc := range []struct {
		name string
		do   answer
		err  string
		is   error
	}{
		{"wrong bytes", func(w http.ResponseWriter, r *http.Request, data []byte) { w.Write(noise(size, 5)) }, "has the hash", nil},
		{"more than listed, said", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Content-Length", strconv.Itoa(size+5))
			w.Write(append(data[:size:size], 1, 2, 3, 4, 5))
		}, "the server has 400005 bytes, the hub lists 400000", nil},
		{"more than listed, unsaid", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.(http.Flusher).Flush()
			w.Write(append(data[:size:size], 1, 2, 3, 4, 5))
		}, "more than the 400000 bytes", nil},
		{"fewer than listed, unsaid", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.(http.Flusher).Flush()
			w.Write(data[:size-1])
		}, "the server ends after 399999 of 400000 bytes (6 tries)", nil},
		{"fewer than listed, said", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Content-Length", strconv.Itoa(size-1))
			w.Write(data[:size-1])
		}, "the server has 399999 bytes, the hub lists 400000", nil},
		{"never the end", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.(http.Flusher).Flush()
			if r.Header.Get("Range") == "" {
				w.Write(data[:10])
			}
			panic(http.ErrAbortHandler)
		}, "(6 tries)", nil},
		{"other range", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Content-Range", "bytes 7-399999/400000")
			w.WriteHeader(http.StatusPartialContent)
		}, "the server sends bytes from 7 on, expected from 0", nil},
		{"senseless range", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Content-Range", "bytes 9-3/4")
			w.WriteHeader(http.StatusPartialContent)
		}, `the server sends the range "bytes 9-3/4"`, nil},
		{"no content", func(w http.ResponseWriter, r *http.Request, data []byte) { w.WriteHeader(http.StatusNoContent) }, "expected 200 or 206", nil},
		{"gone", func(w http.ResponseWriter, r *http.Request, data []byte) { w.WriteHeader(http.StatusNotFound) }, "404", ErrNotFound},
		{"always failing", func(w http.ResponseWriter, r *http.Request, data []byte) { w.WriteHeader(http.StatusBadGateway) }, "502 (bad gateway) (6 tries)", nil},
		{"wait for a day", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Retry-After", "86400")
			w.WriteHeader(http.StatusTooManyRequests)
		}, "asks to wait for 24h0m0s", nil},
		{"redirects for ever", func(w http.ResponseWriter, r *http.Request, data []byte) {
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		}, "redirect refused: more than 10", nil},
		{"redirect to a file", func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Header().Set("Location", "file:///etc/passwd")
			w.WriteHeader(http.StatusFound)
		}, "redirect refused", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := oneFile(t, size)
			h.onStore = func(w http.ResponseWriter, r *http.Request, name string) bool {
				tc.do(w, r, h.files[name])
				return true
			}
			c := h.client()
			_, err := c.Pull(t.Context(), ref, PullOptions{})
			require.ErrorContains(t, err, tc.err)
			assert.NotContains(t, err.Error(), "secret", "neither token nor signature")
			if tc.is != nil {
				assert.ErrorIs(t, err, tc.is)
			}
			_, err = c.Find(ref)
			assert.ErrorIs(t, err, ErrNotCached)
			_, err = os.Stat(c.repo(ref).blob(h.hash("model.safetensors")))
			assert.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}

func TestPullRetries(t *testing.T) {
	h := oneFile(t, 100_000)
	codes := []int{503, 429, 500, 408, 504}
	var n atomic.Int32
	fail := func(w http.ResponseWriter) bool {
		i := int(n.Add(1)) - 1
		if i%6 == 5 {
			return false
		}
		if codes[i%6] == 429 {
			w.Header().Set("Retry-After", "7")
		}
		w.WriteHeader(codes[i%6])
		return true
	}
	h.onAPI = func(w http.ResponseWriter, _ *http.Request) bool { return fail(w) }
	h.onFile = func(w http.ResponseWriter, _ *http.Request, _ string) bool { return fail(w) }
	var mu sync.Mutex
	var waits []time.Duration
	c := h.client()
	c.sleep = func(_ context.Context, d time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		waits = append(waits, d)
		return nil
	}
	_, err := c.Pull(t.Context(), ref, PullOptions{})
	require.NoError(t, err)
	checkSnapshot(t, h, c, []string{"model.safetensors"})
	require.Len(t, waits, 10)
	for i, d := range waits {
		if i%5 == 1 {
			assert.Equal(t, 7*time.Second, d, "Retry-After is kept to")
		} else {
			assert.LessOrEqual(t, d, time.Second<<(i%5))
			assert.GreaterOrEqual(t, d, time.Second<<(i%5)/2)
		}
	}
}

// TestPullSignedAddress: an address that storage no longer accepts is asked for anew.
func TestPullSignedAddress(t *testing.T) {
	h := oneFile(t, 100_000)
	var n atomic.Int32
	h.onStore = func(w http.ResponseWriter, _ *http.Request, _ string) bool {
		if n.Add(1) > 2 {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		return true
	}
	c := h.client()
	_, err := c.Pull(t.Context(), ref, PullOptions{})
	require.NoError(t, err)
	assert.Equal(t, 3, h.seen("hub GET", "/resolve/"))
}

func TestPullStall(t *testing.T) {
	h := oneFile(t, 300_000)
	var n atomic.Int32
	h.onStore = func(w http.ResponseWriter, r *http.Request, _ string) bool {
		if n.Add(1) > 1 {
			return false
		}
		w.Header().Set("Content-Length", "300000")
		w.Write(h.files["model.safetensors"][:100_000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}
	c := h.client()
	c.stall = 50 * time.Millisecond
	_, err := c.Pull(t.Context(), ref, PullOptions{})
	require.NoError(t, err)
	checkSnapshot(t, h, c, []string{"model.safetensors"})
	assert.Equal(t, 1, h.seen("store", "bytes=100000-"))
}

func TestAccess(t *testing.T) {
	for _, tc := range []struct {
		code  int
		token string
		is    error
		text  string
	}{
		{401, "", ErrAccess, "set HF_TOKEN"},
		{401, "hf_secret", ErrAccess, "the token may be wrong"},
		{403, "hf_secret", ErrAccess, "conditions not accepted"},
		{404, "", ErrNotFound, "404"},
		{400, "", nil, "400 (bad request): No such  thing"},
	} {
		h := oneFile(t, 10)
		h.onAPI = func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("X-Error-Message", "No such\u202e thing"+strings.Repeat("!", 1000))
			w.WriteHeader(tc.code)
			return true
		}
		c := h.client()
		c.Token = tc.token
		_, err := c.Pull(t.Context(), ref, PullOptions{})
		require.Error(t, err)
		if tc.is != nil {
			require.ErrorIs(t, err, tc.is)
		}
		require.ErrorContains(t, err, tc.text)
		assert.NotContains(t, err.Error(), "\u202e")
		assert.NotContains(t, err.Error(), "hf_secret")
		assert.Less(t, len(err.Error()), 600)
		assert.Equal(t, 1, h.seen("hub"), "no second try")
	}
}

// TestRedirects checks who gets the token.
func TestRedirects(t *testing.T) {
	var tokens []string
	var mu sync.Mutex
	note := func(name string, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		tokens = append(tokens, name+"="+r.Header.Get("Authorization"))
	}
	var a, b *httptest.Server
	a = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("a"+r.URL.Path, r)
		switch r.URL.Path {
		case "/1":
			http.Redirect(w, r, "/2", http.StatusFound)
		case "/2":
			http.Redirect(w, r, b.URL+"/3", http.StatusFound)
		}
	}))
	defer a.Close()
	b = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note("b"+r.URL.Path, r)
		http.Redirect(w, r, a.URL+"/4", http.StatusFound)
	}))
	defer b.Close()
	c := &Client{Endpoint: a.URL, Token: "t"}
	resp, err := c.send(t.Context(), http.MethodGet, "/1", 0)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, []string{"a/1=Bearer t", "a/2=Bearer t", "b/3=", "a/4="}, tokens)

	tokens = nil
	resp, err = c.send(t.Context(), http.MethodHead, "/1", 0)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 302, resp.StatusCode)
	assert.Equal(t, []string{"a/1=Bearer t", "a/2=Bearer t"}, tokens)

	secure := httptest.NewTLSServer(http.RedirectHandler(a.URL+"/4", http.StatusFound))
	defer secure.Close()
	tokens = nil
	c = &Client{Endpoint: secure.URL, Token: "t", Transport: secure.Client().Transport}
	_, err = c.send(t.Context(), http.MethodGet, "/1", 0)
	require.ErrorContains(t, err, "redirect refused: from https to http")
	assert.Empty(t, tokens)
}

func TestHostileListing(t *testing.T) {
	for _, name := range []string{
		"../evil.json", "/etc/evil.json", "a/../../evil.json", "..", "a//evil.json", "a/./evil.json", `..\evil.json`,
		"c:evil.json", "evil.json\x00", "evil\n.json", "a/", "evil.json. /x.json", strings.Repeat("x", 300) + ".json",
	} {
		h := newHub(t, map[string][]byte{"config.json": []byte("{}"), name: []byte("evil")})
		c := h.client()
		_, err := c.Pull(t.Context(), ref, PullOptions{Include: []string{"config.json", "*", "*/*", "*/", "*.json", "..", "a/"}})
		require.Error(t, err, "%q", name)
		assert.ErrorContains(t, err, "is not a plain relative path", "%q", name)
		entries, err := os.ReadDir(c.CacheDir)
		require.NoError(t, err)
		assert.Empty(t, entries, "%q: nothing is written", name)
	}
	h := newHub(t, map[string][]byte{"config.json": []byte("{}"), "Config.json": []byte("[]")})
	_, err := h.client().Pull(t.Context(), ref, PullOptions{Include: []string{"*"}})
	assert.ErrorContains(t, err, "twice")

	for _, tc := range []struct{ answer, err string }{
		{`{`, "not the JSON expected"},
		{`[]`, "not the JSON expected"},
		{`{"sha":"../../../x"}`, `commit "../../../x"`},
		{`{"sha":"` + commit + `","siblings":[{"rfilename":"a","lfs":{"sha256":"../x"}}]}`, `sha256 "../x"`},
		{`{"sha":"` + commit + `","siblings":[{"rfilename":"a","blobId":"../x"}]}`, `blob "../x"`},
		{`{"sha":"` + commit + `","siblings":[{"rfilename":"a","size":-5}]}`, `size -5`},
		{`{"sha":"` + commit + `","siblings":[{"rfilename":"a","size":1e30}]}`, `not the JSON expected`},
	} {
		h.onAPI = func(w http.ResponseWriter, _ *http.Request) bool { w.Write([]byte(tc.answer)); return true }
		_, err := h.client().Pull(t.Context(), ref, PullOptions{})
		assert.ErrorContains(t, err, tc.err, tc.answer)
	}

	// ETags of mirrors become names, too.
	for etag, ok := range map[string]bool{`"../../x"`: false, ``: false, `W/"abc-DEF_1"`: true, `"a/b"`: false, `"` + strings.Repeat("a", 200) + `"`: false} {
		h := newHub(t, map[string][]byte{"model.safetensors": noise(1000, 1)})
		h.bare = true
		h.onFile = func(w http.ResponseWriter, r *http.Request, name string) bool {
			w.Header().Set("ETag", etag)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(h.files[name]))
			return true
		}
		_, err := h.client().Pull(t.Context(), ref, PullOptions{})
		if ok {
			assert.NoError(t, err, etag)
		} else {
			assert.ErrorContains(t, err, "ETag", etag)
		}
	}
}

// TestConcurrentPulls runs several clients over one cache, as processes do.
func TestConcurrentPulls(t *testing.T) {
	files, large := repository()
	h := newHub(t, files, large...)
	dir := t.TempDir()
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		wg.Go(func() {
			c := h.client()
			c.CacheDir = dir
			_, errs[i] = c.Pull(t.Context(), ref, PullOptions{Parallel: 3})
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	c := h.client()
	c.CacheDir = dir
	checkSnapshot(t, h, c, chosen)
	assert.Equal(t, 3, h.seen("store GET"), "each content is fetched once")
}

func TestDiskErrors(t *testing.T) {
	if os.Getuid() == 0 {
		// The superuser may write anywhere: a file in the folder's place will do.
		h := oneFile(t, 1000)
		c := h.client()
		c.CacheDir = filepath.Join(c.CacheDir, "file")
		require.NoError(t, os.WriteFile(c.CacheDir, nil, 0o600))
		_, err := c.Pull(t.Context(), ref, PullOptions{})
		require.ErrorContains(t, err, c.CacheDir)
		return
	}
	h := oneFile(t, 1000)
	c := h.client()
	require.NoError(t, os.Chmod(c.CacheDir, 0o500))
	_, err := c.Pull(t.Context(), ref, PullOptions{})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, c.CacheDir)
}

// TestDiskFull writes to the device that is always full.
func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs /dev/full: ", err)
	}
	defer full.Close()
	h := oneFile(t, 1000)
	c := h.client()
	s, err := c.Resolve(t.Context(), ref)
	require.NoError(t, err)
	var at int64
	p := &part{j: &job{c: c, s: s, o: new(PullOptions)}, f: &s.Files[0], out: full, at: &at, sum: newSum(&s.Files[0])}
	_, err = p.transfer(t.Context())
	require.ErrorContains(t, err, "no space left on device (0 of 1000 bytes are there and will be continued)")
	var temp *temporary
	require.False(t, errors.As(err, &temp), "not tried again")
}

func TestParseRef(t *testing.T) {
	for s, want := range map[string]Ref{
		"a/b":                      {"a", "b", ""},
		"Qwen/Qwen2.5-0.5B":        {"Qwen", "Qwen2.5-0.5B", ""},
		"meta-llama/x_y@refs/pr/1": {"meta-llama", "x_y", "refs/pr/1"},
		"a/b@v1.0":                 {"a", "b", "v1.0"},
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
	_, err := new(Client).Find(Ref{"..", "..", "x"})
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
				c.Token = "" // whatever this user has
			}
			assert.Equal(t, tc.want, *c)
		})
	}
	clear(t)
	t.Setenv("HF_ENDPOINT", "ftp://x")
	_, err = New()
	assert.ErrorContains(t, err, "HF_ENDPOINT")

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

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for s, want := range map[string]time.Duration{
		"": 0, "x": 0, "-5": 0, "12": 12 * time.Second, "99999999999999999999": 0,
		"Fri, 02 Jan 2026 03:04:35 GMT": 30 * time.Second, "Thu, 01 Jan 2026 00:00:00 GMT": 0,
	} {
		assert.Equal(t, want, retryAfter(s, now), s)
	}
}

func TestCopyFile(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	require.NoError(t, os.WriteFile(from, noise(100_000, 1), 0o666))
	require.NoError(t, copyFile(to, from))
	got, err := os.ReadFile(to)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(noise(100_000, 1), got))
}

// FuzzParseSnapshot feeds answers of a hostile hub: no panic, and whatever is
// accepted is within bounds.
func FuzzParseSnapshot(f *testing.F) {
	files, large := repository()
	h := &fakeHub{files: files, large: make(map[string]bool)}
	for _, n := range large {
		h.large[n] = true
	}
	f.Add(h.listing())
	f.Add([]byte(`{"sha":"` + commit + `","siblings":[{"rfilename":"../a","size":3}]}`))
	f.Add([]byte(`{"sha":"` + commit + `","siblings":[{"rfilename":"config.json","lfs":{"sha256":"` + sha256Of(nil) + `"}},{"rfilename":"model.safetensors"}]}`))
	f.Add([]byte(`null`))
	root := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := parseSnapshot(data)
		if err != nil {
			return
		}
		for _, file := range s.Files {
			if file.Size < -1 || file.Size > maxSize || file.Hash != "" && !isBlobName(file.Hash) {
				t.Errorf("accepted %+v", file)
			}
		}
		list, err := choose(s, &PullOptions{Include: []string{"*", "*/", "*/*"}}, nil)
		if err != nil {
			return
		}
		for _, file := range list {
			path := filepath.Join(root, filepath.FromSlash(file.Name))
			if rel, err := filepath.Rel(root, path); err != nil || !filepath.IsLocal(rel) || rel == "." {
				t.Errorf("%q leaves its folder", file.Name)
			}
		}
	})
}

func FuzzParseIndex(f *testing.F) {
	f.Add([]byte(`{"weight_map":{"a":"b.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../../b"}}`))
	f.Add([]byte(`{"weight_map":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &Snapshot{Commit: commit, Files: []File{{Name: weightsIndex}, {Name: "b.safetensors"}}}
		list, err := choose(s, new(PullOptions), data)
		if err == nil && len(list) != 1 && len(list) != 2 {
			t.Errorf("chose %v", list)
		}
	})
}
