package model

import (
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/tensor"
)

// TestQuantisedRandomWeights: models with random quantised weights run, and their matrices
// have the types that a file of few bits would give them.
func TestQuantisedRandomWeights(t *testing.T) {
	cfg := testShape{layers: 2, hidden: 256, ffn: 288, heads: 8, kv: 2, dim: 32}.config()
	for typ, ends := range map[tensor.Type]tensor.Type{tensor.Q8_0: tensor.Q8_0, tensor.Q4_0: tensor.Q6_K, tensor.Q4_K: tensor.Q6_K} {
		w, err := weights.Random(t.Context(), cfg, typ, 1)
		require.NoError(t, err)
		l := &w.Layers[0]
		down := typ
		if typ == tensor.Q4_K { // 288 columns are not whole blocks
			down = tensor.Q8_0
		}
		require.Equal(t, []tensor.Type{ends, typ, down, tensor.F32}, []tensor.Type{w.Embed.Type, l.Tensors[arch.RoleQ].Type, l.Tensors[arch.RoleDown].Type, l.Tensors[arch.RoleAttnNorm].Type})
		m, err := New(cfg, w)
		require.NoError(t, err)
		require.Equal(t, typ, m.WeightType())
		require.Equal(t, PrecisionInt8, m.Precision())
		s := newTestSession(t, m, SessionOptions{})
		require.NoError(t, s.Prefill(t.Context(), randomTokens(20, cfg.Vocab, 1)))
		require.NoError(t, s.Close())
		require.NoError(t, m.Close())
	}
}
