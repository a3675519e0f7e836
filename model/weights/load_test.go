package weights

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// loadFolder does what opening a model does before anything is computed.
func loadFolder(dir string) (*arch.Config, *Weights, error) {
	c, err := arch.Load(dir)
	if err != nil {
		return nil, nil, err
	}
	w, err := Load(dir, c)
	return c, w, err
}

// TestGoldenMalformedFolders runs the folder cases; package safetensors runs the file
// cases. LUKV_GOLDEN_MALFORMED names another folder with the same layout.
func TestGoldenMalformedFolders(t *testing.T) {
	dir := os.Getenv("LUKV_GOLDEN_MALFORMED")
	if dir == "" {
		dir = filepath.Join("..", "..", "safetensors", "testdata", "malformed")
	}
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	require.NoError(t, err)
	var list struct {
		Cases []struct{ Name, Kind, Path, Expect, Why string }
	}
	require.NoError(t, json.Unmarshal(text, &list))
	checks := 0
	for _, c := range list.Cases {
		if c.Kind != "folder" {
			continue
		}
		checks++
		t.Run(c.Name, func(t *testing.T) {
			path := filepath.Join(dir, filepath.FromSlash(c.Path))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, w, err := loadFolder(path)
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			switch {
			case c.Expect == "ok" && err != nil:
				t.Errorf("got error %q, expected none: %s", err, c.Why)
			case c.Expect == "error" && err == nil:
				t.Errorf("got no error, expected one: %s", c.Why)
			case err != nil && !strings.Contains(err.Error(), filepath.Base(path)):
				t.Errorf("error does not name the folder: %s", err)
			}
			if took > 10*time.Second { // a busy machine may stop for a while
				t.Errorf("took %v, expected at most a second on an idle machine", took)
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
				t.Errorf("allocated %d bytes, expected at most 4 MiB", grown)
			}
			if err != nil {
				t.Log(err)
				return
			}
			w.Each(func(_ string, x tensor.Tensor) { _ = x.Float32s(nil) }) // reads every byte
			assert.NoError(t, w.Close())
		})
	}
	fmt.Printf("golden malformed (model folders): %d checks\n", checks)
	t.Logf("golden malformed (model folders): %d checks", checks)
	require.NotZero(t, checks)
}

// everyTensor returns random tensors for every place that cfg calls for.
func everyTensor(cfg *arch.Config, typ tensor.Type) []safetensors.Named {
	w := &Weights{Layers: make([]Layer, cfg.Layers)}
	var list []safetensors.Named
	for n, s := range w.places(cfg, arch.HuggingFace) {
		x := tensor.Make(typ, s.shape...)
		for i := range x.Data {
			x.Data[i] = byte(i*7+n*13) & 0x3f // positive, finite
		}
		list = append(list, safetensors.Named{Name: s.stored[0].Name, Tensor: x})
	}
	return list
}

func smallConfig() *arch.Config {
	return &arch.Config{Arch: "qwen3", Layers: 2, Hidden: 8, Intermediate: 12, Heads: 4, KVHeads: 2, HeadDim: 6, Vocab: 10,
		QKVBias: true, OutBias: true, MLPBias: true, QKNorm: true, Windows: []int{0, 0}}
}

func TestLoadWeightsFillsEveryPlace(t *testing.T) {
	cfg := smallConfig()
	list := everyTensor(cfg, tensor.BF16)
	require.Len(t, list, 3+2*18)
	// One tensor of another type: types may be mixed.
	i := slices.IndexFunc(list, func(n safetensors.Named) bool { return n.Name == "model.norm.weight" })
	list[i].Tensor = tensor.FromF32s(tensor.F32, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 8)
	extra := safetensors.Named{Name: "model.layers.0.self_attn.rotary_emb.inv_freq", Tensor: tensor.Make(tensor.F32, 3)}
	dir := t.TempDir()
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, safetensors.SingleName), append(list, extra), nil))

	for _, open := range []func() (*Weights, error){
		func() (*Weights, error) { return Load(dir, cfg) },
		func() (*Weights, error) { return LoadFS(os.DirFS(dir), cfg) },
	} {
		w, err := open()
		require.NoError(t, err)
		assert.Equal(t, []string{extra.Name}, w.Unused())
		bytes, n := int64(0), 0
		w.Each(func(name string, x tensor.Tensor) {
			assert.Equal(t, list[n].Name, name)
			assert.Equal(t, list[n].Tensor, x, name)
			bytes += int64(len(x.Data))
			n++
		})
		assert.Equal(t, len(list), n)
		assert.Equal(t, bytes, w.Bytes())
		assert.Equal(t, []int{24, 8}, w.Layers[1].Tensors[arch.RoleQ].Shape)
		assert.Equal(t, []int{8, 24}, w.Layers[1].Tensors[arch.RoleO].Shape)
		assert.Equal(t, []int{8, 12}, w.Layers[1].Tensors[arch.RoleDown].Shape)
		require.NoError(t, w.Close())
		require.NoError(t, w.Close())
	}

	// A config that calls for less takes less.
	less := *cfg
	less.QKVBias, less.OutBias, less.MLPBias, less.QKNorm, less.TiedEmbeddings = false, false, false, false, true
	w, err := Load(dir, &less)
	require.NoError(t, err)
	defer w.Close()
	assert.True(t, w.Layers[0].Tensors[arch.RoleQBias].IsZero())
	assert.Equal(t, w.Embed, w.Head)
	assert.Contains(t, w.Unused(), "lm_head.weight")
	n := 0
	w.Each(func(name string, _ tensor.Tensor) { n++; assert.NotEqual(t, "lm_head.weight", name) })
	assert.Equal(t, 2+2*9, n)
}

