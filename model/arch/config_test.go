package arch

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/tensor"
)

// withKeys returns a small valid config.json with some keys replaced; the value
// absentKey removes a key.
func withKeys(keys map[string]any) []byte {
	m := map[string]any{
		"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
		"num_attention_heads": 4, "vocab_size": 100,
	}
	maps.Copy(m, keys)
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == absentKey })
	text, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return text
}

type absentKeyType struct{}

var absentKey = absentKeyType{}

type jsonKeys = map[string]any

func TestConfigDefaults(t *testing.T) {
	full := []int{0, 0, 0}
	cases := []struct {
		name string
		keys jsonKeys
		want Config // fields that all cases share are filled in below
	}{
		{"llama", nil, Config{Arch: "llama", KVHeads: 4, HeadDim: 16, MaxPositions: 2048, Windows: full}},
		{"llama, biases", jsonKeys{"attention_bias": true, "mlp_bias": true},
			Config{Arch: "llama", KVHeads: 4, HeadDim: 16, MaxPositions: 2048, QKVBias: true, OutBias: true, MLPBias: true, Windows: full}},
		{"llama, nulls", jsonKeys{"num_key_value_heads": nil, "head_dim": nil, "rope_scaling": nil, "rope_theta": nil, "eos_token_id": nil, "quantization_config": nil},
			Config{Arch: "llama", KVHeads: 4, HeadDim: 16, MaxPositions: 2048, Windows: full}},
		{"llama by its class", jsonKeys{"model_type": absentKey, "architectures": []string{"LlamaForCausalLM"}},
			Config{Arch: "llama", KVHeads: 4, HeadDim: 16, MaxPositions: 2048, Windows: full}},
		{"llama never has a window", jsonKeys{"sliding_window": 16},
			Config{Arch: "llama", KVHeads: 4, HeadDim: 16, MaxPositions: 2048, Windows: full}},
		{"mistral", jsonKeys{"model_type": "mistral", "num_attention_heads": 16},
			Config{Arch: "mistral", Heads: 16, KVHeads: 8, HeadDim: 4, MaxPositions: 131072, Windows: []int{4096, 4096, 4096}}},
		{"mistral, null window and KV heads", jsonKeys{"model_type": "mistral", "sliding_window": nil, "num_key_value_heads": nil},
			Config{Arch: "mistral", KVHeads: 4, HeadDim: 16, MaxPositions: 131072, Windows: full}},
		{"qwen2", jsonKeys{"model_type": "qwen2", "num_attention_heads": 32, "sliding_window": 7},
			Config{Arch: "qwen2", Heads: 32, KVHeads: 32, HeadDim: 2, MaxPositions: 32768, QKVBias: true, Windows: full}},
		{"qwen2, windows", jsonKeys{"model_type": "qwen2", "num_key_value_heads": 2, "use_sliding_window": true, "sliding_window": 7, "max_window_layers": 2},
			Config{Arch: "qwen2", KVHeads: 2, HeadDim: 16, MaxPositions: 32768, QKVBias: true, Windows: []int{0, 0, 7}}},
		{"qwen2, switch without layers", jsonKeys{"model_type": "qwen2", "num_key_value_heads": 2, "use_sliding_window": true, "sliding_window": 7},
			Config{Arch: "qwen2", KVHeads: 2, HeadDim: 16, MaxPositions: 32768, QKVBias: true, Windows: full}},
		{"qwen2, layer types decide", jsonKeys{"model_type": "qwen2", "num_key_value_heads": 2, "use_sliding_window": true, "sliding_window": 7, "max_window_layers": 3,
			"layer_types": []string{"sliding_attention", "full_attention", "sliding_attention"}},
			Config{Arch: "qwen2", KVHeads: 2, HeadDim: 16, MaxPositions: 32768, QKVBias: true, Windows: []int{7, 0, 7}}},
		{"qwen3", jsonKeys{"model_type": "qwen3", "num_attention_heads": 32},
			Config{Arch: "qwen3", Heads: 32, KVHeads: 32, HeadDim: 128, MaxPositions: 32768, QKNorm: true, Windows: full}},
		{"qwen3, null head dim", jsonKeys{"model_type": "qwen3", "num_attention_heads": 32, "head_dim": nil, "attention_bias": true},
			Config{Arch: "qwen3", Heads: 32, KVHeads: 32, HeadDim: 128, MaxPositions: 32768, QKNorm: true, QKVBias: true, OutBias: true, Windows: full}},
	}
	for _, c := range cases {
		want := c.want
		want.Layers, want.Hidden, want.Intermediate, want.Vocab = 3, 64, 96, 100
		if want.Heads == 0 {
			want.Heads = 4
		}
		want.NormEps, want.Rope, want.Generation = 1e-6, RopeConfig{Theta: 10000}, neutralGeneration()
		got, err := Parse(withKeys(c.keys))
		if assert.NoError(t, err, c.name) {
			assert.Equal(t, &want, got, c.name)
		}
	}
}

