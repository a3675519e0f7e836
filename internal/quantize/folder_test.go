package quantize

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// settings are those of a small model; numbers are such that a reader of floats would change
// them.
const settings = `{
  "model_type": "llama", "vocab_size": 40, "hidden_size": 192, "intermediate_size": 128,
  "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 64,
  "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "dtype": "bfloat16",
  "quantization_config": null,
  "extra": {"large": 12345678901234567890, "exact": 0.10000000000000000555, "none": null, "list": [1.50, "é\u00e9"]}
}`

const mixtureSettings = `{
  "model_type": "qwen3_moe", "vocab_size": 40, "hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 64,
  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "num_experts": 3,
  "num_experts_per_tok": 2, "tie_word_embeddings": false, "dtype": "bfloat16"
}`

// floats returns the tensors of a model of random weights, by name.
func floats(t testing.TB, config string, typ tensor.Type) map[string]tensor.Tensor {
	t.Helper()
	cfg, err := arch.Parse([]byte(config))
	require.NoError(t, err)
	w, err := weights.Random(t.Context(), cfg, typ, 7)
	require.NoError(t, err)
	all := map[string]tensor.Tensor{}
	w.Each(func(name string, x tensor.Tensor) { all[name] = x })
	return all
}

// folderOf writes a model's folder.
func folderOf(t testing.TB, config string, tensors map[string]tensor.Tensor) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, safetensors.SingleName), named(tensors), nil))
	return dir
}

func named(tensors map[string]tensor.Tensor) (out []safetensors.Named) {
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		out = append(out, safetensors.Named{Name: name, Tensor: tensors[name]})
	}
	return out
}

// made is a folder that Folder has written.
type made struct {
	*testing.T
	dir    string
	c      *safetensors.Checkpoint
	result *Result
}

func write(t *testing.T, dir string, bits int) made {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	last := int64(-1)
	r, err := Folder(t.Context(), dir, out, FolderOptions{Bits: bits, Progress: func(done, total int64) {
		require.LessOrEqual(t, done, total)
		last = total - done
	}})
	require.NoError(t, err)
	require.Zero(t, last)
	require.NoDirExists(t, out+".partial")
	c, err := safetensors.OpenCheckpoint(out)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	bytes := int64(0)
	for _, x := range c.All() {
		bytes += int64(len(x.Data))
	}
	require.Equal(t, bytes, r.Bytes)
	return made{t, out, c, r}
}

func (m made) tensor(name string) tensor.Tensor {
	m.Helper()
	x, _, ok := m.c.Tensor(name)
	require.True(m, ok, name)
	return x
}

// integers returns the integers, [rows][cols], and scales of a module as the format has them,
// and how many columns share a scale.
func (m made) integers(name string, rows, cols int) (q []int, scales []float32, group int) {
	m.Helper()
	s := m.tensor(name + ".weight_scale")
	require.Equal(m, rows, s.Shape[0])
	group = cols / s.Shape[1]
	if x, _, ok := m.c.Tensor(name + ".weight"); ok {
		require.Equal(m, tensor.I8, x.Type)
		require.Equal(m, []int{rows, cols}, x.Shape)
		for _, b := range x.Data {
			q = append(q, int(int8(b)))
		}
		return q, s.Float32s(nil), group
	}
	require.Equal(m, []int64{int64(rows), int64(cols)}, m.tensor(name+".weight_shape").Int64s(nil))
	x := m.tensor(name + ".weight_packed")
	require.Equal(m, tensor.I32, x.Type)
	require.Equal(m, []int{rows, cols / 8}, x.Shape)
	for i := range rows * cols {
		word := binary.LittleEndian.Uint32(x.Data[i/8*4:])
		q = append(q, int(word>>(i%8*4)&15)-8)
	}
	return q, s.Float32s(nil), group
}

