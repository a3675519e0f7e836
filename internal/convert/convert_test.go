package convert

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/builtin"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
	"github.com/lukv/lukv/tokenizer"
)

// file is a GGUF file to be written: the Go type of a value gives its GGUF
// type, and tensors are in the order given.
type file struct {
	keys    map[string]any
	order   []string
	tensors []packed
}

type packed struct {
	name  string
	typ   gguf.Type
	shape []int // outermost first
	data  []byte
}

func (f *file) set(key string, v any) {
	if _, ok := f.keys[key]; !ok {
		f.order = append(f.order, key)
	}
	f.keys[key] = v
}

func (f *file) drop(key string) {
	f.order = slices.DeleteFunc(f.order, func(k string) bool { return k == key })
	delete(f.keys, key)
}

func (f *file) bytes(t *testing.T) []byte {
	u32 := binary.LittleEndian.AppendUint32
	u64 := binary.LittleEndian.AppendUint64
	text := func(b []byte, s string) []byte { return append(u64(b, uint64(len(s))), s...) }
	b := u64(u64(u32([]byte("GGUF"), 3), uint64(len(f.tensors))), uint64(len(f.order)))
	for _, key := range f.order {
		b = text(b, key)
		switch v := f.keys[key].(type) {
		case uint32:
			b = u32(u32(b, 4), v)
		case float32:
			b = u32(u32(b, 6), math.Float32bits(v))
		case bool:
			b = u32(b, 7)
			b = append(b, map[bool]byte{true: 1}[v])
		case string:
			b = text(u32(b, 8), v)
		case []string:
			b = u64(u32(u32(b, 9), 8), uint64(len(v)))
			for _, s := range v {
				b = text(b, s)
			}
		case []int32:
			b = u64(u32(u32(b, 9), 5), uint64(len(v)))
			for _, x := range v {
				b = u32(b, uint32(x))
			}
		case []float32:
			b = u64(u32(u32(b, 9), 6), uint64(len(v)))
			for _, x := range v {
				b = u32(b, math.Float32bits(x))
			}
		default:
			t.Fatalf("a value of %T", v)
		}
	}
	offset := uint64(0)
	pad := func(n int) int { return (n + 31) / 32 * 32 }
	for _, x := range f.tensors {
		b = u32(text(b, x.name), uint32(len(x.shape)))
		for i := range x.shape {
			b = u64(b, uint64(x.shape[len(x.shape)-1-i]))
		}
		b = u64(u32(b, uint32(x.typ)), offset)
		offset += uint64(pad(len(x.data)))
	}
	b = append(b, make([]byte, pad(len(b))-len(b))...)
	for _, x := range f.tensors {
		b = append(b, x.data...)
		b = append(b, make([]byte, pad(len(x.data))-len(x.data))...)
	}
	return b
}

func (f *file) write(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.gguf")
	require.NoError(t, os.WriteFile(path, f.bytes(t), 0o600))
	return path
}

// packedModel is made by the first test that needs it.
var packedModel *file

// embedded returns the embedded model, packed as converters pack llama models, to be changed.
func embedded(t *testing.T) *file {
	t.Helper()
	if packedModel == nil {
		packedModel = pack(t)
	}
	f := &file{keys: maps.Clone(packedModel.keys), order: slices.Clone(packedModel.order), tensors: slices.Clone(packedModel.tensors)}
	for i := range f.tensors {
		f.tensors[i].data = slices.Clone(f.tensors[i].data)
	}
	return f
}

