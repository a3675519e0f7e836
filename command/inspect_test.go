package command

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
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

// Flags that do not apply to what was found are errors, and every kind prints
// JSON of one format.
func TestInspectRefusesWhatItWouldIgnore(t *testing.T) {
	dir, profile := checkpoint(t, nil), builtinProfileFile(t)
	svg := filepath.Join(t.TempDir(), "map.svg")
	fails(t, exitUsage, "--svg", "inspect", dir, "--svg", svg)
	fails(t, exitUsage, "--ratio", "inspect", "builtin", "--ratio", "0.5")
	fails(t, exitUsage, "--tensors", "inspect", profile, "--tensors")
	fails(t, exitUsage, "--svg", "inspect", filepath.Join(dir, "model.safetensors"), "--svg", svg)
	fails(t, exitUsage, "--json", "inspect", profile, "--svg", "-", "--json")
	holds(t, filepath.Dir(svg))
	for _, path := range []string{dir, profile, filepath.Join(dir, "model.safetensors")} {
		plainJSON(t, inspectFormat, ok(t, "inspect", path, "--json"))
	}
}

// A saved session has a picture, too, and - is standard output.
func TestInspectPicture(t *testing.T) {
	s, path := sample(t, "niah_single_2", 512)
	dir := t.TempDir()
	session := filepath.Join(dir, "s.session")
	ok(t, "run", "builtin", "-c", path, "--ratio", "0.5", "--save", session, s.Question)
	for _, args := range [][]string{{session}, {builtinProfileFile(t)}} {
		out := ok(t, append([]string{"inspect", "--svg", "-"}, args...)...)
		assert.True(t, strings.HasPrefix(out, "<svg") && strings.HasSuffix(out, "</svg>\n"), "the picture and nothing else")
	}
	assert.Contains(t, ok(t, "inspect", session), "percent removed")
	plainJSON(t, inspectFormat, ok(t, "inspect", session, "--json"))
	fails(t, exitUsage, "--ratio", "inspect", session, "--ratio", "0.5")
}
