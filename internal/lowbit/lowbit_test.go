package lowbit

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testfuzz"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// golden is the folder of golden cases, laid out as the one in testdata.
func golden() string { return cmp.Or(os.Getenv("LUKV_GOLDEN_QUANT"), "testdata/quant") }

// goldenCase is case.json.
type goldenCase struct {
	Module  string   `json:"module"`
	Shape   []int    `json:"shape"`
	ULP     int      `json:"ulp"`
	Mention []string `json:"error_should_mention"`
}

// index is the list of cases. Those of other containers and of the arithmetic are
// checked where they belong.
func index(t *testing.T) (cases, malformed []string) {
	text, err := os.ReadFile(filepath.Join(golden(), "index.json"))
	require.NoError(t, err)
	var x struct{ Cases, Malformed []string }
	require.NoError(t, json.Unmarshal(text, &x))
	x.Cases = slices.DeleteFunc(x.Cases, func(name string) bool {
		return strings.HasPrefix(name, "gguf") || strings.HasPrefix(name, "contract_")
	})
	return x.Cases, x.Malformed
}

// source is a checkpoint of one file.
type source struct{ f *safetensors.File }

func (s source) Tensor(name string) (tensor.Tensor, string, bool) {
	t, ok := s.f.Tensor(name)
	return t, "model.safetensors", ok
}

// open reads a case up to its matrix.
func open(t *testing.T, dir string) (goldenCase, *Matrix, source, error) {
	var c goldenCase
	text, err := os.ReadFile(filepath.Join(dir, "case.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &c))
	config, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	f, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	src := source{f}
	s, err := Parse(config)
	if err != nil {
		return c, nil, src, err
	}
	require.NotNil(t, s)
	if c.Module == "" {
		c.Module = moduleOf(f)
	}
	if c.Shape == nil {
		c.Shape = []int{24, 256}
	}
	require.True(t, s.Stored(src, c.Module), "%s: %q is stored so", s.Name, c.Module)
	m, err := s.Matrix(src, c.Module, c.Shape[0], c.Shape[1])
	return c, m, src, err
}

// moduleOf finds the one module that tensors belong to.
func moduleOf(f *safetensors.File) string {
	for name := range f.All() {
		if at := strings.Index(name, "_proj"); at >= 0 {
			return name[:at+len("_proj")]
		}
	}
	return ""
}

// TestGolden compares every element of every kind with the value that an independent
// program computed, and products of it in binary64 with that program's. Where values
// are to be equal to the bit, the repository holds only their hash; LUKV_GOLDEN_QUANT names
// a folder that has all of them.
func TestGolden(t *testing.T) {
	cases, _ := index(t)
	checks := 0
	for _, name := range cases {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(golden(), name)
			c, m, src, err := open(t, dir)
			require.NoError(t, err)
			got := make([]float32, m.Rows*m.Cols)
			m.Float32s(got, 0, m.Rows)
			checks += len(got)
			one := make([]float32, m.Cols)
			for _, r := range []int{0, 1, m.Rows - 1} {
				m.Float32s(one, r, 1)
				require.Equal(t, got[r*m.Cols:(r+1)*m.Cols], one, "row %d alone", r)
			}
			checkPack(t, m, got)
			if hash, err := os.ReadFile(filepath.Join(dir, "expected.sha256")); err == nil {
				raw := tensor.FromF32s(tensor.F32, got, m.Rows, m.Cols).Data
				require.Equal(t, strings.TrimSpace(string(hash)), fmt.Sprintf("%x", sha256.Sum256(raw)))
				return
			}
			want, err := safetensors.Open(filepath.Join(dir, "expected.safetensors"))
			require.NoError(t, err)
			defer want.Close()
			w, ok := want.Tensor("weight")
			require.True(t, ok)
			for i, v := range w.Float32s(nil) {
				if ulps(v, got[i]) > c.ULP {
					t.Fatalf("element %d: want %v, got %v", i, v, got[i])
				}
			}
			checks += products(t, want, src, c, got)
		})
	}
	require.Positive(t, checks)
	fmt.Printf("golden low-bit weights: %d checks\n", checks)
}

