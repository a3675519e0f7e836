package convert

import (
	"encoding/binary"
	"encoding/json"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/gguf"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// find returns a tensor of the file.
func (f *file) find(t *testing.T, name string) *packed {
	t.Helper()
	i := slices.IndexFunc(f.tensors, func(p packed) bool { return p.name == name })
	require.GreaterOrEqual(t, i, 0, name)
	return &f.tensors[i]
}

// elements counts the numbers in the file's tensors.
func (f *file) elements() (n int64) {
	for _, p := range f.tensors {
		size := int64(1)
		for _, d := range p.shape {
			size *= int64(d)
		}
		n += size
	}
	return n
}

// store stores a tensor's numbers as another type.
func (p *packed) store(t *testing.T, typ gguf.Type) {
	t.Helper()
	require.Equal(t, gguf.BF16, p.typ)
	x := make([]float32, len(p.data)/2)
	tensor.BF16.Widen(x, p.data)
	data, err := gguf.Encode(nil, typ, x, p.shape[len(p.shape)-1], nil)
	require.NoError(t, err)
	p.typ, p.data = typ, data
}

func config(t *testing.T, dir string) (keys map[string]any) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &keys))
	return keys
}

// TestTypes: without a type each tensor keeps its own, and blocks become BF16; with one all
// have it. Parameters are elements, whatever they are stored as, and bytes those in the files.
func TestTypes(t *testing.T) {
	f := embedded(t)
	f.find(t, "blk.1.ffn_up.weight").store(t, gguf.F16)
	f.find(t, "blk.2.ffn_up.weight").store(t, gguf.Q8_0)
	f.find(t, "blk.3.ffn_up.weight").store(t, gguf.F32)
	path := f.write(t)
	for _, want := range []tensor.Type{0, tensor.BF16, tensor.F32} {
		out := filepath.Join(t.TempDir(), "out")
		r, err := GGUF(t.Context(), path, out, Options{Type: want})
		require.NoError(t, err)
		require.Equal(t, f.elements(), r.Parameters)
		require.Equal(t, len(f.tensors), r.Tensors)
		require.Equal(t, []int{1, 0}, []int{r.Shards, r.Resumed})
		c, err := safetensors.OpenCheckpoint(out)
		require.NoError(t, err)
		bytes, norms := int64(0), 0
		for name, x := range c.All() {
			bytes += int64(len(x.Data))
			own := tensor.BF16
			switch {
			case want != 0:
				own = want
			case len(x.Shape) == 1 || name == "model.layers.3.mlp.up_proj.weight":
				own, norms = tensor.F32, norms+1
			case name == "model.layers.1.mlp.up_proj.weight":
				own = tensor.F16
			}
			require.Equal(t, own, x.Type, name)
		}
		require.NoError(t, c.Close())
		require.Equal(t, bytes, r.Bytes)
		if want == 0 {
			require.Equal(t, 14, norms)
		}
		require.NoFileExists(t, filepath.Join(out, safetensors.IndexName))
		require.Equal(t, map[bool]string{true: "float32", false: "bfloat16"}[want == tensor.F32], config(t, out)["torch_dtype"])
	}
}

// TestDeclaredType: the config names the type of most elements, since programs that read the folder
// convert the others to it.
func TestDeclaredType(t *testing.T) {
	for to, want := range map[gguf.Type]string{gguf.F16: "float16", gguf.F32: "float32", gguf.Q8_0: "bfloat16"} {
		f := embedded(t)
		for i := range f.tensors {
			if x := &f.tensors[i]; len(x.shape) == 2 {
				x.store(t, to)
			}
		}
		out := filepath.Join(t.TempDir(), "out")
		_, err := GGUF(t.Context(), f.write(t), out, Options{})
		require.NoError(t, err)
		require.Equal(t, want, config(t, out)["torch_dtype"])
	}
}

