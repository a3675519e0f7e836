package quantize

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/calibration"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
	"github.com/lukv/lukv/tokenizer/chat"
)

// smallTokenizer is a byte-level one of ASCII, for models with few tokens: id 0 is <end>.
func smallTokenizer(t testing.TB) []byte {
	vocab := map[string]int{"he": 97, "Ġt": 98, "Ġthe": 99}
	for c := '!'; c <= '~'; c++ {
		vocab[string(c)] = int(c - '!' + 2)
	}
	vocab["Ġ"] = 1
	text, err := json.Marshal(map[string]any{
		"added_tokens":  []any{map[string]any{"id": 0, "content": "<end>", "special": true, "normalized": false}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{"h e", "Ġ t", "Ġt he"}},
	})
	require.NoError(t, err)
	return text
}

// copied returns a copy of a folder with a tokenizer, and some keys of its config set.
func copied(t testing.TB, dir string, keys map[string]any) string {
	out := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(out, os.DirFS(dir)))
	require.NoError(t, os.WriteFile(filepath.Join(out, "tokenizer.json"), smallTokenizer(t), 0o600))
	edit(t, out, keys)
	return out
}

func edit(t testing.TB, dir string, keys map[string]any) {
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, json.Unmarshal(text, &config))
	maps.Copy(config, keys)
	text, err = json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// goldenLogits returns the logits of all tokens of a prompt.
func goldenLogits(t testing.TB, path string, prompt []int32) []float32 {
	m, err := model.Open(t.Context(), path, model.WithPrecision(model.PrecisionF32))
	require.NoError(t, err)
	defer m.Close()
	s, err := m.NewSession(model.SessionOptions{CacheType: tensor.F32})
	require.NoError(t, err)
	defer s.Close()
	var all []float32
	require.NoError(t, s.PrefillEach(context.Background(), prompt, func(_ int, x []float32) error {
		all = append(all, x...)
		return nil
	}))
	return all
}

