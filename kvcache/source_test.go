package kvcache

import (
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
	require.NoError(t, c.SaveFile(path, nil))
	mapped := arena.Mapped()
	d, _, err := LoadFile(path, Options{})
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
	_, _, err = f.Load(Options{})
	require.ErrorContains(t, err, "became shorter")

	_, _, err = LoadFile(t.TempDir(), Options{})
	require.ErrorContains(t, err, "regular file")
	for _, n := range []int64{0, 5, 8, 100} {
		require.NoError(t, os.Truncate(path, n))
		_, _, err = LoadFile(path, Options{})
		require.Error(t, err)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), "address space", "%d bytes", n)
	}
}
