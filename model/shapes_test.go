package model

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShapesCountTheirParameters compares shapes with the numbers of parameters that
// the checkpoints were published with.
func TestShapesCountTheirParameters(t *testing.T) {
	published := map[string]int{
		"qwen2.5-0.5b":   494_032_768,
		"qwen2.5-1.5b":   1_543_714_304,
		"qwen2.5-7b":     7_615_616_512,
		"llama-3.2-1b":   1_235_814_400,
		"llama-3.2-3b":   3_212_749_824,
		"llama-3.1-8b":   8_030_261_248,
		"mistral-7b":     7_248_023_552,
		"tinyllama-1.1b": 1_100_048_384,
	}
	for _, name := range Shapes() {
		c, err := ShapeConfig(name)
		require.NoError(t, err)
		require.Zero(t, c.Heads%c.KVHeads, name)
		want, ok := published[name]
		if !ok {
			require.Equal(t, "150m", name, "our own")
			continue
		}
		q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
		layer := 2*c.Hidden + 2*c.Hidden*q + 2*c.Hidden*kv + 3*c.Hidden*c.Intermediate
		if c.QKVBias {
			layer += q + 2*kv
		}
		embeddings := c.Vocab * c.Hidden
		if !c.TiedEmbeddings {
			embeddings *= 2
		}
		require.Equal(t, want, embeddings+c.Layers*layer+c.Hidden, name)
	}
}
