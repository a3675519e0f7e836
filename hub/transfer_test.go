package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
			// A blob of the wrong size does not count.
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

// TestOddRanges has servers that always answer the request for the rest of a
// file with something else. The download starts over with the first byte.
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

// A transfer that got somewhere counts as the first of a new series of tries.
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

// A download that was complete when its process died is checked and named, even
// if nobody says how long the file is.
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
			p, err := c.Pull(t.Context(), ref, PullOptions{Progress: func(p Progress) {
				assert.GreaterOrEqual(t, p.Size, p.Bytes)
			}})
			require.NoError(t, err)
			assert.Zero(t, p.Fetched)
			checkSnapshot(t, h, c, []string{"model.safetensors"})
			p, err = c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			assert.EqualValues(t, len(data), p.Files[0].Size, "of what was there already")
		})
	}
}

// TestWaitsAreReported covers a hub that asks to come back later, both when
// listing and when serving, and a lock that another process holds.
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

// TestPullRefuses lists servers that are permanently wrong: one clear error, no
// blob, no ref.
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

// TestPullSignedAddress: an address that storage no longer accepts is requested anew.
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

func TestDiskErrors(t *testing.T) {
	if os.Getuid() == 0 {
		// The superuser may write anywhere, so put a file in the folder's place.
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

// TestDiskFull writes to a device that is always full.
func TestDiskFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs /dev/full: ", err)
	}
	defer full.Close()
	h := oneFile(t, 1000)
	c := h.client()
	s, err := c.resolve(t.Context(), ref, nil)
	require.NoError(t, err)
	var at int64
	p := &part{j: &job{c: c, s: s, o: new(PullOptions)}, f: &s.Files[0], out: full, at: &at, sum: newSum(&s.Files[0])}
	_, err = p.transfer(t.Context())
	require.ErrorContains(t, err, "no space left on device (0 of 1000 bytes are there and will be continued)")
	var temp *temporary
	require.False(t, errors.As(err, &temp), "not tried again")
}

// TestParallel counts the downloads in progress at a time.
func TestParallel(t *testing.T) {
	files, large := repository()
	for asked, most := range map[int]int32{1: 1, 2: 2, 0: 4} {
		h := newHub(t, files, large...)
		var now, seen atomic.Int32
		h.onFile = func(w http.ResponseWriter, r *http.Request, _ string) bool {
			n := now.Add(1)
			defer now.Add(-1)
			for old := seen.Load(); n > old && !seen.CompareAndSwap(old, n); old = seen.Load() {
			}
			sleepReally(r.Context(), 2*time.Millisecond)
			return false
		}
		_, err := h.client().Pull(t.Context(), ref, PullOptions{Parallel: asked})
		require.NoError(t, err)
		assert.LessOrEqual(t, seen.Load(), most, "asked for %d", asked)
	}
}
