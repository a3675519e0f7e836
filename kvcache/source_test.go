package kvcache

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/arena"
	"github.com/lukv/lukv/tensor"
)

// TestLoadReads: a file is read, not mapped, so that one that is truncated while it
// is loaded is an error, and none of it stays in memory.
func TestLoadReads(t *testing.T) {
	c := open(t, Options{Layers: 2, KVHeads: 2, HeadDim: 64, Type: tensor.BF16})
	for i := range 4 {
		add(t, c, i/2, i%2, 0, 500)
	}
	path := filepath.Join(t.TempDir(), "cache")
	require.NoError(t, c.SaveFile(t.Context(), path, nil))
	mapped := arena.Mapped()
	d, _, err := LoadFile(t.Context(), path, Options{})
	require.NoError(t, err)
	for i := range 4 {
		wantHead(t, d, i/2, i%2, 0, span(0, 500))
	}
	require.Equal(t, c.Bytes(), d.Bytes())
	require.NoError(t, d.Close())
	require.Equal(t, mapped, arena.Mapped())

	src, err := openSource(path)
	require.NoError(t, err)
	defer src.close()
	f, err := newFile("x", src)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, 5000))
	last, _ := f.f.Tensor(sumName)
	require.ErrorContains(t, src.fetch(last.Data), "became shorter")
	_, _, err = f.Load(t.Context(), Options{})
	require.ErrorContains(t, err, "became shorter")

	_, _, err = LoadFile(t.Context(), t.TempDir(), Options{})
	require.ErrorContains(t, err, "found a directory, expected a file")
	for _, n := range []int64{0, 5, 8, 100} {
		require.NoError(t, os.Truncate(path, n))
		_, _, err = LoadFile(t.Context(), path, Options{})
		require.Error(t, err)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), "address space", "%d bytes", n)
	}
}

// TestCancelledFiles: loading and saving end soon after their context, with its cause, and
// leave nothing behind.
func TestCancelledFiles(t *testing.T) { everywhere(t, testCancelledFiles) }

func testCancelledFiles(t *testing.T, at place) {
	c := at.open(t, Options{Layers: 2, KVHeads: 2, HeadDim: 64, Type: tensor.BF16})
	for i := range 4 {
		add(t, c, i/2, i%2, 0, 3000)
	}
	file := saved(t, c, nil)
	live := arena.Live()
	enough := errors.New("enough")
	for i, after := range []int{0, len(file) / 3, len(file) / 2} {
		ctx, cancel := context.WithCancelCause(t.Context())
		counter := &counting{data: file, left: after, then: func() { cancel(enough) }}
		if after == 0 {
			cancel(enough)
		}
		require.ErrorIs(t, c.Save(ctx, counter, nil), enough)
		require.Less(t, -counter.left, 2*pieceBytes, "bytes written after the end")

		ctx, cancel = context.WithCancelCause(t.Context())
		counter.left, counter.then = after, func() { cancel(enough) }
		f, err := NewFile("x", counter, int64(len(file)))
		require.NoError(t, err)
		var seen error
		if i%2 == 0 {
			_, _, err = f.Load(ctx, at.options(Options{}))
			seen = err
		} else {
			_, _, err = f.LoadWhile(ctx, at.options(Options{}), func(_ *Cache, await func(int) error) { seen = await(1) })
		}
		require.ErrorIs(t, err, enough)
		require.ErrorIs(t, seen, enough)
		require.NoError(t, f.Close())
		require.Equal(t, live, arena.Live())
	}
	path := filepath.Join(t.TempDir(), "cache")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.SaveFile(ctx, path, nil), context.Canceled)
	require.NoFileExists(t, path)
	require.True(t, bytes.Equal(file, saved(t, c, nil)), "the cache is as it was")
}

// counting calls then when as many bytes have been read or written.
type counting struct {
	data []byte
	left int
	then func()
}

func (c *counting) count(n int) {
	if c.left -= n; c.left < 0 {
		c.then()
	}
}

func (c *counting) Write(p []byte) (int, error) {
	c.count(len(p))
	return len(p), nil
}

func (c *counting) ReadAt(p []byte, at int64) (int, error) {
	c.count(len(p))
	return bytes.NewReader(c.data).ReadAt(p, at)
}
