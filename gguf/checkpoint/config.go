package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lukv/lukv/gguf"
)

// arch is an architecture as GGUF names it.
type arch struct {
	kind  string // model_type in config.json
	class string // under architectures

	// read sets the keys that only this architecture has.
	read func(k *keys, c *object)
}

var archs = map[string]arch{
	"llama":    {"llama", "LlamaForCausalLM", readLlama},
	"qwen2":    {"qwen2", "Qwen2ForCausalLM", noWindow},
	"qwen3":    {"qwen3", "Qwen3ForCausalLM", noWindow},
	"qwen2moe": {"qwen2_moe", "Qwen2MoeForCausalLM", readQwenMoE},
	"qwen3moe": {"qwen3_moe", "Qwen3MoeForCausalLM", readQwenMoE},
	"smollm3":  {"smollm3", "SmolLM3ForCausalLM", readSmolLM3},
	"granite":  {"granite", "GraniteForCausalLM", readGranite},
	"phi3":     {"phi3", "Phi3ForCausalLM", readPhi3},
	"olmo2":    {"olmo2", "Olmo2ForCausalLM", readOLMo2},
	"gemma2":   {"gemma2", "Gemma2ForCausalLM", readGemma2},
	"gemma3":   {"gemma3_text", "Gemma3ForCausalLM", readGemma3},
	"mistral3": {"ministral3", "Ministral3ForCausalLM", readMinistral3},
}

// readConfig makes config.json from a file's keys and the shapes of its tensors.
func readConfig(f *gguf.File, o Options) (*object, error) {
	name, err := f.Text("general.architecture")
	if err != nil {
		return nil, err
	}
	a, ok := archs[name]
	if !ok {
		return nil, fmt.Errorf("architecture %q is %w, expected one of %s", name, ErrUnsupported, strings.Join(slices.Sorted(maps.Keys(archs)), ", "))
	}
	embed := f.Tensor("token_embd.weight")
	if embed == nil || len(embed.Shape) != 2 {
		return nil, errors.New("tensor \"token_embd.weight\" is missing or not a matrix")
	}
	k, c := &keys{f: f, prefix: name + "."}, &object{}
	c.set("architectures", []string{a.class})
	c.set("model_type", a.kind)
	c.set("hidden_size", k.integer("embedding_length", 0))
	c.set("intermediate_size", k.feedForward())
	c.set("num_hidden_layers", k.integer("block_count", 0))
	heads := k.perLayer("attention.head_count", 0)
	c.set("num_attention_heads", heads)
	c.set("num_key_value_heads", k.perLayer("attention.head_count_kv", heads))
	c.set("head_dim", k.headDim(heads, c.integer("hidden_size")))
	c.set("vocab_size", embed.Shape[0])
	c.set("max_position_embeddings", k.integer("context_length", 0))
	c.set("rms_norm_eps", k.float("attention.layer_norm_rms_epsilon", 0))
	c.set("hidden_act", "silu")
	c.set("tie_word_embeddings", f.Tensor("output.weight") == nil)
	if k.err != nil {
		return nil, k.err
	}
	k.rope(c, o)
	k.refuse()
	a.read(k, c)
	if o.Type == "" {
		o.Type = "bfloat16"
	}
	c.set("torch_dtype", o.Type)
	return c, k.err
}

// refuse fails on keys of any architecture that would change what a model computes, and that
// none here can follow.
func (k *keys) refuse() {
	if key := k.prefix + "attention.causal"; k.f.Has(key) {
		if causal, err := k.f.Bool(key); err != nil {
			k.fail(err)
		} else if !causal {
			k.fail(fmt.Errorf("key %q: false is %w: attention to later tokens", key, ErrUnsupported))
		}
	}
	if key := "expert_group_count"; k.has(key) {
		if n, err := k.f.Uint(k.prefix + key); err != nil || n > 1 {
			k.fail(fmt.Errorf("key %q: experts chosen by groups are %w, expected at most 1", k.prefix+key, ErrUnsupported))
		}
	}
}

// feedForward is the width of the layers that are not mixtures. Files of mixtures only may
// lack it or say 0.
func (k *keys) feedForward() int {
	const key, experts = "feed_forward_length", "expert_feed_forward_length"
	if k.has(experts) {
		if n, err := k.f.Uint(k.prefix + key); !k.has(key) || err == nil && n == 0 {
			return k.integer(experts, 0)
		}
	}
	return k.perLayer(key, 0)
}

