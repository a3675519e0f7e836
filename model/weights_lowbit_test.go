package model

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// writeLowbit writes a copy of a golden model twice: with its matrices as 8-bit integers
// with a scale for each row, and with the numbers that these stand for. edit may change what
// is stored of the first.
func writeLowbit(t *testing.T, edit func(named []safetensors.Named) []safetensors.Named) (packed, plain string) {
	source := filepath.Join("testdata", "models", "llama32-tied-bf16")
	c, err := safetensors.OpenCheckpoint(source)
	require.NoError(t, err)
	defer c.Close()
	var few, many []safetensors.Named
	for name, x := range c.All() {
		module, ok := strings.CutSuffix(name, "_proj.weight")
		if !ok {
			few, many = append(few, safetensors.Named{Name: name, Tensor: x}), append(many, safetensors.Named{Name: name, Tensor: x})
			continue
		}
		module += "_proj"
		rows, cols := x.Shape[0], x.Shape[1]
		w, q, scales := x.Float32s(nil), make([]byte, rows*cols), make([]float32, rows)
		for r := range rows {
			top := float32(0)
			for _, v := range w[r*cols : (r+1)*cols] {
				top = max(top, v, -v)
			}
			scales[r] = tensor.BF16ToF32(tensor.F32ToBF16(top / 127))
			for k := range cols {
				v := max(-128, min(127, math.Round(float64(w[r*cols+k]/scales[r]))))
				q[r*cols+k] = byte(int8(v))
				w[r*cols+k] = float32(v) * scales[r]
			}
		}
		few = append(few,
			safetensors.Named{Name: module + ".weight", Tensor: tensor.Tensor{Type: tensor.I8, Shape: x.Shape, Data: q}},
			safetensors.Named{Name: module + ".weight_scale", Tensor: tensor.FromF32s(tensor.BF16, scales, rows, 1)})
		many = append(many, safetensors.Named{Name: name, Tensor: tensor.FromF32s(tensor.F32, w, rows, cols)})
	}
	if edit != nil {
		few = edit(few)
	}
	text, err := os.ReadFile(filepath.Join(source, "config.json"))
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, json.Unmarshal(text, &config))
	write := func(named []safetensors.Named) string {
		dir := t.TempDir()
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, safetensors.SingleName), named, nil))
		text, err := json.Marshal(config)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
		return dir
	}
	plain = write(many)
	config["quantization_config"] = map[string]any{
		"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": []string{"lm_head"},
		"config_groups": map[string]any{"group_0": map[string]any{
			"targets": []string{"Linear"}, "weights": map[string]any{"num_bits": 8, "type": "int", "symmetric": true, "strategy": "channel"},
		}},
	}
	return write(few), plain
}

// TestLowbit: a checkpoint of integers gives the bits of one of the numbers that they stand
// for, in f32 precision.
func TestLowbit(t *testing.T) {
	packed, plain := writeLowbit(t, nil)
	tokens := []int32{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5}
	var logits [2][]float32
	for i, dir := range []string{packed, plain} {
		m, err := Open(t.Context(), dir, WithPrecision(PrecisionF32), WithThreads(2))
		require.NoError(t, err)
		if i == 0 {
			require.Equal(t, tensor.Q8_0, m.Weights().Layers[0].Tensors[arch.RoleQ].Type, "exactly, in blocks")
			require.Less(t, m.WeightBytes(), int64(1<<20))
		}
		s, err := m.NewSession(SessionOptions{})
		require.NoError(t, err)
		logits[i] = prefillLogits(t, s, tokens)
		require.NoError(t, s.Close())
		require.NoError(t, m.Close())
	}
	require.Equal(t, logits[1], logits[0])
}

// TestLowbitRefuses: what cannot be right is refused when the checkpoint is opened.
func TestLowbitRefuses(t *testing.T) {
	const module = "model.layers.0.mlp.down_proj"
	for want, edit := range map[string]func(named []safetensors.Named) []safetensors.Named{
		"weight_scale\" is missing": func(named []safetensors.Named) []safetensors.Named {
			var out []safetensors.Named
			for _, x := range named {
				if x.Name != module+".weight_scale" {
					out = append(out, x)
				}
			}
			return out
		},
		"no such bias, expected zeros": func(named []safetensors.Named) []safetensors.Named {
			return append(named, safetensors.Named{Name: module + ".bias", Tensor: tensor.FromF32s(tensor.F16, []float32{0, 0.5}, 2)})
		},
	} {
		packed, _ := writeLowbit(t, edit)
		_, err := Open(t.Context(), packed)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, module)
	}
	packed, _ := writeLowbit(t, func(named []safetensors.Named) []safetensors.Named {
		return append(named, safetensors.Named{Name: module + ".bias", Tensor: tensor.FromF32s(tensor.F16, []float32{0, 0}, 2)})
	})
	m, err := Open(t.Context(), packed)
	require.NoError(t, err, "a bias of zeros is none")
	require.NoError(t, m.Close())
}
