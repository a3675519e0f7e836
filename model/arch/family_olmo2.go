package arch

// OLMo 2 (OLMo et al., 2024): a Llama with norms after the branches instead of before
// them, and norms of queries and keys over all heads together.
var olmo2Family = family{
	arch: "olmo2", class: "Olmo2ForCausalLM", gguf: "olmo2",
	models: "OLMo 2",
	tensors: llamaTensors.with(
		tensorNames{RolePostAttnNorm, "post_attention_layernorm.weight", "post_attention_norm.weight"},
		tensorNames{RolePostMLPNorm, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
	),
	defaults: configDefaults{maxPositions: 2048, eps: 1e-5},
	read: func(o object, c *Config) {
		c.QKVBias = o.Bool("attention_bias", false)
		c.OutBias = c.QKVBias
		o.windows(c, 0, nil)
		c.amend(func(_ int, p *LayerPlan) { p.preNorm, p.postNorm, p.QKNorm = false, true, FullNorm })
	},
}