// golden returns the prompt of 48 tokens of a golden model and the logits of the reference.
func golden(t testing.TB, dir string) (prompt []int32, logits []float32) {
	f, err := safetensors.Open(filepath.Join(dir, "golden.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	ids, ok := f.Tensor("prompt48")
	require.True(t, ok)
	for i := 0; i < len(ids.Data); i += 8 {
		prompt = append(prompt, int32(binary.LittleEndian.Uint64(ids.Data[i:])))
	}
	x, ok := f.Tensor("logits48")
	require.True(t, ok)
	return prompt, slices.Clone(x.Float32s(nil))
}

// writtenGGUF says of golden models what becomes of them: nothing is the bits of the folder.
var writtenGGUF = map[string]struct {
	refused string         // what the error names
	near    bool           // a factor of the rotation is a 32-bit float in the file
	keys    map[string]any // of the config, with which the model is written
}{
	"llama-dynamic-f32":       {refused: `scaling "dynamic"`},
	"llama31-gqa-bf16":        {near: true},
	"llama31-v5config-bf16":   {near: true},
	"llama32-tied-bf16":       {near: true},
	"qwen2-window-mixed-bf16": {refused: "attention window", keys: map[string]any{"use_sliding_window": false}},
	"gemma2-bf16":             {refused: "scale of scores", keys: map[string]any{"query_pre_attn_scalar": 16}},
	"gemma3-old-bf16":         {refused: "scale of scores", keys: map[string]any{"query_pre_attn_scalar": 16}},
	"gemma3-v5-f16":           {refused: "scale of scores", keys: map[string]any{"query_pre_attn_scalar": 16}},
	"qwen2moe-shared-bf16":    {refused: "width of the feed-forward unit in layer 1, 24 instead of 96"},
	"qwen3moe-stacked-f16":    {refused: "width of the feed-forward unit in layer 0, 40 instead of 80"},
	"smollm3-list-f16":        {refused: "rotation of positions in layer 0"},
	"phi3-longcross-f16":      {near: true},
	"phi3-longrope-f32":       {near: true},
}

// TestFolderGGUFGolden: a golden model that is written without rounding computes the golden
// logits, and the folder's to the bit; what GGUF has no key for is refused by name.
func TestFolderGGUFGolden(t *testing.T) {
	written := 0
	for variable, local := range map[string]string{"LUKV_GOLDEN_MODELS": "models", "LUKV_GOLDEN_FAMILIES": "families"} {
		root := cmp.Or(os.Getenv(variable), filepath.Join("..", "..", "model", "testdata", local))
		folders, err := filepath.Glob(filepath.Join(root, "*", "golden.safetensors"))
		require.NoError(t, err)
		for _, name := range folders {
			source := filepath.Dir(name)
			t.Run(filepath.Base(source), func(t *testing.T) {
				prompt, want := golden(t, source)
				expect := writtenGGUF[filepath.Base(source)]
				dir := copied(t, source, nil)
				if expect.refused != "" {
					out := filepath.Join(t.TempDir(), "out.gguf")
					_, err := FolderGGUF(t.Context(), dir, out, "", Options{Type: gguf.F32})
					require.ErrorIs(t, err, model.ErrUnsupported)
					require.ErrorContains(t, err, expect.refused)
					require.NoFileExists(t, out)
					if expect.keys == nil {
						return
					}
					edit(t, dir, expect.keys)
				}
				same := goldenLogits(t, dir, prompt)
				for _, typ := range []gguf.Type{gguf.F32, stored(t, dir)} {
					out := filepath.Join(t.TempDir(), "out.gguf")
					_, err := FolderGGUF(t.Context(), dir, out, "", Options{Type: typ})
					require.NoError(t, err)
					got := goldenLogits(t, out, prompt)
					if !expect.near {
						require.Equal(t, same, got, "%s", typ)
					}
					if expect.keys == nil {
						require.Less(t, deviation(want, got), 1e-4)
					}
					written++
				}
			})
		}
	}
	require.Greater(t, written, 20)
	fmt.Printf("golden models as GGUF files: %d written\n", written)
}

// stored returns the type of a folder's matrices.
func stored(t testing.TB, dir string) gguf.Type {
	c, err := safetensors.OpenCheckpoint(dir)
	require.NoError(t, err)
	defer c.Close()
	for name, x := range c.All() {
		if strings.HasSuffix(name, "o_proj.weight") {
			return storedTypes[x.Type]
		}
	}
	t.Fatal("no matrix")
	return 0
}

// deviation returns the largest difference, of the largest logit.
func deviation(want, got []float32) float64 {
	most, scale := float32(0), float32(0)
	for i, x := range want {
		most, scale = max(most, x-got[i], got[i]-x), max(scale, x, -x)
	}
	return float64(most / scale)
}

// written writes a folder as a GGUF file and opens it.
func written(t testing.TB, dir string, o Options) (string, *gguf.File) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.gguf")
	_, err := FolderGGUF(t.Context(), dir, out, "", o)
	require.NoError(t, err)
	f, err := gguf.Open(out)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return out, f
}

// mixtures are models with experts, one of them with a shared unit.
var mixtures = map[string]string{
	"qwen3_moe": strings.Replace(mixtureSettings, "{", `{"norm_topk_prob": true,`, 1),
	"qwen2_moe": strings.Replace(strings.Replace(mixtureSettings, "qwen3_moe", "qwen2_moe", 1), "{", `{"shared_expert_intermediate_size": 96,`, 1),
	"mixtral":   strings.Replace(strings.Replace(mixtureSettings, "qwen3_moe", "mixtral", 1), `"num_experts"`, `"num_local_experts"`, 1),
}

// TestFolderGGUFMixtures: experts are slabs, one for each kind of matrix, in order; routers are
// F32, and the weight of a shared unit is a vector.
func TestFolderGGUFMixtures(t *testing.T) {
	for name, config := range mixtures {
		t.Run(name, func(t *testing.T) {
			config := strings.Replace(config, `"vocab_size": 40`, `"vocab_size": 100`, 1)
			tensors := floats(t, config, tensor.BF16)
			dir := copied(t, folderOf(t, config, tensors), nil)
			out, f := written(t, dir, Options{Type: gguf.BF16})
			width := 64
			if name == "mixtral" {
				width = 128
			}
			up := f.Tensor("blk.0.ffn_up_exps.weight")
			require.Equal(t, []int{3, width, 128}, up.Shape)
			for x := range 3 {
				from := tensors[fmt.Sprintf("model.layers.0.mlp.experts.%d.up_proj.weight", x)]
				if name == "mixtral" {
					from = tensors[fmt.Sprintf("model.layers.0.block_sparse_moe.experts.%d.w3.weight", x)]
				}
				require.Equal(t, from.Data, up.Data[x*len(from.Data):(x+1)*len(from.Data)])
			}
			require.Equal(t, []int{3, 128, width}, f.Tensor("blk.0.ffn_down_exps.weight").Shape)
			require.Equal(t, gguf.F32, f.Tensor("blk.0.ffn_gate_inp.weight").Type)
			if name == "qwen2_moe" {
				require.Equal(t, []int{128}, f.Tensor("blk.0.ffn_gate_inp_shexp.weight").Shape)
				require.Equal(t, []int{96, 128}, f.Tensor("blk.0.ffn_gate_shexp.weight").Shape)
			}
			prompt := []int32{1, 2, 3, 50, 7, 99, 0, 11}
			require.Equal(t, goldenLogits(t, dir, prompt), goldenLogits(t, out, prompt))

			_, f = written(t, dir, Options{Type: gguf.Q8_0})
			require.Equal(t, gguf.Q8_0, f.Tensor("blk.0.ffn_up_exps.weight").Type)
		})
	}
}

// TestFolderGGUFRows: rows of query and key heads that rotate together, which are half a head
// apart, lie side by side.
func TestFolderGGUFRows(t *testing.T) {
	config := strings.Replace(settings, `"vocab_size": 40`, `"vocab_size": 100, "attention_bias": true`, 1)
	tensors := floats(t, config, tensor.F16)
	_, f := written(t, copied(t, folderOf(t, config, tensors), nil), Options{Type: gguf.F16})
	const d, row = 64, 2 * 192
	for from, to := range map[string]string{"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k"} {
		x := tensors["model.layers.1."+from+".weight"]
		bias := tensors["model.layers.1."+from+".bias"].Float32s(nil)
		var want []byte
		var wantBias []float32
		for h := range x.Shape[0] / d {
			for i := range d / 2 {
				for half := range 2 {
					at := h*d + half*d/2 + i
					want = append(want, x.Data[at*row:(at+1)*row]...)
					wantBias = append(wantBias, bias[at])
				}
			}
		}
		require.Equal(t, want, f.Tensor("blk.1."+to+".weight").Data)
		got := make([]float32, len(wantBias))
		require.Equal(t, gguf.F32, f.Tensor("blk.1."+to+".bias").Type)
		require.NoError(t, f.Tensor("blk.1."+to+".bias").Rows(got, 0, 1))
		require.Equal(t, wantBias, got)
	}
	require.Equal(t, tensors["model.layers.1.self_attn.v_proj.weight"].Data, f.Tensor("blk.1.attn_v.weight").Data)
}

// TestFolderGGUFKeys: the keys of a file.
func TestFolderGGUFKeys(t *testing.T) {
	config := strings.Replace(settings, `"vocab_size": 40`, `"vocab_size": 102, "max_position_embeddings": 4096, "rope_theta": 500000,
		"eos_token_id": [5, 0, 7]`, 1)
	dir := copied(t, folderOf(t, config, floats(t, config, tensor.BF16)), nil)
	for name, text := range map[string]string{
		"generation_config.json": `{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.5, "eos_token_id": [5, 0, 7]}`,
		"tokenizer_config.json": `{"eos_token": "<end>", "pad_token": "<end>", "add_bos_token": false,
			"chat_template": [{"name": "default", "template": "{{ messages[0]['content'] }}"}, {"name": "rag", "template": "{{ eos_token }}"}]}`,
		"modules.json":          `[{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}, {"type": "a.Normalize", "path": "2"}]`,
		"1_Pooling/config.json": `{"pooling_mode_lasttoken": true}`,
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o777))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	out, f := written(t, dir, Options{Type: gguf.Q4_0})
	var read [2]arch.GenerationDefaults
	var pooled [2]model.Embedding
	for i, path := range []string{dir, out} {
		m, err := model.Open(t.Context(), path)
		require.NoError(t, err)
		defer m.Close()
		read[i] = m.Config().Generation
		pooled[i], err = m.Embedding()
		require.NoError(t, err)
	}
	require.Equal(t, read[0], read[1])
	require.Equal(t, pooled[0], pooled[1])
	for key, want := range map[string]uint64{
		"general.file_type": 2, "general.quantization_version": 2, "llama.context_length": 4096, "llama.embedding_length": 192, "llama.block_count": 2,
		"llama.feed_forward_length": 128, "llama.vocab_size": 102, "llama.attention.head_count": 3, "llama.attention.head_count_kv": 1,
		"llama.attention.key_length": 64, "llama.attention.value_length": 64, "llama.rope.dimension_count": 64, "llama.pooling_type": 3,
		"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 7, "tokenizer.ggml.padding_token_id": 0,
		"general.sampling.top_k": 20,
	} {
		got, err := f.Uint(key)
		require.NoError(t, err)
		require.Equal(t, want, got, key)
	}
	for key, want := range map[string]float32{
		"llama.rope.freq_base": 5e5, "llama.attention.layer_norm_rms_epsilon": 1e-5, "general.sampling.temp": 0.6, "general.sampling.top_p": 0.95,
		"general.sampling.min_p": 0.05, "general.sampling.penalty_repeat": 1.5,
	} {
		got, err := f.Float(key)
		require.NoError(t, err)
		require.Equal(t, float64(want), got, key)
	}
	for key, want := range map[string]string{
		"general.architecture": "llama", "general.name": "model", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
		"tokenizer.chat_template": "{{ messages[0]['content'] }}", "tokenizer.chat_template.rag": "{{ eos_token }}",
	} {
		got, err := f.Text(key)
		require.NoError(t, err)
		require.Equal(t, want, got, key)
	}
	tokens, err := f.Texts("tokenizer.ggml.tokens")
	require.NoError(t, err)
	require.Equal(t, []string{"<end>", "Ġ", "!"}, tokens[:3])
	require.Equal(t, []string{"he", "Ġt", "Ġthe", "[PAD100]", "[PAD101]"}, tokens[97:])
	kinds, err := f.Ints("tokenizer.ggml.token_type")
	require.NoError(t, err)
	require.Equal(t, []int64{3, 1, 1}, kinds[:3])
	require.Equal(t, []int64{1, 5, 5}, kinds[99:])
	merges, err := f.Texts("tokenizer.ggml.merges")
	require.NoError(t, err)
	require.Equal(t, []string{"h e", "Ġ t", "Ġt he"}, merges)
	for _, key := range []string{"add_bos_token", "add_eos_token"} {
		on, err := f.Bool("tokenizer.ggml." + key)
		require.NoError(t, err)
		require.False(t, on)
	}
	require.Equal(t, gguf.F32, f.Tensor("blk.0.attn_norm.weight").Type)
	require.Equal(t, gguf.Q4_0, f.Tensor("blk.0.attn_q.weight").Type)
}

