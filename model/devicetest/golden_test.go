//go:build (linux || darwin || windows) && (amd64 || arm64)

package devicetest

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// goldenTolerance is the largest deviation that a float32 computation may show.
const goldenTolerance = 1e-4

// goldenCase is an entry of cases.json in the folder of golden models.
type goldenCase struct {
	Name   string `json:"name"`
	Golden string `json:"golden"`
}

// TestGoldenModels compares logits and greedy tokens with the independent
// references.
func TestGoldenModels(t *testing.T) {
	d := device(t)
	dir := os.Getenv("LUKV_GOLDEN_MODELS")
	if dir == "" {
		dir = filepath.Join("..", "testdata", "models")
	}
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	require.NoError(t, err)
	var index struct{ Cases []goldenCase }
	require.NoError(t, json.Unmarshal(text, &index))
	require.NotEmpty(t, index.Cases, "no golden models in %s", dir)
	checks, worst := 0, 0.0
	for _, c := range index.Cases {
		t.Run(c.Name, func(t *testing.T) {
			n, w := checkGolden(t, d, filepath.Join(dir, c.Name), c)
			checks += n
			worst = max(worst, w)
		})
	}
	line := fmt.Sprintf("golden models on %s: %d checks, worst deviation %.2g", d.Info().Name, checks, worst)
	t.Log(line)
	fmt.Println(line)
	require.NotZero(t, checks)
}

func checkGolden(t *testing.T, d kernels.Device, dir string, c goldenCase) (checks int, worst float64) {
	ctx := context.Background()
	m, err := model.Open(ctx, dir, model.WithPrecision(model.PrecisionF32), model.WithOpenDevice(d), model.WithThreads(2))
	require.NoError(t, err)
	defer m.Close()
	if c.Golden == "" {
		c.Golden = "golden.safetensors"
	}
	f, err := safetensors.Open(filepath.Join(dir, c.Golden))
	require.NoError(t, err)
	defer f.Close()
	ref := map[string]tensor.Tensor{}
	for name, x := range f.All() {
		ref[name] = x
	}
	floats := func(name string) []float32 {
		require.Contains(t, ref, name)
		return ref[name].Float32s(nil)
	}
	ints := func(name string) (out []int32) {
		require.Contains(t, ref, name)
		for data := ref[name].Data; len(data) > 0; data = data[8:] {
			out = append(out, int32(binary.LittleEndian.Uint64(data)))
		}
		return out
	}
	compare := func(what string, got, want []float32) {
		t.Helper()
		d := testnum.Deviation(got, want)
		worst = max(worst, d)
		require.LessOrEqualf(t, d, goldenTolerance, "%s: deviation %g", what, d)
		checks += len(want)
	}
	vocab := m.Config().Vocab
	s := session(t, m, model.SessionOptions{MaxTokens: 4096})
	compare("logits of the short prompt", trace(t, s, ints("prompt48"), nil), floats("logits48"))
	greedy := floats("greedy_logits")
	for i, want := range ints("greedy_tokens") {
		compare(fmt.Sprintf("logits of greedy token %d", i), s.Logits(), greedy[i*vocab:(i+1)*vocab])
		require.EqualValuesf(t, want, kernels.CPU{}.Argmax(s.Logits()), "greedy token %d", i)
		checks++
		require.NoError(t, s.Append(ctx, want))
	}
	long := trace(t, session(t, m, model.SessionOptions{MaxTokens: 4096}), ints("prompt200"), nil)
	compare("last logits of the long prompt", long[len(long)-8*vocab:], floats("logits200_last8"))
	return checks, worst
}