// pack packs the embedded model, with query and key rows permuted.
func pack(t *testing.T) *file {
	t.Helper()
	src, err := safetensors.OpenCheckpointFS(builtin.Files())
	require.NoError(t, err)
	defer src.Close()
	f := &file{keys: map[string]any{}}
	for key, v := range map[string]any{
		"general.architecture": "llama", "general.name": "needle", "llama.block_count": uint32(6), "llama.context_length": uint32(2048),
		"llama.embedding_length": uint32(256), "llama.feed_forward_length": uint32(512), "llama.attention.head_count": uint32(8),
		"llama.attention.head_count_kv": uint32(4), "llama.attention.layer_norm_rms_epsilon": float32(1e-5), "llama.rope.freq_base": float32(10000),
		"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.bos_token_id": uint32(1),
		"tokenizer.ggml.eos_token_id": uint32(2), "tokenizer.ggml.eot_token_id": uint32(5), "tokenizer.ggml.padding_token_id": uint32(0),
		"tokenizer.ggml.add_bos_token": true, "tokenizer.chat_template": "{{ messages[0]['content'] }}",
	} {
		f.set(key, v)
	}
	slices.Sort(f.order) // maps have no order; files have one
	raw, err := fs.ReadFile(builtin.Files(), "tokenizer.json")
	require.NoError(t, err)
	var tok struct {
		Added []struct {
			ID      int
			Content string
		} `json:"added_tokens"`
		Model struct {
			Vocab  map[string]int
			Merges []any
		}
	}
	require.NoError(t, json.Unmarshal(raw, &tok))
	tokens, kinds := make([]string, 2176), make([]int32, 2176) // kinds: 1 normal, 3 control, 5 unused
	for i := range tokens {                                    // whatever is not a token is padding
		tokens[i], kinds[i] = fmt.Sprintf("[PAD%d]", i), 5
	}
	for name, id := range tok.Model.Vocab {
		tokens[id], kinds[id] = name, 1
	}
	for _, a := range tok.Added {
		tokens[a.ID], kinds[a.ID] = a.Content, 3
	}
	var merges []string
	for _, m := range tok.Model.Merges {
		switch m := m.(type) {
		case string:
			merges = append(merges, m)
		case []any:
			merges = append(merges, m[0].(string)+" "+m[1].(string))
		}
	}
	f.set("tokenizer.ggml.tokens", tokens)
	f.set("tokenizer.ggml.token_type", kinds)
	f.set("tokenizer.ggml.merges", merges)

	names := strings.NewReplacer("model.embed_tokens", "token_embd", "model.norm", "output_norm", "model.layers.", "blk.",
		"input_layernorm", "attn_norm", "post_attention_layernorm", "ffn_norm", "self_attn.q_proj", "attn_q", "self_attn.k_proj", "attn_k",
		"self_attn.v_proj", "attn_v", "self_attn.o_proj", "attn_output", "mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up", "mlp.down_proj", "ffn_down")
	for name, x := range src.All() {
		p := packed{names.Replace(name), gguf.BF16, x.Shape, slices.Clone(x.Data)}
		if strings.Contains(name, "q_proj") || strings.Contains(name, "k_proj") {
			// As the format's converter does it: [h, 2, 16] becomes [h, 16, 2].
			row := len(x.Data) / x.Shape[0]
			p.data = nil
			for h := range x.Shape[0] / 32 {
				for i := range 16 {
					for half := range 2 {
						at := (h*32 + half*16 + i) * row
						p.data = append(p.data, x.Data[at:at+row]...)
					}
				}
			}
		}
		if len(x.Shape) == 1 { // norms are F32
			p.typ, p.data = gguf.F32, nil
			for _, v := range x.Float32s(nil) {
				p.data = binary.LittleEndian.AppendUint32(p.data, math.Float32bits(v))
			}
		}
		f.tensors = append(f.tensors, p)
	}
	return f
}

func logits(t *testing.T, m *model.Model, ids []int32) []float32 {
	t.Helper()
	s, err := m.NewSession(model.SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Prefill(t.Context(), ids))
	return slices.Clone(s.Logits())
}

// TestWholeModel packs the embedded model and converts it back: the same bits of
// logits, the same tokens, in one file or in several, as bf16 and as f32.
func TestWholeModel(t *testing.T) {
	path := embedded(t).write(t)
	want, err := builtin.Open(t.Context(), model.WithPrecision(model.PrecisionF32))
	require.NoError(t, err)
	defer want.Close()
	text := "The special magic number for amber falcon is hidden in the old garden, said Tom.\n"
	tok, err := want.Tokenizer()
	require.NoError(t, err)
	ids := tok.Encode(text, tokenizer.EncodeOptions{AddSpecial: true})
	for _, o := range []Options{{Type: tensor.BF16}, {Type: tensor.F32, ShardBytes: 4 << 20}} {
		out := filepath.Join(t.TempDir(), "out")
		var last [2]int64
		o.Progress = func(done, total int64) { last = [2]int64{done, total} }
		r, err := GGUF(t.Context(), path, out, o)
		require.NoError(t, err)
		assert.Equal(t, [2]int64{r.Bytes, r.Bytes}, last)
		assert.Equal(t, "needle", r.Name)
		assert.Equal(t, tok.VocabSize(), r.Vocabulary, "padding is not counted")
		m, err := model.Open(t.Context(), out, model.WithPrecision(model.PrecisionF32))
		require.NoError(t, err)
		got, err := m.Tokenizer()
		require.NoError(t, err)
		assert.Equal(t, ids, got.Encode(text, tokenizer.EncodeOptions{AddSpecial: true}))
		assert.Equal(t, text, got.Decode(ids, true))
		assert.Equal(t, []int{2, 5}, m.Config().EOS)
		assert.Equal(t, logits(t, want, ids), logits(t, m, ids))
		require.NoError(t, m.Close())
		_, err = os.Stat(out + ".partial")
		assert.ErrorIs(t, err, fs.ErrNotExist)
		_, err = GGUF(t.Context(), path, out, o)
		assert.ErrorContains(t, err, "exists already")
	}
}