// headDim is the number of elements of a head, of keys as of values.
func (k *keys) headDim(heads, hidden int) int {
	d := k.integer("attention.key_length", max(1, hidden/heads))
	if v := k.integer("attention.value_length", d); v != d {
		k.fail(fmt.Errorf("values of %d elements and keys of %d, which is %w, expected the same", v, d, ErrUnsupported))
	}
	if d%2 != 0 {
		k.fail(fmt.Errorf("heads of %d elements, expected an even number, as rotation works on pairs", d))
	}
	return d
}

// rope sets how positions rotate. Only the first elements of a head may do so.
func (k *keys) rope(c *object, o Options) {
	d := c.integer("head_dim")
	rotated := k.integer("rope.dimension_count", d)
	if rotated > d || rotated%2 != 0 {
		k.fail(fmt.Errorf("key %q: found %d, expected an even number up to %d", k.prefix+"rope.dimension_count", rotated, d))
	}
	if rotated != d {
		c.set("partial_rotary_factor", float64(rotated)/float64(d))
	}
	theta := k.float("rope.freq_base", 10000)
	c.set("rope_theta", theta)
	var scaling *object
	switch {
	case k.f.Tensor("rope_freqs.weight") != nil:
		k.scaledOnce("rope_freqs.weight")
		scaling = k.divisors(float64(theta), rotated, c.integer("max_position_embeddings"), o)
	case k.f.Tensor("rope_factors_long.weight") != nil:
		k.scaledOnce("rope_factors_long.weight")
		scaling = k.longRope(rotated, c)
	default:
		scaling = k.scaling()
	}
	if scaling != nil {
		c.set("rope_scaling", scaling)
	}
}

// scaledOnce fails if keys scale positions besides the divisors of a tensor.
func (k *keys) scaledOnce(tensor string) {
	if kind, err := k.f.Text(k.prefix + ropeType); err == nil && kind == "longrope" {
		return
	}
	s := k.scaling()
	if s == nil || k.err != nil {
		return
	}
	if kind, _ := s.get("rope_type").(string); kind == "linear" && s.get("factor") == number(1) {
		return
	}
	k.fail(fmt.Errorf("key %q: a scaling beside the tensor %q is %w, expected one of them", k.prefix+ropeType, tensor, ErrUnsupported))
}

// divisors is a scaling by a divisor for every frequency.
func (k *keys) divisors(theta float64, rotated, context int, o Options) *object {
	const name = "rope_freqs.weight"
	d := k.vector(name, rotated/2)
	if k.err != nil {
		return nil
	}
	if o.Llama3 {
		if s := llama3(d, theta, rotated); s != nil {
			return s
		}
	}
	return &object{
		{"rope_type", "longrope"}, {"short_factor", d}, {"long_factor", d}, {"attention_factor", number(1)},
		{"original_max_position_embeddings", context},
	}
}

// longRope is a scaling by one list of divisors for short texts and another for long ones.
func (k *keys) longRope(rotated int, c *object) *object {
	s := &object{
		{"rope_type", "longrope"},
		{"short_factor", k.vector("rope_factors_short.weight", rotated/2)},
		{"long_factor", k.vector("rope_factors_long.weight", rotated/2)},
		{"attention_factor", k.float("rope.scaling.attn_factor", 1)},
	}
	original := k.integer("rope.scaling.original_context_length", c.integer("max_position_embeddings"))
	s.set("original_max_position_embeddings", original)
	c.set("original_max_position_embeddings", original)
	return s
}

const ropeType = "rope.scaling.type"

// scaling returns rope_scaling by keys, nil if positions are not scaled.
func (k *keys) scaling() *object {
	const p = "rope.scaling."
	factor := p + "factor"
	if old := "rope.scale_linear"; !k.has(factor) && k.has(old) {
		factor = old // used by the first converters
	}
	kind := "linear" // the meaning of a factor without a type
	if k.has(ropeType) {
		var err error
		if kind, err = k.f.Text(k.prefix + ropeType); err != nil {
			k.fail(err)
		}
	} else {
		if !k.has(factor) {
			return nil
		}
		if x, err := k.f.Float(k.prefix + factor); err == nil && (x == 0 || x == 1) {
			return nil
		}
	}
	switch kind {
	case "none":
		return nil
	case "linear":
		return &object{{"rope_type", kind}, {"factor", k.stretch(factor)}}
	case "yarn":
		return k.yarn(factor)
	}
	k.fail(fmt.Errorf("key %q: %q is %w, expected none, linear or yarn", k.prefix+ropeType, kind, ErrUnsupported))
	return nil
}

