package command

import (
	"bytes"
	"encoding/binary"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lukv/lukv/tensor"
)

// TestDamagedWeights: in every command that computes, weights with a NaN are an error
// that says where, not an empty answer.
func TestDamagedWeights(t *testing.T) {
	dir := checkpoint(t, func(all map[string]tensor.Tensor) {
		const name = "model.layers.1.self_attn.k_proj.weight"
		x := all[name]
		x.Data = bytes.Clone(x.Data)
		switch x.Type {
		case tensor.F32:
			binary.LittleEndian.PutUint32(x.Data, math.Float32bits(float32(math.NaN())))
		default:
			binary.LittleEndian.PutUint16(x.Data, 0x7fff) // NaN in bf16 and f16
		}
		all[name] = x
	})
	_, text := sample(t, "niah_single_2", 256)
	out := filepath.Join(t.TempDir(), "out")
	for _, args := range [][]string{
		{"run", dir, "-q", "x"}, {"run", dir, "-q", "--json", "x"}, {"run", dir, "-q", "-c", text, "--ratio", "0.5", "--save", out},
		{"chat", dir, "-q", "--load", text},
		{"profile", dir, "-q", "-o", out, "--text", text, "--questions", text, "--limit", "1"},
	} {
		code, out, msg := invoke(t, "What is it?\n", args...)
		assert.Equal(t, exitFailed, code, "%v: %s", args, msg)
		assert.Contains(t, msg, "logits are not finite numbers, first in the keys of layer 1", "%v", args)
		assert.Empty(t, out, "%v", args)
	}
}