// checkPack: what is packed widens to the same values, or to those rounded to bf16.
func checkPack(t *testing.T, m *Matrix, want []float32) {
	typ, exact := m.Type()
	packed := make([]byte, typ.Bytes(m.Rows*m.Cols))
	row := typ.Bytes(m.Cols)
	for r := 0; r < m.Rows; r += 5 {
		n := min(5, m.Rows-r)
		m.Pack(packed[r*row:(r+n)*row], typ, r, n)
	}
	got := make([]float32, len(want))
	typ.Widen(got, packed)
	for i, v := range want {
		if !exact {
			v = tensor.BF16ToF32(tensor.F32ToBF16(v))
		}
		if v != got[i] {
			t.Fatalf("element %d as %v: want %v, got %v", i, typ, v, got[i])
		}
	}
}

// TestPackedTypes: the usual kinds keep the bits that they have.
func TestPackedTypes(t *testing.T) {
	for name, want := range map[string]tensor.Type{
		"ct_int8_channel": tensor.Q8_0, "ct_w4_g128_sym": tensor.Q4_0, "ct_w4_g128_asym": tensor.Q5_0, "gptq_v1_g128_sym": tensor.Q4_0,
		"gptq_v1_g32_asym_wrap": tensor.Q5_0, "awq_gemm_g128": tensor.Q5_0, "mlx_4bit_g64": tensor.Q4_1, "gptq_v1_8bit_g128": tensor.Q8_0,
		"ct_w4_g128_actorder": tensor.BF16, "ct_fp8_channel": tensor.BF16,
	} {
		dir := filepath.Join("testdata", "quant", name)
		_, m, _, err := open(t, dir)
		require.NoError(t, err, name)
		typ, exact := m.Type()
		require.Equal(t, want, typ, name)
		require.Equal(t, want != tensor.BF16, exact, name)
	}
}

// products compares x·wᵀ + bias.
func products(t *testing.T, want *safetensors.File, src source, c goldenCase, w []float32) int {
	xt, ok := want.Tensor("x")
	require.True(t, ok)
	yt, ok := want.Tensor("y")
	require.True(t, ok)
	x, y, cols, rows := xt.Float32s(nil), yt.Float32s(nil), c.Shape[1], c.Shape[0]
	var bias []float32
	if b, _, ok := src.Tensor(c.Module + ".bias"); ok {
		bias = b.Float32s(nil)
	}
	for r := range len(y) / rows {
		most := 0.0
		for _, v := range y[r*rows : (r+1)*rows] {
			most = max(most, math.Abs(float64(v)))
		}
		for o := range rows {
			sum := 0.0
			for k := range cols {
				sum += float64(x[r*cols+k]) * float64(w[o*cols+k])
			}
			if bias != nil {
				sum += float64(bias[o])
			}
			require.InDelta(t, float64(y[r*rows+o]), sum, 1e-5*most, "row %d, output %d", r, o)
		}
	}
	return len(y)
}

// ulps is the distance of two numbers in units of the last place.
func ulps(a, b float32) int {
	if a == b {
		return 0
	}
	x, y := int(int32(math.Float32bits(a))), int(int32(math.Float32bits(b)))
	if (x < 0) != (y < 0) {
		return math.MaxInt32
	}
	return max(x-y, y-x)
}

// TestGoldenMalformed: whatever is wrong is refused, by a message that names it.
func TestGoldenMalformed(t *testing.T) {
	_, malformed := index(t)
	require.NotEmpty(t, malformed)
	for _, name := range malformed {
		t.Run(name, func(t *testing.T) {
			c, _, _, err := open(t, filepath.Join(golden(), "malformed", name))
			require.Error(t, err)
			require.True(t, slices.ContainsFunc(c.Mention, func(word string) bool { return strings.Contains(err.Error(), word) }),
				"%q mentions none of %q", err, c.Mention)
		})
	}
	fmt.Printf("golden malformed low-bit weights: %d checks\n", len(malformed))
}

func TestPlain(t *testing.T) {
	for _, text := range []string{`{}`, `{"quantization_config": null}`} {
		s, err := Parse([]byte(text))
		require.NoError(t, err)
		require.Nil(t, s)
	}
}

// everything is a checkpoint that has a tensor of every name.
type everything struct{}

func (everything) Tensor(string) (tensor.Tensor, string, bool) { return tensor.Tensor{}, "", true }