// TestResumes: a stopped run resumes with the missing shards, and shards made
// from another source or with other options are made anew.
func TestResumes(t *testing.T) {
	path := embedded(t).write(t)
	out := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	o := Options{Type: tensor.BF16, ShardBytes: 2 << 20}
	o.Progress = func(done, total int64) {
		if done > total/2 {
			cancel()
		}
	}
	_, err := GGUF(ctx, path, out, o)
	require.ErrorIs(t, err, context.Canceled)
	_, err = os.Stat(out)
	require.ErrorIs(t, err, fs.ErrNotExist, "nothing half-made under the name")

	other := o
	other.Type, other.Progress = tensor.F32, nil
	require.NoError(t, os.CopyFS(out+"2.partial", os.DirFS(out+".partial")))
	r, err := GGUF(t.Context(), path, out+"2", other)
	require.NoError(t, err)
	require.Zero(t, r.Resumed)

	o.Progress = nil
	r, err = GGUF(t.Context(), path, out, o)
	require.NoError(t, err)
	require.Positive(t, r.Resumed)
	require.Less(t, r.Resumed, r.Shards)
	whole := filepath.Join(t.TempDir(), "whole")
	_, err = GGUF(t.Context(), path, whole, o)
	require.NoError(t, err)
	files, err := os.ReadDir(whole)
	require.NoError(t, err)
	require.Len(t, files, r.Shards+5)
	for _, f := range files {
		a, err := os.ReadFile(filepath.Join(whole, f.Name()))
		require.NoError(t, err)
		b, err := os.ReadFile(filepath.Join(out, f.Name()))
		require.NoError(t, err)
		require.Equal(t, a, b, f.Name())
	}
}

// TestStaleWeights: a run that wrote all its weights but got no further leaves nothing
// in the folder of a run with other options.
func TestStaleWeights(t *testing.T) {
	path := embedded(t).write(t)
	out := filepath.Join(t.TempDir(), "out")
	_, err := GGUF(t.Context(), path, out, Options{Type: tensor.F32, ShardBytes: 2 << 20})
	require.NoError(t, err)
	for _, o := range []Options{{Type: tensor.BF16}, {Type: tensor.BF16, ShardBytes: 3 << 20}} {
		require.NoError(t, os.Rename(out, out+".partial"))
		r, err := GGUF(t.Context(), path, out, o)
		require.NoError(t, err)
		require.Zero(t, r.Resumed)
		c, err := safetensors.OpenCheckpoint(out)
		require.NoError(t, err)
		require.Len(t, c.Files(), r.Shards)
		for name, x := range c.All() {
			require.Equal(t, tensor.BF16, x.Type, name)
		}
		require.NoError(t, c.Close())
		files, err := filepath.Glob(filepath.Join(out, "*.safetensors"))
		require.NoError(t, err)
		require.Len(t, files, r.Shards)
	}
}