// stretch returns the factor of a scaling under the given key. llama.cpp takes an absent one
// and 0 for 1.
func (k *keys) stretch(factor string) number {
	if !k.given(factor) {
		return 1
	}
	return k.float(factor, 0)
}

func (k *keys) yarn(factor string) *object {
	const p = "rope.scaling."
	if ext := k.prefix + p + "yarn_ext_factor"; k.f.Has(ext) {
		if x, err := k.f.Float(ext); err != nil {
			k.fail(err)
		} else if x >= 0 && x != 1 { // below 0: as the type says
			k.fail(fmt.Errorf("key %q: %v is %w, expected 1", ext, x, ErrUnsupported))
		}
	}
	stretch, original := k.stretch(factor), p+"original_context_length"
	if !k.given(original) {
		original = "context_length" // as in llama.cpp
	}
	s := &object{
		{"rope_type", "yarn"}, {"factor", stretch},
		{"original_max_position_embeddings", k.integer(original, 0)},
	}
	for key, name := range map[string]string{"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"} {
		if k.has(p + key) {
			s.set(name, k.float(p+key, 0))
		}
	}
	mscale := func(m number) float64 { return 1 + 0.1*float64(m)*math.Log(float64(stretch)) }
	own := mscale(1)
	if k.given(p + "yarn_log_multiplier") {
		// mscale_all_dim, beside an mscale of 1, which no key holds.
		all := k.float(p+"yarn_log_multiplier", 0)
		s.set("mscale", 1)
		s.set("mscale_all_dim", all)
		own /= mscale(all)
	}
	// In GGUF it multiplies YaRN's own factor; in rope_scaling it replaces it.
	if x := k.float(p+"attn_factor", 1); x != 1 {
		s.set("attention_factor", number(float64(x)*own))
	}
	return s
}

// window sets the attention window, if the file has one that is shorter than the context.
func (k *keys) window(c *object) (w int, ok bool) {
	const key = "attention.sliding_window"
	if !k.has(key) {
		return 0, false
	}
	n, err := k.f.Uint(k.prefix + key)
	if err != nil || n > math.MaxInt32 {
		k.fail(fmt.Errorf("key %q: expected an integer up to %d", k.prefix+key, math.MaxInt32))
		return 0, false
	}
	w = int(n)
	return w, w > 0 && w < c.integer("max_position_embeddings")
}

// biased reports whether layers have a bias of one of the given names.
func (k *keys) biased(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return k.f.Tensor("blk.0."+name+".bias") != nil })
}

// readLlama tells apart what shares the name llama: Llama, Mistral and Mixtral.
func readLlama(k *keys, c *object) {
	w, windowed := k.window(c)
	switch {
	case k.given("expert_count"):
		c.set("architectures", []string{"MixtralForCausalLM"})
		c.set("model_type", "mixtral")
		k.experts(c, "num_local_experts")
		if windowed {
			c.set("sliding_window", w)
		} else {
			c.set("sliding_window", nil)
		}
	case windowed:
		c.set("architectures", []string{"MistralForCausalLM"})
		c.set("model_type", "mistral")
		c.set("sliding_window", w)
	default:
		c.set("attention_bias", k.biased("attn_q", "attn_qkv"))
		c.set("mlp_bias", k.biased("ffn_gate"))
	}
}

// noWindow says that all layers have full attention: llama.cpp reads no window of these
// architectures (load_arch_hparams in its src/models), and GGUF does not say which layers
// would have one.
func noWindow(k *keys, c *object) {
	c.set("use_sliding_window", false)
	if c.kind() == "qwen3" || c.kind() == "qwen3_moe" {
		c.set("attention_bias", k.biased("attn_q", "attn_qkv"))
	}
}

// kind returns model_type.
func (o *object) kind() string {
	kind, _ := o.get("model_type").(string)
	return kind
}

// experts sets how many experts there are and how many a token uses.
func (k *keys) experts(c *object, count string) {
	n := k.integer("expert_count", 0)
	used := k.integer("expert_used_count", 0)
	if used > n {
		k.fail(fmt.Errorf("key %q: found %d, expected at most the %d experts", k.prefix+"expert_used_count", used, n))
	}
	c.set(count, n)
	c.set("num_experts_per_tok", used)
}

