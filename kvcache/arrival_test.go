package kvcache

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// gated is a file of which no more is read than was let through.
type gated struct {
	data []byte
	upTo chan int
	open int
}

func (g *gated) ReadAt(p []byte, off int64) (int, error) {
	for int(off)+len(p) > g.open {
		n, ok := <-g.upTo
		if !ok {
			return 0, errors.New("nothing more comes")
		}
		g.open = n
	}
	return bytes.NewReader(g.data).ReadAt(p, off)
}

func TestLoadWhile(t *testing.T) { everywhere(t, testLoadWhile) }

// testLoadWhile lets a file through layer by layer, to devices at once: each layer can be
// used when it has come, and not before, and what is appended to it stays.
func testLoadWhile(t *testing.T, at place) {
	from := at.open(t, Options{Layers: 4, KVHeads: 2, HeadDim: 6, Type: tensor.BF16, PageEntries: 16})
	lengths := []int32{20, 30, 10, 50}
	for l, n := range lengths {
		add(t, from, l, 0, 0, n)
		add(t, from, l, 1, 0, n)
	}
	file := saved(t, from, nil)
	ends := layerEnds(t, file, len(lengths))
	g := &gated{data: file, upTo: make(chan int), open: ends[0] - 1}
	f, err := NewFile("x", g, int64(len(file)))
	require.NoError(t, err)
	defer f.Close()
	c, _, err := f.LoadWhile(t.Context(), at.options(Options{}), func(c *Cache, await func(int) error) {
		for l, n := range lengths {
			require.EqualValues(t, n, c.Len(l, 0), "lengths are there before entries")
			came := make(chan error, 1)
			go func() { came <- await(l) }()
			if at.device == nil || l == 0 {
				require.Empty(t, came)
				open := len(file)
				if at.device == nil && l < len(lengths)-1 {
					open = ends[l+1] - 1
				}
				g.upTo <- open
			}
			require.NoError(t, <-came)
			wantHead(t, c, l, 1, 0, span(0, n))
			add(t, c, l, 1, n, 90)
		}
	})
	require.NoError(t, err)
	for l, n := range lengths {
		wantHead(t, c, l, 0, 0, span(0, n))
		wantHead(t, c, l, 1, 0, span(0, 90))
	}
	require.NoError(t, c.Check())
	require.NoError(t, c.Close())
}

// layerEnds returns where the last entries of each layer end in a file.
func layerEnds(t *testing.T, file []byte, layers int) []int {
	f, err := safetensors.Parse("x", file)
	require.NoError(t, err)
	at, ends := len(file), make([]int, layers)
	for _, x := range f.All() {
		at -= len(x.Data)
	}
	for name, x := range f.All() {
		at += len(x.Data)
		var layer int
		if _, err := fmt.Sscanf(name, "layer.%d.", &layer); err == nil {
			ends[layer] = at
		}
	}
	return ends
}

// TestLoadWhileFails: who waits for a layer learns that it does not come, and layers that
// came before are of no use either.
func TestLoadWhileFails(t *testing.T) {
	from, err := New(Options{Layers: 3, KVHeads: 1, HeadDim: 8, PageEntries: 16})
	require.NoError(t, err)
	defer from.Close()
	for l := range 3 {
		add(t, from, l, 0, 0, 500)
	}
	file := saved(t, from, nil)
	for _, cut := range []int{len(file) / 2, len(file) - 40} {
		g := &gated{data: file, upTo: make(chan int), open: cut}
		close(g.upTo)
		f, err := NewFile("x", g, int64(len(file)))
		require.NoError(t, err)
		var seen error
		c, _, err := f.LoadWhile(t.Context(), Options{}, func(c *Cache, await func(int) error) {
			seen = await(2)
			require.Error(t, await(0))
		})
		require.Nil(t, c)
		require.ErrorContains(t, seen, "nothing more comes")
		require.ErrorIs(t, err, seen)
		require.NoError(t, f.Close())
	}
	altered := bytes.Clone(file)
	altered[len(altered)-100] ^= 1 // a value of the last layer
	f, err := NewFile("x", io.NewSectionReader(bytes.NewReader(altered), 0, int64(len(file))), int64(len(file)))
	require.NoError(t, err)
	defer f.Close()
	_, _, err = f.LoadWhile(t.Context(), Options{}, func(c *Cache, await func(int) error) {
		_ = await(2) // it may have come before the checksum
		add(t, c, 0, 0, 500, 510)
	})
	require.ErrorContains(t, err, "checksum")
}
