package arch

import "math"

// SmolLM 3 (Bakouch et al., 2025): a Llama in which some layers, by default each fourth,
// do not rotate queries and keys.
var smolLM3Family = family{
	arch: "smollm3", class: "SmolLM3ForCausalLM", gguf: "smollm3", interleaved: true,
	models:   "SmolLM 3",
	tensors:  llamaTensors,
	defaults: configDefaults{maxPositions: 32768, kvHeads: 4, theta: 2e6, tied: true},
	read: func(o object, c *Config) {
		c.QKVBias = o.Bool("attention_bias", false)
		c.OutBias = c.QKVBias
		c.MLPBias = o.Bool("mlp_bias", false)
		interval := o.Int("no_rope_layer_interval", 4, 1, math.MaxInt32)
		turns := o.ints("no_rope_layers", maxLayers)
		if o.Has("no_rope_layers") && len(turns) != c.Layers {
			o.Fail("no_rope_layers", "found %d numbers, expected one for each of the %d layers", len(turns), c.Layers)
			return
		}
		still := func(at int) bool {
			if len(turns) > 0 {
				return turns[at] == 0
			}
			return (at+1)%interval == 0
		}
		width, _ := o.switchedWindow()
		o.windows(c, width, still)
		c.amend(func(at int, p *LayerPlan) {
			if still(at) {
				p.Rope = NoRope
			}
		})
	},
}
