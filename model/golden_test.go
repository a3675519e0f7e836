package model

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// goldenCase is an entry of cases.json in the folder of golden models.
type goldenCase struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Golden      string `json:"golden"`
	Debug       string `json:"debug"`

	Files []string `json:"files"` // of a GGUF model, in order

	// Of quantised models: the Kullback-Leibler divergence that 8-bit activations cost, in
	// nats, mean and largest over positions, by the size of their blocks.
	KLMean   float64 `json:"a8_kl_mean"`
	KLMax    float64 `json:"a8_kl_max"`
	KLMean32 float64 `json:"a8_kl_mean_b32"`
	KLMax32  float64 `json:"a8_kl_max_b32"`
}

// path is what to open of a case in dir.
func (c *goldenCase) path(dir string) string {
	if len(c.Files) > 0 && strings.HasSuffix(c.Files[0], ".gguf") {
		return filepath.Join(dir, c.Name, c.Files[0])
	}
	return filepath.Join(dir, c.Name)
}

// goldenTolerance is the largest deviation, max |x-ref| / max |ref|, that a
// float32 computation may show.
const goldenTolerance = 1e-4

func goldenModels(t testing.TB) (string, []goldenCase) {
	return goldenCases(t, "LUKV_GOLDEN_MODELS", filepath.Join("testdata", "models"))
}

// goldenCases reads the index of the folder that an environment variable names, or of dir.
func goldenCases(t testing.TB, variable, dir string) (string, []goldenCase) {
	dir = cmp.Or(os.Getenv(variable), dir)
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	require.NoError(t, err)
	var index struct {
		Tolerance struct{ Rel float64 }
		Cases     []goldenCase
	}
	require.NoError(t, json.Unmarshal(text, &index))
	require.NotEmpty(t, index.Cases, "no golden models in %s", dir)
	return dir, index.Cases
}

// reference is a golden tensor.
type reference struct {
	shape  []int
	floats []float32
	ints   []int32
}

func references(t testing.TB, path string) map[string]reference {
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	out := map[string]reference{}
	for name, x := range f.All() {
		r := reference{shape: append([]int(nil), x.Shape...)}
		if x.Type == tensor.I64 {
			for i := 0; i < len(x.Data); i += 8 {
				r.ints = append(r.ints, int32(binary.LittleEndian.Uint64(x.Data[i:])))
			}
		} else {
			r.floats = append([]float32(nil), x.Float32s(nil)...)
		}
		out[name] = r
	}
	return out
}

func prefillLogits(t testing.TB, s *Session, tokens []int32) []float32 {
	var all []float32
	require.NoError(t, s.PrefillEach(context.Background(), tokens, func(_ int, logits []float32) error {
		all = append(all, logits...)
		return nil
	}))
	return all
}

// TestGoldenModels compares logits and greedy tokens with the independent
// references, in f32 precision for every instruction set that the processor has.
func TestGoldenModels(t *testing.T) {
	dir, cases := goldenModels(t)
	checkAllGolden(t, "golden models", dir, cases)
}

// checkAllGolden checks every case on every instruction set that the processor has.
func checkAllGolden(t *testing.T, what, dir string, cases []goldenCase) {
	checks, worst := 0, 0.0
	for _, c := range cases {
		for _, cpu := range kernels.Variants() {
			t.Run(c.Name+"/"+cpu.String(), func(t *testing.T) {
				n, w := checkGolden(t, dir, c, cpu)
				checks += n
				worst = max(worst, w)
			})
		}
	}
	fmt.Printf("%s: %d checks, worst deviation %.2g\n", what, checks, worst)
	require.NotZero(t, checks)
}

func checkGolden(t *testing.T, dir string, c goldenCase, cpu kernels.CPU) (checks int, worst float64) {
	ctx := context.Background()
	m, err := Open(ctx, c.path(dir), WithPrecision(PrecisionF32), WithCPU(cpu), WithThreads(2))
	require.NoError(t, err)
	defer m.Close()
	name := c.Golden
	if name == "" {
		name = "golden.safetensors"
	}
	ref := references(t, filepath.Join(dir, c.Name, name))
	compare := func(what string, got, want []float32) {
		t.Helper()
		d := testnum.Deviation(got, want)
		worst = max(worst, d)
		require.LessOrEqualf(t, d, goldenTolerance, "%s: deviation %g", what, d)
		checks += len(want)
	}
	session := func() *Session {
		s, err := m.NewSession(SessionOptions{MaxTokens: 4096})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}

	s := session()
	logits := prefillLogits(t, s, ref["prompt48"].ints)
	compare("logits of the short prompt", logits, ref["logits48"].floats)

	vocab := m.Config().Vocab
	for i, want := range ref["greedy_tokens"].ints {
		compare(fmt.Sprintf("logits of greedy token %d", i), s.Logits(), ref["greedy_logits"].floats[i*vocab:(i+1)*vocab])
		require.EqualValuesf(t, want, m.net.CPU.Argmax(s.Logits()), "greedy token %d", i)
		checks++
		require.NoError(t, s.Append(ctx, want))
	}

	// The same tokens with lookup decoding.
	looked, err := m.NewSession(SessionOptions{MaxTokens: 4096, Lookup: true})
	require.NoError(t, err)
	defer looked.Close()
	require.NoError(t, looked.Prefill(ctx, ref["prompt48"].ints))
	var tokens []int32
	for tok, err := range looked.Generate(ctx, Sampling{IgnoreEOS: true, MaxTokens: len(ref["greedy_tokens"].ints)}) {
		require.NoError(t, err)
		tokens = append(tokens, tok.ID)
	}
	require.Equal(t, ref["greedy_tokens"].ints, tokens)
	checks += len(tokens)

	long := session()
	logits = prefillLogits(t, long, ref["prompt200"].ints)
	compare("last logits of the long prompt", logits[len(logits)-8*vocab:], ref["logits200_last8"].floats)

	if c.Debug != "" {
		checks += checkDebug(t, m, references(t, filepath.Join(dir, c.Name, c.Debug)), ref["prompt48"].ints)
	}
	return checks, worst
}

// checkDebug compares cached keys and values with those of the reference.
func checkDebug(t *testing.T, m *Model, ref map[string]reference, prompt []int32) (checks int) {
	s, err := m.NewSession(SessionOptions{})
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Prefill(context.Background(), prompt))
	c := m.Config()
	for at := range c.Layers {
		for _, kind := range []string{"key", "value"} {
			want, ok := ref[fmt.Sprintf("layers.%d.%s", at, kind)]
			require.True(t, ok)
			var got []float32
			for h := range c.KVHeads {
				n := s.cache.Len(at, h)
				drop := len(prompt) - n // a window may have dropped the first ones
				rows := s.cache.Keys(at, h, 0, n, nil)
				if kind == "value" {
					rows = s.cache.Values(at, h, 0, n, nil)
				}
				got = rows
				from := h*len(prompt) + drop
				d := testnum.Deviation(got, want.floats[from*c.HeadDim:(h+1)*len(prompt)*c.HeadDim])
				require.LessOrEqualf(t, d, goldenTolerance, "layer %d head %d %s: deviation %g", at, h, kind, d)
				checks += len(got)
			}
		}
	}
	return checks
}
