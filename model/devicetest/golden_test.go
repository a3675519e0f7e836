//go:build (linux || darwin || windows) && (amd64 || arm64)

package devicetest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// goldenTolerance is the largest deviation allowed for a float32 computation.
const goldenTolerance = 1e-4

// Largest deviations allowed in bf16 precision: from the float32 references, and from
// the CPU, which rounds the same numbers but not always in the same direction.
const (
	bf16Bound = 0.15
	flipBound = 4e-2
)

// goldenCase is an entry of cases.json in the folder of golden models.
type goldenCase struct {
	Name   string   `json:"name"`
	Golden string   `json:"golden"`
	Files  []string `json:"files"` // of a GGUF model, in order
}

// goldenCases returns the golden models and their folder, which a variable may name.
func goldenCases(t testing.TB, variable, folder string) (dir string, cases []goldenCase) {
	if dir = os.Getenv(variable); dir == "" {
		dir = filepath.Join("..", "testdata", folder)
	}
	return dir, casesIn(t, dir)
}

func casesIn(t testing.TB, dir string) []goldenCase {
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	require.NoError(t, err)
	var index struct{ Cases []goldenCase }
	require.NoError(t, json.Unmarshal(text, &index))
	require.NotEmpty(t, index.Cases, "no golden models in %s", dir)
	return index.Cases
}

// TestGoldenModels compares logits and greedy tokens with independent references.
func TestGoldenModels(t *testing.T) {
	dir, cases := goldenCases(t, "LUKV_GOLDEN_MODELS", "models")
	checkAllGolden(t, "golden models", dir, cases)
}

// TestGoldenGGUF does so with weights of blocks of integers, in the precision int8, which a
// device does not round activations for.
func TestGoldenGGUF(t *testing.T) {
	dir, cases := goldenCases(t, "LUKV_GOLDEN_GGUF", "gguf")
	checkAllGolden(t, "golden GGUF models", dir, cases)
}

func checkAllGolden(t *testing.T, what, dir string, cases []goldenCase) {
	d := device(t)
	checks, worst := 0, 0.0
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			n, w := checkGolden(t, d, filepath.Join(dir, c.Name), c)
			checks += n
			worst = max(worst, w)
		})
	}
	line := fmt.Sprintf("%s on %s: %d checks, worst deviation %.2g", what, d.Info().Name, checks, worst)
	t.Log(line)
	fmt.Println(line)
	require.NotZero(t, checks)
}

// TestGoldenFamilies does the same with models of further families, and compares chunks and
// single tokens with the whole prompt bit for bit, and what is kept of it with what the
// processor keeps.
func TestGoldenFamilies(t *testing.T) {
	d := device(t)
	dir := os.Getenv("LUKV_GOLDEN_FAMILIES")
	if dir == "" {
		dir = filepath.Join("..", "testdata", "families")
	}
	checks, worst := 0, 0.0
	for _, c := range casesIn(t, dir) {
		t.Run(c.Name, func(t *testing.T) {
			path := filepath.Join(dir, c.Name)
			m, err := model.Open(t.Context(), path, model.WithOpenDevice(d), model.WithThreads(2))
			require.NoError(t, err)
			defer m.Close()
			n, w := checkGolden(t, d, path, c)
			checks += n
			worst = max(worst, w)

			prompt := make([]int32, 120)
			for i := range prompt {
				prompt[i] = int32(3 + i*i%(m.Config().Vocab-3))
			}
			whole := trace(t, session(t, m, model.SessionOptions{ChunkTokens: 1000}), prompt, nil)
			testnum.SameBits(t, "chunks of 17", whole, trace(t, session(t, m, model.SessionOptions{ChunkTokens: 17}), prompt, nil))
			if m.Config().Rope.Type != "longrope" { // whose earlier logits depend on the length
				testnum.SameBits(t, "token by token", whole, trace(t, session(t, m, model.SessionOptions{}), prompt[:1], prompt[1:]))
			}
			sameKept(t, d, path, prompt)
		})
	}
	fmt.Printf("golden families on %s: %d checks, worst deviation %.2g\n", d.Info().Name, checks, worst)
	require.NotZero(t, checks)
}

// sameKept compares how many entries of a prompt are kept on the device and on the
// processor, and where: equal scores within rounding may fall either way.
func sameKept(t *testing.T, d kernels.Device, path string, prompt []int32) {
	for _, metric := range []string{"snapkv", "expected_attention", "tova", "key_distance"} {
		p := &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Ratio: 0.6}
		var caches [2]*kvcache.Cache
		for i, opts := range [][]model.Option{nil, {model.WithOpenDevice(d)}} {
			m, err := model.Open(t.Context(), path, append(opts, model.WithPrecision(model.PrecisionF32), model.WithThreads(2))...)
			require.NoError(t, err)
			t.Cleanup(func() { m.Close() })
			s := session(t, m, model.SessionOptions{Compression: p})
			require.NoError(t, s.Prefill(t.Context(), prompt))
			caches[i] = s.Cache()
			if i == 0 {
				continue
			}
			kept, differ := 0, 0
			for at := range m.Config().Layers {
				for h := range m.Config().KVHeads {
					x, y := caches[0].Positions(at, h, nil), caches[1].Positions(at, h, nil)
					require.Equal(t, len(x), len(y), "%s: layer %d, head %d", metric, at, h)
					kept += len(x)
					for _, pos := range x {
						if !slices.Contains(y, pos) {
							differ++
						}
					}
				}
			}
			require.LessOrEqual(t, differ, kept/50, metric)
		}
	}
}