// Which modules are stored in the scheme follows targets, and exceptions go before them.
func TestTargets(t *testing.T) {
	parse := func(groups, ignore string) *Scheme {
		s, err := Parse([]byte(`{"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ` + ignore +
			`, "config_groups": {"g": {"targets": ` + groups + `, "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}}}`))
		require.NoError(t, err)
		return s
	}
	const q, head = "model.layers.11.self_attn.q_proj", "lm_head"
	for _, c := range []struct {
		targets, ignore string
		q, head         bool
	}{
		{`["Linear"]`, `["lm_head"]`, true, false},
		{`["Linear"]`, `[]`, true, true},
		{`["re:.*self_attn"]`, `[]`, true, false},
		{`["re:self_attn"]`, `[]`, false, false}, // must match from the beginning
		{`["Linear"]`, `["re:model\\.layers\\.1"]`, false, true},
		{`["` + q + `"]`, `[]`, true, false},
	} {
		s := parse(c.targets, c.ignore)
		src := everything{}
		require.Equal(t, c.q, s.Stored(src, q), "%+v", c)
		require.Equal(t, c.head, s.Stored(src, head), "%+v", c)
		require.False(t, s.Stored(tensors{}, "m.q"), "what is not there")
	}
}

// Of several groups that name a module the one that names it most closely counts, whatever
// the groups are called.
func TestGroups(t *testing.T) {
	const rows, cols = 4, 32
	group := func(bits int, target string) string {
		return fmt.Sprintf(`{"targets": [%q], "weights": {"num_bits": %d, "type": "int", "strategy": "channel"}}`, target, bits)
	}
	for _, c := range []struct {
		first, second string // of 8 and of 4 bits
		bits          map[string]int
	}{
		{"re:.*self_attn.*", "Linear", map[string]int{"self_attn.q": 8, "mlp.up": 4}},
		{"Linear", "re:.*mlp.*", map[string]int{"self_attn.q": 8, "mlp.up": 4}},
		{"Linear", "mlp.up", map[string]int{"self_attn.q": 8, "mlp.up": 4}},
		{"re:.*up", "mlp.up", map[string]int{"mlp.up": 4}},
		{"Linear", "Embedding", map[string]int{"self_attn.q": 8, "model.embed_tokens": 4}},
	} {
		s, err := Parse(fmt.Appendf(nil, `{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
			"config_groups": {"a": %s, "b": %s}}}`, group(8, c.first), group(4, c.second)))
		require.NoError(t, err)
		for module, bits := range c.bits {
			src := modules{module: {
				".weight_packed": wordsOf(same(0), rows, cols*bits/32),
				".weight_scale":  tensor.FromF32s(tensor.F32, []float32{1, 1, 1, 1}, rows, 1),
				".weight_shape":  {Type: tensor.I64, Shape: []int{2}, Data: append(binary.LittleEndian.AppendUint64(nil, rows), binary.LittleEndian.AppendUint64(nil, cols)...)},
			}}
			require.True(t, s.Stored(src, module), module)
			m, err := s.Matrix(src, module, rows, cols)
			require.NoError(t, err, "%+v: %s", c, module)
			got := make([]float32, cols)
			m.Float32s(got, 0, 1)
			require.Equal(t, -float32(int(1)<<(bits-1)), got[0], module)
		}
	}
}

// MLX may store a module otherwise than all others, or leave it alone.
func TestOverrides(t *testing.T) {
	const rows, cols = 4, 64
	s, err := Parse([]byte(`{"quantization": {"bits": 4, "group_size": 64, "model.a": {"bits": 8, "group_size": 32}, "model.b": false, "model.c": true}}`))
	require.NoError(t, err)
	for module, bits := range map[string]int{"model.a": 8, "model.b": 0, "model.c": 4, "model.aa": 4} {
		groups := 1 + bits/8
		words := wordsOf(same(0x01010101), rows, cols*max(4, bits)/32)
		words.Type = tensor.U32
		ones := tensor.FromF32s(tensor.F16, slices.Repeat([]float32{1}, rows*groups), rows, groups)
		src := modules{module: {".weight": words, ".scales": ones, ".biases": ones}}
		require.Equal(t, bits != 0, s.Stored(src, module), module)
		if bits == 0 {
			continue
		}
		m, err := s.Matrix(src, module, rows, cols)
		require.NoError(t, err, module)
		got := make([]float32, cols)
		m.Float32s(got, 0, 1)
		require.Equal(t, []float32{2, float32(bits / 4)}, got[:2], module)
	}
}

