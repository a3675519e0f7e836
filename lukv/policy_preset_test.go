package lukv

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPolicyPresets: every preset compiles, describes itself in full and can be
// rebuilt from that description; nothing it names is left to a later default.
func TestPolicyPresets(t *testing.T) {
	for _, name := range PolicyPresets() {
		p, err := PresetPolicy(name, MetricConfig{})
		require.NoError(t, err, name)
		require.Zero(t, p.Ratio)
		p.Ratio = 0.5
		if name == "lukv" || name == "duoattention" {
			require.True(t, p.Allocator.NeedsProfile(), name)
			continue
		}
		c, err := p.Compile("m", CacheShape{Layers: 2, KVHeads: 2})
		require.NoError(t, err, name)
		full := c.Policy()
		require.Equal(t, p.Metric, full.Metric, name)
		require.Equal(t, p.Allocator, full.Allocator, name)
		again, err := ParsePolicy([]byte(full.String()))
		require.NoError(t, err, name)
		require.Equal(t, full.String(), again.String(), name)
	}
	p, err := PresetPolicy("kvpress", MetricConfig{})
	require.NoError(t, err)
	require.True(t, p.KVPressRounding)
	require.Equal(t, `{"name":"snapkv","window":64,"kernel":5,"pool":"avg","group":"mean","order":"pool-then-reduce","shrink_window":false}`, p.Metric.String())
	p, err = PresetPolicy("kvpress", MetricConfig{Name: "ea"})
	require.NoError(t, err)
	require.Contains(t, p.Metric.String(), `"epsilon":0}`, "kvpress' own default")
	p, err = PresetPolicy("kvpress", MetricConfig{"ea", `{"epsilon":0.5}`})
	require.NoError(t, err)
	require.Contains(t, p.Metric.String(), `"epsilon":0.5}`, "what is given stays")
	p, err = PresetPolicy("kvpress", MetricConfig{Name: "knorm"})
	require.NoError(t, err)
	require.Equal(t, `{"name":"knorm"}`, p.Metric.String())
	_, err = PresetPolicy("kvpres", MetricConfig{})
	require.ErrorContains(t, err, `preset "kvpres" is unknown, expected one of kvpress, snapkv`)
	_, err = PresetPolicy("adakv", MetricConfig{Name: "snapvk"})
	require.ErrorContains(t, err, `preset adakv: metric "snapvk" is unknown`)
}
