package arch

import (
	"fmt"
	"slices"

	"github.com/lukv/lukv/tensor"
)

// shapes are the dimensions of published checkpoints, for benchmarks with
// random weights: layers, hidden, intermediate, heads, KV heads, head dim,
// vocabulary, context, tied embeddings.
var shapes = map[string]struct {
	arch                                string
	layers, hidden, ffn, heads, kv, dim int
	vocab, context                      int
	tied                                bool
	theta                               float64
}{
	"150m":           {"llama", 12, 768, 2048, 12, 4, 64, 32000, 32768, false, 10000},
	"qwen2.5-0.5b":   {"qwen2", 24, 896, 4864, 14, 2, 64, 151936, 32768, true, 1e6},
	"llama-3.2-1b":   {"llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, true, 5e5},
	"qwen2.5-1.5b":   {"qwen2", 28, 1536, 8960, 12, 2, 128, 151936, 32768, true, 1e6},
	"llama-3.2-3b":   {"llama", 28, 3072, 8192, 24, 8, 128, 128256, 131072, true, 5e5},
	"mistral-7b":     {"mistral", 32, 4096, 14336, 32, 8, 128, 32768, 32768, false, 1e6},
	"qwen2.5-7b":     {"qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 32768, false, 1e6},
	"llama-3.1-8b":   {"llama", 32, 4096, 14336, 32, 8, 128, 128256, 131072, false, 5e5},
	"tinyllama-1.1b": {"llama", 22, 2048, 5632, 32, 4, 64, 32000, 2048, false, 10000},
}

// configs are the configurations of published checkpoints of other families.
var configs = map[string]string{
	"qwen3-30b-a3b": `{"model_type": "qwen3_moe", "num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144,
		"num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 40960,
		"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true, "rope_theta": 1e6,
		"bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16"}`,
	"gemma-3-1b": `{"model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152, "intermediate_size": 6912,
		"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "vocab_size": 262144, "max_position_embeddings": 32768,
		"sliding_window": 512, "rope_theta": 1e6, "bos_token_id": 1, "eos_token_id": 2, "dtype": "bfloat16"}`,
}

// Shapes returns the names that ShapeConfig knows, sorted.
func Shapes() []string {
	var names []string
	for n := range shapes {
		names = append(names, n)
	}
	for n := range configs {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// ShapeConfig returns the configuration of a published checkpoint's shape, for
// benchmarks with RandomWeights.
func ShapeConfig(name string) (*Config, error) {
	if text, ok := configs[name]; ok {
		return Parse([]byte(text))
	}
	s, ok := shapes[name]
	if !ok {
		return nil, fmt.Errorf("shape %q: expected one of %v", name, Shapes())
	}
	return &Config{
		Arch: s.arch, Layers: s.layers, Hidden: s.hidden, Intermediate: s.ffn,
		Heads: s.heads, KVHeads: s.kv, HeadDim: s.dim, Vocab: s.vocab, MaxPositions: s.context,
		NormEps: 1e-5, Rope: RopeConfig{Theta: s.theta}, QKVBias: s.arch == "qwen2", TiedEmbeddings: s.tied,
		Windows: make([]int, s.layers), BOS: []int{1}, EOS: []int{2}, Type: tensor.BF16,
	}, nil
}
