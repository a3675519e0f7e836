package arch

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/gguf/checkpoint"
)

// TestDiffers: each setting that changes what a network computes is a difference, which is
// named.
func TestDiffers(t *testing.T) {
	parse := func(base, keys map[string]any) *Config {
		all := map[string]any{}
		for _, m := range []map[string]any{base, keys} {
			for k, v := range m {
				all[k] = v
			}
		}
		c, err := Parse(withKeys(all))
		require.NoError(t, err)
		return c
	}
	moe := map[string]any{"model_type": "qwen2_moe", "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2}
	granite := map[string]any{"model_type": "granite"}
	phi := map[string]any{"model_type": "phi3"}
	yarn := map[string]any{"model_type": "ministral3", "num_key_value_heads": 4, "rope_parameters": map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}
	for _, c := range []struct {
		base, keys map[string]any
		want       string
	}{
		{nil, map[string]any{"num_hidden_layers": 2}, "number of layers, 2 instead of 3"},
		{nil, map[string]any{"hidden_size": 32, "head_dim": 16}, "hidden size, 32 instead of 64"},
		{nil, map[string]any{"num_attention_heads": 8}, "number of heads"},
		{nil, map[string]any{"num_key_value_heads": 2}, "number of KV heads"},
		{nil, map[string]any{"head_dim": 8}, "head dimension"},
		{nil, map[string]any{"vocab_size": 99}, "size of the vocabulary"},
		{nil, map[string]any{"max_position_embeddings": 99}, "context length"},
		{nil, map[string]any{"tie_word_embeddings": true}, "tie_word_embeddings"},
		{nil, map[string]any{"rms_norm_eps": 1.1e-6}, "epsilon of norms"},
		{nil, map[string]any{"intermediate_size": 95}, "width of the feed-forward unit in layer 0, 95 instead of 96"},
		{nil, map[string]any{"attention_bias": true}, "set of biases"},
		{nil, map[string]any{"mlp_bias": true}, "set of biases"},
		{nil, map[string]any{"rope_theta": 10001.0}, "list of frequencies"},
		{nil, map[string]any{"rope_scaling": map[string]any{"rope_type": "dynamic", "factor": 2.0}}, "list of frequencies"},
		{nil, map[string]any{"model_type": "mistral", "num_key_value_heads": 4, "max_position_embeddings": 2048, "sliding_window": 16}, "attention window in layer 0, 16 instead of 0"},
		{nil, map[string]any{"model_type": "olmo2", "rms_norm_eps": 1e-6}, "norm of queries and keys"},
		{nil, map[string]any{"model_type": "smollm3", "num_key_value_heads": 4, "max_position_embeddings": 2048, "tie_word_embeddings": false,
			"no_rope_layers": []int{1, 0, 1}, "rope_theta": 10000.0}, "rotation of positions in layer 1"},
		{moe, map[string]any{"num_experts": 5}, "number of experts"},
		{moe, map[string]any{"num_experts_per_tok": 1}, "number of chosen experts"},
		{moe, map[string]any{"norm_topk_prob": true}, "norm_topk_prob"},
		{moe, map[string]any{"shared_expert_intermediate_size": 8}, "width of the shared unit"},
		{granite, map[string]any{"embedding_multiplier": 2.0}, "scale of embeddings"},
		{granite, map[string]any{"attention_multiplier": 2.0}, "scale of scores"},
		{granite, map[string]any{"residual_multiplier": 2.0}, "scale of branches"},
		{granite, map[string]any{"logits_scaling": 2.0}, "scale of logits"},
		{phi, map[string]any{"partial_rotary_factor": 0.5}, "number of elements that rotate, 8 instead of 16"},
		{map[string]any{"model_type": "gemma2"}, map[string]any{"attn_logit_softcapping": 20.0}, "limit of scores"},
		{map[string]any{"model_type": "gemma2"}, map[string]any{"final_logit_softcapping": 20.0}, "limit of logits"},
		{map[string]any{"model_type": "gemma3_text"}, map[string]any{"rope_local_base_freq": 9.0}, "list of frequencies"},
		{yarn, map[string]any{"rope_parameters": map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 2.0}}, "factor of the rotation"},
		{yarn, map[string]any{"rope_parameters": map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}}, "factor of queries"},
	} {
		base := parse(c.base, nil)
		require.Empty(t, base.Differs(parse(c.base, nil)))
		require.Contains(t, base.Differs(parse(c.base, c.keys)), c.want, "%v", c.keys)
	}
	// A window as long as the context hides nothing; a 32-bit number is the same number.
	window := map[string]any{"model_type": "mistral", "max_position_embeddings": 2048, "num_key_value_heads": 4, "sliding_window": 2048}
	require.Empty(t, parse(nil, nil).Differs(parse(nil, window)))
	require.Empty(t, parse(nil, nil).Differs(parse(nil, map[string]any{"rms_norm_eps": float64(float32(1e-6))})))
}

