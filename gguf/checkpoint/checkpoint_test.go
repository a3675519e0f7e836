package checkpoint

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	modelarch "github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// file is a GGUF file to be written.
type file map[string]any

// open writes the file, with tensors of F32, and opens it.
func (f file) open(t *testing.T, tensors map[string][]float32) *gguf.File {
	var pairs []gguf.Pair
	for _, key := range slices.Sorted(maps.Keys(f)) {
		pairs = append(pairs, gguf.Pair{Key: key, Value: f[key]})
	}
	var entries []gguf.Entry
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		x := tensors[name]
		shape := []int{len(x)}
		if name == "token_embd.weight" {
			shape = []int{len(x) / 64, 64}
		}
		data := tensor.FromF32s(tensor.F32, x, len(x)).Data
		entries = append(entries, gguf.Entry{Name: name, Type: gguf.F32, Shape: shape, Stream: func(w io.Writer) error {
			_, err := w.Write(data)
			return err
		}})
	}
	path := filepath.Join(t.TempDir(), "x.gguf")
	require.NoError(t, gguf.WriteFile(path, pairs, entries))
	g, err := gguf.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { g.Close() })
	return g
}

// small is a file of an architecture with a vocabulary of four tokens.
func small(arch string) file {
	f := file{
		"general.architecture": arch,
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": []string{"a", "b", "ab", "<end>"},
		"tokenizer.ggml.merges": []string{"a b"}, "tokenizer.ggml.token_type": []int32{1, 1, 1, 3}, "tokenizer.ggml.eos_token_id": uint32(3),
	}
	for key, n := range map[string]uint32{
		"block_count": 12, "context_length": 4096, "embedding_length": 64, "feed_forward_length": 96,
		"attention.head_count": 4, "attention.head_count_kv": 2,
	} {
		f[arch+"."+key] = n
	}
	f[arch+".attention.layer_norm_rms_epsilon"] = float32(1e-5)
	return f
}

var fourRows = map[string][]float32{"token_embd.weight": make([]float32, 4*64)}

