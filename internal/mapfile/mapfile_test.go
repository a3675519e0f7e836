package mapfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOpen(t *testing.T) {
	page := os.Getpagesize()
	for _, size := range []int{1, 7, page - 1, page, page + 1, 3*page + 5} {
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(i*7 + i>>8)
		}
		path := filepath.Join(t.TempDir(), "data")
		require.NoError(t, os.WriteFile(path, want, 0o600))
		f, err := Open(path)
		require.NoError(t, err)
		f.WillNeed(f.Size())
		f.WillNeed(f.Size())
		assert.Equal(t, want, f.Bytes())
		assert.Equal(t, int64(size), f.Size())
		assert.Equal(t, path, f.Path())
		require.NoError(t, f.Close())
		require.NoError(t, f.Close(), "closing twice")
		assert.Nil(t, f.Bytes())
		f.WillNeed(f.Size()) // after Close: nothing happens
	}
}

func TestOpenEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	f, err := Open(path)
	require.NoError(t, err)
	f.WillNeed(f.Size())
	assert.Empty(t, f.Bytes())
	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
}

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(dir)
	assert.ErrorContains(t, err, "directory")
	assert.ErrorContains(t, err, filepath.Base(dir))
	missing := filepath.Join(dir, "missing")
	_, err = Open(missing)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "missing")
	if info, statErr := os.Stat(os.DevNull); statErr == nil && !info.Mode().IsRegular() {
		_, err = Open(os.DevNull)
		assert.ErrorContains(t, err, "special file")
	}
}

// A mapping must not depend on the file's name after Open.
func TestReplacedFileKeepsOldBytes(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	require.NoError(t, os.WriteFile(path, []byte("old contents"), 0o600))
	require.NoError(t, os.WriteFile(other, []byte("new"), 0o600))
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	if err := os.Rename(other, path); err != nil {
		t.Skipf("this system does not replace a mapped file: %v", err)
	}
	assert.Equal(t, "old contents", string(f.Bytes()))
}

func TestCloseConcurrently(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(path, []byte("x"), 0o600))
	f, err := Open(path)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { assert.NoError(t, f.Close()) })
	}
	wg.Wait()
}

// Close ends WillNeed before it removes the mapping.
func TestCloseDuringWillNeed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, os.Truncate(path, 64<<20)) // a hole takes no disk space
	for range 20 {
		f, err := Open(path)
		require.NoError(t, err)
		f.WillNeed(f.Size())
		require.NoError(t, f.Close())
		select {
		case <-f.ended:
		default:
			t.Fatal("WillNeed goes on after Close")
		}
	}
}