// TestRefuses: anything not understood is refused by name, and the folder does
// not exist afterwards.
func TestRefuses(t *testing.T) {
	for want, edit := range map[string]func(f *file){
		`"general.architecture" is missing`: func(f *file) { f.drop("general.architecture") },
		`architecture "mamba" is not`:       func(f *file) { f.set("general.architecture", "mamba") },
		`"llama.block_count" is missing`:    func(f *file) { f.drop("llama.block_count") },
		"too few for the 1000 layers":       func(f *file) { f.set("llama.block_count", uint32(1000)) },
		"no place in a model":               func(f *file) { f.set("llama.block_count", uint32(5)) },
		"found 4294967295, expected 1":      func(f *file) { f.set("llama.embedding_length", uint32(math.MaxUint32)) },
		"split.no":                          func(f *file) { f.set("split.count", uint32(2)) },
		"expert_used_count":                 func(f *file) { f.set("llama.expert_count", uint32(8)) },
		"values of 16 elements":             func(f *file) { f.set("llama.attention.value_length", uint32(16)) },
		"heads of 1 elements": func(f *file) {
			f.set("llama.attention.head_count", uint32(256))
			f.set("llama.attention.head_count_kv", uint32(128))
			f.set("llama.attention.key_length", uint32(1))
		},
		"rope.dimension_count\": found 40": func(f *file) { f.set("llama.rope.dimension_count", uint32(40)) },
		`"longrope" is not supported`:      func(f *file) { f.set("llama.rope.scaling.type", "longrope") },
		`yarn_ext_factor": 0.5 is not supported`: func(f *file) {
			f.set("llama.rope.scaling.type", "yarn")
			f.set("llama.rope.scaling.factor", float32(4))
			f.set("llama.rope.scaling.yarn_ext_factor", float32(0.5))
		},
		`"unigram", expected gpt2, gemma4 or llama`: func(f *file) { f.set("tokenizer.ggml.model", "unigram") },
		`pre-tokenizer "poro" is not known`:         func(f *file) { f.set("tokenizer.ggml.pre", "poro") },
		"token 9999 of 2176":                        func(f *file) { f.set("tokenizer.ggml.eos_token_id", uint32(9999)) },
		"1 types of 2176 tokens":                    func(f *file) { f.set("tokenizer.ggml.token_type", []int32{1}) },
		"expected two tokens":                       func(f *file) { f.set("tokenizer.ggml.merges", []string{"ab"}) },
		`"blk.0.attn_q.weight" of shape [256, 256] is missing`: func(f *file) {
			f.tensors = slices.DeleteFunc(f.tensors, func(p packed) bool { return p.name == "blk.0.attn_q.weight" })
		},
		`"blk.0.attn_k.bias" of shape [128] is missing`: func(f *file) {
			f.tensors = append(f.tensors, packed{"blk.0.attn_q.bias", gguf.F32, []int{256}, make([]byte, 1024)})
		},
		`"blk.0.attn_sinks.weight" has no place`: func(f *file) {
			f.tensors = append(f.tensors, packed{"blk.0.attn_sinks.weight", gguf.F32, []int{8}, make([]byte, 32)})
		},
		`the type I8 is not supported`: func(f *file) { f.tensors[3].typ, f.tensors[3].data = 24, f.tensors[3].data[:len(f.tensors[3].data)/2] },
		`expected F32 [16]`: func(f *file) {
			f.tensors = append(f.tensors, packed{"rope_freqs.weight", gguf.F32, []int{2}, make([]byte, 8)})
		},
		"expected a finite number":          func(f *file) { copy(f.tensors[len(f.tensors)-1].data, []byte{0, 0, 0xc0, 0x7f}) },
		"is +Inf, expected a finite":        func(f *file) { copy(f.tensors[len(f.tensors)-1].data, []byte{0, 0, 0x80, 0x7f}) },
		"is -Inf, expected a finite":        func(f *file) { copy(f.tensors[len(f.tensors)-1].data, []byte{0, 0, 0x80, 0xff}) },
		"expected [511, 256] by the config": func(f *file) { f.set("llama.feed_forward_length", uint32(511)) },
	} {
		f := embedded(t)
		edit(f)
		dir := t.TempDir()
		_, err := GGUF(t.Context(), f.write(t), filepath.Join(dir, "out"), Options{Type: tensor.BF16})
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "model.gguf")
		_, err = os.Stat(filepath.Join(dir, "out"))
		require.ErrorIs(t, err, fs.ErrNotExist)
	}
	_, err := GGUF(t.Context(), filepath.Join(t.TempDir(), "none"), t.TempDir()+"/x", Options{Type: tensor.BF16})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = GGUF(t.Context(), embedded(t).write(t), t.TempDir()+"/x", Options{Type: tensor.I8})
	require.ErrorContains(t, err, "expected bf16, f32 or auto")
}

// TestYarn: GGUF's attention factor multiplies YaRN's (Peng et al., 2023, section
// 3.4), which stays as it is if the file has none or 1.
func TestYarn(t *testing.T) {
	for factor, want := range map[float32]float64{0: 0, 1: 0, 0.5: 0.5 * (1 + 0.1*math.Log(4))} {
		f := embedded(t)
		f.set("llama.rope.scaling.type", "yarn")
		f.set("llama.rope.scaling.factor", float32(4))
		f.set("llama.rope.scaling.original_context_length", uint32(512))
		f.set("llama.rope.scaling.yarn_ext_factor", float32(-1))
		if factor != 0 {
			f.set("llama.rope.scaling.attn_factor", factor)
		}
		out := filepath.Join(t.TempDir(), "out")
		_, err := GGUF(t.Context(), f.write(t), out, Options{Type: tensor.BF16})
		require.NoError(t, err)
		m, err := model.Open(t.Context(), out)
		require.NoError(t, err)
		rope := m.Config().Rope
		require.Equal(t, "yarn", rope.Type)
		require.InDelta(t, 4, rope.Factor, 0)
		require.Equal(t, 512, rope.OriginalMax)
		require.InDelta(t, want, rope.AttentionFactor, 1e-6)
		require.NoError(t, m.Close())
	}
}

