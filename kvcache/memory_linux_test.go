// The race detector keeps shadow memory for each byte of a cache.
//go:build !race

package kvcache

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// resident returns the bytes of the process's memory that are not of a file, such as the
// program's own. The sum over its mappings is exact; the counter in /proc/self/status lags.
func resident(t *testing.T) int64 {
	t.Helper()
	runtime.GC() // what pools keep for one collection more
	debug.FreeOSMemory()
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	require.NoError(t, err)
	_, after, ok := bytes.Cut(text, []byte("\nAnonymous:"))
	require.True(t, ok, "not found in %s", text)
	var kib int64
	_, err = fmt.Sscan(string(after), &kib)
	require.NoError(t, err)
	return kib << 10
}

// TestBytesAreResident compares the bytes that a cache reports with the growth of
// the process: 16k tokens in 12 layers, and then a random fifth of them.
func TestBytesAreResident(t *testing.T) {
	const layers, heads, dim, tokens, chunk = 12, 4, 64, 16384, 512
	k, v := make([]float32, chunk*dim), make([]float32, chunk*dim)
	for i := range k {
		k[i], v[i] = float32(i%251), float32(i%241)
	}
	slots := make([]int32, 0, tokens)
	for i := range int32(tokens) {
		if uint32(i)*2654435761>>16&1023 < 205 {
			slots = append(slots, i)
		}
	}
	before := resident(t)
	c := open(t, Options{Layers: layers, KVHeads: heads, HeadDim: dim, Type: tensor.BF16})
	slack := layers * heads * c.Stats().PageBytes
	want := func(what string, entries int) {
		t.Helper()
		grown, held, free := resident(t)-before, c.Bytes(), c.PoolStats().FreeBytes
		t.Logf("%s: process grew by %d bytes, cache holds %d, %d free for reuse", what, grown, held, free)
		require.InDelta(t, int64(entries)*(2*dim*2+4), held, float64(slack), "bytes and entries")
		// One MiB for tables and whatever else is on the Go heap.
		require.InDelta(t, grown, held+free, float64(slack+1<<20), "bytes held and growth of the process")
		require.NoError(t, c.Check())
	}
	for from := int32(0); from < tokens; from += chunk {
		for l := range layers {
			for h := range heads {
				require.NoError(t, c.Append(l, h, span(from, from+chunk), k, v, dim))
			}
		}
	}
	want("full", layers*heads*tokens)
	for l := range layers {
		for h := range heads {
			require.NoError(t, c.Keep(l, h, slots))
		}
	}
	want("after eviction", layers*heads*len(slots))
	require.InDelta(t, tokens/5, len(slots), tokens/100)

	// A fork costs nothing until it changes.
	f, err := c.Fork()
	require.NoError(t, err)
	want("forked", layers*heads*len(slots))
	require.NoError(t, f.Close())
	require.NoError(t, c.Truncate(0))
	want("empty", 0)
}

// TestLoadedBytesAreResident: a cache that may be loaded into huge pages takes what it
// reports, and what is evicted leaves the process, too.
func TestLoadedBytesAreResident(t *testing.T) {
	const layers, heads, dim, tokens = 6, 4, 64, 8000
	k, v := make([]float32, tokens*dim), make([]float32, tokens*dim)
	for i := range k {
		k[i], v[i] = float32(i%251), float32(i%241)
	}
	c := open(t, Options{Layers: layers, KVHeads: heads, HeadDim: dim, Type: tensor.BF16})
	for i := range layers * heads {
		require.NoError(t, c.Append(i/heads, i%heads, span(0, tokens), k, v, dim))
	}
	path := filepath.Join(t.TempDir(), "cache")
	require.NoError(t, c.SaveFile(t.Context(), path, nil))
	slots := span(0, tokens/5)
	before := resident(t)
	loaded, _, err := LoadFile(t.Context(), path, Options{LoadHuge: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, loaded.Close()) })
	grown := func(what string) {
		t.Helper()
		grown, held, free := resident(t)-before, loaded.Bytes(), loaded.PoolStats().FreeBytes
		t.Logf("%s: process grew by %d bytes, cache holds %d, %d free for reuse", what, grown, held, free)
		// Up to a system's page at both ends of what a head keeps, and whatever the tests
		// before have left to the garbage collector.
		require.InDelta(t, grown, held+free, float64(layers*heads*2*os.Getpagesize()+2<<20))
		require.NoError(t, loaded.Check())
	}
	grown("loaded")
	for i := range layers * heads {
		require.NoError(t, loaded.Keep(i/heads, i%heads, slots))
	}
	grown("after eviction")
	require.InDelta(t, loaded.Bytes(), c.Bytes()/5, float64(layers*heads*c.Stats().PageBytes))

	again, _, err := LoadFile(t.Context(), path, Options{LoadHuge: true})
	require.NoError(t, err)
	defer again.Close()
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want, saved(t, again, nil)), "it is what was saved")
}
