package arch

// Qwen 3 (Yang et al., 2025): a Llama with norms of every query and key head and a head
// dimension of its own.
var qwen3Family = family{
	arch: "qwen3", class: "Qwen3ForCausalLM", gguf: "qwen3",
	models:   "Qwen 3 0.6B to 32B",
	tensors:  llamaTensors,
	defaults: configDefaults{maxPositions: 32768, kvHeads: 32, headDim: 128},
	read: func(o object, c *Config) {
		o.qwen3Attention(c)
		o.qwenWindows(c)
	},
}

// qwen3Attention sets what the attention of Qwen 3 has beside windows.
func (o object) qwen3Attention(c *Config) {
	c.QKVBias = o.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	c.QKNorm = true
}
