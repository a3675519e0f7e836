package arch

// Mixtral (Jiang et al., 2024): a Mistral whose layers mix two of several experts; the
// weights of the chosen ones add up to 1.
var mixtralFamily = family{
	arch: "mixtral", class: "MixtralForCausalLM", gguf: "llama", interleaved: true,
	models: "Mixtral 8x7B, 8x22B",
	tensors: llamaTensors.with(expertTensors...).with(
		tensorNames{RoleRouter, "block_sparse_moe.gate.weight", "ffn_gate_inp.weight"},
		tensorNames{RoleExpertGate, "block_sparse_moe.experts.%d.w1.weight", "ffn_gate.%d.weight"},
		tensorNames{RoleExpertUp, "block_sparse_moe.experts.%d.w3.weight", "ffn_up.%d.weight"},
		tensorNames{RoleExpertDown, "block_sparse_moe.experts.%d.w2.weight", "ffn_down.%d.weight"},
		tensorNames{roleRouterBeside, "mlp.gate.weight", ""},
	),
	defaults: configDefaults{maxPositions: 131072, kvHeads: 8, eps: 1e-5, theta: 1e6},
	read: func(o object, c *Config) {
		width := 0
		if o.Has("sliding_window") {
			width = o.slidingWindow()
		}
		o.oneWindow(c, width)
		mix := o.experts("num_local_experts", o.Int("num_experts", 8, 1, maxExperts), 2) // both names, as in transformers
		mix.Width, mix.Normalise = c.Intermediate, true
		c.amend(func(_ int, p *LayerPlan) { p.FFN = mix })
	},
}

// expertTensors are the names of tensors of mixtures that families share.
var expertTensors = []tensorNames{
	{RoleRouter, "mlp.gate.weight", "ffn_gate_inp.weight"},
	{RoleExpertGate, "mlp.experts.%d.gate_proj.weight", "ffn_gate.%d.weight"},
	{RoleExpertUp, "mlp.experts.%d.up_proj.weight", "ffn_up.%d.weight"},
	{RoleExpertDown, "mlp.experts.%d.down_proj.weight", "ffn_down.%d.weight"},

	{roleExpertsGateUp, "mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
	{roleExpertsGate, "", "ffn_gate_exps.weight"},
	{roleExpertsUp, "", "ffn_up_exps.weight"},
	{roleExpertsDown, "mlp.experts.down_proj", "ffn_down_exps.weight"},

	{RoleSharedMix, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
	{RoleSharedGate, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
	{RoleSharedUp, "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
	{RoleSharedDown, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
}

// maxExperts bounds the experts of a layer.
const maxExperts = 1 << 12

// experts reads how many experts a layer has, under key, and how many a token has.
func (o object) experts(key string, all, chosen int) FFNPlan {
	p := FFNPlan{
		Experts: o.Int(key, all, 1, maxExperts),
		Chosen:  o.Int("num_experts_per_tok", chosen, 1, maxExperts),
	}
	if o.Err() == nil && p.Chosen > p.Experts {
		o.Fail("num_experts_per_tok", "found %d, expected at most the %d experts of %q", p.Chosen, p.Experts, key)
	}
	return p
}