// TestLoadWeightsTiedUnderOneName: tied embeddings may be stored under either name; it
// is the same model.
func TestLoadWeightsTiedUnderOneName(t *testing.T) {
	cfg := smallConfig()
	cfg.TiedEmbeddings = true
	all := everyTensor(cfg, tensor.F16)
	i := slices.IndexFunc(all, func(n safetensors.Named) bool { return n.Name == "model.embed_tokens.weight" })
	load := func(name string, x tensor.Tensor) (*Weights, error) {
		all[i] = safetensors.Named{Name: name, Tensor: x}
		var file bytesWriter
		require.NoError(t, safetensors.Write(&file, all, nil))
		return LoadFS(file.fs(), cfg)
	}
	embed := all[i].Tensor
	usual, err := load("model.embed_tokens.weight", embed)
	require.NoError(t, err)
	w, err := load("lm_head.weight", embed)
	require.NoError(t, err)
	assert.Equal(t, embed, w.Embed)
	assert.True(t, w.Tied())
	assert.Empty(t, w.Unused())
	assert.Equal(t, usual.Identity(cfg), w.Identity(cfg))

	_, err = load("lm_head.weight", tensor.Make(tensor.F16, 3, cfg.Hidden))
	assert.ErrorContains(t, err, `tensor "lm_head.weight" has shape`)
	_, err = load("other.weight", embed)
	assert.ErrorContains(t, err, `tensor "model.embed_tokens.weight" of shape`)
}

// TestLoadWeightsWithoutPrefix: AutoModel saves the network without its head, with bare
// names; somebody may have put the head beside them. It is the same model.
func TestLoadWeightsWithoutPrefix(t *testing.T) {
	for _, tied := range []bool{false, true} {
		cfg := smallConfig()
		cfg.TiedEmbeddings = tied
		all := everyTensor(cfg, tensor.BF16)
		load := func(list []safetensors.Named) (*Weights, error) {
			var file bytesWriter
			require.NoError(t, safetensors.Write(&file, list, nil))
			return LoadFS(file.fs(), cfg)
		}
		usual, err := load(all)
		require.NoError(t, err)
		bare := slices.Clone(all)
		for i := range bare {
			bare[i].Name = strings.TrimPrefix(bare[i].Name, "model.")
		}
		w, err := load(bare)
		require.NoError(t, err)
		n := 0
		w.Each(func(name string, x tensor.Tensor) {
			assert.Equal(t, all[n].Name, name)
			assert.Equal(t, all[n].Tensor, x, name)
			n++
		})
		assert.Equal(t, len(all), n)
		assert.Empty(t, w.Unused())
		assert.Equal(t, tied, w.Tied())
		assert.Equal(t, usual.Identity(cfg), w.Identity(cfg))

		for i, victim := range bare {
			_, err := load(slices.Delete(slices.Clone(bare), i, i+1))
			assert.ErrorContains(t, err, fmt.Sprintf("tensor %q of shape %s is missing", victim.Name, tensor.ShapeString(victim.Tensor.Shape)))
		}

		// The names of one checkpoint are of one kind: with a single prefix, the usual ones.
		mixed := slices.Clone(bare)
		mixed[1].Name = all[1].Name
		_, err = load(mixed)
		assert.ErrorContains(t, err, `tensor "model.embed_tokens.weight" of shape`)
	}
}

