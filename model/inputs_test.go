package model

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// TestInputs compares what WithInputs shows of the first layer with a network in float64,
// with one unit and with experts. The logits stay the same.
func TestInputs(t *testing.T) {
	const dense = `{"model_type": "llama", "vocab_size": 60, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
		"num_attention_heads": 4, "num_key_value_heads": 2}`
	const mixture = `{"model_type": "qwen2_moe", "vocab_size": 60, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
		"num_attention_heads": 4, "num_key_value_heads": 2, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
		"shared_expert_intermediate_size": 80}`
	for _, text := range []string{dense, mixture} {
		cfg, err := arch.Parse([]byte(text))
		require.NoError(t, err)
		w, err := weights.Random(t.Context(), cfg, tensor.BF16, 3)
		require.NoError(t, err)
		tokens := randomTokens(40, cfg.Vocab, 5)
		seen := map[arch.Role][][]float32{}
		logits := func(opts ...Option) []float32 {
			m, err := New(cfg, w, append(opts, WithPrecision(PrecisionF32))...)
			require.NoError(t, err)
			defer m.Close()
			s := newTestSession(t, m, SessionOptions{})
			defer s.Close()
			require.NoError(t, s.Prefill(t.Context(), tokens))
			return slices.Clone(s.Logits())
		}
		want := logits()
		require.Equal(t, want, logits(WithInputs(func(layer int, role arch.Role, x []float32) {
			if layer == 0 {
				seen[role] = append(seen[role], slices.Clone(x))
			}
		})))

		l := &w.Layers[0]
		apply := func(w tensor.Tensor, x []float32) []float32 {
			out, values := make([]float32, w.Shape[0]), w.Float32s(nil)
			for i := range out {
				sum := 0.0
				for j, v := range x {
					sum += float64(v) * float64(values[i*len(x)+j])
				}
				out[i] = float32(sum)
			}
			return out
		}
		norm := func(x []float32) []float32 {
			sum := 0.0
			for _, v := range x {
				sum += float64(v) * float64(v)
			}
			out := make([]float32, len(x))
			for i, v := range x {
				out[i] = float32(float64(v) / math.Sqrt(sum/float64(len(x))+cfg.NormEps)) // weights of norms are 1
			}
			return out
		}
		gated := func(gate, up tensor.Tensor, x []float32) []float32 {
			g, u := apply(gate, x), apply(up, x)
			for i, v := range g {
				g[i] = v / (1 + float32(math.Exp(-float64(v)))) * u[i]
			}
			return g
		}
		near := func(a, b []float32) bool {
			for i := range a {
				if math.Abs(float64(a[i]-b[i])) > 1e-4 {
					return false
				}
			}
			return len(a) == len(b)
		}
		embed := w.Embed.Float32s(nil)
		for i, token := range tokens {
			x := embed[int(token)*cfg.Hidden : int(token+1)*cfg.Hidden]
			require.True(t, near(norm(x), seen[arch.RoleQ][i]), "queries of token %d", i)
			after := slices.Clone(x)
			for j, v := range apply(l.Tensors[arch.RoleO], seen[arch.RoleO][i]) {
				after[j] += v
			}
			in := seen[arch.RoleGate][i]
			require.True(t, near(norm(after), in), "output of attention of token %d", i)
			if text == dense {
				require.True(t, near(gated(l.Tensors[arch.RoleGate], l.Tensors[arch.RoleUp], in), seen[arch.RoleDown][i]), "unit of token %d", i)
				continue
			}
			require.True(t, near(gated(l.Tensors[arch.RoleSharedGate], l.Tensors[arch.RoleSharedUp], in), seen[arch.RoleSharedDown][i]), "shared expert of token %d", i)
			found := 0
			for _, e := range l.Experts {
				y := gated(e.Gate, e.Up, in)
				if slices.ContainsFunc(seen[arch.RoleExpertDown], func(x []float32) bool { return near(x, y) }) {
					found++
				}
			}
			require.GreaterOrEqual(t, found, 2, "experts of token %d", i)
		}
		if text == mixture {
			require.Len(t, seen[arch.RoleExpertDown], 2*len(tokens))
			require.Len(t, seen[arch.RoleSharedDown], len(tokens))
		}
		require.Len(t, seen[arch.RoleGate], len(tokens))
	}
	cfg := testShapes[0].config()
	_, err := New(cfg, randomWeights(t, cfg, tensor.BF16, 7), WithInputs(func(int, arch.Role, []float32) {}))
	require.ErrorContains(t, err, "in the precision f32")
}
