package lukv

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPresetsYield: what a configuration gives replaces what its mode says.
func TestPresetsYield(t *testing.T) {
	for mode := range decodePresets {
		for _, given := range []string{`"ratio":1e-9`, `"target_size":1`, `"interval":1`, `"buffer":1`, `"decay":0.5`, `"metric":{"name":"knorm"}`, `"prefill":true`} {
			var c DecodeConfig
			require.NoError(t, json.Unmarshal([]byte(`{"mode":"`+mode+`",`+given+`}`), &c))
			full, err := c.WithDefaults()
			require.NoError(t, err)
			data, err := json.Marshal(full)
			require.NoError(t, err)
			require.Contains(t, string(data), given, mode)
		}
	}
}

// TestEnabled: each of the three budgets, and decoding, enables a policy by itself.
func TestEnabled(t *testing.T) {
	var none *Policy
	require.False(t, none.Enabled())
	require.False(t, (&Policy{Metric: MetricConfig{Name: "knorm"}}).Enabled())
	for _, p := range []Policy{
		{Ratio: 0.01}, {BudgetTokens: 1}, {BudgetBytes: 1}, {Decode: DecodeConfig{Mode: "tova"}},
	} {
		require.True(t, p.Enabled(), p.String())
	}
}

func TestUniformShare(t *testing.T) {
	for _, x := range []struct {
		T     int
		ratio float64
		exact bool
		want  int
	}{
		{1000, 0.8, false, 199}, // as the doubles come out
		{1000, 0.8, true, 200},
		{10, 0.95, false, 0},
		{10, 0.95, true, 0},
		{0, 0.5, true, 0},
		{7, 0, true, 7},
		{7, 0, false, 7},
		{7, -1, false, 7}, // not more than there are
		{7, 1.5, false, 0},
	} {
		require.Equal(t, x.want, UniformShare(x.T, x.ratio, x.exact), "%+v", x)
	}
}

// TestAchieved counts by hand: three layers, one of which takes no part.
func TestAchieved(t *testing.T) {
	d := Demand{T: 20, Layers: 3, KVHeads: 2, Excluded: []bool{false, true, false}, Protection: Protection{Sinks: 4, Window: 2}}
	got := d.Achieved([][]int{{6, 5}, {20, 20}, {20, 1}})
	require.Equal(t, Achieved{Kept: 32, Full: 80, Ratio: 0.6, PerLayer: []float64{1 - 11./40, 0, 1 - 21./40}, Least: 1, Most: 20, Short: 2}, got)
	one := Demand{T: 1, Layers: 1, KVHeads: 1}
	require.Equal(t, 1.0, one.Achieved([][]int{{0}}).Ratio)
	none := Demand{T: 0, Layers: 1, KVHeads: 1}
	require.Zero(t, none.Achieved([][]int{{0}}).Ratio, "nothing was there")
}

func TestFinite(t *testing.T) {
	inf := float32(math.Inf(1))
	for v, want := range map[float32]bool{0: true, -3: true, math.MaxFloat32: true, inf: false, -inf: false} {
		require.Equal(t, want, finite(v), "%v", v)
	}
	require.False(t, finite(float32(math.NaN())))
}

// TestBudgetsOfAProduct: an absolute budget neither overflows nor becomes zero too
// early.
func TestBudgetsOfAProduct(t *testing.T) {
	d := Demand{T: 10, Layers: 3, KVHeads: 2}
	require.Equal(t, 42, d.DemandTokens(7).Entries)
	require.Equal(t, math.MaxInt, d.DemandTokens(math.MaxInt/2).Entries)
	require.Equal(t, 0, d.DemandTokens(0).Entries)
	require.Equal(t, 12, d.DemandBytes(99, 8).Entries)
	require.Equal(t, 99, d.DemandBytes(99, 0).Entries)
}

// TestNothingBeyondTheSinks: a context of sinks alone stays whole (spec 8), also with a
// metric whose scores keep the sinks, not its protected set; one entry more does not.
func TestNothingBeyondTheSinks(t *testing.T) {
	for _, metric := range []string{"streaming_llm", "expected_attention", "kvzip"} {
		p := Policy{Ratio: 0.5, Metric: MetricConfig{Name: metric}}
		c, err := p.Compile("m", CacheShape{Layers: 1, KVHeads: 1, BytesPerEntry: 1})
		require.NoError(t, err)
		for T := 2; T <= 4; T++ {
			d := c.Demand(T)
			require.True(t, d.NoOp(), "%s, %d entries", metric, T)
		}
		d := c.Demand(5)
		require.False(t, d.NoOp(), metric)
	}
}