func TestConfigValues(t *testing.T) {
	// White space around values, and everything set.
	c, err := Parse([]byte("\n{ \"model_type\" : \"llama\" , \"hidden_size\" :\t64\n,\"intermediate_size\":96,\"num_hidden_layers\":1," +
		`"num_attention_heads":4, "num_key_value_heads" : 2 , "vocab_size":100,"head_dim": 32 ,"max_position_embeddings":4096,` +
		`"rms_norm_eps":1e-5,"tie_word_embeddings":true,"torch_dtype":"bfloat16","bos_token_id" : 1 ,"eos_token_id": [ 2 , 3 ] }` + "\n"))
	require.NoError(t, err)
	assert.Equal(t, &Config{Arch: "llama", Layers: 1, Hidden: 64, Intermediate: 96, Heads: 4, KVHeads: 2, HeadDim: 32, Vocab: 100,
		MaxPositions: 4096, NormEps: 1e-5, Rope: RopeConfig{Theta: 10000}, TiedEmbeddings: true, Windows: []int{0},
		BOS: []int{1}, EOS: []int{2, 3}, Type: tensor.BF16, Generation: neutralGeneration()}, c)

	for name, want := range map[string]tensor.Type{"float16": tensor.F16, "torch.float32": tensor.F32, "float64": tensor.F64, "auto": 0} {
		for _, key := range []string{"dtype", "torch_dtype"} {
			c, err := Parse(withKeys(jsonKeys{key: name}))
			require.NoError(t, err)
			assert.Equal(t, want, c.Type, name)
		}
	}
}

