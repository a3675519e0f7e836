package convert

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/model"
)

// arch is an architecture as GGUF names it.
type arch struct {
	class    string // in config.json
	permuted bool   // query and key rows are stored for interleaved rotation
	bias     bool   // query, key and value projections have biases
	qkNorm   bool
}

var archs = map[string]arch{
	"llama": {class: "LlamaForCausalLM", permuted: true},
	"qwen2": {class: "Qwen2ForCausalLM", bias: true},
	"qwen3": {class: "Qwen3ForCausalLM", qkNorm: true},
}

// number is a float32 written as its shortest decimal, so that 1e-05 is not
// 9.999999747378752e-06; it never looks like an integer.
type number float32

func (n number) MarshalJSON() ([]byte, error) {
	s := strconv.FormatFloat(float64(n), 'g', -1, 32)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return []byte(s), nil
}

// config is config.json, in the order in which it is written.
type config struct {
	Architectures []string `json:"architectures"`
	ModelType     string   `json:"model_type"`
	Hidden        int      `json:"hidden_size"`
	Intermediate  int      `json:"intermediate_size"`
	Layers        int      `json:"num_hidden_layers"`
	Heads         int      `json:"num_attention_heads"`
	KVHeads       int      `json:"num_key_value_heads"`
	HeadDim       int      `json:"head_dim"`
	Vocab         int      `json:"vocab_size"`
	MaxPositions  int      `json:"max_position_embeddings"`
	NormEps       number   `json:"rms_norm_eps"`
	RopeTheta     number   `json:"rope_theta"`
	RopeScaling   *scaling `json:"rope_scaling"`
	Window        *int     `json:"sliding_window,omitempty"`
	UseWindow     *bool    `json:"use_sliding_window,omitempty"`
	HiddenAct     string   `json:"hidden_act"`
	AttentionBias *bool    `json:"attention_bias,omitempty"`
	MLPBias       *bool    `json:"mlp_bias,omitempty"`
	Tied          bool     `json:"tie_word_embeddings"`
	BOS           *int64   `json:"bos_token_id"`
	EOS           []int64  `json:"eos_token_id"`
	Type          string   `json:"torch_dtype"`

	arch arch
}

// scaling is rope_scaling.
type scaling struct {
	Type            string  `json:"rope_type"`
	Factor          number  `json:"factor"`
	LowFreq         *number `json:"low_freq_factor,omitempty"`
	HighFreq        *number `json:"high_freq_factor,omitempty"`
	OriginalMax     int     `json:"original_max_position_embeddings,omitempty"`
	BetaFast        *number `json:"beta_fast,omitempty"`
	BetaSlow        *number `json:"beta_slow,omitempty"`
	AttentionFactor *number `json:"attention_factor,omitempty"`
}

// keys reads a file's values and keeps the first error.
type keys struct {
	f      *gguf.File
	prefix string // the architecture's
	err    error
}

func (k *keys) fail(err error) {
	if k.err == nil {
		k.err = err
	}
}

// integer returns one of the architecture's values, from 1 to math.MaxInt32. An
// absent key gives def, or an error if def is 0.
func (k *keys) integer(key string, def int) int {
	key = k.prefix + key
	if !k.f.Has(key) && def != 0 {
		return def
	}
	n, err := k.f.Uint(key)
	if err == nil && (n < 1 || n > math.MaxInt32) {
		err = fmt.Errorf("key %q: %d, expected 1 to %d", key, n, math.MaxInt32)
	}
	if err != nil {
		k.fail(err)
		return 1
	}
	return int(n)
}

func (k *keys) float(key string, def number) number {
	key = k.prefix + key
	if !k.f.Has(key) && def != 0 {
		return def
	}
	x, err := k.f.Float(key)
	if err == nil && !(x > 0 && x < math.MaxFloat32) {
		err = fmt.Errorf("key %q: %v, expected a number above 0", key, x)
	}
	if err != nil {
		k.fail(err)
	}
	return number(x)
}

// readConfig makes config.json from a file's keys and tensors.
func readConfig(f *gguf.File) (*config, error) {
	name, err := f.Text("general.architecture")
	if err != nil {
		return nil, err
	}
	a, ok := archs[name]
	if !ok {
		return nil, fmt.Errorf("architecture %q, expected llama, qwen2 or qwen3: %w", name, model.ErrUnsupported)
	}
	k := &keys{f: f, prefix: name + "."}
	if f.Has(k.prefix + "expert_count") {
		if n, err := f.Uint(k.prefix + "expert_count"); err != nil || n > 0 {
			return nil, fmt.Errorf("key %q: a mixture of experts is %w", k.prefix+"expert_count", model.ErrUnsupported)
		}
	}
	c := &config{Architectures: []string{a.class}, ModelType: name, HiddenAct: "silu", arch: a}
	c.Layers = k.integer("block_count", 0)
	c.MaxPositions = k.integer("context_length", 0)
	c.Hidden = k.integer("embedding_length", 0)
	c.Intermediate = k.integer("feed_forward_length", 0)
	c.Heads = k.integer("attention.head_count", 0)
	c.KVHeads = k.integer("attention.head_count_kv", c.Heads)
	c.HeadDim = k.integer("attention.key_length", max(1, c.Hidden/c.Heads))
	c.NormEps = k.float("attention.layer_norm_rms_epsilon", 0)
	c.RopeTheta = k.float("rope.freq_base", 10000)
	if v := k.integer("attention.value_length", c.HeadDim); v != c.HeadDim {
		k.fail(fmt.Errorf("values of %d elements beside keys of %d, expected as many: %w", v, c.HeadDim, model.ErrUnsupported))
	}
	if c.HeadDim%2 != 0 {
		k.fail(fmt.Errorf("heads of %d elements, expected an even number, as rotation works on pairs", c.HeadDim))
	}
	if d := k.integer("rope.dimension_count", c.HeadDim); d != c.HeadDim {
		k.fail(fmt.Errorf("key %q: %d of %d elements are rotated, expected all: %w", k.prefix+"rope.dimension_count", d, c.HeadDim, model.ErrUnsupported))
	}
	// llama.cpp reads no window of qwen2 and qwen3 (load_arch_hparams in
	// src/models/qwen2.cpp and qwen3.cpp): all their layers have full attention. GGUF
	// does not say which layers would have one.
	if name == "llama" && f.Has(k.prefix+"attention.sliding_window") {
		if n, err := f.Uint(k.prefix + "attention.sliding_window"); err != nil || n > math.MaxInt32 {
			k.fail(fmt.Errorf("key %q: out of range", k.prefix+"attention.sliding_window"))
		} else if w := int(n); w > 0 && w < c.MaxPositions {
			c.Window = &w
		}
	}
	c.RopeScaling = readScaling(k, c)
	if k.err != nil {
		return nil, k.err
	}
	embed := f.Tensor("token_embd.weight")
	if embed == nil || len(embed.Shape) != 2 {
		return nil, errors.New("tensor \"token_embd.weight\" is missing or not a matrix")
	}
	c.Vocab = embed.Shape[0]
	c.Tied = f.Tensor("output.weight") == nil
	no := false
	switch {
	case name == "llama" && c.Window != nil:
		c.Architectures, c.ModelType = []string{"MistralForCausalLM"}, "mistral"
	case name == "llama":
		c.AttentionBias, c.MLPBias = &no, &no
	case name == "qwen3":
		c.AttentionBias = &no
	}
	if name != "llama" {
		c.UseWindow = &no
	}
	return c, nil
}