// TestGGUFKeysUnknown: configs made by hand may name no family.
func TestGGUFKeysUnknown(t *testing.T) {
	_, _, _, err := (&Config{Arch: "x"}).GGUFKeys()
	require.ErrorIs(t, err, ErrUnsupported)
}

// TestFamiliesHaveReaders: what a family's GGUF files are called is known to the package that
// reads them.
func TestFamiliesHaveReaders(t *testing.T) {
	for _, f := range families {
		file, err := gguf.Preview([]gguf.Pair{{Key: "general.architecture", Value: f.gguf}}, nil)
		require.NoError(t, err)
		_, err = checkpoint.Files(file, checkpoint.Options{})
		require.Error(t, err, "there are no tensors")
		require.NotErrorIs(t, err, ErrUnsupported, f.arch)
	}
}

// TestEveryFieldCounts: whatever a plan and the scalars say of what a network computes changes
// the model's identity, and is a difference.
func TestEveryFieldCounts(t *testing.T) {
	parse := func() *Config {
		c, err := Parse(withKeys(map[string]any{
			"model_type": "qwen2_moe", "num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 8,
		}))
		require.NoError(t, err)
		c.Scalars.embedScale = 2
		return c
	}
	identity := func(c *Config) string {
		var b strings.Builder
		c.WriteIdentity(&b)
		return b.String()
	}
	base := parse()
	inWeights := []string{"qkvBias", "outBias", "bias"} // the identity lists the tensors, too
	checks := 0
	var each func(path string, pick func(c *Config) reflect.Value)
	each = func(path string, pick func(c *Config) reflect.Value) {
		typ := pick(base).Type()
		for i := range typ.NumField() {
			name := typ.Field(i).Name
			pick := func(c *Config) reflect.Value {
				f := pick(c).Field(i)
				return reflect.NewAt(f.Type(), f.Addr().UnsafePointer()).Elem()
			}
			if typ.Field(i).Type.Kind() == reflect.Struct {
				each(path+name+".", pick)
				continue
			}
			c := parse()
			switch f := pick(c); f.Kind() {
			case reflect.Bool:
				f.SetBool(!f.Bool())
			case reflect.Int:
				f.SetInt(f.Int() + 1)
			case reflect.Uint8:
				f.SetUint(f.Uint() + 1)
			case reflect.Float32, reflect.Float64:
				f.SetFloat(f.Float() + 0.5)
			default:
				require.Equal(t, "Order", name, "made of the rotation")
				continue
			}
			if name != "NormOffset" { // weights may hold it
				require.NotEmpty(t, base.Differs(c), path+name)
			}
			if !slices.Contains(inWeights, name) {
				require.NotEqual(t, identity(base), identity(c), path+name)
			}
			checks++
		}
	}
	each("plan.", func(c *Config) reflect.Value { return reflect.ValueOf(&c.plan[1]).Elem() })
	each("scalars.", func(c *Config) reflect.Value { return reflect.ValueOf(&c.Scalars).Elem() })
	require.Greater(t, checks, 15)
}
