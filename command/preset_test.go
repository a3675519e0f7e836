package command

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPreset: a preset is a whole policy, parts of which other flags replace, and the
// policy itself is reported.
func TestPreset(t *testing.T) {
	_, context := sample(t, "niah_single_2", 256)
	run := func(args ...string) runResult {
		args = append([]string{"run", "builtin", "-c", context, "--ratio", "0.5", "--max-tokens", "1", "--json"}, args...)
		return decode[runResult](t, ok(t, append(args, "x")...))
	}
	p := run("--preset", "kvpress").Policy
	assert.Equal(t, `{"name":"snapkv","window":64,"kernel":5,"pool":"avg","group":"mean","order":"pool-then-reduce","shrink_window":false}`, p.Metric.String())
	assert.True(t, p.KVPressRounding)
	p = run("--preset", "kvpress", "--metric", "chunkkv").Policy
	assert.Contains(t, p.Metric.String(), `"size":20`)
	p = run("--preset", "defensivekv", "--allocator", "uniform").Policy
	assert.Equal(t, "defensivekv", p.Metric.Name)
	assert.Equal(t, "uniform", p.Allocator.Name)
	fails(t, exitUsage, `--preset: preset "kvpres" is unknown, expected one of kvpress, snapkv`, "run", "builtin", "--ratio=0.5", "--preset=kvpres", "x")
	fails(t, exitUsage, "needs a profile", "run", "builtin", "--ratio=0.5", "--preset=duoattention", "x")

	fails(t, exitUsage, "--lookup would have no effect", "run", "builtin", "--preset=triattention", "--lookup", "x")

	e := &evalCmd{Preset: []string{"kvpress,lagkv"}, budgetLists: budgetLists{Ratio: []string{"0.5,0.8"}}, NoFull: true}
	methods, err := e.methods(nil)
	require.NoError(t, err)
	require.Len(t, methods, 4)
	assert.Equal(t, "lagkv: lagkv/uniform/0.8", methods[3].Name)
	assert.True(t, methods[0].Policy.KVPressRounding)
	assert.Equal(t, 0.8, methods[1].Policy.Ratio)
	e.Allocator = []string{"adakv"}
	methods, err = e.methods(nil)
	require.NoError(t, err)
	require.Len(t, methods, 6)
	assert.Equal(t, "snapkv/adakv/0.5", methods[4].Name)
}

// TestRatioByLayer: what was removed is reported by layer and overall, for composed
// methods, too.
func TestRatioByLayer(t *testing.T) {
	_, context := sample(t, "niah_single_2", 256)
	stats := func(args ...string) runStats {
		args = append([]string{"run", "builtin", "-c", context, "--ratio", "0.5", "--max-tokens", "1", "--json"}, args...)
		x := decode[runResult](t, ok(t, append(args, "x")...)).Stats
		require.NotEmpty(t, x.LayerRatios)
		mean := 0.0
		for _, r := range x.LayerRatios {
			mean += r / float64(len(x.LayerRatios))
		}
		assert.InDelta(t, x.Ratio, mean, 1e-9)
		return x
	}
	for _, r := range stats("--metric", `{"name":"criticalkv","metric":{"name":"chunkkv","metric":"snapkv"}}`, "--allocator", "adakv").LayerRatios {
		assert.InDelta(t, 0.5, r, 0.02, "layers do not compete")
	}
	pyramid := stats("--metric", `{"name":"chunkkv","metric":"keydiff"}`, "--allocator", "pyramidkv")
	assert.InDelta(t, 0.5, pyramid.Ratio, 0.02)
	first, last := pyramid.LayerRatios[0], pyramid.LayerRatios[len(pyramid.LayerRatios)-1]
	assert.Greater(t, last, first+0.2, "lower layers keep more")
}