// TestShardBounds: a file of weights exceeds the bound only with a single tensor, and the next
// tensor would not have fitted; the index names the file of each, and all bytes.
func TestShardBounds(t *testing.T) {
	f := embedded(t)
	path, all := f.write(t), 2*f.elements()
	for _, bound := range []int64{all - 1, all / 2, 1 << 20, 1} {
		out := filepath.Join(t.TempDir(), "out")
		r, err := GGUF(t.Context(), path, out, Options{Type: tensor.BF16, ShardBytes: bound})
		require.NoError(t, err)
		require.Greater(t, r.Shards, 1)
		if bound == all-1 {
			require.Equal(t, 2, r.Shards)
		}
		raw, err := os.ReadFile(filepath.Join(out, safetensors.IndexName))
		require.NoError(t, err)
		var index struct {
			Metadata struct {
				Total int64 `json:"total_size"`
			}
			Files map[string]string `json:"weight_map"`
		}
		require.NoError(t, json.Unmarshal(raw, &index))
		require.Equal(t, []int64{all, all}, []int64{index.Metadata.Total, r.Bytes})
		require.Len(t, index.Files, len(f.tensors))
		names, err := filepath.Glob(filepath.Join(out, "model-*.safetensors"))
		require.NoError(t, err)
		require.Len(t, names, r.Shards)
		before := int64(0) // bytes of the file before
		for _, name := range names {
			file, err := safetensors.Open(name)
			require.NoError(t, err)
			held, least := int64(0), int64(math.MaxInt64)
			for tensor, x := range file.All() {
				require.Equal(t, filepath.Base(name), index.Files[tensor])
				held += int64(len(x.Data))
				least = min(least, int64(len(x.Data)))
			}
			if n := file.Len(); n > 1 {
				require.LessOrEqual(t, held, bound)
			}
			if before > 0 {
				require.Greater(t, before+held, bound, "both would have fitted into one")
			}
			before = held
			require.NoError(t, file.Close())
		}
	}
}

// TestResumesOnlyItsOwn: shards of another file do not count as finished, however alike the
// two are, nor do those of the same with other tensors than their own; what is done counts
// towards the total once.
func TestResumesOnlyItsOwn(t *testing.T) {
	f := embedded(t)
	path, dir := f.write(t), t.TempDir()
	info, err := os.Stat(path)
	require.NoError(t, err)
	o, last := Options{Type: tensor.BF16, ShardBytes: 3 << 20}, [2]int64{}
	o.Progress = func(done, total int64) { last = [2]int64{done, total} }
	first := filepath.Join(dir, "first")
	_, err = GGUF(t.Context(), path, first, o)
	require.NoError(t, err)

	again := func(name string, edit func(folder string)) *Result {
		t.Helper()
		out := filepath.Join(dir, name)
		require.NoError(t, os.CopyFS(out+".partial", os.DirFS(first)))
		edit(out + ".partial")
		r, err := GGUF(t.Context(), path, out, o)
		require.NoError(t, err)
		require.Equal(t, [2]int64{r.Bytes, r.Bytes}, last, name)
		return r
	}
	whole := again("whole", func(string) {})
	require.Equal(t, whole.Shards, whole.Resumed)
	same := func(name string) {
		t.Helper()
		require.NoError(t, fs.WalkDir(os.DirFS(first), ".", func(p string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			a, err := os.ReadFile(filepath.Join(first, p))
			require.NoError(t, err)
			b, err := os.ReadFile(filepath.Join(dir, name, p))
			require.NoError(t, err)
			require.Equal(t, a, b, "%s of %s", p, name)
			return nil
		}))
	}
	for name, edit := range map[string]func(ts []safetensors.Named) []safetensors.Named{
		"fewer": func(ts []safetensors.Named) []safetensors.Named { return ts[1:] },
		"more": func(ts []safetensors.Named) []safetensors.Named {
			return append(ts, safetensors.Named{Name: "one", Tensor: tensor.Make(tensor.F32, 1)})
		},
		"renamed": func(ts []safetensors.Named) []safetensors.Named { ts[0].Name = "one"; return ts },
		"another type": func(ts []safetensors.Named) []safetensors.Named {
			ts[0].Tensor = tensor.Make(tensor.F16, ts[0].Tensor.Shape...)
			return ts
		},
		"another shape": func(ts []safetensors.Named) []safetensors.Named {
			ts[0].Tensor.Shape = []int{ts[0].Tensor.Len()}
			return ts
		},
	} {
		r := again(name, func(folder string) {
			names, err := filepath.Glob(filepath.Join(folder, "model-*.safetensors"))
			require.NoError(t, err)
			shard, err := safetensors.Open(names[1])
			require.NoError(t, err)
			var ts []safetensors.Named
			for name, x := range shard.All() {
				x.Data = slices.Clone(x.Data)
				ts = append(ts, safetensors.Named{Name: name, Tensor: x})
			}
			meta := shard.Metadata()
			require.NoError(t, shard.Close())
			require.NoError(t, safetensors.WriteFile(names[1], edit(ts), meta))
		})
		require.Equal(t, whole.Shards-1, r.Resumed, name)
		same(name)
	}

	// Two layers change places in the list of tensors: as many bytes, at the same time.
	a, b := f.find(t, "blk.0.ffn_up.weight"), f.find(t, "blk.4.ffn_up.weight")
	a.name, b.name = b.name, a.name
	require.NoError(t, os.WriteFile(path, f.bytes(t), 0o600))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	require.Zero(t, again("another header", func(string) {}).Resumed)

	// Another number at another time.
	a.name, b.name = b.name, a.name
	a.data[0] ^= 1
	require.NoError(t, os.WriteFile(path, f.bytes(t), 0o600))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime().Add(1e9)))
	require.Zero(t, again("another time", func(string) {}).Resumed)
}