// TestIntegers: each scale has the least squared error of those that map the largest
// magnitude to a number of the grid, and each integer is the nearest.
func TestIntegers(t *testing.T) {
	for _, typ := range []tensor.Type{tensor.BF16, tensor.F16, tensor.F32} {
		source := floats(t, settings, typ)
		down := source["model.layers.1.mlp.down_proj.weight"]
		clear(down.Data[typ.Bytes(128*5):typ.Bytes(128*6)])   // zeros
		for i, v := range down.Float32s(nil)[128*6 : 128*7] { // tiny
			copy(down.Data[typ.Bytes(128*6+i):], tensor.FromF32s(typ, []float32{v * 0x1p-20}, 1).Data)
		}
		dir := folderOf(t, settings, source)
		for bits, grid := range map[int][2]float64{4: {6, 8}, 8: {120, 127}} {
			m := write(t, dir, bits)
			low, high, step, scaleType := -8.0, 7.0, 0.1, tensor.BF16
			if bits == 8 {
				low, high, step = -127, 127, 1
			}
			if typ == tensor.F16 {
				scaleType = tensor.F16
			}
			require.Equal(t, scaleType, m.tensor("model.layers.1.mlp.down_proj.weight_scale").Type)
			for _, name := range []string{"model.layers.0.self_attn.q_proj", "model.layers.1.mlp.down_proj"} {
				from := source[name+".weight"]
				x, rows, cols := from.Float32s(nil), from.Shape[0], from.Shape[1]
				q, scales, group := m.integers(name, rows, cols)
				require.Equal(t, map[int]int{4: 64, 8: cols}[bits], group, "64 divides 192 and 128")
				for i, s := range scales {
					require.Positive(t, s)
					require.Equal(t, s, tensor.F16ToF32(tensor.F32ToF16(s)), "a scale that binary16 holds")
					largest, e := 0.0, 0.0
					for j := i * group; j < (i+1)*group; j++ {
						v := float64(x[j])
						largest = max(largest, math.Abs(v))
						require.Equal(t, min(max(math.RoundToEven(v/float64(s)), low), high), float64(q[j]))
						r := v - float64(s)*float64(q[j])
						e += r * r
					}
					if largest < 0x1p-10 { // rounding of scales decides
						continue
					}
					for c := grid[0]; c < grid[1]+step/2; c += step {
						try := float64(tensor.FromF32s(scaleType, []float32{float32(largest / c)}, 1).Float32s(nil)[0])
						other := 0.0
						for j := i * group; j < (i+1)*group; j++ {
							r := float64(x[j]) - try*min(max(math.RoundToEven(float64(x[j])/try), low), high)
							other += r * r
						}
						require.LessOrEqual(t, e, other*(1+1e-9), "scale %d of %s: %v, not %v", i, name, s, try)
					}
				}
			}

			// What this program reads is integer × scale.
			cfg, err := arch.Load(m.dir)
			require.NoError(t, err)
			w, err := weights.Load(m.dir, cfg)
			require.NoError(t, err)
			want := map[int]tensor.Type{4: tensor.Q4_0, 8: tensor.Q8_0}[bits]
			w.Each(func(name string, x tensor.Tensor) {
				module := strings.TrimSuffix(name, ".weight")
				if !strings.Contains(name, "_proj") {
					require.Equal(t, source[name].Data, x.Data, name)
					return
				}
				require.Equal(t, want, x.Type, name)
				q, scales, group := m.integers(module, x.Shape[0], x.Shape[1])
				for i, v := range x.Float32s(nil) {
					require.Equal(t, float32(q[i])*scales[i/group], v, name)
				}
			})
			require.NoError(t, w.Close())
		}
	}
}

