package arch

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShapesCountTheirParameters compares shapes with the numbers of parameters that
// the checkpoints were published with.
func TestShapesCountTheirParameters(t *testing.T) {
	published := map[string]int64{
		"qwen2.5-0.5b":   494_032_768,
		"qwen2.5-1.5b":   1_543_714_304,
		"qwen2.5-7b":     7_615_616_512,
		"llama-3.2-1b":   1_235_814_400,
		"llama-3.2-3b":   3_212_749_824,
		"llama-3.1-8b":   8_030_261_248,
		"mistral-7b":     7_248_023_552,
		"tinyllama-1.1b": 1_100_048_384,
		"qwen3-30b-a3b":  30_532_122_624,
		"gemma-3-1b":     999_885_952,
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
		layers := c.LayerParams(0)
		for _, p := range c.Plans() {
			for role := RoleAttnNorm; role < roleQKV; role++ {
				if shape := p.Shape(c, role); len(shape) == 1 {
					layers += int64(shape[0])
				}
			}
		}
		embeddings := c.Vocab * c.Hidden
		if !c.TiedEmbeddings {
			embeddings *= 2
		}
		require.EqualValues(t, want, int64(embeddings)+layers+int64(c.Hidden), name)
	}
}

// TestLayerParamsOfExperts: with few tokens, only experts that they can have chosen count.
func TestLayerParamsOfExperts(t *testing.T) {
	c, err := ShapeConfig("qwen3-30b-a3b")
	require.NoError(t, err)
	expert := int64(48 * 3 * 2048 * 768)
	require.Equal(t, c.LayerParams(0)-120*expert, c.LayerParams(1))
	require.Equal(t, c.LayerParams(0)-112*expert, c.LayerParams(2))
	require.Equal(t, c.LayerParams(0), c.LayerParams(16))
	c.Layers, c.Windows = 3, c.Windows[:3]
	require.Equal(t, c.LayerParams(0)-3*120*expert/48, c.LayerParams(1))
}
