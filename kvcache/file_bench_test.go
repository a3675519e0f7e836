package kvcache

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// BenchmarkFile saves and loads a cache of 68 MB, the file being in the page cache.
func BenchmarkFile(b *testing.B) {
	checking = func() bool { return false }
	defer func() { checking = func() bool { return true } }()
	const layers, heads, dim, tokens = 8, 4, 64, 8192
	c := open(b, Options{Layers: layers, KVHeads: heads, HeadDim: dim, Type: tensor.BF16})
	pos := span(0, tokens)
	k, v := rows(pos, dim, dim)
	for i := range layers * heads {
		require.NoError(b, c.Append(i/heads, i%heads, pos, k, v, dim))
	}
	path := filepath.Join(b.TempDir(), "cache")
	require.NoError(b, c.SaveFile(b.Context(), path, nil))
	b.Run("load", func(b *testing.B) {
		b.SetBytes(c.Bytes())
		for b.Loop() {
			d, _, err := LoadFile(b.Context(), path, Options{LoadHuge: true})
			require.NoError(b, err)
			require.NoError(b, d.Close())
		}
	})
	b.Run("save", func(b *testing.B) {
		b.SetBytes(c.Bytes())
		for b.Loop() {
			require.NoError(b, c.Save(b.Context(), discard{}, nil))
		}
	})
}

// discard is io.Discard without its other methods, which callers could use instead of Write.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }
