package model

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDigestCache: what was computed from the files as they are is taken from the
// folder, and nothing else: any change to a file, and any damage to what is kept, makes
// the weights be read again.
func TestDigestCache(t *testing.T) {
	ctx := context.Background()
	dir, cache := writeModel(t, 1), filepath.Join(t.TempDir(), "digests")
	weights := filepath.Join(dir, "model.safetensors")
	long := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(weights, time.Time{}, long))
	digest := func() string {
		m, err := Open(ctx, dir, WithThreads(1), WithDigestCache(cache))
		require.NoError(t, err)
		defer m.Close()
		d, err := m.Digest(ctx)
		require.NoError(t, err)
		return d
	}
	kept := func() string {
		files, err := filepath.Glob(filepath.Join(cache, "*"))
		require.NoError(t, err)
		require.Len(t, files, 1)
		return files[0]
	}
	want := digest()
	file := kept()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Contains(t, string(text), want)

	// A digest found there is believed, which shows that it is looked at.
	other := "sha256:" + strings.Repeat("0", 64)
	head, _, ok := strings.Cut(string(text), want)
	require.True(t, ok)
	signed := func(text string) string { return fmt.Sprintf("%s%x\n", text, sha256.Sum256([]byte(text))) }
	plant := func() { require.NoError(t, os.WriteFile(file, []byte(signed(head+other+"\n")), 0o600)) }
	plant()
	require.Equal(t, other, digest())

	for what, change := range map[string]func(){
		"another time": func() { require.NoError(t, os.Chtimes(weights, time.Time{}, long.Add(-time.Hour))) },
		"another inode": func() {
			data, err := os.ReadFile(weights)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(weights+".new", data, 0o600))
			require.NoError(t, os.Chtimes(weights+".new", time.Time{}, long))
			require.NoError(t, os.Rename(weights+".new", weights))
		},
		"a damaged digest": func() {
			require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), want, other, 1)), 0o600))
		},
		"half a file": func() { require.NoError(t, os.WriteFile(file, text[:len(text)/2], 0o600)) },
		"nothing":     func() { require.NoError(t, os.Remove(file)) },
		"a folder":    func() { require.NoError(t, os.Remove(file)); require.NoError(t, os.Mkdir(file, 0o700)) },
		"another path": func() {
			require.NoError(t, os.Rename(dir, dir+"x"))
			dir += "x"
			weights = filepath.Join(dir, "model.safetensors")
		},
		"another model": func() {
			require.NoError(t, os.WriteFile(file, []byte(signed(strings.Replace(head, "sha256:", "sha256:x", 1)+other+"\n")), 0o600))
		},
		"what is no folder": func() { cache = weights },
	} {
		t.Run(what, func(t *testing.T) {
			if what == "another inode" && runtime.GOOS == "windows" {
				t.Skip("there are none")
			}
			dirBefore, weightsBefore, cacheBefore := dir, weights, cache
			require.NoError(t, os.Chtimes(weights, time.Time{}, long))
			os.RemoveAll(file)
			require.Equal(t, want, digest())
			text, err = os.ReadFile(file)
			require.NoError(t, err)
			head, _, _ = strings.Cut(string(text), want)
			plant()
			require.Equal(t, other, digest())
			change()
			require.Equal(t, want, digest())
			if dir != dirBefore {
				require.NoError(t, os.Rename(dir, dirBefore))
			}
			dir, weights, cache = dirBefore, weightsBefore, cacheBefore
		})
	}

	// The digest of files that changed too recently is not kept.
	os.RemoveAll(file)
	require.NoError(t, os.Chtimes(weights, time.Time{}, time.Now()))
	require.Equal(t, want, digest())
	_, err = os.Stat(file)
	require.ErrorIs(t, err, os.ErrNotExist)
}