// Which modules were left alone shows in the file: a short entry of a list is part of many
// names.
func TestLeftAlone(t *testing.T) {
	for suffix, config := range map[string]string{
		".qweight":       `{"quant_method": "awq", "bits": 4, "modules_to_not_convert": ["layers.1", "v"]}`,
		".SCB":           `{"quant_method": "bitsandbytes", "load_in_8bit": true, "llm_int8_skip_modules": ["layers.1", "v"]}`,
		".weight.absmax": `{"quant_method": "bitsandbytes", "load_in_4bit": true, "llm_int8_skip_modules": ["layers.1", "v"]}`,
	} {
		s, err := Parse([]byte(`{"quantization_config": ` + config + `}`))
		require.NoError(t, err)
		const module = "layers.11.v_proj"
		require.True(t, s.Stored(modules{module: {suffix: tensor.Tensor{}}}, module), suffix)
		require.False(t, s.Stored(modules{module: {".weight": tensor.Tensor{}}}, module), suffix)
	}
}

// modules are tensors in memory, by module and suffix.
type modules map[string]map[string]tensor.Tensor

func (s modules) Tensor(name string) (tensor.Tensor, string, bool) {
	for module, suffixes := range s {
		if suffix, ok := strings.CutPrefix(name, module); ok {
			t, ok := suffixes[suffix]
			return t, "model.safetensors", ok
		}
	}
	return tensor.Tensor{}, "", false
}

func TestRefuses(t *testing.T) {
	for want, text := range map[string]string{
		`"quant_method": "hqq" is not supported`: `{"quantization_config": {"quant_method": "hqq"}}`,
		`"quant_method" is missing`:              `{"quantization_config": {}}`,
		"compression_config":                     `{"compression_config": {"format": "x"}}`,
		"sparsity_config":                        `{"quantization_config": {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}}`,
		"transform_config":                       `{"quantization_config": {"quant_method": "compressed-tensors", "transform_config": {"R1": {}}}}`,
		"no group has weights":                   `{"quantization_config": {"quant_method": "compressed-tensors"}}`,
		"dynamic":                                `{"quantization_config": {"quant_method": "gptq", "bits": 4, "dynamic": {"+:.*": {}}}}`,
		"checkpoint_format":                      `{"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}}`,
		`"model.x": "group_size": nothing`:       `{"quantization": {"bits": 4, "group_size": 64, "model.x": {"bits": 8}}}`,
		`"model.x": "bits": 6`:                   `{"quantization": {"bits": 4, "group_size": 64, "model.x": {"bits": 6, "group_size": 64}}}`,
		`"model.x": "mode"`:                      `{"quantization": {"bits": 4, "group_size": 64, "model.x": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}}`,
		`"mode": "mxfp4"`:                        `{"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}}`,
		"load_in_4bit":                           `{"quantization_config": {"quant_method": "bitsandbytes"}}`,
		"weight_block_size":                      `{"quantization_config": {"quant_method": "fp8", "weight_block_size": [0, 1]}}`,
		`"quant_algo": "W4A8"`:                   `{"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8"}}`,
		"qformat_weight":                         `{"quantization": {"qformat_weight": "fp6"}}`,
		"group without a size": `{"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized",
			"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "strategy": "group"}}}}}`,
		`pattern "re:("`: `{"quantization_config": {"quant_method": "compressed-tensors", "ignore": ["re:("]}}`,
	} {
		s, err := Parse([]byte(text))
		require.ErrorIs(t, err, ErrUnsupported, text)
		require.ErrorContains(t, err, want)
		require.Nil(t, s)
	}
	_, err := Parse([]byte(`{"quantization_config": []}`))
	require.ErrorContains(t, err, "quantization")
}

// FuzzParse: no config and no mixture of the tensors of the cases ends in a panic.
func FuzzParse(f *testing.F) {
	dirs, _ := filepath.Glob("testdata/quant/*")
	var files []source
	for _, dir := range dirs {
		if text, err := os.ReadFile(filepath.Join(dir, "config.json")); err == nil {
			f.Add(text, uint8(len(files)), uint16(24), uint16(256))
			file, err := safetensors.Open(filepath.Join(dir, "model.safetensors"))
			if err != nil {
				f.Fatal(err)
			}
			files = append(files, source{file})
		}
	}
	f.Fuzz(func(t *testing.T, config []byte, at uint8, rows, cols uint16) {
		defer testfuzz.Bound(t, len(config)+1<<16)()
		s, err := Parse(config)
		if err != nil || s == nil {
			return
		}
		src := files[int(at)%len(files)]
		module := moduleOf(src.f)
		if !s.Stored(src, module) {
			return
		}
		m, err := s.Matrix(src, module, int(rows)+1, int(cols)+1)
		if err != nil {
			return
		}
		m.Float32s(make([]float32, m.Cols), m.Rows-1, 1)
	})
}
