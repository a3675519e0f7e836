package command

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/embedded"
)

// The allocator that probe writes is one that run accepts.
func TestProbe(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "probes.jsonl")
	p := embedded.Probes()
	assert.Greater(t, len(p), 40)
	var lines []string
	for _, i := range []int{4, 5} {
		line, err := json.Marshal(p[i])
		require.NoError(t, err)
		lines = append(lines, string(line))
	}
	require.NoError(t, os.WriteFile(data, []byte(strings.Join(lines, "\n")), 0o644))
	file := filepath.Join(dir, "headkv.json")
	ok(t, "probe", "builtin", "--data", data, "-o", file)
	allocator, err := os.ReadFile(file)
	require.NoError(t, err)
	_, path := sample(t, "niah_single_2", 512)
	r := decode[runResult](t, ok(t, "run", "builtin", "-c", path, "--json", "--ratio", "0.8", "--allocator", string(allocator), "Who?"))
	assert.Equal(t, "headkv", r.Policy.Allocator.Name)
	assert.Less(t, r.Stats.LayerRatios[1], r.Stats.LayerRatios[5], "the layer that finds things keeps more")
	assert.Equal(t, string(allocator), ok(t, "probe", "builtin", "--data", data, "--limit", "2", "-o", "-"))

	fails(t, exitUsage, "--max-steps", "probe", "builtin", "-o", file, "--max-steps", "0")
	fails(t, exitFailed, "read "+path+": line 1", "probe", "builtin", "-o", file, "--data", path)
	fails(t, exitUsage, "--raw", "probe", "builtin", "-o", file, "--raw")
}