func checkGolden(t *testing.T, d kernels.Device, dir string, c goldenCase) (checks int, worst float64) {
	ctx := context.Background()
	from, precision := dir, model.PrecisionF32
	if len(c.Files) > 0 && filepath.Ext(c.Files[0]) == ".gguf" {
		from, precision = filepath.Join(dir, c.Files[0]), model.PrecisionInt8
	}
	m, err := model.Open(ctx, from, model.WithPrecision(precision), model.WithOpenDevice(d), model.WithThreads(2))
	require.NoError(t, err)
	defer m.Close()
	ref := openReferences(t, dir, c)
	floats, ints := ref.floats, ref.ints
	compare := func(what string, got, want []float32) {
		t.Helper()
		d := testnum.Deviation(got, want)
		worst = max(worst, d)
		require.LessOrEqualf(t, d, goldenTolerance, "%s: deviation %g", what, d)
		checks += len(want)
	}
	vocab := m.Config().Vocab
	s := session(t, m, model.SessionOptions{MaxTokens: 4096, CacheType: tensor.F32})
	compare("logits of the short prompt", trace(t, s, ints("prompt48"), nil), floats("logits48"))
	greedy := floats("greedy_logits")
	for i, want := range ints("greedy_tokens") {
		compare(fmt.Sprintf("logits of greedy token %d", i), s.Logits(), greedy[i*vocab:(i+1)*vocab])
		require.EqualValuesf(t, want, kernels.CPU{}.Argmax(s.Logits()), "greedy token %d", i)
		checks++
		require.NoError(t, s.Append(ctx, want))
	}
	long := trace(t, session(t, m, model.SessionOptions{MaxTokens: 4096, CacheType: tensor.F32}), ints("prompt200"), nil)
	compare("last logits of the long prompt", long[len(long)-8*vocab:], floats("logits200_last8"))
	return checks, worst
}

// references are the tensors of a golden file.
type references struct {
	t testing.TB
	x map[string]tensor.Tensor
}

func openReferences(t testing.TB, dir string, c goldenCase) references {
	name := c.Golden
	if name == "" {
		name = "golden.safetensors"
	}
	f, err := safetensors.Open(filepath.Join(dir, name))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	r := references{t, map[string]tensor.Tensor{}}
	for name, x := range f.All() {
		r.x[name] = x
	}
	return r
}

func (r references) floats(name string) []float32 {
	require.Contains(r.t, r.x, name)
	return r.x[name].Float32s(nil)
}

func (r references) ints(name string) (out []int32) {
	require.Contains(r.t, r.x, name)
	for data := r.x[name].Data; len(data) > 0; data = data[8:] {
		out = append(out, int32(binary.LittleEndian.Uint64(data)))
	}
	return out
}

// TestGoldenBF16 runs the golden models that have bf16 weights in bf16 precision, in
// which products may use matrix units.
func TestGoldenBF16(t *testing.T) {
	d := device(t)
	dir, cases := goldenCases(t, "LUKV_GOLDEN_MODELS", "models")
	checks, stored, host := 0, 0.0, 0.0
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			folder := filepath.Join(dir, c.Name)
			ref := openReferences(t, folder, c)
			logits := func(opts ...model.Option) []float32 {
				m, err := model.Open(context.Background(), folder, append(opts, model.WithPrecision(model.PrecisionBF16), model.WithThreads(2))...)
				require.NoError(t, err)
				t.Cleanup(func() { m.Close() })
				if m.Config().Type != tensor.BF16 {
					t.Skip("its weights are not bf16")
				}
				s := session(t, m, model.SessionOptions{MaxTokens: 4096})
				return trace(t, s, ref.ints("prompt48"), ref.ints("greedy_tokens"))
			}
			own := logits(model.WithOpenDevice(d))
			want := ref.floats("logits48")
			a, b := testnum.Deviation(own[:len(want)], want), testnum.Deviation(own, logits())
			require.LessOrEqual(t, a, bf16Bound, "from the references")
			require.LessOrEqual(t, b, flipBound, "from the processor")
			stored, host, checks = max(stored, a), max(host, b), checks+len(own)
		})
	}
	line := fmt.Sprintf("golden models in bf16 on %s, matrices %s: %d checks, from the references %.2g, from the processor %.2g", d.Info().Name, d.Info().Matrices, checks, stored, host)
	t.Log(line)
	fmt.Println(line)
	require.NotZero(t, checks)
}
