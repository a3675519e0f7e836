//go:build (linux || darwin || windows) && (amd64 || arm64)

package devicetest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/model/weights"
	"github.com/lukv/lukv/tensor"
)

// integerBound is the largest deviation of logits over a cache of 8 bits from those of the
// processor, which rounds queries and weights of attention to integers and sometimes a key or a
// value the other way.
const integerBound = 2e-2

// integerModels are the golden models that run with such a cache: groups of heads, windows, biases
// and norms of keys. All of them take minutes on a software device.
var integerModels = []string{"llama31-gqa-bf16", "qwen2-window-mixed-bf16", "qwen3-tied-bf16"}

// onBoth opens a golden model on the processor and on a device.
func onBoth(t *testing.T, d kernels.Device, path string) (host, on *model.Model) {
	for i, opts := range [][]model.Option{nil, {model.WithOpenDevice(d)}} {
		m, err := model.Open(t.Context(), path, append(opts, model.WithPrecision(model.PrecisionF32), model.WithThreads(2))...)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		if i == 0 {
			host = m
		} else {
			on = m
		}
	}
	return host, on
}

// TestGoldenIntegerCaches runs golden models with a cache of 8 bits on the device and on the
// processor: logits are close, metrics keep the same entries at 80 % removed, but for scores that
// tie within rounding, in as many bytes, and a session that is saved on one side and loaded on
// the other goes on as it would have.
func TestGoldenIntegerCaches(t *testing.T) {
	d := device(t)
	dir, cases := goldenCases(t, "LUKV_GOLDEN_MODELS", "models")
	checks, worst, kept, differ := 0, 0.0, 0, 0
	for _, c := range cases {
		switch {
		case testing.Short() && checks > 0, !slices.Contains(integerModels, c.Name) && os.Getenv("LUKV_GOLDEN_MODELS") == "":
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			folder := filepath.Join(dir, c.Name)
			ref := openReferences(t, folder, c)
			host, on := onBoth(t, d, folder)
			o := model.SessionOptions{MaxTokens: 4096, CacheType: tensor.I8}
			near := func(what string, want, got []float32) {
				x := testnum.Deviation(got, want)
				worst, checks = max(worst, x), checks+len(want)
				require.LessOrEqual(t, x, integerBound, what)
			}
			prompt, steps := ref.ints("prompt48"), ref.ints("greedy_tokens")
			got := trace(t, session(t, on, o), prompt, steps)
			near("logits", trace(t, session(t, host, o), prompt, steps), got)
			o.ChunkTokens = 17
			testnum.SameBits(t, "chunks of 17", got, trace(t, session(t, on, o), prompt, steps))

			for _, metric := range []string{"snapkv", "keydiff", "expected_attention", "key_distance"} {
				o.Compression = &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Ratio: 0.8}
				a, b := session(t, host, o), session(t, on, o)
				for _, s := range []*model.Session{a, b} {
					require.NoError(t, s.Prefill(t.Context(), ref.ints("prompt200")))
				}
				all, other := differences(keptBy(a), keptBy(b))
				kept, differ = kept+all, differ+other
				require.LessOrEqual(t, other, all/100, metric)
				require.Equal(t, a.Stats().CacheBytes, b.Stats().CacheBytes)
				require.Equal(t, b.Stats().CacheBytes, b.Stats().DeviceBytes)
				if other == 0 {
					near(metric, after(t, a, steps), after(t, b, steps))
				}
				move(t, a, on, steps, near)
				move(t, b, host, steps, near)
			}
		})
	}
	line := fmt.Sprintf("golden models with caches of 8 bits on %s: %d checks, worst deviation from the processor %.2g, %d of %d kept entries differ", d.Info().Name, checks, worst, differ, kept)
	t.Log(line)
	fmt.Println(line)
	require.NotZero(t, checks)
}