func TestConfigRope(t *testing.T) {
	yarn := jsonKeys{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
	ones := slices.Repeat([]float64{1}, 8)
	cases := []struct {
		name string
		keys jsonKeys
		want RopeConfig
	}{
		{"theta beside", jsonKeys{"rope_theta": 5e5}, RopeConfig{Theta: 5e5}},
		{"theta inside", jsonKeys{"rope_parameters": jsonKeys{"rope_theta": 5e5, "rope_type": "default"}}, RopeConfig{Theta: 5e5, Type: "default"}},
		{"theta inside without type", jsonKeys{"rope_parameters": jsonKeys{"rope_theta": 5e5}}, RopeConfig{Theta: 5e5}},
		{"old name of the type", jsonKeys{"rope_scaling": jsonKeys{"type": "linear", "factor": 4}}, RopeConfig{Theta: 1e4, Type: "linear", Factor: 4}},
		{"new name of the type wins", jsonKeys{"rope_scaling": jsonKeys{"type": "linear", "rope_type": "dynamic", "factor": 4}}, RopeConfig{Theta: 1e4, Type: "dynamic", Factor: 4}},
		{"llama3", jsonKeys{"rope_parameters": jsonKeys{"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}},
			RopeConfig{Theta: 5e5, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 8192}},
		{"yarn", jsonKeys{"rope_scaling": yarn, "rope_theta": 1e6}, RopeConfig{Theta: 1e6, Type: "yarn", Factor: 4, OriginalMax: 64}},
		{"yarn, everything", jsonKeys{"rope_scaling": jsonKeys{"rope_type": "yarn", "factor": 4, "beta_fast": 16, "beta_slow": 2, "truncate": false, "attention_factor": 1.5, "mscale": 0.7, "mscale_all_dim": 0.9}},
			RopeConfig{Theta: 1e4, Type: "yarn", Factor: 4, OriginalMax: 2048, BetaFast: 16, BetaSlow: 2, NoTruncate: true, AttentionFactor: 1.5, MScale: 0.7, MScaleAllDim: 0.9}},
		{"scaling added to a newer config", jsonKeys{"rope_scaling": yarn, "rope_parameters": jsonKeys{"rope_type": "default", "rope_theta": 1e6}},
			RopeConfig{Theta: 1e6, Type: "yarn", Factor: 4, OriginalMax: 64}},
		{"the same scaling in both forms", jsonKeys{"rope_theta": 1e6, "rope_scaling": yarn, "rope_parameters": jsonKeys{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "rope_theta": 1e6}},
			RopeConfig{Theta: 1e6, Type: "yarn", Factor: 4, OriginalMax: 64}},
		{"original length beside the scaling", jsonKeys{"original_max_position_embeddings": 32, "rope_scaling": jsonKeys{"type": "yarn", "factor": 4}},
			RopeConfig{Theta: 1e4, Type: "yarn", Factor: 4, OriginalMax: 32}},
		{"yarn, null as factor", jsonKeys{"max_position_embeddings": 160, "rope_scaling": jsonKeys{"type": "yarn", "factor": nil, "original_max_position_embeddings": 64}},
			RopeConfig{Theta: 1e4, Type: "yarn", Factor: 2.5, OriginalMax: 64}},
		{"yarn, null as factor, in the newer form", jsonKeys{"max_position_embeddings": 128, "original_max_position_embeddings": 32, "rope_parameters": jsonKeys{"rope_type": "yarn", "factor": nil}},
			RopeConfig{Theta: 1e4, Type: "yarn", Factor: 4, OriginalMax: 32}},
		{"original lengths beside and inside", jsonKeys{"original_max_position_embeddings": 32, "rope_scaling": jsonKeys{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 64}},
			RopeConfig{Theta: 1e4, Type: "llama3", Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMax: 32}},
		{"original length of no concern", jsonKeys{"original_max_position_embeddings": 32, "rope_scaling": jsonKeys{"type": "linear", "factor": 4}},
			RopeConfig{Theta: 1e4, Type: "linear", Factor: 4}},
		{"default scaling beside parameters", jsonKeys{"rope_scaling": jsonKeys{"type": "default"}, "rope_parameters": jsonKeys{"rope_type": "linear", "factor": 2, "rope_theta": 1e6}},
			RopeConfig{Theta: 1e6, Type: "linear", Factor: 2}},
		{"Ministral 3 without any", jsonKeys{"model_type": "ministral3", "num_key_value_heads": 2}, RopeConfig{Theta: 1e6, Type: "yarn", Factor: 16, OriginalMax: 16384,
			BetaFast: 32, BetaSlow: 1, MScale: 1, MScaleAllDim: 1, QueryBeta: 0.1}},
		{"Ministral 3 without a base", jsonKeys{"model_type": "ministral3", "num_key_value_heads": 2, "rope_parameters": jsonKeys{"rope_type": "default"}}, RopeConfig{Theta: 1e4, Type: "default"}},
		{"the original length of Phi 3", jsonKeys{"model_type": "phi3", "max_position_embeddings": 16384, "rope_scaling": jsonKeys{"type": "longrope",
			"original_max_position_embeddings": 64, "short_factor": ones, "long_factor": ones}}, RopeConfig{Theta: 1e4, Type: "longrope", OriginalMax: 4096, ShortFactors: ones, LongFactors: ones}},
		{"scaling beside rotations by kind", jsonKeys{"model_type": "gemma3_text", "num_key_value_heads": 4, "head_dim": 16, "rope_theta": 5e5, "rope_scaling": jsonKeys{"rope_type": "linear", "factor": 8},
			"rope_parameters": jsonKeys{"full_attention": jsonKeys{"rope_type": "default"}, "sliding_attention": jsonKeys{"rope_type": "default"}}}, RopeConfig{Theta: 5e5, Type: "linear", Factor: 8}},
	}
	for _, c := range cases {
		got, err := Parse(withKeys(c.keys))
		if assert.NoError(t, err, c.name) {
			assert.Equal(t, c.want, got.Rope, c.name)
		}
	}
}

// TestRotationsOfGemma3: the base of sliding layers is their own or the local one, never that
// of the layers with full attention.
func TestRotationsOfGemma3(t *testing.T) {
	kinds := jsonKeys{"full_attention": jsonKeys{"rope_type": "default"}, "sliding_attention": jsonKeys{"rope_type": "default"}}
	for local, keys := range map[float64]jsonKeys{
		1e4: {"rope_theta": 5e5, "rope_parameters": kinds},
		2e4: {"rope_theta": 5e5, "rope_parameters": kinds, "rope_local_base_freq": 2e4},
		3e4: {"rope_theta": 5e5, "rope_parameters": jsonKeys{"full_attention": jsonKeys{"rope_type": "default"}, "sliding_attention": jsonKeys{"rope_type": "default", "rope_theta": 3e4}}},
		4e4: {"rope_theta": 5e5, "rope_local_base_freq": 4e4},
	} {
		maps.Copy(keys, jsonKeys{"model_type": "gemma3_text", "num_key_value_heads": 4, "head_dim": 16, "attn_logit_softcapping": 50})
		c, err := Parse(withKeys(keys))
		require.NoError(t, err)
		require.Equal(t, 5e5, c.Rope.Theta)
		require.Equal(t, local, c.moreRopes[0].Theta)
		require.Zero(t, c.Plans()[0].ScoreCap, "transformers has none")
	}
}

// TestYarnContext: with YaRN the context is what the config allows, whether or
// not max_position_embeddings is stretched already.
func TestYarnContext(t *testing.T) {
	yarn := func(factor, original any) jsonKeys {
		return jsonKeys{"type": "yarn", "factor": factor, "original_max_position_embeddings": original}
	}
	for _, c := range []struct {
		name    string
		max     int
		scaling jsonKeys
		want    int
	}{
		{"as Qwen folders do", 32768, yarn(4.0, 32768), 131072},
		{"stretched in the config", 131072, yarn(4.0, 32768), 131072},
		{"no original length", 2048, jsonKeys{"type": "yarn", "factor": 2.5}, 5120},
		{"an upper bound", 1 << 20, yarn(1e9, 1<<20), PositionLimit},
		{"null as factor", 160, yarn(nil, 64), 160},
		{"another scaling", 2048, jsonKeys{"type": "linear", "factor": 4}, 2048},
	} {
		got, err := Parse(withKeys(jsonKeys{"max_position_embeddings": c.max, "rope_scaling": c.scaling}))
		if assert.NoError(t, err, c.name) {
			assert.Equal(t, c.want, got.MaxPositions, c.name)
		}
	}
}

func TestConfigRefuses(t *testing.T) {
	cases := []struct {
		name        string
		keys        jsonKeys
		want        string // part of the error
		unsupported bool
	}{
		{"architecture", jsonKeys{"model_type": "gpt2"}, "expected one of [", true},
		{"known architecture", jsonKeys{"model_type": "gpt_oss"}, "attention sinks", true},
		{"class", jsonKeys{"model_type": absentKey, "architectures": []string{"GPT2LMHeadModel"}}, "GPT2LMHeadModel", true},
		{"no architecture", jsonKeys{"model_type": absentKey}, "model_type", true},
		{"architecture as number", jsonKeys{"model_type": 1}, "expected a string", false},
		{"classes as string", jsonKeys{"model_type": absentKey, "architectures": "LlamaForCausalLM"}, "list of strings", false},
		{"activation", jsonKeys{"hidden_act": "gelu"}, "gelu", true},
		{"quantization", jsonKeys{"quantization_config": jsonKeys{"bits": 4}}, "quantization_config", true},
		{"missing layers", jsonKeys{"num_hidden_layers": absentKey}, `"num_hidden_layers": missing, expected a whole number`, false},
		{"missing width, null", jsonKeys{"intermediate_size": nil}, `"intermediate_size": missing`, false},
		{"zero layers", jsonKeys{"num_hidden_layers": 0}, "found 0, expected a whole number from 1 to", false},
		{"a billion layers", jsonKeys{"num_hidden_layers": 1000000000}, "num_hidden_layers", false},
		{"integer with a point", jsonKeys{"hidden_size": json.RawMessage("64.0")}, "found 64.0, expected a whole number", false},
		{"integer with an exponent", jsonKeys{"vocab_size": json.RawMessage("1e3")}, "found 1e3", false},
		{"integer as string", jsonKeys{"num_attention_heads": "4"}, `found "4"`, false},
		{"integer beyond 64 bits", jsonKeys{"vocab_size": json.RawMessage("99999999999999999999")}, "vocab_size", false},
		{"integer as object", jsonKeys{"vocab_size": jsonKeys{}}, "vocab_size", false},
		{"bool as number", jsonKeys{"tie_word_embeddings": 1}, "expected true or false", false},
		{"eps as string", jsonKeys{"rms_norm_eps": "1e-5"}, "rms_norm_eps", false},
		{"eps too large", jsonKeys{"rms_norm_eps": 1}, "rms_norm_eps", false},
		{"hidden not a multiple", jsonKeys{"hidden_size": 66}, "multiple of the 4 heads", false},
		{"KV heads", jsonKeys{"num_key_value_heads": 3}, "divisor of the 4 heads", false},
		{"default of KV heads", jsonKeys{"model_type": "mistral"}, "found 8, expected a divisor", false},
		{"odd head dim", jsonKeys{"head_dim": 15}, "even number", false},
		{"window 0", jsonKeys{"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": 0}, "sliding_window", false},
		{"too few layer types", jsonKeys{"layer_types": []string{"full_attention"}}, "list of 3 strings", false},
		{"unknown layer type", jsonKeys{"layer_types": []string{"full_attention", "chunked_attention", "full_attention"}}, "chunked_attention", true},
		{"sliding layer without window", jsonKeys{"layer_types": []string{"full_attention", "sliding_attention", "full_attention"}}, "sets no window", false},
		{"negative token", jsonKeys{"eos_token_id": -2}, "eos_token_id", false},
		{"negative token in a list", jsonKeys{"bos_token_id": []int{1, -2}}, "bos_token_id", false},
		{"token as string", jsonKeys{"bos_token_id": []any{1, "2"}}, "bos_token_id", false},
		{"token in two lists", jsonKeys{"eos_token_id": []any{[]any{1}}}, "found [[1]]", false},
		{"theta", jsonKeys{"rope_theta": 1}, "rope theta", false},
		{"theta as string", jsonKeys{"rope_theta": "1"}, "rope_theta", false},
		{"scaling as string", jsonKeys{"rope_scaling": "linear"}, "rope_scaling", false},
		{"scaling without type", jsonKeys{"rope_scaling": jsonKeys{"factor": 2}}, `"rope_scaling.rope_type": missing`, false},
		{"parameters without type", jsonKeys{"rope_parameters": jsonKeys{"factor": 2}}, `"rope_parameters.rope_type": missing`, false},
		{"type of scaling", jsonKeys{"rope_scaling": jsonKeys{"type": "spiral", "factor": 2}}, "spiral", true},
		{"type as number", jsonKeys{"rope_scaling": jsonKeys{"type": 3}}, `"rope_scaling.type": found 3`, false},
		{"factor missing", jsonKeys{"rope_scaling": jsonKeys{"type": "dynamic"}}, "rope factor", false},
		{"factor below 1", jsonKeys{"rope_scaling": jsonKeys{"type": "linear", "factor": 0.5}}, "rope factor", false},
		{"factor as string", jsonKeys{"rope_scaling": jsonKeys{"type": "linear", "factor": "2"}}, `"rope_scaling.factor": found "2"`, false},
		{"llama3 without length", jsonKeys{"rope_scaling": jsonKeys{"type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 4}}, "original maximum", false},
		{"llama3 without bounds", jsonKeys{"rope_scaling": jsonKeys{"type": "llama3", "factor": 2, "original_max_position_embeddings": 64}}, "frequency factors", false},
		{"llama3 with equal bounds", jsonKeys{"rope_scaling": jsonKeys{"type": "llama3", "factor": 2, "original_max_position_embeddings": 64, "low_freq_factor": 4, "high_freq_factor": 4}}, "frequency factors", false},
		{"null as factor of another scaling", jsonKeys{"rope_scaling": jsonKeys{"type": "linear", "factor": nil, "original_max_position_embeddings": 64}}, "rope factor", false},
		{"yarn without factor", jsonKeys{"rope_scaling": jsonKeys{"type": "yarn", "original_max_position_embeddings": 64}}, "rope factor", false},
		{"yarn, null without length", jsonKeys{"rope_scaling": jsonKeys{"type": "yarn", "factor": nil}}, "rope factor", false},
		{"yarn, null and too long", jsonKeys{"rope_scaling": jsonKeys{"type": "yarn", "factor": nil, "original_max_position_embeddings": 4096}}, "rope factor", false},
		{"yarn betas", jsonKeys{"rope_scaling": jsonKeys{"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}}, "betas", false},
		{"yarn attention factor", jsonKeys{"rope_scaling": jsonKeys{"type": "yarn", "factor": 2, "attention_factor": 0}}, "attention_factor", false},
		{"yarn mscale", jsonKeys{"rope_scaling": jsonKeys{"type": "yarn", "factor": 2, "mscale": -100, "mscale_all_dim": 1}}, "mscale", false},
		{"dynamic with one pair", jsonKeys{"head_dim": 2, "rope_scaling": jsonKeys{"type": "dynamic", "factor": 2}}, "at least 4", false},
		{"two scalings", jsonKeys{"rope_scaling": jsonKeys{"type": "linear", "factor": 2}, "rope_parameters": jsonKeys{"rope_type": "yarn", "factor": 2}}, "expected one", false},
		{"rotation by kind of layer", jsonKeys{"rope_parameters": jsonKeys{"full_attention": jsonKeys{"rope_theta": 1e6}}}, "kinds of layers", true},
		{"partial rotation", jsonKeys{"partial_rotary_factor": 0.5}, "partial_rotary_factor", true},
		{"classifier", jsonKeys{"architectures": []string{"LlamaForSequenceClassification"}}, "a classifier", true},
		{"classifier of tokens", jsonKeys{"model_type": "qwen3", "architectures": []string{"Qwen3ForTokenClassification"}}, "a classifier", true},
		{"reward model", jsonKeys{"architectures": []string{"LlamaForRewardModel"}}, "a classifier", true},
		{"attention to all tokens", jsonKeys{"is_causal": false}, "is_causal", true},
		{"attention to all tokens, Gemma", jsonKeys{"model_type": "gemma3_text", "use_bidirectional_attention": true}, "use_bidirectional_attention", true},
		{"attention to all tokens of some kind", jsonKeys{"use_bidirectional_attention": "all"}, "use_bidirectional_attention", true},
		{"cap of scores", jsonKeys{"model_type": "gemma2", "attn_logit_softcapping": 0}, "attn_logit_softcapping", false},
		{"cap of logits", jsonKeys{"model_type": "gemma3_text", "final_logit_softcapping": json.RawMessage("0.0")}, "final_logit_softcapping", false},
		{"layers of one window", jsonKeys{"model_type": "phi3", "sliding_window": 8, "layer_types": []string{"sliding_attention", "full_attention", "sliding_attention"}}, "layer 1 has another window than the 8", true},
		{"layers of one window, experts", jsonKeys{"model_type": "qwen3_moe", "num_key_value_heads": 4, "use_sliding_window": true, "sliding_window": 8, "num_experts": 8, "layer_types": []string{"full_attention", "full_attention", "full_attention"}}, "layer 0 has another window", true},
		{"layers of one window, Mixtral", jsonKeys{"model_type": "mixtral", "num_key_value_heads": 4, "sliding_window": 8, "layer_types": []string{"sliding_attention", "sliding_attention", "full_attention"}}, "layer 2 has another window", true},
		{"layers without rotation", jsonKeys{"model_type": "smollm3", "no_rope_layers": []int{}}, "found 0 numbers", false},
	}
	for _, keys := range []jsonKeys{
		{"architectures": []string{"LlamaForCausalLM", "LlamaForSequenceClassification"}, "is_causal": true, "use_bidirectional_attention": false},
		{"architectures": nil, "is_causal": nil, "use_bidirectional_attention": nil},
		{"architectures": "LlamaForCausalLM"},
	} {
		_, err := Parse(withKeys(keys))
		assert.NoError(t, err, "%v", keys)
	}
	for _, c := range cases {
		_, err := Parse(withKeys(c.keys))
		if assert.ErrorContains(t, err, c.want, c.name) {
			assert.Equal(t, c.unsupported, strings.Contains(fmt.Sprint(err), ErrUnsupported.Error()), c.name)
			if c.unsupported {
				assert.ErrorIs(t, err, ErrUnsupported, c.name)
			}
		}
	}
	for text, want := range map[string]string{"": "invalid JSON", "[]": "expected an object", "null": "expected an object", "{} x": "invalid JSON", `"x"`: "expected an object"} {
		_, err := Parse([]byte(text))
		assert.ErrorContains(t, err, want, text)
	}
}

func TestGeneration(t *testing.T) {
	base := Config{BOS: []int{1}, EOS: []int{2}, Generation: neutralGeneration()}
	c := base
	require.NoError(t, c.parseGeneration([]byte(`{"do_sample":true,"temperature":0.6,"top_k":20,"top_p":0.9,"min_p":0.05,"repetition_penalty":1.1,"max_new_tokens":64,"eos_token_id":[5,6],"other":{}}`)))
	assert.Equal(t, GenerationDefaults{DoSample: true, Temperature: 0.6, TopK: 20, TopP: 0.9, MinP: 0.05, RepetitionPenalty: 1.1, MaxNewTokens: 64}, c.Generation)
	assert.Equal(t, []int{1}, c.BOS)
	assert.Equal(t, []int{5, 6}, c.EOS)

	c = base
	require.NoError(t, c.parseGeneration([]byte(`{"bos_token_id":7,"eos_token_id":null,"temperature":null}`)))
	assert.Equal(t, Config{BOS: []int{7}, EOS: []int{2}, Generation: neutralGeneration()}, c)

	// As other writers put it: -1 switches top-k off and is no token, and no id of a
	// token that ends a text replaces those of config.json, too.
	c = base
	require.NoError(t, c.parseGeneration([]byte(`{"do_sample":1,"top_k":-1,"max_new_tokens":64.0,"bos_token_id":[-1,7],"eos_token_id":-1,"pad_token_id":-1}`)))
	assert.Equal(t, Config{BOS: []int{7}, EOS: []int{}, Generation: GenerationDefaults{
		DoSample: true, Temperature: 1, TopP: 1, RepetitionPenalty: 1, MaxNewTokens: 64}}, c)
	c = base
	require.NoError(t, c.parseGeneration([]byte(`{"do_sample":0,"top_k":5.0e1}`)))
	assert.False(t, c.Generation.DoSample)
	assert.Equal(t, 50, c.Generation.TopK)

	// A share of 0 keeps the likeliest token, as in transformers.
	c = base
	require.NoError(t, c.parseGeneration([]byte(`{"do_sample":true,"top_p":0,"top_k":20}`)))
	assert.Equal(t, 1, c.Generation.TopK)

	for _, text := range []string{"[]", "{", `{"temperature":"1"}`, `{"temperature":-1}`, `{"top_p":1.5}`, `{"top_k":1.5}`,
		`{"top_k":-2}`, `{"top_k":1e99}`, `{"top_k":"50"}`, `{"do_sample":2}`, `{"do_sample":1.5}`, `{"eos_token_id":2.5}`,
		`{"repetition_penalty":0}`, `{"do_sample":"yes"}`, `{"eos_token_id":"x"}`, `{"max_new_tokens":-1}`} {
		c := base
		assert.Error(t, c.parseGeneration([]byte(text)), text)
		assert.Equal(t, base, c, "unchanged after an error: %s", text)
	}
}

func TestLoadConfigFiles(t *testing.T) {
	dir := t.TempDir()
	_, err := Load(dir)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, filepath.Join(dir, "config.json"))

	write := func(name string, text []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	write("config.json", withKeys(jsonKeys{"eos_token_id": 2}))
	c, err := Load(dir)
	require.NoError(t, err)
	assert.Equal(t, []int{2}, c.EOS)
	write("generation_config.json", []byte(`{"eos_token_id":3,"top_k":5}`))
	c, err = Load(dir)
	require.NoError(t, err)
	assert.Equal(t, []int{3}, c.EOS)
	assert.Equal(t, 5, c.Generation.TopK)
	again, err := LoadFS(os.DirFS(dir))
	require.NoError(t, err)
	assert.Equal(t, c, again)
	write("generation_config.json", []byte(`{"top_k":50.0}`))
	write("config.json", withKeys(jsonKeys{"eos_token_id": -1, "pad_token_id": -1}))
	c, err = Load(dir)
	require.NoError(t, err)
	assert.Empty(t, c.EOS)
	assert.Equal(t, 50, c.Generation.TopK)
	write("generation_config.json", []byte(`{`))
	_, err = Load(dir)
	assert.ErrorContains(t, err, "generation_config.json")
	write("config.json", withKeys(jsonKeys{"hidden_size": nil}))
	_, err = Load(dir)
	assert.ErrorContains(t, err, `config.json": "hidden_size": missing`)

	_, err = LoadFS(fstest.MapFS{"config.json": {Data: make([]byte, maxConfigBytes+1)}})
	assert.ErrorContains(t, err, "more than")
}

// TestFamilyWindows: which layers have a window where the config does not list them.
func TestFamilyWindows(t *testing.T) {
	on := jsonKeys{"num_key_value_heads": 2, "num_hidden_layers": 4, "use_sliding_window": true, "sliding_window": 7}
	for _, c := range []struct {
		arch string
		more jsonKeys
		want []int
	}{
		{"qwen3", jsonKeys{"max_window_layers": 3}, []int{0, 0, 0, 7}},
		{"qwen3_moe", jsonKeys{"max_window_layers": 3}, []int{7, 7, 7, 7}},
		{"qwen3_moe", jsonKeys{"use_sliding_window": false}, []int{0, 0, 0, 0}},
		{"qwen2_moe", jsonKeys{"max_window_layers": 2}, []int{7, 0, 0, 0}},
		{"qwen2_moe", nil, []int{7, 0, 7, 0}},
		{"smollm3", nil, []int{0, 0, 0, 7}},
		{"smollm3", jsonKeys{"no_rope_layers": []int{0, 1, 1, 0}}, []int{7, 0, 0, 7}},
		{"mixtral", nil, []int{7, 7, 7, 7}},
		{"phi3", nil, []int{7, 7, 7, 7}},
		{"gemma2", nil, []int{7, 0, 7, 0}},
	} {
		keys := maps.Clone(on)
		maps.Copy(keys, c.more)
		keys["model_type"] = c.arch
		cfg, err := Parse(withKeys(keys))
		require.NoError(t, err, c.arch)
		require.Equal(t, c.want, cfg.Windows, c.arch)
	}
}

// FuzzConfig: no input may cause a panic, and what is accepted can be used.
func FuzzConfig(f *testing.F) {
	for _, pattern := range []string{filepath.Join("..", "testdata", "models", "*", "config.json"),
		filepath.Join("..", "..", "safetensors", "testdata", "malformed", "folders", "*", "config.json")} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			f.Fatal("no seed files", pattern)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		defer testfuzz.Bound(t, len(text))()
		c, err := Parse(text)
		if err != nil {
			return
		}
		require.Len(t, c.Windows, c.Layers)
		require.Zero(t, c.Heads%c.KVHeads)
		require.Zero(t, c.HeadDim%2)
		r, err := newRope(c)
		require.NoError(t, err)
		for _, f := range r.InvFreq(c.MaxPositions * 2) {
			require.False(t, f != f || f < 0, "frequency %v", f)
		}
		_ = c.parseGeneration(text)
	})
}
