package arch

// Phi 3, 3.5 and 4 (Abdin et al., 2024): a Llama with fused matrices, a part of each head
// that does not turn, and frequencies divided by lists of factors (longrope).
var phi3Family = family{
	arch: "phi3", class: "Phi3ForCausalLM", gguf: "phi3",
	models: "Phi 3, 3.5, 4, 4 mini",
	tensors: llamaTensors.with(
		tensorNames{roleQKV, "self_attn.qkv_proj.weight", "attn_qkv.weight"},
		tensorNames{roleGateUp, "mlp.gate_up_proj.weight", "ffn_up.weight"},
	),
	defaults: configDefaults{maxPositions: 4096, eps: 1e-5, partial: true, longrope: true, original: 4096},
	read: func(o object, c *Config) {
		width := 0
		if o.Has("sliding_window") {
			width = o.slidingWindow()
		}
		if width >= c.MaxPositions { // as most of them have it: every token sees all others
			width = 0
		}
		o.oneWindow(c, width)
	},
}