// config returns config.json of a file.
func config(t *testing.T, g *gguf.File, o Options) map[string]any {
	o.Text = true
	files, err := Files(g, o)
	require.NoError(t, err)
	for _, name := range Names {
		text, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		require.True(t, json.Valid(text), name)
	}
	text, err := fs.ReadFile(files, "config.json")
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// network returns the network that the config of a file describes.
func network(t *testing.T, g *gguf.File) *modelarch.Config {
	files, err := Files(g, Options{Text: true})
	require.NoError(t, err)
	c, err := modelarch.LoadFS(files)
	require.NoError(t, err)
	return c
}

// TestArchitectures: keys of every architecture become those of its configs.
func TestArchitectures(t *testing.T) {
	for arch, c := range map[string]struct {
		set  file // keys after the architecture's prefix
		want map[string]any
	}{
		"llama":    {nil, map[string]any{"model_type": "llama", "rms_norm_eps": 1e-5, "head_dim": 16.0, "vocab_size": 4.0, "tie_word_embeddings": true, "attention_bias": false}},
		"qwen3":    {file{"attention.key_length": uint32(32), "attention.value_length": uint32(32)}, map[string]any{"model_type": "qwen3", "head_dim": 32.0, "use_sliding_window": false}},
		"qwen3moe": {file{"expert_count": uint32(8), "expert_used_count": uint32(2), "expert_feed_forward_length": uint32(24), "feed_forward_length": uint32(0)}, map[string]any{"model_type": "qwen3_moe", "num_experts": 8.0, "num_experts_per_tok": 2.0, "moe_intermediate_size": 24.0, "norm_topk_prob": true, "intermediate_size": 24.0}},
		"qwen2moe": {file{"expert_count": uint32(8), "expert_used_count": uint32(2), "expert_feed_forward_length": uint32(24), "expert_shared_feed_forward_length": uint32(48)}, map[string]any{"model_type": "qwen2_moe", "norm_topk_prob": false, "shared_expert_intermediate_size": 48.0}},
		"smollm3":  {nil, map[string]any{"no_rope_layer_interval": 4.0}},
		"granite":  {file{"embedding_scale": float32(12), "attention.scale": float32(0.0078125), "residual_scale": float32(0.22), "logit_scale": float32(8)}, map[string]any{"embedding_multiplier": 12.0, "attention_multiplier": 0.0078125, "residual_multiplier": 0.22, "logits_scaling": 8.0}},
		"phi3":     {file{"rope.dimension_count": uint32(12), "attention.sliding_window": uint32(512)}, map[string]any{"partial_rotary_factor": 0.75, "sliding_window": 512.0}},
		"gemma2":   {file{"attention.sliding_window": uint32(1024), "attn_logit_softcapping": float32(50), "final_logit_softcapping": float32(30)}, map[string]any{"sliding_window": 1024.0, "attn_logit_softcapping": 50.0, "query_pre_attn_scalar": 16.0, "hidden_activation": "gelu_pytorch_tanh"}},
		"gemma3":   {file{"attention.sliding_window": uint32(512), "rope.freq_base": float32(1e6), "attention.sliding_window_pattern": []bool{true, false, true, false, true, false, true, false, true, false, true, false}}, map[string]any{"rope_theta": 1e6, "rope_local_base_freq": 1e4, "attn_logit_softcapping": nil}},
		"mistral3": {file{"rope.scaling.type": "yarn", "rope.scaling.factor": float32(16), "rope.scaling.original_context_length": uint32(256), "rope.scaling.yarn_log_multiplier": float32(0.5), "attention.temperature_scale": float32(0.1)}, map[string]any{"model_type": "ministral3"}},
		"olmo2":    {nil, map[string]any{"model_type": "olmo2"}},
	} {
		t.Run(arch, func(t *testing.T) {
			f := small(arch)
			for key, value := range c.set {
				f[arch+"."+key] = value
			}
			got := config(t, f.open(t, fourRows), Options{Text: true})
			for key, want := range c.want {
				require.Equal(t, want, got[key], key)
			}
			require.Equal(t, []any{3.0}, got["eos_token_id"])
			switch arch {
			case "gemma3":
				require.Equal(t, "sliding_attention", got["layer_types"].([]any)[0])
				require.Equal(t, "full_attention", got["layer_types"].([]any)[1])
			case "mistral3":
				s := got["rope_scaling"].(map[string]any)
				require.Equal(t, 0.1, s["llama_4_scaling_beta"])
				require.Equal(t, 1.0, s["mscale"])
				require.Equal(t, 0.5, s["mscale_all_dim"])
			}
		})
	}
}

// TestGraniteFactors: factors that are absent or 0 are those of llama.cpp: 1, and for scores
// the root of the head dimension.
func TestGraniteFactors(t *testing.T) {
	zero := float32(0)
	for _, set := range []file{
		{}, {"granite.attention.scale": zero, "granite.embedding_scale": zero, "granite.residual_scale": zero},
	} {
		f := small("granite")
		f["granite.logit_scale"] = float32(8)
		maps.Copy(f, set)
		plan := network(t, f.open(t, fourRows)).Plans()[0]
		require.Equal(t, 0.25, plan.ScoreScale)
		require.Equal(t, 1.0, plan.ResidualScale)
		c := config(t, f.open(t, fourRows), Options{})
		require.NotContains(t, c, "embedding_multiplier")
	}
}

// TestLlamaKinds: what shares the architecture llama is told apart.
func TestLlamaKinds(t *testing.T) {
	f := small("llama")
	f["llama.attention.sliding_window"] = uint32(64)
	require.Equal(t, "mistral", config(t, f.open(t, fourRows), Options{Text: true})["model_type"])
	f["llama.expert_count"], f["llama.expert_used_count"] = uint32(8), uint32(2)
	c := config(t, f.open(t, fourRows), Options{Text: true})
	require.Equal(t, "mixtral", c["model_type"])
	require.Equal(t, 8.0, c["num_local_experts"])
	require.Equal(t, 64.0, c["sliding_window"])
}

// TestOptionalKeys: what llama.cpp takes for absent keys, and for those whose 0 means the same.
func TestOptionalKeys(t *testing.T) {
	yarn := func(set file) file {
		set["llama.rope.scaling.type"] = "yarn"
		return set
	}
	for _, c := range []struct {
		set  file
		want map[string]any // of rope_scaling
	}{
		{file{"llama.rope.scaling.type": "linear"}, map[string]any{"rope_type": "linear", "factor": 1.0}},
		{file{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(0)}, map[string]any{"rope_type": "linear", "factor": 1.0}},
		{yarn(file{}), map[string]any{"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096.0}},
		{
			yarn(file{"llama.rope.scaling.factor": float32(0), "llama.rope.scaling.original_context_length": uint32(0), "llama.rope.scaling.yarn_log_multiplier": float32(0)}),
			map[string]any{"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 4096.0},
		},
		{yarn(file{"llama.rope.scaling.factor": float32(4)}), map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096.0}},
	} {
		f := small("llama")
		maps.Copy(f, c.set)
		require.Equal(t, c.want, config(t, f.open(t, fourRows), Options{})["rope_scaling"], "%v", c.set)
		network(t, f.open(t, fourRows)) // accepts it
	}

	f := small("llama")
	f["llama.attention.head_count"], f["llama.attention.head_count_kv"] = slices.Repeat([]int32{8}, 12), slices.Repeat([]int32{4}, 12)
	f["llama.feed_forward_length"] = slices.Repeat([]int32{80}, 12)
	listed := network(t, f.open(t, fourRows))
	require.Equal(t, []int{8, 4, 80}, []int{listed.Heads, listed.KVHeads, listed.Intermediate})

	f = small("llama")
	f["llama.expert_count"] = uint32(0)
	require.Equal(t, "llama", config(t, f.open(t, fourRows), Options{})["model_type"])

	for _, set := range []file{{}, {"gemma3.attention.sliding_window": uint32(0), "gemma3.attention.sliding_window_pattern": uint32(6)}} {
		f := small("gemma3")
		maps.Copy(f, set)
		c := network(t, f.open(t, fourRows))
		require.Equal(t, make([]int, 12), c.Windows)
		for _, p := range c.Plans() {
			require.Zero(t, p.Rope, "all layers rotate as those with full attention")
		}
	}

	rope := network(t, small("mistral3").open(t, fourRows)).Rope
	require.Empty(t, rope.Type, "not the scaling that a config without any has")
}

// TestYarnFactor: attn_factor multiplies the factor of cosine and sine, which is 1 + 0.1 ln s for
// a stretch s, divided by 1 + 0.1 m ln s for a yarn_log_multiplier m.
func TestYarnFactor(t *testing.T) {
	for _, c := range []struct{ log, attn, want float64 }{
		{0, 1, 1 + 0.1*math.Log(16)},
		{0, 0.5, 0.5 * (1 + 0.1*math.Log(16))},
		{1, 1, 1},
		{1, 0.5, 0.5},
		{0.5, 1, (1 + 0.1*math.Log(16)) / (1 + 0.05*math.Log(16))},
		{0.5, 2, 2 * (1 + 0.1*math.Log(16)) / (1 + 0.05*math.Log(16))},
	} {
		f := small("mistral3")
		maps.Copy(f, file{
			"mistral3.rope.scaling.type": "yarn", "mistral3.rope.scaling.factor": float32(16), "mistral3.rope.scaling.original_context_length": uint32(256),
			"mistral3.rope.scaling.yarn_log_multiplier": float32(c.log), "mistral3.rope.scaling.attn_factor": float32(c.attn),
		})
		ropes, err := modelarch.NewRopes(network(t, f.open(t, fourRows)))
		require.NoError(t, err)
		require.InDelta(t, c.want, ropes[0].AttentionFactor(), 1e-6, "%+v", c)
	}
}

// TestBiases: a bias either has a place in the network that the config describes, or has none, so
// that the file is refused when its weights are loaded. Where it has none, llama.cpp takes biases of
// queries, keys and values without one of the output, which these families cannot have.
func TestBiases(t *testing.T) {
	for arch, place := range map[string]bool{
		"llama": true, "granite": true, "qwen3": true, "qwen2": true,
		"smollm3": false, "olmo2": false, "gemma2": false, "gemma3": false, "mistral3": false,
	} {
		f := small(arch)
		f[arch+".logit_scale"] = float32(8) // of granite
		g := f.open(t, map[string][]float32{"token_embd.weight": fourRows["token_embd.weight"], "blk.0.attn_q.bias": make([]float32, 64)})
		require.Equal(t, place, slices.ContainsFunc(network(t, g).GGUFTensors(), func(x modelarch.GGUFTensor) bool {
			return x.Name == "blk.0.attn_q.bias"
		}), arch)
	}
}

// TestSampling: what a file recommends becomes the generation defaults.
func TestSampling(t *testing.T) {
	f := small("qwen3")
	f["general.sampling.temp"], f["general.sampling.top_k"], f["general.sampling.top_p"] = float32(0.6), int32(20), float32(0.95)
	files, err := Files(f.open(t, fourRows), Options{Text: true})
	require.NoError(t, err)
	text, err := fs.ReadFile(files, "generation_config.json")
	require.NoError(t, err)
	require.JSONEq(t, `{"eos_token_id": [3], "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95}`, string(text))
}

// TestPooling: a file of a model of embeddings has the modules of one.
func TestPooling(t *testing.T) {
	for kind, want := range map[uint32]string{1: `{"pooling_mode_mean_tokens": true}`, 2: `{"pooling_mode_cls_token": true}`, 3: `{"pooling_mode_lasttoken": true}`, 0: "", 4: ""} {
		f := small("qwen3")
		f["qwen3.pooling_type"] = kind
		files, err := Files(f.open(t, fourRows), Options{})
		require.NoError(t, err)
		if want == "" {
			_, err := fs.ReadFile(files, "modules.json")
			require.ErrorIs(t, err, fs.ErrNotExist)
			continue
		}
		modules, err := fs.ReadFile(files, "modules.json")
		require.NoError(t, err)
		require.Contains(t, string(modules), "Normalize")
		text, err := fs.ReadFile(files, "pooling/config.json")
		require.NoError(t, err)
		require.JSONEq(t, want, string(text))
	}
}

func TestRefuses(t *testing.T) {
	for want, set := range map[string]file{
		`"qwen35moe" is not supported`:           {"general.architecture": "qwen35moe"},
		`"llama.attention.head_count": found`:    {"llama.attention.head_count": []int32{4, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}},
		`"llama.attention.head_count_kv": found`: {"llama.attention.head_count_kv": []int32{2, 2}}, // of 12 layers
		`"llama.feed_forward_length": found`:     {"llama.feed_forward_length": make([]int32, 12)},
		`"llama.expert_used_count": found 5`:     {"llama.expert_count": uint32(4), "llama.expert_used_count": uint32(5)},
		`"spiral-bpe"`:                           {"tokenizer.ggml.pre": "spiral-bpe"},
		`"llama.rope.dimension_count": found 20`: {"llama.rope.dimension_count": uint32(20)},
		`"general.sampling.temp": found -1`:      {"general.sampling.temp": float32(-1)},
		"5 tokens, but token_embd.weight has 4":  {"tokenizer.ggml.tokens": []string{"a", "b", "ab", "c", "d"}, "tokenizer.ggml.token_type": []int32{1, 1, 1, 1, 1}},
		`"llama.attention.value_length"`:         {"llama.attention.value_length": uint32(0)},
		`"llama.rope.scaling.type": "su" is not`: {"llama.rope.scaling.type": "su"},
	} {
		f := small("llama")
		maps.Copy(f, set)
		_, err := Files(f.open(t, fourRows), Options{Text: true})
		require.ErrorContains(t, err, want)
	}
	for want, set := range map[string]file{
		`"llama.attention.causal": false is not supported`: {"llama.attention.causal": false},
		`"llama.attention.causal"`:                         {"llama.attention.causal": uint32(1)},
		`"llama.expert_group_count"`:                       {"llama.expert_group_count": uint32(2), "llama.expert_group_used_count": uint32(1)},
		`beside the tensor "rope_freqs.weight"`:            {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(2)},
		`the tensor "rope_freqs.weight"`:                   {"llama.rope.scaling.factor": float32(4)},
		`tensor "rope_freqs.weight" is`:                    {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": float32(2), "llama.rope.scaling.original_context_length": uint32(64)},
		`"llama.rope.scaling.type": "su" is not`:           {"llama.rope.scaling.type": "su"},
		"":                                                 {"llama.attention.causal": true, "llama.expert_group_count": uint32(1), "llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": float32(1)},
	} {
		f := small("llama")
		maps.Copy(f, set)
		divisors := []float32{1, 1, 1, 1, 2, 4, 8, 8}
		_, err := Files(f.open(t, map[string][]float32{"token_embd.weight": fourRows["token_embd.weight"], "rope_freqs.weight": divisors}), Options{Text: true})
		if want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
	f := small("granite")
	f["granite.logit_scale"], f["granite.rope.scaling.finetuned"] = float32(8), false
	_, err := Files(f.open(t, fourRows), Options{Text: true})
	require.ErrorContains(t, err, `"granite.rope.scaling.finetuned": attention without positions is not supported`)
	f = small("granite")
	f["granite.logit_scale"] = float32(0)
	_, err = Files(f.open(t, fourRows), Options{Text: true})
	require.ErrorContains(t, err, `"granite.logit_scale": found 0`)
	f = small("olmo2")
	f["olmo2.attention.sliding_window"] = uint32(0)
	_, err = Files(f.open(t, fourRows), Options{Text: true})
	require.NoError(t, err)
	f["olmo2.attention.sliding_window"] = uint32(4096)
	_, err = Files(f.open(t, fourRows), Options{Text: true})
	require.ErrorIs(t, err, ErrUnsupported)
	require.ErrorContains(t, err, `"olmo2.attention.sliding_window": OLMo 3 is not supported`)
	_, err = Files(small("llama").open(t, nil), Options{Text: true})
	require.ErrorContains(t, err, "token_embd.weight")
	_, err = Files(small("llama").open(t, map[string][]float32{"token_embd.weight": fourRows["token_embd.weight"], "rope_freqs.weight": make([]float32, 7)}), Options{Text: true})
	require.ErrorContains(t, err, "rope_freqs.weight")
}

// TestLlama3 finds the parameters of divisors made with the published models'
// formula, and nothing for divisors that fit no such formula.
func TestLlama3(t *testing.T) {
	divisors := func(theta, factor, high, original float64, dim int) []number {
		var out []number
		for i := range dim / 2 {
			wave := 2 * math.Pi * math.Pow(theta, 2*float64(i)/float64(dim))
			d := factor
			switch {
			case wave < original/high:
				d = 1
			case wave <= original:
				s := (original/wave - 1) / (high - 1)
				d = 1 / ((1-s)/factor + s)
			}
			out = append(out, number(d))
		}
		return out
	}
	for _, c := range []struct {
		theta, factor, high, original float64
		dim                           int
	}{
		{500000, 8, 4, 8192, 128}, {500000, 32, 4, 8192, 64}, {500000, 8, 4, 4096, 128}, {10000, 4, 8, 2048, 64}, {100000, 2, 4, 512, 32},
	} {
		d := divisors(c.theta, c.factor, c.high, c.original, c.dim)
		s := llama3(d, c.theta, c.dim)
		require.NotNil(t, s, "%+v", c)
		require.Equal(t, object{
			{"rope_type", "llama3"}, {"factor", number(c.factor)}, {"low_freq_factor", number(1)}, {"high_freq_factor", number(c.high)},
			{"original_max_position_embeddings", int(c.original)},
		}, *s)
	}
	require.Nil(t, llama3(divisors(1e4, 1, 4, 8192, 64), 1e4, 64), "divisors of 1 scale nothing")
	require.Nil(t, llama3(divisors(1e4, 8, 4, 8192, 64), 5e5, 64), "divisors for another base")

	// Without the option, and where they are no such scaling, the divisors are listed.
	f := small("llama")
	f["llama.rope.freq_base"] = float32(1e4)
	f["llama.attention.key_length"], f["llama.attention.value_length"] = uint32(64), uint32(64)
	for base, kinds := range map[float64][2]string{1e4: {"longrope", "llama3"}, 5e5: {"longrope", "longrope"}} {
		d := divisors(base, 8, 4, 1024, 64)
		x := make([]float32, len(d))
		for i := range d {
			x[i] = float32(d[i])
		}
		for i, o := range []Options{{}, {Llama3: true}} {
			g := f.open(t, map[string][]float32{"token_embd.weight": fourRows["token_embd.weight"], "rope_freqs.weight": x})
			s := config(t, g, o)["rope_scaling"].(map[string]any)
			require.Equal(t, kinds[i], s["rope_type"], "%v %v", base, o)
			if kinds[i] == "longrope" {
				require.Len(t, s["short_factor"], 32)
				require.Equal(t, s["short_factor"], s["long_factor"])
				require.Equal(t, 1.0, s["attention_factor"])
			}
		}
	}
}

// TestPretokenizerNames: several names in GGUF stand for one pre-tokenizer.
func TestPretokenizerNames(t *testing.T) {
	file := small("llama")
	file["tokenizer.ggml.bos_token_id"] = uint32(0)
	made := func(name string) (tok, cfg part, err error) {
		file["tokenizer.ggml.pre"] = name
		v, err := readVocabulary(file.open(t, nil))
		require.NoError(t, err)
		s, err := v.special()
		require.NoError(t, err)
		if tok, err = v.tokenizer(s); err != nil {
			return nil, nil, err
		}
		cfg, err = v.config(s, 2048)
		return tok, cfg, err
	}
	for name, same := range map[string]string{
		"llama3": "llama-bpe", "llama-v3": "llama-bpe", "midm-2.0": "llama-bpe", "deepseek-r1-qwen": "qwen2", "trillion": "gpt-2",
	} {
		wantTok, wantCfg, err := made(same)
		require.NoError(t, err, same)
		tok, cfg, err := made(name)
		require.NoError(t, err, name)
		require.Equal(t, wantTok, tok, name)
		require.Equal(t, wantCfg, cfg, name)
	}

	// As Llama 3, but merges always count, and nothing comes before a text.
	llama, _, err := made("llama-bpe")
	require.NoError(t, err)
	require.NotNil(t, llama["post_processor"])
	tok, _, err := made("smaug-bpe")
	require.NoError(t, err)
	require.Equal(t, llama["pre_tokenizer"], tok["pre_tokenizer"])
	require.Equal(t, true, llama["model"].(part)["ignore_merges"])
	require.Equal(t, false, tok["model"].(part)["ignore_merges"])
	require.Nil(t, tok["post_processor"])

	for _, name := range []string{"default", "kimi-k2", "pixtral", ""} {
		_, _, err := made(name)
		require.ErrorIs(t, err, ErrUnsupported, name)
		require.ErrorContains(t, err, strconv.Quote(name))
	}
}

// TestSentencePiece: pieces with scores become merges that split text as the scores
// do.
func TestSentencePiece(t *testing.T) {
	tokens := []string{"<unk>", "<s>", "</s>"}
	kinds := []int32{tokenUnknown, tokenControl, tokenControl}
	scores := []float32{0, 0, 0}
	for b := range 256 {
		tokens, kinds, scores = append(tokens, fmt.Sprintf("<0x%02X>", b)), append(kinds, tokenByte), append(scores, 0)
	}
	for i, p := range []string{"▁t", "he", "▁the", "in", "▁", "t", "h", "e", "i", "n", "r", "▁in", "[PAD]"} {
		kind := int32(tokenNormal)
		if p == "[PAD]" {
			kind = tokenUnused
		}
		tokens, kinds, scores = append(tokens, p), append(kinds, kind), append(scores, -float32(i))
	}
	f := small("llama")
	delete(f, "tokenizer.ggml.merges")
	maps.Copy(f, file{
		"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.scores": scores,
		"tokenizer.ggml.bos_token_id": uint32(1), "tokenizer.ggml.eos_token_id": uint32(2), "tokenizer.ggml.unknown_token_id": uint32(0),
	})
	files, err := Files(f.open(t, map[string][]float32{"token_embd.weight": make([]float32, 64*len(tokens))}), Options{Text: true})
	require.NoError(t, err)
	tok, err := tokenizer.Load(files)
	require.NoError(t, err)
	pieces := func(text string) []string {
		var out []string
		for _, id := range tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: true}) {
			out = append(out, tokens[id])
		}
		return out
	}
	assert.Equal(t, []string{"<s>", "▁the", "▁in", "t", "<0x78>"}, pieces("the intx"))
	assert.Equal(t, []string{"<s>", "▁in", "<0x5B>", "<0x50>"}, pieces("in[P"), "an unused piece is never made")
	text := "the inn x"
	assert.Equal(t, text, tok.Decode(tok.Encode(text, tokenizer.EncodeOptions{}), true))
}
