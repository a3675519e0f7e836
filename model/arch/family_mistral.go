package arch

import "math"

// Mistral (Jiang et al., 2023): a Llama whose layers may all share one attention window.
var mistralFamily = family{
	arch: "mistral", class: "MistralForCausalLM", gguf: "llama", interleaved: true,
	models:   "Mistral 7B, Mistral Nemo, Mistral Small",
	tensors:  llamaTensors,
	defaults: configDefaults{maxPositions: 131072, kvHeads: 8},
	read:     func(o object, c *Config) { o.windows(c, o.slidingWindow(), nil) },
}

// slidingWindow returns the config's attention window; absent, it is the default of
// transformers' classes, and null is none.
func (o object) slidingWindow() int {
	if o.Null("sliding_window") {
		return 0
	}
	return o.Int("sliding_window", 4096, 1, math.MaxInt32)
}