// TestFolderGGUFModel: texts have the tokens of the folder, and prompts and sampling are the same.
func TestFolderGGUFModel(t *testing.T) {
	dir := embedded(t)
	path := filepath.Join(dir, "tokenizer.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	_, err = FolderGGUF(t.Context(), dir, filepath.Join(t.TempDir(), "x"), "", Options{Type: gguf.Q8_0})
	require.ErrorIs(t, err, model.ErrUnsupported)
	require.ErrorContains(t, err, "tokenizer.ggml.pre", "the embedded model's digits come in pairs")

	own := []byte(`{"type": "Split", "pattern": {"Regex": "\\p{N}{1,2}"}, "behavior": "Isolated", "invert": false}`)
	require.Contains(t, string(text), string(own))
	text = bytes.Replace(text, own, []byte(`{"type": "Digits", "individual_digits": true}`), 1)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	out, _ := written(t, dir, Options{Type: gguf.BF16})
	var prompts [2]chat.Prompt
	var ids [2][]int32
	var ends [2][]int
	for i, path := range []string{dir, out} {
		m, err := model.Open(t.Context(), path)
		require.NoError(t, err)
		defer m.Close()
		tok, err := m.Tokenizer()
		require.NoError(t, err)
		ids[i] = tok.Encode(calibration.Narrative().Context+" 1234 <|user|> <|end|>é\x00漢", tokenizer.EncodeOptions{AddSpecial: true})
		files, err := model.Files(path)
		require.NoError(t, err)
		template, err := chat.Load(files)
		require.NoError(t, err)
		special, err := chat.SpecialTokens(files)
		require.NoError(t, err)
		prompts[i], err = template.Render(t.Context(), chat.Input{
			Messages: []*chat.Object{chat.NewMessage("system", "Be brief."), chat.NewMessage("user", "Hello")}, SpecialTokens: special, AddGenerationPrompt: true,
		})
		require.NoError(t, err)
		ends[i] = slices.Sorted(slices.Values(m.Config().EOS))
	}
	require.NotEmpty(t, prompts[0])
	require.Equal(t, prompts[0], prompts[1])
	require.Equal(t, ids[0], ids[1])
	require.Equal(t, ends[0], ends[1])
	require.Equal(t, goldenLogits(t, dir, ids[0][:64]), goldenLogits(t, out, ids[0][:64]))
}

// TestFolderGGUFBlocks: blocks are those of the weights, with their importance.
func TestFolderGGUFBlocks(t *testing.T) {
	config := strings.Replace(settings, `"vocab_size": 40`, `"vocab_size": 100`, 1)
	tensors := floats(t, config, tensor.BF16)
	dir := copied(t, folderOf(t, config, tensors), nil)
	im, err := Calibrate(t.Context(), dir, "the the there then", nil)
	require.NoError(t, err)
	for _, weigh := range []*Importance{nil, im} {
		last := int64(-1)
		_, f := written(t, dir, Options{Type: gguf.Q4_0, Importance: weigh, Progress: func(done, total int64) {
			require.LessOrEqual(t, done, total)
			last = total - done
		}})
		require.Zero(t, last)
		x := tensors["model.layers.1.self_attn.o_proj.weight"]
		want, err := gguf.Encode(nil, gguf.Q4_0, x.Float32s(nil), x.Shape[1], weigh.of(1, arch.RoleO))
		require.NoError(t, err)
		require.Equal(t, want, f.Tensor("blk.1.attn_output.weight").Data)
	}
	require.NotNil(t, im.of(1, arch.RoleO))
}

// TestFolderGGUFThroughFile: a folder becomes what its GGUF file of BF16 becomes.
func TestFolderGGUFThroughFile(t *testing.T) {
	dir := embedded(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), smallTokenizer(t), 0o600))
	file, _ := written(t, dir, Options{Type: gguf.BF16})
	for _, o := range []Options{{Type: gguf.Q8_0}, {Type: gguf.Q4_K, Mixed: true}} {
		_, direct := written(t, dir, o)
		out := filepath.Join(t.TempDir(), "out.gguf")
		_, err := GGUF(t.Context(), file, out, o)
		require.NoError(t, err)
		through, err := gguf.Open(out)
		require.NoError(t, err)
		defer through.Close()
		require.Len(t, through.Tensors(), len(direct.Tensors()))
		for i, x := range through.Tensors() {
			y := direct.Tensors()[i]
			require.Equal(t, x.Name, y.Name)
			require.Equal(t, x.Type, y.Type, x.Name)
			require.Equal(t, x.Shape, y.Shape, x.Name)
			require.True(t, bytes.Equal(x.Data, y.Data), x.Name)
		}
		for _, key := range []string{"general.file_type", "llama.block_count"} {
			a, err := through.Uint(key)
			require.NoError(t, err)
			b, err := direct.Uint(key)
			require.NoError(t, err)
			require.Equal(t, a, b, key)
		}
	}
}