// TestFolderFiles: the config keeps its keys, and files that describe the model go along.
func TestFolderFiles(t *testing.T) {
	dir := folderOf(t, settings, floats(t, settings, tensor.BF16))
	for name, text := range map[string]string{
		"tokenizer.json": `{"a": 1}`, "chat_template.jinja": "{{ x }}", "additional_chat_templates/tools.jinja": "{{ y }}",
		"merges.txt": "a b", "LICENSE": "free", "model.safetensors.index.json": "{}", "pytorch_model.bin": "", "run.py": "",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o777))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	require.NoError(t, os.Rename(filepath.Join(dir, "merges.txt"), filepath.Join(dir, "elsewhere")))
	require.NoError(t, os.Symlink("elsewhere", filepath.Join(dir, "merges.txt"))) // as in the hub's cache
	m := write(t, dir, 4)
	var names []string
	require.NoError(t, filepath.Walk(m.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			name, _ := filepath.Rel(m.dir, path)
			names = append(names, filepath.ToSlash(name))
		}
		return err
	}))
	require.Equal(t, []string{"LICENSE", "additional_chat_templates/tools.jinja", "chat_template.jinja", "config.json", "merges.txt",
		"model.safetensors", "tokenizer.json"}, names)
	text, err := os.ReadFile(filepath.Join(m.dir, "merges.txt"))
	require.NoError(t, err)
	require.Equal(t, "a b", string(text))

	text, err = os.ReadFile(filepath.Join(m.dir, "config.json"))
	require.NoError(t, err)
	var before, after map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(settings), &before))
	require.NoError(t, json.Unmarshal(text, &after))
	require.Equal(t, 1, bytes.Count(text, []byte("quantization_config")))
	require.JSONEq(t, `{"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
		"config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null, "output_activations": null,
			"weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 64, "dynamic": false}}},
		"ignore": ["lm_head"], "kv_cache_scheme": null}`, string(after["quantization_config"]))
	delete(before, "quantization_config")
	delete(after, "quantization_config")
	require.Equal(t, before, after, "the text of every other value")
	require.Equal(t, map[string]int{"INT4": 14, "BF16": 7}, m.result.Types)
	require.Equal(t, 21, m.result.Tensors)
}

// TestShards: files of weights keep their names, and the index tells where all tensors are.
func TestShards(t *testing.T) {
	source := floats(t, settings, tensor.BF16)
	dir := folderOf(t, settings, source)
	whole := write(t, dir, 8)
	require.NoError(t, os.Remove(filepath.Join(dir, safetensors.SingleName)))
	index, parts := map[string]string{}, [2]map[string]tensor.Tensor{{}, {}}
	for i, name := range slices.Sorted(maps.Keys(source)) {
		parts[i%2][name] = source[name]
		index[name] = fmt.Sprintf("part-%d.safetensors", i%2)
	}
	parts[1]["of.no.index"] = source["model.norm.weight"]
	for i, part := range parts {
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, fmt.Sprintf("part-%d.safetensors", i)), named(part), nil))
	}
	text, err := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 1}, "weight_map": index})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, safetensors.IndexName), text, 0o600))
	m := write(t, dir, 8)
	require.Equal(t, whole.result, m.result)
	require.Len(t, m.c.Files(), 2)
	for name, x := range whole.c.All() {
		require.Equal(t, x.Data, m.tensor(name).Data, name)
	}
	var made struct {
		Metadata struct {
			Total int64 `json:"total_size"`
		}
		Map map[string]string `json:"weight_map"`
	}
	text, err = os.ReadFile(filepath.Join(m.dir, safetensors.IndexName))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &made))
	require.Equal(t, m.result.Bytes, made.Metadata.Total)
	require.Equal(t, "part-0.safetensors", made.Map["lm_head.weight"])
	require.Equal(t, m.c.Names(), slices.Sorted(maps.Keys(made.Map)))
}