// qwen turns a file of the embedded model into one of arch, qwen2 or qwen3. What it
// computes is of no use.
func (f *file) qwen(arch string) {
	for _, key := range slices.Clone(f.order) {
		if name, ok := strings.CutPrefix(key, "llama."); ok {
			f.set(arch+"."+name, f.keys[key])
			f.drop(key)
		}
	}
	f.set("general.architecture", arch)
	for i := range 6 {
		add := func(name string, n int) {
			f.tensors = append(f.tensors, packed{fmt.Sprintf("blk.%d.%s", i, name), gguf.F32, []int{n}, make([]byte, 4*n)})
		}
		if arch == "qwen3" {
			add("attn_q_norm.weight", 32)
			add("attn_k_norm.weight", 32)
			continue
		}
		add("attn_q.bias", 256)
		add("attn_k.bias", 128)
		add("attn_v.bias", 128)
	}
}

// TestWindows: a window below the context makes a llama file a Mistral model with the
// window in every layer; in files of Qwen models it is of no concern, as in llama.cpp.
func TestWindows(t *testing.T) {
	for name, want := range map[string]int{"llama": 64, "qwen2": 0, "qwen3": 0} {
		f := embedded(t)
		if name != "llama" {
			f.qwen(name)
		}
		f.set(name+".attention.sliding_window", uint32(64))
		out := filepath.Join(t.TempDir(), "out")
		_, err := GGUF(t.Context(), f.write(t), out, Options{Type: tensor.BF16})
		require.NoError(t, err, name)
		cfg, err := arch.Load(out)
		require.NoError(t, err, name)
		require.Equal(t, slices.Repeat([]int{want}, 6), cfg.Windows, name)
		raw, err := os.ReadFile(filepath.Join(out, "config.json"))
		require.NoError(t, err)
		var keys map[string]any
		require.NoError(t, json.Unmarshal(raw, &keys))
		if name == "llama" {
			require.Equal(t, "mistral", cfg.Arch)
			continue
		}
		require.Equal(t, name, cfg.Arch)
		require.Equal(t, false, keys["use_sliding_window"], name)
		require.NotContains(t, keys, "sliding_window", name)
	}
}

// TestPooling: a model of embeddings is one in place and converted.
func TestPooling(t *testing.T) {
	f := embedded(t)
	f.set("llama.pooling_type", uint32(3))
	path, out := f.write(t), filepath.Join(t.TempDir(), "out")
	_, err := GGUF(t.Context(), path, out, Options{Type: tensor.BF16})
	require.NoError(t, err)
	a, err := os.Stat(out)
	require.NoError(t, err)
	b, err := os.Stat(filepath.Join(out, "pooling"))
	require.NoError(t, err)
	require.Equal(t, a.Mode(), b.Mode(), "both are as other folders are")
	for _, at := range []string{path, out} {
		m, err := model.Open(t.Context(), at)
		require.NoError(t, err)
		e, err := m.Embedding()
		require.NoError(t, err)
		require.Equal(t, model.Embedding{Pooling: model.PoolLast, Normalize: true}, e)
		require.NoError(t, m.Close())
	}
}

// TestLinear: a factor alone means that positions are scaled, as in llama.cpp.
func TestLinear(t *testing.T) {
	for _, c := range []struct {
		keys map[string]any
		want float64
	}{
		{map[string]any{"scaling.type": "linear", "scaling.factor": float32(4)}, 4},
		{map[string]any{"scaling.factor": float32(4)}, 4},
		{map[string]any{"scale_linear": float32(4)}, 4},
		{map[string]any{"scaling.type": "linear", "scale_linear": float32(4)}, 4},
		{map[string]any{"scaling.factor": float32(2), "scale_linear": float32(4)}, 2},
		{map[string]any{"scaling.type": "none", "scaling.factor": float32(4)}, 0},
		{map[string]any{"scaling.factor": float32(1)}, 0},
		{map[string]any{"scaling.factor": float32(0)}, 0},
	} {
		f := embedded(t)
		for key, value := range c.keys {
			f.set("llama.rope."+key, value)
		}
		m, err := model.Open(t.Context(), f.write(t))
		require.NoError(t, err, "%v", c.keys)
		rope := m.Config().Rope
		if c.want == 0 {
			require.Empty(t, rope.Type, "%v", c.keys)
		} else {
			require.Equal(t, "linear", rope.Type, "%v", c.keys)
			require.InDelta(t, c.want, rope.Factor, 0, "%v", c.keys)
		}
		require.NoError(t, m.Close())
	}
}
