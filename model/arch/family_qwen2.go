package arch

import "math"

// Qwen 2 and 2.5 (Yang et al., 2024): a Llama with biases on queries, keys and values and,
// behind a switch, a window in the upper layers.
var qwen2Family = family{
	arch: "qwen2", class: "Qwen2ForCausalLM", gguf: "qwen2",
	models:   "Qwen 2, Qwen 2.5, DeepSeek-R1-Distill-Qwen",
	tensors:  llamaTensors,
	defaults: configDefaults{maxPositions: 32768, kvHeads: 32},
	read: func(o object, c *Config) {
		c.QKVBias = true
		o.qwenWindows(c)
	},
}

// qwenWindows sets the windows of a Qwen config: one that a switch turns on, for the layers
// from max_window_layers on.
func (o object) qwenWindows(c *Config) {
	width, first := o.switchedWindow()
	o.windows(c, width, func(at int) bool { return at >= first })
}

// switchedWindow returns the window, 0 unless use_sliding_window is set, and
// max_window_layers.
func (o object) switchedWindow() (width, layers int) {
	if !o.Bool("use_sliding_window", false) {
		return 0, 0
	}
	return o.slidingWindow(), o.Int("max_window_layers", 28, 0, math.MaxInt32)
}