// TestExperts: experts of one tensor become modules of their own, the same as if they had
// been, and the router stays.
func TestExperts(t *testing.T) {
	source := floats(t, mixtureSettings, tensor.BF16)
	apart := write(t, folderOf(t, mixtureSettings, source), 4)
	const prefix = "model.layers.0.mlp.experts."
	stacked := maps.Clone(source)
	var gateUp, down []byte
	for x := range 3 {
		for _, part := range []string{"gate_proj", "up_proj"} {
			name := fmt.Sprintf("%s%d.%s.weight", prefix, x, part)
			gateUp = append(gateUp, source[name].Data...)
			delete(stacked, name)
		}
		name := fmt.Sprintf("%s%d.down_proj.weight", prefix, x)
		down = append(down, source[name].Data...)
		delete(stacked, name)
	}
	stacked[prefix+"gate_up_proj"] = tensor.Tensor{Type: tensor.BF16, Shape: []int{3, 128, 128}, Data: gateUp}
	stacked[prefix+"down_proj"] = tensor.Tensor{Type: tensor.BF16, Shape: []int{3, 128, 64}, Data: down}
	together := write(t, folderOf(t, mixtureSettings, stacked), 4)
	require.Equal(t, apart.c.Names(), together.c.Names())
	for name, x := range apart.c.All() {
		require.Equal(t, x, together.tensor(name), name)
	}
	require.Contains(t, apart.c.Names(), prefix+"2.down_proj.weight_packed")
	require.Equal(t, source["model.layers.0.mlp.gate.weight"], apart.tensor("model.layers.0.mlp.gate.weight"))
	text, err := os.ReadFile(filepath.Join(apart.dir, "config.json"))
	require.NoError(t, err)
	require.Contains(t, strings.Join(strings.Fields(string(text)), ""), `"ignore":["lm_head","model.layers.0.mlp.gate"]`)

	narrow := strings.Replace(mixtureSettings, `"moe_intermediate_size": 64`, `"moe_intermediate_size": 48`, 1)
	dir := folderOf(t, narrow, floats(t, narrow, tensor.BF16))
	m := write(t, dir, 4)
	require.Equal(t, tensor.BF16, m.tensor(prefix+"2.down_proj.weight").Type, "32 does not divide 48")
	require.Equal(t, tensor.I32, m.tensor(prefix+"2.up_proj.weight_packed").Type)
	text, err = os.ReadFile(filepath.Join(m.dir, "config.json"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"model.layers.0.mlp.experts.2.down_proj"`)
}

// TestStackedMixtral: a Mixtral whose experts are stacked has its router under another name;
// it answers as the one with experts apart, as it is and quantised, in either format.
func TestStackedMixtral(t *testing.T) {
	config := strings.Replace(mixtures["mixtral"], `"vocab_size": 40`, `"vocab_size": 100`, 1)
	source := floats(t, config, tensor.BF16)
	stacked := maps.Clone(source)
	var gateUp, down []byte
	const own, now = "model.layers.0.block_sparse_moe.", "model.layers.0.mlp."
	take := func(part string) []byte {
		data := source[own+part].Data
		require.NotEmpty(t, data, part)
		delete(stacked, own+part)
		return data
	}
	for x := range 3 {
		for _, part := range []string{"w1", "w3"} {
			gateUp = append(gateUp, take(fmt.Sprintf("experts.%d.%s.weight", x, part))...)
		}
		down = append(down, take(fmt.Sprintf("experts.%d.w2.weight", x))...)
	}
	stacked[now+"gate.weight"] = tensor.Tensor{Type: tensor.BF16, Shape: []int{3, 128}, Data: take("gate.weight")}
	stacked[now+"experts.gate_up_proj"] = tensor.Tensor{Type: tensor.BF16, Shape: []int{3, 256, 128}, Data: gateUp}
	stacked[now+"experts.down_proj"] = tensor.Tensor{Type: tensor.BF16, Shape: []int{3, 128, 128}, Data: down}
	prompt := []int32{1, 5, 17, 42, 99, 3}
	apart, together := folderOf(t, config, source), folderOf(t, config, stacked)
	require.Equal(t, goldenLogits(t, apart, prompt), goldenLogits(t, together, prompt))
	require.Equal(t, goldenLogits(t, write(t, apart, 4).dir, prompt), goldenLogits(t, write(t, together, 4).dir, prompt))
	var files [2]string
	for i, dir := range []string{apart, together} {
		files[i], _ = written(t, copied(t, dir, nil), Options{Type: gguf.BF16})
	}
	require.Equal(t, goldenLogits(t, files[0], prompt), goldenLogits(t, files[1], prompt))
}

// TestFamilies: folders of other families are opened once more after they were made.
func TestFamilies(t *testing.T) {
	root := os.Getenv("LUKV_GOLDEN_FAMILIES")
	if root == "" {
		t.Skip("LUKV_GOLDEN_FAMILIES names no folder of golden models")
	}
	folders, err := filepath.Glob(filepath.Join(root, "*", "config.json"))
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	for _, path := range folders {
		out := filepath.Join(t.TempDir(), "out")
		_, err := Folder(t.Context(), filepath.Dir(path), out, FolderOptions{Bits: 8})
		if strings.Contains(path, "wrapped") {
			require.ErrorContains(t, err, "multimodal", path)
			require.NoDirExists(t, out)
			continue
		}
		require.NoError(t, err, path)
	}
}

func TestFolderRefuses(t *testing.T) {
	source := floats(t, settings, tensor.F32)
	dir, parent := folderOf(t, settings, source), t.TempDir()
	out := filepath.Join(parent, "out")
	refuses := func(ctx context.Context, dir string, bits int, want string) {
		t.Helper()
		_, err := Folder(ctx, dir, out, FolderOptions{Bits: bits})
		require.ErrorContains(t, err, want)
		left, err := os.ReadDir(parent)
		require.NoError(t, err)
		require.Empty(t, left, "nothing remains")
	}
	refuses(t.Context(), dir, 5, "expected 8 or 4")
	refuses(t.Context(), filepath.Join(dir, "none"), 4, "no such file")
	refuses(t.Context(), write(t, dir, 8).dir, 4, "already stored as compressed-tensors")
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), 1e8} {
		x := maps.Clone(source)
		v := source["model.layers.1.mlp.up_proj.weight"].Float32s(nil)
		v[192*70+3] = bad
		x["model.layers.1.mlp.up_proj.weight"] = tensor.FromF32s(tensor.F32, v, 128, 192)
		refuses(t.Context(), folderOf(t, settings, x), 8, `row 70, column 3 of the weight of "model.layers.1.mlp.up_proj" is`)
	}
	missing := maps.Clone(source)
	delete(missing, "model.layers.0.self_attn.o_proj.weight")
	refuses(t.Context(), folderOf(t, settings, missing), 8, `"model.layers.0.self_attn.o_proj.weight" of shape [192, 192] is missing`)
	base := map[string]tensor.Tensor{}
	for name, x := range source {
		base[strings.TrimPrefix(name, "model.")] = x
	}
	refuses(t.Context(), folderOf(t, settings, base), 8, "a network without its head")
	narrow := strings.NewReplacer(`"hidden_size": 192`, `"hidden_size": 24`, `"intermediate_size": 128`, `"intermediate_size": 40`, `"head_dim": 64`, `"head_dim": 8`).Replace(settings)
	refuses(t.Context(), folderOf(t, narrow, floats(t, narrow, tensor.BF16)), 4, "the rows of no matrix")
	write(t, folderOf(t, narrow, floats(t, narrow, tensor.BF16)), 8)

	stopped, stop := context.WithCancelCause(t.Context())
	stop(fmt.Errorf("enough"))
	refuses(stopped, dir, 4, "enough")
	during, stop := context.WithCancelCause(t.Context())
	_, err := Folder(during, dir, out, FolderOptions{Bits: 4, Progress: func(int64, int64) { stop(fmt.Errorf("enough")) }})
	require.ErrorContains(t, err, "enough")
	require.NoDirExists(t, out+".partial")

	require.NoError(t, os.Mkdir(out+".partial", 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(out+".partial", "mine"), nil, 0o600))
	_, err = Folder(t.Context(), dir, out, FolderOptions{Bits: 4})
	require.ErrorContains(t, err, "out.partial exists already")
	require.FileExists(t, filepath.Join(out+".partial", "mine"))
	require.NoError(t, os.RemoveAll(out+".partial"))
	require.NoError(t, os.WriteFile(out, nil, 0o600))
	_, err = Folder(t.Context(), dir, out, FolderOptions{Bits: 4})
	require.ErrorContains(t, err, "exists already")
}

// TestWithKey sets a key of damaged and of odd objects.
func TestWithKey(t *testing.T) {
	for text, want := range map[string]string{
		`{}`: `{"k": 1}`, `{"a":[1.0],"k":{"b":2}}`: `{"a": [1.0], "k": 1}`, `{"a\"é":"\u0041"}`: `{"a\"é": "\u0041", "k": 1}`,
	} {
		got, err := withKey([]byte(text), "k", 1)
		require.NoError(t, err)
		require.JSONEq(t, want, string(got))
	}
	for _, text := range []string{``, `[]`, `null`, `{"a"`, `{"a":`, `{"a":1`, `{"a":}`, `{1:2}`} {
		_, err := withKey([]byte(text), "k", 1)
		require.Error(t, err, text)
	}
}