// TestHeadsWithoutKeys: a file that does not say how many heads keys and values have means as
// many as queries have.
func TestHeadsWithoutKeys(t *testing.T) {
	f := embedded(t)
	f.drop("llama.attention.head_count_kv")
	for i := range f.tensors { // twice as many: their rows again
		if p := &f.tensors[i]; len(p.shape) == 2 && p.shape[0] == 128 {
			p.shape, p.data = []int{256, p.shape[1]}, slices.Concat(p.data, p.data)
		}
	}
	out := filepath.Join(t.TempDir(), "out")
	_, err := GGUF(t.Context(), f.write(t), out, Options{Type: tensor.BF16})
	require.NoError(t, err)
	cfg, err := arch.Load(out)
	require.NoError(t, err)
	require.Equal(t, []int{8, 8, 32}, []int{cfg.Heads, cfg.KVHeads, cfg.HeadDim})
	require.EqualValues(t, 8, config(t, out)["num_key_value_heads"])
}

// TestLlama3Scaling: divisors of Llama 3's scaling are written as its parameters, as published
// configs have them; others are listed.
func TestLlama3Scaling(t *testing.T) {
	const factor, low, high, original = 8, 1, 4, 8192
	divisors := make([]float64, 16)
	for i := range divisors {
		turns := original * math.Pow(10000, -float64(i)/16) / (2 * math.Pi) // over the original length
		smooth := min(1, max(0, (turns-low)/(high-low)))
		divisors[i] = 1 / ((1-smooth)/factor + smooth)
	}
	for _, listed := range []bool{false, true} {
		if listed {
			divisors[3] = 1.5
		}
		f := embedded(t)
		p := packed{"rope_freqs.weight", gguf.F32, []int{16}, nil}
		for _, d := range divisors {
			p.data = binary.LittleEndian.AppendUint32(p.data, math.Float32bits(float32(d)))
		}
		f.tensors = append(f.tensors, p)
		out := filepath.Join(t.TempDir(), "out")
		_, err := GGUF(t.Context(), f.write(t), out, Options{Type: tensor.BF16})
		require.NoError(t, err)
		scaling := config(t, out)["rope_scaling"].(map[string]any)
		if listed {
			require.Equal(t, "longrope", scaling["rope_type"])
			continue
		}
		require.Equal(t, map[string]any{
			"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192.0,
		}, scaling)
	}
}
