package hub

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// TestVerify has cached content with one bit flipped.
func TestVerify(t *testing.T) {
	files, large := repository()
	// sha256, git blob, and what is read before the others are chosen
	for _, name := range []string{"model-00001-of-00002.safetensors", "config.json", weightsIndex} {
		t.Run(name, func(t *testing.T) {
			h := newHub(t, maps.Clone(files), large...)
			c := h.client()
			_, err := c.Pull(t.Context(), ref, PullOptions{})
			require.NoError(t, err)
			wrong := bytes.Clone(files[name])
			at := len(wrong) / 2
			if name == weightsIndex {
				at = len(`{"m`) // in "metadata", which nobody reads
			}
			wrong[at] ^= 4
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

func TestCopyFile(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	require.NoError(t, os.WriteFile(from, noise(100_000, 1), 0o666))
	require.NoError(t, copyFile(to, from))
	got, err := os.ReadFile(to)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(noise(100_000, 1), got))
}
