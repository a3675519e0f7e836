package hub

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
)

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
	assert.Equal(t, []remoteFile{{"a", 5, id64}, {"b", 6, id64}, {"c", 0, id40}, {"d", -1, ""}}, s.Files)
	for _, n := range []int{39, 41, 63, 65} {
		_, err := parseSnapshot([]byte(`{"sha":"` + commit + `","siblings":[{"rfilename":"b","blobId":"` + strings.Repeat("c", n) + `"}]}`))
		assert.ErrorContains(t, err, "expected 40 or 64 hexadecimal digits", "%d digits", n)
	}
}

// TestListingStalls has a hub that begins its listing and goes silent, and one
// that sends an occasional byte without end.
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

	// Mirrors' ETags become names, too.
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
		defer testfuzz.Bound(t, len(data))()
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
		defer testfuzz.Bound(t, len(data))()
		s := &snapshot{Commit: commit, Files: []remoteFile{{Name: weightsIndex}, {Name: "b.safetensors"}}}
		list, err := choose(s, new(PullOptions), data)
		if err == nil && len(list) != 1 && len(list) != 2 {
			t.Errorf("chose %v", list)
		}
	})
}
