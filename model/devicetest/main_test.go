//go:build (linux || darwin || windows) && (amd64 || arm64)

package devicetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kernels/vulkan"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/tensor"
)

// findings are the messages of the validation layer, which fail the tests.
var findings struct {
	mu   sync.Mutex
	list []string
}

func TestMain(m *testing.M) {
	os.Setenv("LUKV_CHECK", "1")
	code := m.Run()
	if n := len(findings.list); n > 0 {
		fmt.Fprintf(os.Stderr, "the validation layer reported %d messages\n", n)
		code = 1
	}
	os.Exit(code)
}

func deviceName() string {
	if name := os.Getenv("LUKV_TEST_DEVICE"); name != "" {
		return name
	}
	return "llvmpipe"
}

// open opens the device with the validation layer, if that is installed.
func open() (kernels.Device, error) {
	o := vulkan.Options{CacheDir: "-", GPUAssisted: os.Getenv("LUKV_VULKAN_GPU_ASSISTED") == "1"}
	o.Validation = func(message string) {
		findings.mu.Lock()
		defer findings.mu.Unlock()
		findings.list = append(findings.list, message)
		fmt.Fprintln(os.Stderr, "validation:", message) // at once, since the tests may not reach the end
	}
	d, err := vulkan.Open(deviceName(), o)
	if err != nil && !o.GPUAssisted && strings.Contains(err.Error(), "VK_LAYER_KHRONOS_validation is not installed") {
		o.Validation = nil
		return vulkan.Open(deviceName(), o)
	}
	return d, err
}

// device opens the device, or skips.
func device(t testing.TB) kernels.Device {
	t.Helper()
	d, err := open()
	if err != nil {
		if os.Getenv("LUKV_MUST_VULKAN") == "1" {
			t.Fatalf("LUKV_MUST_VULKAN is set, but there is no device: %v", err)
		}
		t.Skipf("no device: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// shape is a small random model.
type shape struct {
	name    string
	layers  int
	hidden  int
	ffn     int
	heads   int
	kv      int
	dim     int
	window  int // of every odd layer
	biases  bool
	qkNorm  bool
	weights tensor.Type
}

const vocab = 97

var shapes = []shape{
	{name: "gqa-bf16", layers: 3, hidden: 64, ffn: 96, heads: 8, kv: 2, dim: 32, weights: tensor.BF16},
	{name: "mha-f16-biases", layers: 2, hidden: 48, ffn: 80, heads: 3, kv: 3, dim: 32, biases: true, weights: tensor.F16},
	{name: "window-f32-norms", layers: 3, hidden: 48, ffn: 64, heads: 6, kv: 2, dim: 32, window: 40, qkNorm: true, weights: tensor.F32},
}

func (s shape) config() *model.Config {
	cfg := &model.Config{
		Arch: "llama", Layers: s.layers, Hidden: s.hidden, Intermediate: s.ffn, Heads: s.heads, KVHeads: s.kv,
		HeadDim: s.dim, Vocab: vocab, MaxPositions: 1 << 20, NormEps: 1e-5, Rope: arch.RopeConfig{Theta: 10000},
		QKVBias: s.biases, OutBias: s.biases, MLPBias: s.biases, QKNorm: s.qkNorm,
		Windows: make([]int, s.layers), EOS: []int{96}, Type: s.weights,
	}
	for i := 1; i < s.layers; i += 2 {
		cfg.Windows[i] = s.window
	}
	return cfg
}

func (s shape) open(t testing.TB, opts ...model.Option) *model.Model {
	t.Helper()
	cfg := s.config()
	w, err := weights.Random(t.Context(), cfg, s.weights, 7)
	require.NoError(t, err)
	m, err := model.New(cfg, w, append(opts, model.WithThreads(2))...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

func session(t testing.TB, m *model.Model, o model.SessionOptions) *model.Session {
	t.Helper()
	s, err := m.NewSession(o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func randomTokens(n int, seed uint64) []int32 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(r.IntN(vocab))
	}
	return out
}

// trace returns the logits after every token of a prompt and of steps that
// follow one at a time.
func trace(t testing.TB, s *model.Session, prompt, steps []int32) []float32 {
	t.Helper()
	ctx := context.Background()
	var all []float32
	require.NoError(t, s.PrefillEach(ctx, prompt, func(_ int, logits []float32) error {
		all = append(all, logits...)
		return nil
	}))
	for _, id := range steps {
		require.NoError(t, s.Append(ctx, id))
		all = append(all, s.Logits()...)
	}
	return all
}
