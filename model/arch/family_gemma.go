package arch

import (
	"math"

	"github.com/lukv/lukv/kernels"
)

// Gemma 2 (Gemma Team, 2024): norms before and after each branch with weights around 0,
// scaled embeddings, GELU, capped scores and logits, windows in every other layer.
var gemma2Family = family{
	arch: "gemma2", class: "Gemma2ForCausalLM", gguf: "gemma2",
	models:   "Gemma 2",
	tensors:  gemmaTensors,
	defaults: configDefaults{maxPositions: 8192, kvHeads: 4, headDim: 256, tied: true, activation: kernels.GELUTanh, activationKey: "hidden_activation"},
	read: func(o object, c *Config) {
		scoreCap := o.softCap("attn_logit_softcapping", 50)
		c.Scalars.LogitCap = o.softCap("final_logit_softcapping", 30)
		o.gemmaLayers(c, 2)
		c.amend(func(_ int, p *LayerPlan) { p.ScoreCap = scoreCap })
	},
}

// Gemma 3 text (Gemma Team, 2025): a Gemma 2 with norms of queries and keys instead of
// caps, and windows in five of six layers, whose rotation has a base of its own.
// Multimodal checkpoints hold it as their text model.
var gemma3Family = family{
	arch: "gemma3_text", class: "Gemma3ForCausalLM", gguf: "gemma3",
	models:  "Gemma 3 1B and 270M, and the text model of a `gemma3` checkpoint",
	tensors: gemmaTensors,
	defaults: configDefaults{maxPositions: 131072, heads: 8, kvHeads: 4, headDim: 256, vocab: 262208,
		theta: 1e6, tied: true, activation: kernels.GELUTanh, activationKey: "hidden_activation", ropeByKind: true},
	read: func(o object, c *Config) {
		c.QKNorm = true // attn_logit_softcapping has no effect in transformers either
		c.Scalars.LogitCap = o.softCap("final_logit_softcapping", 0)
		o.ropeByKind(c, &gemma3Defaults, o.Float("rope_local_base_freq", 10000))
		o.gemmaLayers(c, o.Int("sliding_window_pattern", 6, 1, maxLayers))
		c.amend(func(_ int, p *LayerPlan) {
			if p.Window > 0 {
				p.Rope = 1
			}
		})
	},
}

// gemma3Defaults are those of the rotation.
var gemma3Defaults = configDefaults{theta: 1e6}

var gemmaTensors = llamaTensors.with(
	tensorNames{RolePostAttnNorm, "post_attention_layernorm.weight", "post_attention_norm.weight"},
	tensorNames{RoleMLPNorm, "pre_feedforward_layernorm.weight", "ffn_norm.weight"},
	tensorNames{RolePostMLPNorm, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
)

// gemmaLayers sets what the layers of both share. Every pattern-th layer has full
// attention.
func (o object) gemmaLayers(c *Config, pattern int) {
	c.QKVBias = o.Bool("attention_bias", false)
	c.OutBias = c.QKVBias
	o.windows(c, o.slidingWindow(), nil)
	score := o.factorOr("query_pre_attn_scalar", 256)
	byPattern := !o.Has("layer_types")
	c.Scalars.embedScale, c.Scalars.embedRounded = math.Sqrt(float64(c.Hidden)), true
	c.Scalars.NormOffset = 1
	c.amend(func(at int, p *LayerPlan) {
		p.ScoreScale = 1 / math.Sqrt(score)
		p.postNorm = true
		if byPattern && (at+1)%pattern == 0 {
			p.Window = 0
		}
	})
}

// softCap reads a limit of scores or logits, 0 for null.
func (o object) softCap(key string, def float64) float64 {
	if o.Null(key) {
		return 0
	}
	v := o.Float(key, def)
	if (v != 0 || o.Has(key)) && !(v > 1e-3 && v < 1e6) {
		o.Fail(key, "found %g, expected a number above 0", v)
	}
	return v
}