// readScaling returns rope_scaling, nil if positions are not scaled.
func readScaling(k *keys, c *config) *scaling {
	if t := k.f.Tensor("rope_freqs.weight"); t != nil {
		s, err := llama3(t, float64(c.RopeTheta), c.HeadDim)
		if err != nil {
			k.fail(fmt.Errorf("tensor \"rope_freqs.weight\": %w", err))
		}
		return s
	}
	const p = "rope.scaling."
	factor := p + "factor"
	if old := "rope.scale_linear"; !k.f.Has(k.prefix+factor) && k.f.Has(k.prefix+old) {
		factor = old // used by the first converters
	}
	kind := "linear" // the meaning of a factor without a type
	if k.f.Has(k.prefix + p + "type") {
		var err error
		if kind, err = k.f.Text(k.prefix + p + "type"); err != nil {
			k.fail(err)
		}
	} else {
		if !k.f.Has(k.prefix + factor) {
			return nil
		}
		if x, err := k.f.Float(k.prefix + factor); err == nil && (x == 0 || x == 1) {
			return nil
		}
	}
	optional := func(key string) *number {
		if !k.f.Has(k.prefix + p + key) {
			return nil
		}
		x := k.float(p+key, 0)
		return &x
	}
	switch kind {
	case "none":
		return nil
	case "linear":
		return &scaling{Type: kind, Factor: k.float(factor, 0)}
	case "yarn":
		if ext := k.prefix + p + "yarn_ext_factor"; k.f.Has(ext) {
			if x, err := k.f.Float(ext); err != nil {
				k.fail(err)
			} else if x >= 0 && x != 1 { // below 0: as the type says
				k.fail(fmt.Errorf("key %q: %v, expected 1: %w", ext, x, model.ErrUnsupported))
			}
		}
		s := &scaling{
			Type: kind, Factor: k.float(factor, 0), OriginalMax: k.integer(p+"original_context_length", 0),
			BetaFast: optional("yarn_beta_fast"), BetaSlow: optional("yarn_beta_slow"),
		}
		// In GGUF it multiplies YaRN's own factor; in rope_scaling it replaces it.
		if x := optional("attn_factor"); x != nil && *x != 1 {
			whole := number(float64(*x) * (1 + 0.1*math.Log(float64(s.Factor))))
			s.AttentionFactor = &whole
		}
		return s
	}
	k.fail(fmt.Errorf("key %q: %q, expected none, linear or yarn: %w", k.prefix+p+"type", kind, model.ErrUnsupported))
	return nil
}

// llama3 finds the parameters of Llama 3's scaling from its frequency divisors,
// which are all that GGUF has of it. The factor is the largest divisor. Between
// the two ends the divisors interpolate, linearly in the number of turns that a
// pair makes over the original length. With the low frequency factor 1 of all
// published models, two of them determine the others. The parameters found must
// reproduce the divisors.
func llama3(t *gguf.Tensor, theta float64, headDim int) (*scaling, error) {
	n := headDim / 2
	if t.Type != gguf.F32 || len(t.Shape) != 1 || t.Shape[0] != n {
		return nil, fmt.Errorf("%s %v, expected F32 [%d]", t.Type, t.Shape, n)
	}
	divisors := make([]float32, n)
	if err := t.Rows(divisors, 0, 1); err != nil {
		return nil, err
	}
	factor := 1.0
	for i, d := range divisors {
		if !(d >= 1 && d < 1e6) {
			return nil, fmt.Errorf("divisor %d is %v, expected a number from 1", i, d)
		}
		factor = max(factor, float64(d))
	}
	if factor == 1 {
		return nil, nil
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
			one, h := number(1), number(high)
			return &scaling{Type: "llama3", Factor: number(factor), LowFreq: &one, HighFreq: &h, OriginalMax: int(original)}, nil
		}
	}
	return nil, fmt.Errorf("the divisors are not those of Llama 3's scaling: %w", model.ErrUnsupported)
}

// writeJSON formats a file of a model folder.
func writeJSON(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}