// keptBy returns the positions that each head holds.
func keptBy(s *model.Session) (all [][]int32) {
	c := s.Cache().Options()
	for at := range c.Layers {
		for h := range c.KVHeads {
			all = append(all, s.Cache().Positions(at, h, nil))
		}
	}
	return all
}

// differences counts the positions of heads, and those that other heads lack.
func differences(of, other [][]int32) (all, differ int) {
	for h, positions := range of {
		all += len(positions)
		for _, pos := range positions {
			if !slices.Contains(other[h], pos) {
				differ++
			}
		}
	}
	return all, differ
}

// after returns the logits after each of some tokens, in a fork.
func after(t *testing.T, s *model.Session, steps []int32) (all []float32) {
	f, err := s.Fork()
	require.NoError(t, err)
	defer f.Close()
	for _, id := range steps {
		require.NoError(t, f.Append(t.Context(), id))
		all = append(all, f.Logits()...)
	}
	return all
}

// move saves a session, loads it in another model and, from there, back.
func move(t *testing.T, s *model.Session, to *model.Model, steps []int32, near func(what string, want, got []float32)) {
	want, kept := after(t, s, steps), keptBy(s)
	there, err := to.LoadSession(t.Context(), save(t, s), model.SessionOptions{MaxTokens: 4096})
	require.NoError(t, err)
	defer there.Close()
	require.NoError(t, there.Cache().Check())
	require.Equal(t, kept, keptBy(there))
	near("elsewhere", want, after(t, there, steps))
	back, err := s.Model().LoadSession(t.Context(), save(t, there), model.SessionOptions{MaxTokens: 4096})
	require.NoError(t, err)
	defer back.Close()
	testnum.SameBits(t, "back again", want, after(t, back, steps))
}

func save(t *testing.T, s *model.Session) string {
	path := filepath.Join(t.TempDir(), "session")
	require.NoError(t, s.Save(t.Context(), path))
	return path
}

// TestWideKeys runs a model with a large bias of keys in its first layer, whose keys stay bf16 in
// a cache of 8 bits, with all layers on the device and with the last one on the processor, and
// refuses caches of 4 bits.
func TestWideKeys(t *testing.T) {
	d := device(t)
	shape := shape{layers: 3, hidden: 48, ffn: 64, heads: 6, kv: 2, dim: 32, biases: true, weights: tensor.F32}
	cfg := shape.config()
	w, err := weights.Random(t.Context(), cfg, shape.weights, 7)
	require.NoError(t, err)
	bias := w.Layers[0].Tensors[arch.RoleKBias].Float32s(nil)
	bias[3] = 300
	w.Layers[0].Tensors[arch.RoleKBias] = tensor.FromF32s(tensor.F32, bias, len(bias))
	prompt, steps := randomTokens(promptLen, 1), randomTokens(4, 2)
	var want []float32
	for _, opts := range [][]model.Option{nil, {model.WithOpenDevice(d)}, {model.WithOpenDevice(d), model.WithDeviceLayers(2)}} {
		own := *cfg
		m, err := model.New(&own, w, append(opts, model.WithThreads(2), model.WithPrecision(model.PrecisionF32))...)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		o := model.SessionOptions{CacheType: tensor.I8}
		s := session(t, m, o)
		got := trace(t, s, prompt, steps)
		cache := s.Cache().Options()
		require.Equal(t, []tensor.Type{tensor.BF16, tensor.I8}, []tensor.Type{cache.Layout(0).Type, cache.Layout(1).Type})
		if want == nil {
			want = slices.Clone(got)
			continue
		}
		dev := testnum.Deviation(got, want)
		t.Logf("%d layers on the device: deviation from the processor %.2g", m.DeviceLayers(), dev)
		require.LessOrEqual(t, dev, integerBound)
		o.ChunkTokens = 64
		testnum.SameBits(t, "chunks of 64", got, trace(t, session(t, m, o), prompt, steps))
		_, err = m.NewSession(model.SessionOptions{CacheType: tensor.Q4_0})
		require.ErrorContains(t, err, "cache type int4 with layers on a device")
	}
}
