package arch

import (
	"math"
	"slices"
)

// Qwen 1.5 and 2 MoE (Yang et al., 2024): a Qwen 2 with a mixture of experts and a unit
// that every token uses, weighted by itself, in some layers.
var qwen2MoEFamily = family{
	arch: "qwen2_moe", class: "Qwen2MoeForCausalLM", gguf: "qwen2moe",
	models:   "Qwen 1.5 MoE, Qwen 2 57B-A14B",
	tensors:  llamaTensors.with(expertTensors...),
	defaults: configDefaults{maxPositions: 32768, kvHeads: 16},
	read: func(o object, c *Config) {
		c.QKVBias = o.Bool("qkv_bias", true)
		width, last := o.switchedWindow()
		o.windows(c, width, func(at int) bool { return at%2 == 0 && at < last }) // as transformers has it
		mix := o.experts("num_experts", 60, 4)
		mix.Width = o.Int("moe_intermediate_size", 1408, 1, maxWidth)
		mix.Shared = o.Int("shared_expert_intermediate_size", 5632, 1, maxWidth)
		o.sparseLayers(c, mix)
	},
}

// Qwen 3 MoE (Yang et al., 2025): a Qwen 3 with a mixture of experts in some layers.
var qwen3MoEFamily = family{
	arch: "qwen3_moe", class: "Qwen3MoeForCausalLM", gguf: "qwen3moe",
	models:   "Qwen 3 30B-A3B, 235B-A22B, Qwen 3 Coder",
	tensors:  llamaTensors.with(expertTensors...),
	defaults: configDefaults{maxPositions: 32768, kvHeads: 4},
	read: func(o object, c *Config) {
		o.qwen3Attention(c)
		width, _ := o.switchedWindow()
		o.oneWindow(c, width)
		key := "num_experts"
		if !o.Has(key) && o.Has("num_local_experts") {
			key = "num_local_experts"
		}
		mix := o.experts(key, 128, 8)
		mix.Width = o.Int("moe_intermediate_size", 768, 1, maxWidth)
		o.sparseLayers(c, mix)
	},
}

// sparseLayers gives the mixture to the layers that have one: each decoder_sparse_step-th,
// except for those of mlp_only_layers.
func (o object) sparseLayers(c *Config, mix FFNPlan) {
	mix.Normalise = o.Bool("norm_topk_prob", false)
	step := o.Int("decoder_sparse_step", 1, 1, math.MaxInt32)
	dense := o.ints("mlp_only_layers", maxLayers)
	c.amend(func(at int, p *LayerPlan) {
		if (at+1)%step == 0 && !slices.Contains(dense, at) {
			p.FFN = mix
		}
	})
}