func readQwenMoE(k *keys, c *object) {
	noWindow(k, c)
	k.experts(c, "num_experts")
	c.set("decoder_sparse_step", 1)
	if c.kind() == "qwen3_moe" {
		c.set("norm_topk_prob", true) // hard-coded for the architecture, like the following
		c.set("moe_intermediate_size", k.expertWidth(c, "ffn_gate_exps.weight", "expert_feed_forward_length"))
		return
	}
	c.set("norm_topk_prob", false)
	c.set("qkv_bias", k.biased("attn_q", "attn_qkv"))
	c.set("moe_intermediate_size", k.expertWidth(c, "ffn_gate_exps.weight", "expert_feed_forward_length"))
	c.set("shared_expert_intermediate_size", k.expertWidth(c, "ffn_gate_shexp.weight", "expert_shared_feed_forward_length"))
}

// expertWidth is the width of an expert, which old files do not say: then it is that of
// the tensor, whose last dimension but one it is.
func (k *keys) expertWidth(c *object, tensor, key string) int {
	if !k.has(key) {
		if t := k.f.Tensor("blk.0." + tensor); t != nil && len(t.Shape) >= 2 {
			return t.Shape[len(t.Shape)-2]
		}
	}
	return k.integer(key, c.integer("intermediate_size"))
}

func readSmolLM3(_ *keys, c *object) {
	c.set("no_rope_layer_interval", 4) // hard-coded for the architecture
	c.set("use_sliding_window", false)
}

func readGranite(k *keys, c *object) {
	const rotates = "rope.scaling.finetuned" // a switch of the architecture, whatever its name says
	if turns, err := k.f.Bool(k.prefix + rotates); k.has(rotates) && (err != nil || !turns) {
		k.fail(fmt.Errorf("key %q: attention without positions is %w, expected true", k.prefix+rotates, ErrUnsupported))
	}
	for _, x := range []struct{ name, key string }{
		{"embedding_multiplier", "embedding_scale"}, {"attention_multiplier", "attention.scale"},
		{"residual_multiplier", "residual_scale"}, {"logits_scaling", "logit_scale"},
	} {
		if k.given(x.key) || x.name == "logits_scaling" { // which is needed, as logits are divided by it
			c.set(x.name, k.float(x.key, 0))
		}
	}
	if !k.given("attention.scale") {
		// The usual scale of scores, while an absent attention_multiplier means 1.
		c.set("attention_multiplier", 1/math.Sqrt(float64(c.integer("head_dim"))))
	}
	c.set("attention_bias", k.biased("attn_q", "attn_qkv"))
	c.set("mlp_bias", k.biased("ffn_gate"))
}

// readOLMo2 refuses OLMo 3, which goes by the name of OLMo 2 and has a window, in which
// positions rotate without scaling, in some layers.
func readOLMo2(k *keys, _ *object) {
	if key := "attention.sliding_window"; k.given(key) {
		k.fail(fmt.Errorf("key %q: OLMo 3 is %w, expected OLMo 2, which has no window", k.prefix+key, ErrUnsupported))
	}
}

func readPhi3(k *keys, c *object) {
	if w, ok := k.window(c); ok {
		c.set("sliding_window", w)
	} else {
		c.set("sliding_window", nil)
	}
}

// readMinistral3 sets the factor of queries that grows with the position.
func readMinistral3(k *keys, c *object) {
	scaling, scaled := c.get("rope_scaling").(*object)
	switch beta := k.has("attention.temperature_scale"); {
	case beta && scaled:
		scaling.set("llama_4_scaling_beta", k.float("attention.temperature_scale", 0))
	case beta:
		k.fail(fmt.Errorf("key %q without a scaling of positions is %w", k.prefix+"attention.temperature_scale", ErrUnsupported))
	case !scaled: // a config without any has the architecture's own
		c.set("rope_scaling", &object{{"rope_type", "default"}})
	}
}

// layers of the models whose score scale is not that of the head dimension.
const (
	gemma2Layers27B = 46
	gemma3Layers27B = 62
)