func TestFolderGGUFRefuses(t *testing.T) {
	config := strings.Replace(settings, `"vocab_size": 40`, `"vocab_size": 100`, 1)
	tensors := floats(t, config, tensor.F32)
	plain := folderOf(t, config, tensors)
	narrow := folderOf(t, settings, floats(t, settings, tensor.BF16))
	tensors["model.layers.0.mlp.up_proj.weight"].Data[3] = 0x7f // makes it about 3e38
	tensors["model.layers.0.mlp.up_proj.weight"].Data[2] = 0x7f
	large := folderOf(t, config, tensors)
	with := func(dir, name, text string) string {
		dir = copied(t, dir, nil)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		return dir
	}
	for want, c := range map[string]struct {
		dir string
		typ gguf.Type
	}{
		"tokenizer.json":                      {plain, gguf.Q8_0},
		"100 tokens, but the model has 40":    {copied(t, narrow, nil), gguf.Q8_0},
		"expected one of [Q8_0 Q4_0 Q4_K F32": {copied(t, plain, nil), gguf.Q5_K},
		"between ±65504 for the type F16":     {copied(t, large, nil), gguf.F16},
		"4 tokens end a text":                 {with(plain, "generation_config.json", `{"eos_token_id": [1, 2, 3, 4]}`), gguf.F32},
		"chat_template: found":                {with(plain, "tokenizer_config.json", `{"chat_template": 1}`), gguf.F32},
		"not normalised":                      {with(plain, "modules.json", `[{"type": "a.Pooling", "path": ""}]`), gguf.F32},
		"texts end with":                      {with(plain, "tokenizer.json", strings.Replace(string(smallTokenizer(t)), "{", `{"post_processor": {"type": "BertProcessing", "cls": ["a", 3], "sep": ["b", 4]},`, 1)), gguf.F32},
		"lstrip":                              {with(plain, "tokenizer.json", strings.Replace(string(smallTokenizer(t)), `"special":true`, `"special":true,"lstrip":true`, 1)), gguf.F32},
	} {
		if want == "not normalised" {
			edit(t, c.dir, map[string]any{"pooling_mode_mean_tokens": true})
		}
		out := filepath.Join(t.TempDir(), "out.gguf")
		_, err := FolderGGUF(t.Context(), c.dir, out, "", Options{Type: c.typ})
		require.ErrorContains(t, err, want)
		left, err := os.ReadDir(filepath.Dir(out))
		require.NoError(t, err)
		require.Empty(t, left, want)
	}
	_, err := FolderGGUF(t.Context(), write(t, copied(t, plain, nil), 8).dir, filepath.Join(t.TempDir(), "x"), "", Options{Type: gguf.Q8_0})
	require.ErrorContains(t, err, "already stored as compressed-tensors")
	_, err = FolderGGUF(t.Context(), plain, t.TempDir(), "", Options{Type: gguf.Q8_0})
	require.ErrorContains(t, err, "exists already")
	stopped, stop := context.WithCancel(t.Context())
	out := filepath.Join(t.TempDir(), "out.gguf")
	_, err = FolderGGUF(stopped, copied(t, plain, nil), out, "", Options{Type: gguf.Q8_0, Progress: func(done, _ int64) {
		if done > 1000 {
			stop()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	left, err := os.ReadDir(filepath.Dir(out))
	require.NoError(t, err)
	require.Empty(t, left)
}

// TestFolderGGUFSettings: settings that keys can hold are read back; others are named.
func TestFolderGGUFSettings(t *testing.T) {
	yarn := func(keys string) string {
		return `"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64` + keys + `}`
	}
	const gemma3 = `"model_type": "gemma3_text", "query_pre_attn_scalar": 64, "num_hidden_layers": 5, `
	for keys, want := range map[string]string{
		yarn(``): "", yarn(`, "beta_fast": 16, "beta_slow": 2`): "", yarn(`, "attention_factor": 0.7`): "",
		yarn(`, "mscale": 1, "mscale_all_dim": 0.5`): "", yarn(`, "mscale": 0.5, "mscale_all_dim": 1`): "",
		yarn(`, "truncate": false`):                                                                      "list of frequencies",
		`"rope_scaling": {"rope_type": "linear", "factor": 3.0}`:                                         "",
		`"model_type": "mistral", "sliding_window": 32`:                                                  "",
		`"model_type": "mistral", "sliding_window": 1000000`:                                             "",
		`"mlp_bias": true`:                                                                               "",
		`"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 9`:                         "",
		`"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 9, "max_window_layers": 1`: "attention window in layer 1, 0 instead of 9",
		`"model_type": "granite", "embedding_multiplier": 12.0, "attention_multiplier": 0.0078125, "residual_multiplier": 0.22, "logits_scaling": 8.0`: "",
		`"model_type": "phi3", "partial_rotary_factor": 0.75`:       "",
		gemma3 + `"sliding_window": 8, "sliding_window_pattern": 2`: "",
		gemma3 + `"sliding_window": 8`:                              "",
		gemma3 + `"sliding_window": 8, "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]`: "",
		gemma3 + `"sliding_window": 8, "final_logit_softcapping": 20.0, "rope_local_base_freq": 5000.0`:                                                    "",
		gemma3 + `"sliding_window": 8, "attn_logit_softcapping": 20.0`:                                                                                     "",
		`"model_type": "gemma2", "query_pre_attn_scalar": 64, "attn_logit_softcapping": 40.0`:                                                              "",
		`"model_type": "smollm3"`:                              "",
		`"model_type": "smollm3", "no_rope_layer_interval": 2`: "rotation of positions in layer 1",
	} {
		config := strings.Replace(settings, "{", "{"+keys+`, "vocab_size": 100, `, 1)
		config = once(config)
		dir := copied(t, folderOf(t, config, floats(t, config, tensor.BF16)), nil)
		out := filepath.Join(t.TempDir(), "out.gguf")
		// Not F32: the scale of Gemma's embeddings is rounded to their type.
		_, err := FolderGGUF(t.Context(), dir, out, "", Options{Type: gguf.BF16})
		if want != "" {
			require.ErrorIs(t, err, model.ErrUnsupported, keys)
			require.ErrorContains(t, err, want, keys)
			continue
		}
		require.NoError(t, err, keys)
		prompt := make([]int32, 40)
		for i := range prompt {
			prompt[i] = int32(i * 7 % 100)
		}
		require.Less(t, deviation(goldenLogits(t, dir, prompt), goldenLogits(t, out, prompt)), 1e-5, keys)
	}
}

// once returns the text of a JSON object with the first value of each key that it has twice.
func once(text string) string {
	d := json.NewDecoder(strings.NewReader(text))
	d.Token()
	all := map[string]json.RawMessage{}
	for d.More() {
		key, _ := d.Token()
		var v json.RawMessage
		if d.Decode(&v) != nil {
			break
		}
		if _, ok := all[key.(string)]; !ok {
			all[key.(string)] = v
		}
	}
	out, _ := json.Marshal(all)
	return string(out)
}
