package arch

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// wantFreq computes frequencies from the definitions, in terms of wavelengths,
// with package math.
func wantFreq(c *Config, seqLen int) (freq []float64, factor float64) {
	rc, d := c.Rope, float64(c.HeadDim)
	theta := rc.Theta
	if n, m := float64(seqLen), float64(c.MaxPositions); rc.Type == "dynamic" && n > m {
		theta *= math.Pow(rc.Factor*n/m-(rc.Factor-1), d/(d-2))
	}
	factor = 1
	o := float64(rc.OriginalMax)
	if o == 0 {
		o = float64(c.MaxPositions)
	}
	for i := range c.HeadDim / 2 {
		f := math.Pow(theta, -2*float64(i)/d)
		switch rc.Type {
		case "linear":
			f /= rc.Factor
		case "llama3":
			w := 2 * math.Pi / f
			if s := (o/w - rc.LowFreq) / (rc.HighFreq - rc.LowFreq); w > o/rc.LowFreq {
				f /= rc.Factor
			} else if w >= o/rc.HighFreq {
				f = (1-s)*f/rc.Factor + s*f
			}
		case "yarn":
			at := func(turns float64) float64 { return d * math.Log(o/(2*math.Pi*turns)) / (2 * math.Log(theta)) }
			low, high := math.Max(math.Floor(at(32)), 0), math.Min(math.Ceil(at(1)), d-1)
			if low == high {
				high += 0.001
			}
			ramp := math.Max(0, math.Min(1, (float64(i)-low)/(high-low)))
			f = f/rc.Factor*ramp + f*(1-ramp)
			factor = 0.1*math.Log(rc.Factor) + 1
		}
		freq = append(freq, f)
	}
	return freq, factor
}

func TestRopeFrequencies(t *testing.T) {
	cases := map[string]struct {
		rc  RopeConfig
		dim int
		max int
	}{
		"default":             {RopeConfig{Theta: 1e4}, 64, 2048},
		"named default":       {RopeConfig{Theta: 1e6, Type: "default"}, 128, 2048},
		"linear":              {RopeConfig{Theta: 1e4, Type: "linear", Factor: 4}, 64, 2048},
		"dynamic":             {RopeConfig{Theta: 1e4, Type: "dynamic", Factor: 2}, 8, 64},
		"dynamic from one on": {RopeConfig{Theta: 1e4, Type: "dynamic", Factor: 2}, 8, 1},
		"llama 3.1":           {RopeConfig{Theta: 5e5, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 8192}, 128, 131072},
		"llama 3.2":           {RopeConfig{Theta: 5e5, Type: "llama3", Factor: 32, LowFreq: 1, HighFreq: 4, OriginalMax: 8192}, 64, 131072},
		"qwen 2.5 yarn":       {RopeConfig{Theta: 1e6, Type: "yarn", Factor: 4, OriginalMax: 32768}, 128, 32768},
		"yarn without length": {RopeConfig{Theta: 1e6, Type: "yarn", Factor: 4}, 32, 64},
	}
	for name, c := range cases {
		cfg := &Config{HeadDim: c.dim, MaxPositions: c.max, Rope: c.rc}
		r, err := newRope(cfg)
		require.NoError(t, err, name)
		for _, n := range []int{1, c.max, c.max + 1, 5 * c.max} {
			want, factor := wantFreq(cfg, n)
			got := r.InvFreq(n)
			require.Len(t, got, len(want))
			for i := range want {
				assert.InEpsilon(t, want[i], got[i], 1e-13, "%s, length %d, frequency %d", name, n, i)
			}
			assert.InEpsilon(t, factor, r.AttentionFactor(), 1e-14, name)

			cos, sin := make([]float32, c.dim/2), make([]float32, c.dim/2)
			for _, pos := range []int{0, 1, n - 1, 131071} {
				r.Row(pos, n, cos, sin)
				for i, f := range got {
					s, c := math.Sincos(float64(pos) * f)
					assert.InDelta(t, factor*c, cos[i], 2e-7, "%s: cosine %d at %d", name, i, pos)
					assert.InDelta(t, factor*s, sin[i], 2e-7, "%s: sine %d at %d", name, i, pos)
				}
			}
		}
		assert.Equal(t, c.rc.Type == "dynamic", r.Dynamic(), name)
	}
}

