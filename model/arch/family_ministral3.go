package arch

// Ministral 3, Mistral Small 3 and Devstral 2: a Mistral with YaRN whose queries grow with
// their position. The settings are among those of the rotation. Multimodal checkpoints
// hold it as their text model.
var ministral3Family = family{
	arch: "ministral3", class: "Ministral3ForCausalLM", gguf: "mistral3", interleaved: true,
	models:   "Ministral 3, also as the text model of a `mistral3` checkpoint",
	tensors:  llamaTensors,
	defaults: configDefaults{maxPositions: 262144, kvHeads: 8, headDim: 128, eps: 1e-5},
	read: func(o object, c *Config) {
		if !o.Has("rope_parameters") && !o.Has("rope_scaling") {
			c.Rope = RopeConfig{Type: "yarn", Theta: 1e6, Factor: 16, OriginalMax: 16384, BetaFast: 32, BetaSlow: 1, MScale: 1, MScaleAllDim: 1, QueryBeta: 0.1}
		}
		width := 0
		if o.Has("sliding_window") {
			width = o.slidingWindow()
		}
		o.windows(c, width, nil)
	},
}
