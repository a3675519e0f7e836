package arch

// Llama 2 and 3 and what is built like them (Touvron et al., 2023; Dubey et al., 2024):
// RMS norms before attention and MLP, grouped queries, rotation of half-split pairs, SwiGLU.
var llamaFamily = family{
	arch: "llama", class: "LlamaForCausalLM", gguf: "llama", interleaved: true,
	models:   "Llama 2, 3, 3.1, 3.2, 3.3, TinyLlama, SmolLM 2, DeepSeek-R1-Distill-Llama",
	tensors:  llamaTensors,
	defaults: configDefaults{maxPositions: 2048},
	read: func(o object, c *Config) {
		c.QKVBias = o.Bool("attention_bias", false)
		c.OutBias = c.QKVBias
		c.MLPBias = o.Bool("mlp_bias", false)
		o.windows(c, 0, nil)
	},
}

// llamaTensors are the names that most families share.
var llamaTensors = TensorTable{
	{RoleEmbed, "model.embed_tokens.weight", "token_embd.weight"},
	{RoleLastNorm, "model.norm.weight", "output_norm.weight"},
	{RoleHead, "lm_head.weight", "output.weight"},

	{RoleAttnNorm, "input_layernorm.weight", "attn_norm.weight"},
	{RoleQ, "self_attn.q_proj.weight", "attn_q.weight"},
	{RoleQBias, "self_attn.q_proj.bias", "attn_q.bias"},
	{RoleK, "self_attn.k_proj.weight", "attn_k.weight"},
	{RoleKBias, "self_attn.k_proj.bias", "attn_k.bias"},
	{RoleV, "self_attn.v_proj.weight", "attn_v.weight"},
	{RoleVBias, "self_attn.v_proj.bias", "attn_v.bias"},
	{RoleO, "self_attn.o_proj.weight", "attn_output.weight"},
	{RoleOBias, "self_attn.o_proj.bias", "attn_output.bias"},
	{RoleQNorm, "self_attn.q_norm.weight", "attn_q_norm.weight"},
	{RoleKNorm, "self_attn.k_norm.weight", "attn_k_norm.weight"},
	{RoleMLPNorm, "post_attention_layernorm.weight", "ffn_norm.weight"},
	{RoleGate, "mlp.gate_proj.weight", "ffn_gate.weight"},
	{RoleGateBias, "mlp.gate_proj.bias", "ffn_gate.bias"},
	{RoleUp, "mlp.up_proj.weight", "ffn_up.weight"},
	{RoleUpBias, "mlp.up_proj.bias", "ffn_up.bias"},
	{RoleDown, "mlp.down_proj.weight", "ffn_down.weight"},
	{RoleDownBias, "mlp.down_proj.bias", "ffn_down.bias"},

	{roleQKV, "", "attn_qkv.weight"},
	{roleQKVBias, "", "attn_qkv.bias"},
}