// readGemma sets the keys that all Gemma models share. Scores are scaled by the head
// dimension, but in the largest model by hidden size over heads: no key says so.
func readGemma(c *object, largest int) {
	c.set("hidden_act", "gelu_pytorch_tanh")
	c.set("hidden_activation", "gelu_pytorch_tanh")
	scalar := c.integer("head_dim")
	if c.integer("num_hidden_layers") == largest {
		scalar = c.integer("hidden_size") / c.integer("num_attention_heads")
	}
	c.set("query_pre_attn_scalar", scalar)
}

func readGemma2(k *keys, c *object) {
	readGemma(c, gemma2Layers27B)
	c.set("attn_logit_softcapping", k.float("attn_logit_softcapping", 50))
	c.set("final_logit_softcapping", k.float("final_logit_softcapping", 30))
	c.set("sliding_window", k.integer("attention.sliding_window", 4096))
}

func readGemma3(k *keys, c *object) {
	readGemma(c, gemma3Layers27B)
	c.set("attn_logit_softcapping", nil)
	c.set("final_logit_softcapping", nil)
	if k.has("final_logit_softcapping") {
		c.set("final_logit_softcapping", k.float("final_logit_softcapping", 0))
	}
	const window = "attention.sliding_window"
	if !k.given(window) { // full attention in every layer, whatever the pattern
		c.set("sliding_window", nil)
		return
	}
	c.set("sliding_window", k.integer(window, 0))
	c.set("rope_local_base_freq", k.float("rope.freq_base_swa", 10000))
	const key = "attention.sliding_window_pattern"
	layers := c.integer("num_hidden_layers")
	switch {
	case !k.has(key):
		c.set("sliding_window_pattern", 6)
	default:
		pattern, err := k.f.Bools(k.prefix + key)
		if err != nil { // a period
			c.set("sliding_window_pattern", k.integer(key, 0))
			return
		}
		if len(pattern) != layers {
			k.fail(fmt.Errorf("key %q: found %d layers, expected %d", k.prefix+key, len(pattern), layers))
			return
		}
		kinds := make([]string, layers)
		for i, slides := range pattern {
			kinds[i] = "full_attention"
			if slides {
				kinds[i] = "sliding_attention"
			}
		}
		c.set("layer_types", kinds)
	}
}

// llama3 finds the parameters of Llama 3's scaling from its frequency divisors,
// which are all that GGUF has of it. The factor is the largest divisor. Between
// the two ends the divisors interpolate, linearly in the number of turns that a
// pair makes over the original length. With the low frequency factor 1 of all
// published models, two of them determine the others. If the parameters found do not
// reproduce the divisors, the result is nil.
func llama3(divisors []number, theta float64, headDim int) *object {
	factor := 1.0
	for _, d := range divisors {
		factor = max(factor, float64(d))
	}
	if factor == 1 {
		return nil
	}
	turns := func(i int) float64 { // per token
		return math.Pow(theta, -2*float64(i)/float64(headDim)) / (2 * math.Pi)
	}
	// smooth = (original·turns − low) / (high − low)
	type point struct{ turns, smooth float64 }
	var between []point
	for i, d := range divisors {
		if s := (1/float64(d) - 1/factor) / (1 - 1/factor); d > 1 && float64(d) < factor && s > 1e-4 && s < 1-1e-4 {
			between = append(between, point{turns(i), s})
		}
	}
	candidates := [][2]float64{{8192, 4}} // original length and high frequency factor
	if len(between) >= 2 {
		a, b := between[0], between[len(between)-1]
		slope := (a.smooth - b.smooth) / (a.turns - b.turns)
		if offset := a.smooth - slope*a.turns; offset < 0 {
			high := math.Round(100*(1-1/offset)) / 100
			candidates = append([][2]float64{{math.Round(slope * (high - 1)), high}}, candidates...)
		}
	}
	for _, x := range candidates {
		original, high := x[0], x[1]
		if !(original >= 1 && original < math.MaxInt32 && high > 1) {
			continue
		}
		fits := true
		for i, d := range divisors {
			s := min(max((original*turns(i)-1)/(high-1), 0), 1)
			want := 1 / ((1-s)/factor + s)
			fits = fits && math.Abs(want-float64(d)) <= 1e-3*want
		}
		if fits {
			return &object{
				{"rope_type", "llama3"}, {"factor", number(factor)}, {"low_freq_factor", number(1)},
				{"high_freq_factor", number(high)}, {"original_max_position_embeddings", int(original)},
			}
		}
	}
	return nil
}
