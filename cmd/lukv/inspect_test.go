package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/lukv/solve"
)

func TestInspectCheckpoint(t *testing.T) {
	dir := checkpoint(t, nil)
	for _, name := range []string{"builtin", dir} {
		out := ok(t, "inspect", name, "--tensors")
		assert.Contains(t, out, "4.10 million")
		assert.Contains(t, out, "model.layers.5.mlp.down_proj.weight")
		info := decode[checkpointInfo](t, ok(t, "inspect", name, "--json"))
		assert.Equal(t, 6, info.Config.Layers)
		assert.Equal(t, 3072, info.CacheBytes["bf16"])
		assert.Equal(t, 2176, info.Vocabulary)
		assert.Empty(t, info.Unused)
	}
	out := ok(t, "inspect", filepath.Join(dir, "model.safetensors"))
	assert.Contains(t, out, "tensors")
	assert.Contains(t, ok(t, "inspect", filepath.Join(dir, "model.safetensors"), "--json"), `"kind": "tensors"`)
}

func TestInspectProfile(t *testing.T) {
	path := builtinProfileFile(t)
	dir := t.TempDir()
	svg := filepath.Join(dir, "map.svg")
	out := ok(t, "inspect", path, "--ratio", "0.9", "--svg", svg)
	assert.Contains(t, out, "snapkv")
	assert.Contains(t, out, "KV head")
	assert.NotContains(t, out, "\x1b")
	info := decode[profileInfo](t, ok(t, "inspect", path, "--json"))
	assert.Len(t, info.Levels, solve.Levels)
	assert.InDelta(t, 0.8, info.HeatMap.Mean, 0.02)

	data, err := os.ReadFile(svg)
	require.NoError(t, err)
	d := xml.NewDecoder(bytes.NewReader(data))
	cells := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if s, ok := tok.(xml.StartElement); ok && s.Name.Local == "rect" {
			cells++
		}
	}
	assert.Equal(t, 1+24+50, cells, "background, heads, colour bar")
	assert.Contains(t, string(data), "lukv inspect")

	p, err := lukv.LoadProfile(path)
	require.NoError(t, err)
	npy := filepath.Join(dir, "ratios.npy")
	f, err := os.Create(npy)
	require.NoError(t, err)
	require.NoError(t, p.WriteNPY(f))
	require.NoError(t, f.Close())
	assert.Contains(t, ok(t, "inspect", npy), "6 layers of 4 KV heads")

	other := filepath.Join(dir, "notes.txt")
	require.NoError(t, os.WriteFile(other, []byte("neither this nor that"), 0o644))
	fails(t, exitFailed, "neither", "inspect", other)
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o644))
	fails(t, exitFailed, "neither", "inspect", empty)
	fails(t, exitFailed, "none", "inspect", filepath.Join(dir, "none"))
	fails(t, exitFailed, "no/such", "inspect", path, "--svg", filepath.Join(dir, "no/such.svg"))
	holds(t, dir, "map.svg", "ratios.npy", "notes.txt", "empty")
}