func TestLoadWeightsNamesTheCulprit(t *testing.T) {
	cfg := smallConfig()
	all := everyTensor(cfg, tensor.F16)
	for i, victim := range all {
		var without bytesWriter
		require.NoError(t, safetensors.Write(&without, slices.Delete(slices.Clone(all), i, i+1), nil))
		_, err := LoadFS(without.fs(), cfg)
		assert.ErrorContains(t, err, fmt.Sprintf("tensor %q of shape %s is missing", victim.Name, tensor.ShapeString(victim.Tensor.Shape)))

		wrong := slices.Clone(all)
		wrong[i].Tensor = tensor.Make(tensor.F16, append([]int{1}, victim.Tensor.Shape...)...)
		var misshapen bytesWriter
		require.NoError(t, safetensors.Write(&misshapen, wrong, nil))
		_, err = LoadFS(misshapen.fs(), cfg)
		assert.ErrorContains(t, err, fmt.Sprintf("tensor %q has shape %s, expected %s", victim.Name,
			tensor.ShapeString(wrong[i].Tensor.Shape), tensor.ShapeString(victim.Tensor.Shape)))
		assert.ErrorContains(t, err, safetensors.SingleName)

		wrong[i].Tensor = tensor.Make(tensor.F64, victim.Tensor.Shape...)
		var mistyped bytesWriter
		require.NoError(t, safetensors.Write(&mistyped, wrong, nil))
		_, err = LoadFS(mistyped.fs(), cfg)
		assert.ErrorContains(t, err, fmt.Sprintf("tensor %q is of type F64", victim.Name))
	}
}

// bytesWriter collects a checkpoint.
type bytesWriter struct{ data []byte }

func (b *bytesWriter) Write(p []byte) (int, error) {
	b.data = append(b.data, p...)
	return len(p), nil
}

func (b *bytesWriter) fs() fstest.MapFS { return fstest.MapFS{safetensors.SingleName: {Data: b.data}} }

// TestLoadWeightsUnaligned: a header whose length is not a multiple of the element size
// puts all data out of alignment; the weights must come out the same.
func TestLoadWeightsUnaligned(t *testing.T) {
	cfg := smallConfig()
	var b bytesWriter
	list := everyTensor(cfg, tensor.F32)
	require.NoError(t, safetensors.Write(&b, list, nil))
	for shift := range 8 {
		n := int(b.data[0]) | int(b.data[1])<<8 | int(b.data[2])<<16
		moved := append([]byte{}, b.data[:8+n]...)
		for range shift {
			moved = append(moved, ' ')
		}
		moved = append(moved, b.data[8+n:]...)
		moved[0], moved[1], moved[2] = byte(n+shift), byte((n+shift)>>8), byte((n+shift)>>16)
		w, err := LoadFS((&bytesWriter{moved}).fs(), cfg)
		require.NoError(t, err)
		i := 0
		w.Each(func(name string, x tensor.Tensor) {
			assert.Equal(t, list[i].Tensor.F32s(), x.F32s(), "%s, shifted by %d", name, shift)
			i++
		})
		require.NoError(t, w.Close())
	}
}

// BenchmarkLoad opens and checks a checkpoint; the time must not depend on the
// size of the tensors.
func BenchmarkLoad(b *testing.B) {
	cfg := &arch.Config{Arch: "llama", Layers: 32, Hidden: 64, Intermediate: 128, Heads: 8, KVHeads: 2, HeadDim: 8, Vocab: 1000, Windows: make([]int, 32)}
	dir := b.TempDir()
	require.NoError(b, safetensors.WriteFile(filepath.Join(dir, safetensors.SingleName), everyTensor(cfg, tensor.BF16), nil))
	b.ReportAllocs()
	for b.Loop() {
		w, err := Load(dir, cfg)
		if err != nil {
			b.Fatal(err)
		}
		w.Close()
	}
}

// TestDamagedVectors: a norm that is not of finite numbers is refused when the checkpoint is
// opened, by its name.
func TestDamagedVectors(t *testing.T) {
	source := filepath.Join("..", "testdata", "models", "llama32-tied-bf16")
	c, err := safetensors.OpenCheckpoint(source)
	require.NoError(t, err)
	defer c.Close()
	for name, damage := range map[string]float32{
		"model.norm.weight": float32(math.NaN()), "model.layers.0.input_layernorm.weight": float32(math.Inf(1)), "model.layers.1.post_attention_layernorm.weight": float32(math.Inf(-1)),
	} {
		for _, typ := range []tensor.Type{tensor.F32, tensor.F16, tensor.BF16} {
			var all []safetensors.Named
			for own, x := range c.All() {
				if own == name {
					v := x.Float32s(nil)
					v[len(v)-1] = damage
					x = tensor.FromF32s(typ, v, x.Shape...)
				}
				all = append(all, safetensors.Named{Name: own, Tensor: x})
			}
			dir := t.TempDir()
			require.NoError(t, safetensors.WriteFile(filepath.Join(dir, safetensors.SingleName), all, nil))
			text, err := os.ReadFile(filepath.Join(source, "config.json"))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
			_, _, err = loadFolder(dir)
			require.ErrorContains(t, err, fmt.Sprintf("tensor %q: element", name))
			require.ErrorContains(t, err, "expected a finite number")
		}
	}
}
