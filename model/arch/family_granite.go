package arch

// Granite 3 and dense Granite 4 (IBM, 2024): a Llama with factors of embeddings, scores,
// residual branches and logits.
var graniteFamily = family{
	arch: "granite", class: "GraniteForCausalLM", gguf: "granite", interleaved: true,
	models:   "Granite 3, dense Granite 4",
	tensors:  llamaTensors,
	defaults: configDefaults{maxPositions: 2048},
	read: func(o object, c *Config) {
		if o.Has("num_local_experts") && o.Int("num_local_experts", 0, 0, maxExperts) > 0 {
			o.Fail("num_local_experts", "architecture \"granitemoe\" is %w because of its %s", ErrUnsupported, graniteMoE)
		}
		llamaFamily.read(o, c)
		embed, score := o.factor("embedding_multiplier"), o.factor("attention_multiplier")
		residual, logits := o.factor("residual_multiplier"), o.factor("logits_scaling")
		c.Scalars = Scalars{embedScale: embed, LogitScale: 1 / logits}
		c.amend(func(_ int, p *LayerPlan) { p.ScoreScale, p.ResidualScale = score, residual })
	},
}

// factor reads a factor, 1 if absent.
func (o object) factor(key string) float64 { return o.factorOr(key, 1) }

func (o object) factorOr(key string, def float64) float64 {
	v := o.Float(key, def)
	if !(v > 1e-9 && v < 1e9) {
		o.Fail(key, "found %g, expected a number above 0", v)
	}
	return v
}

// graniteMoE is what architecture granitemoe has and granite has not.
const graniteMoE = "a mixture of experts routed by the chosen logits"
