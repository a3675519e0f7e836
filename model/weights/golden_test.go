package weights

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// modelsDir returns the folder of the golden models; LUKV_GOLDEN_MODELS names
// another one with the same layout.
func modelsDir() string {
	if dir := os.Getenv("LUKV_GOLDEN_MODELS"); dir != "" {
		return dir
	}
	return filepath.Join("..", "testdata", "models")
}

// TestGoldenConfigs compares the configs of the golden models with their list in
// cases.json, and loads their weights.
func TestGoldenConfigs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(modelsDir(), "cases.json"))
	require.NoError(t, err)
	var list struct {
		Cases []struct {
			Name   string
			Arch   string `json:"model_type"`
			Type   string `json:"weights_dtype"`
			Hidden int
			Layers int
			Heads  int
			KV     int `json:"kv_heads"`
			Dim    int `json:"head_dim"`
			FFN    int
			Vocab  int
			Debug  *string
		}
	}
	require.NoError(t, json.Unmarshal(text, &list))
	checks := 0
	for _, want := range list.Cases {
		dir := filepath.Join(modelsDir(), want.Name)
		c, err := arch.Load(dir)
		if !assert.NoError(t, err, want.Name) {
			continue
		}
		assert.Equal(t, []any{want.Arch, want.Hidden, want.Layers, want.Heads, want.KV, want.Dim, want.FFN, want.Vocab},
			[]any{c.Arch, c.Hidden, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.Intermediate, c.Vocab}, want.Name)
		w, err := Load(dir, c)
		if !assert.NoError(t, err, want.Name) {
			continue
		}
		types := map[string]tensor.Type{"bfloat16": tensor.BF16, "float16": tensor.F16, "float32": tensor.F32}
		assert.Equal(t, types[want.Type], w.Embed.Type, want.Name)
		assert.Equal(t, types[want.Type], c.Type, want.Name)
		checks += 2
		if want.Debug != nil {
			checkKeys(t, dir, *want.Debug, c, w)
			checks++
		}
		assert.NoError(t, w.Close())
	}
	fmt.Printf("golden models (configs, weights, keys of layer 0): %d checks\n", checks)
	t.Logf("golden models (configs, weights, keys of layer 0): %d checks", checks)
	require.NotZero(t, checks)
}

// checkKeys compares the keys of layer 0, after rotation, with a golden model's
// debug tensors: embedding, norm, projection, head norm and rotation in float64.
func checkKeys(t *testing.T, dir, debug string, c *arch.Config, w *Weights) {
	t.Helper()
	f, err := safetensors.Open(filepath.Join(dir, debug))
	require.NoError(t, err)
	defer f.Close()
	get := func(name string, dims ...int) []float32 {
		x, ok := f.Tensor(name)
		require.True(t, ok, name)
		require.True(t, x.HasShape(dims...), "%s %v", name, x)
		return x.Float32s(nil)
	}
	const n = 48
	hidden := get("hidden_states.0", n, c.Hidden)
	want := get("layers.0.key", c.KVHeads, n, c.HeadDim)
	l := &w.Layers[0]
	norm, proj := l.Tensors[arch.RoleAttnNorm].Float32s(nil), l.Tensors[arch.RoleK].Float32s(nil)
	ropes, err := arch.NewRopes(c)
	require.NoError(t, err)
	rms := func(x []float64, w []float32) {
		sum := 0.0
		for _, v := range x {
			sum += v * v
		}
		s := 1 / math.Sqrt(sum/float64(len(x))+c.NormEps)
		for i := range x {
			x[i] *= s * float64(w[i])
		}
	}
	half := c.HeadDim / 2
	x, k := make([]float64, c.Hidden), make([]float64, c.HeadDim)
	cos, sin := make([]float32, half), make([]float32, half)
	largest, deviation := 0.0, 0.0
	for pos := range n {
		for i := range x {
			x[i] = float64(hidden[pos*c.Hidden+i])
		}
		rms(x, norm)
		ropes[0].Row(pos, n, cos, sin)
		for h := range c.KVHeads {
			for e := range k {
				k[e] = 0
				for i, v := range proj[(h*c.HeadDim+e)*c.Hidden:][:c.Hidden] {
					k[e] += x[i] * float64(v)
				}
			}
			if c.QKNorm {
				rms(k, l.Tensors[arch.RoleKNorm].Float32s(nil))
			}
			for i := range half {
				a, b, co, si := k[i], k[i+half], float64(cos[i]), float64(sin[i])
				k[i], k[i+half] = a*co-b*si, b*co+a*si
			}
			for e, v := range k {
				ref := float64(want[(h*n+pos)*c.HeadDim+e])
				largest, deviation = max(largest, math.Abs(ref)), max(deviation, math.Abs(ref-v))
			}
		}
	}
	t.Logf("%s: keys of layer 0 deviate by %.2g of the largest", filepath.Base(dir), deviation/largest)
	assert.Less(t, deviation/largest, 1e-6, dir)
}