func TestYarnOptions(t *testing.T) {
	base := RopeConfig{Theta: 1e4, Type: "yarn", Factor: 40, OriginalMax: 4096}
	with := func(change func(*RopeConfig)) *Rope {
		rc := base
		change(&rc)
		r, err := newRope(&Config{HeadDim: 64, MaxPositions: 163840, Rope: rc})
		require.NoError(t, err)
		return r
	}
	plain := with(func(*RopeConfig) {})
	assert.Equal(t, 1.25, with(func(rc *RopeConfig) { rc.AttentionFactor = 1.25 }).AttentionFactor())
	assert.Equal(t, 1.0, with(func(rc *RopeConfig) { rc.MScale, rc.MScaleAllDim = 0.7, 0.7 }).AttentionFactor())
	assert.InEpsilon(t, (0.1*0.5*math.Log(40)+1)/(0.1*0.7*math.Log(40)+1),
		with(func(rc *RopeConfig) { rc.MScale, rc.MScaleAllDim = 0.5, 0.7 }).AttentionFactor(), 1e-14)
	assert.Equal(t, plain.AttentionFactor(), with(func(rc *RopeConfig) { rc.MScale = 0.5 }).AttentionFactor(), "both or none")
	assert.Equal(t, plain.InvFreq(1), with(func(rc *RopeConfig) { rc.BetaFast, rc.BetaSlow = 32, 1 }).InvFreq(1), "the defaults")
	// Rounding the ends of the ramp outwards moves only what lies on it.
	a, b := plain.InvFreq(1), with(func(rc *RopeConfig) { rc.NoTruncate = true }).InvFreq(1)
	assert.NotEqual(t, a, b)
	assert.Equal(t, a[0], b[0])
	assert.Equal(t, a[31], b[31])
}

// TestRopeBits pins cosines and sines: they must be the same on every
// architecture. The sum changes only when the arithmetic does.
func TestRopeBits(t *testing.T) {
	h := fnv.New64a()
	cos, sin := make([]float32, 32), make([]float32, 32)
	var buf []byte
	for _, rc := range []RopeConfig{
		{Theta: 1e4},
		{Theta: 1e4, Type: "linear", Factor: 3},
		{Theta: 1e4, Type: "dynamic", Factor: 3},
		{Theta: 5e5, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 8192},
		{Theta: 1e6, Type: "yarn", Factor: 4, OriginalMax: 32768},
		{Theta: 1e6, Type: "yarn", Factor: 4, NoTruncate: true, MScale: 0.7, MScaleAllDim: 0.9},
	} {
		r, err := newRope(&Config{HeadDim: 64, MaxPositions: 2000, Rope: rc})
		require.NoError(t, err)
		for pos := 0; pos < 200000; pos += 317 {
			r.Row(pos, pos+1, cos, sin)
			for i := range cos {
				buf = binary.LittleEndian.AppendUint32(buf[:0], math.Float32bits(cos[i]))
				buf = binary.LittleEndian.AppendUint32(buf, math.Float32bits(sin[i]))
				h.Write(buf)
			}
		}
		for _, f := range r.InvFreq(5000) {
			h.Write(binary.LittleEndian.AppendUint64(buf[:0], math.Float64bits(f)))
		}
	}
	assert.Equal(t, uint64(0x8169e88ed6ca75ff), h.Sum64(), "%#x", h.Sum64())
}

func TestRopeRowAllocatesNothing(t *testing.T) {
	r, err := newRope(&Config{HeadDim: 128, MaxPositions: 64, Rope: RopeConfig{Theta: 1e4, Type: "dynamic", Factor: 2}})
	require.NoError(t, err)
	cos, sin := make([]float32, 64), make([]float32, 64)
	assert.Zero(t, testing.AllocsPerRun(10, func() { r.Row(1000, 1001, cos, sin) }))
}

func BenchmarkRopeRow(b *testing.B) {
	for _, kind := range []string{"default", "dynamic"} {
		b.Run(kind, func(b *testing.B) {
			r, err := newRope(&Config{HeadDim: 128, MaxPositions: 64, Rope: RopeConfig{Theta: 1e4, Type: kind, Factor: 2}})
			require.NoError(b, err)
			cos, sin := make([]float32, 64), make([]float32, 64)
			b.ReportAllocs()
			for b.Loop() {
				r.Row(100000, 100001, cos, sin)
			}
		})
	}
}
