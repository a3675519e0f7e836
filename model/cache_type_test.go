package model

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/internal/testnum"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/kvcache"
	"github.com/lukv/lukv/lukv"
	"github.com/lukv/lukv/model/arch"
	"github.com/lukv/lukv/tensor"
)

var intShape = testShape{name: "ints", layers: 3, hidden: 64, ffn: 96, heads: 4, kv: 2, dim: 32, biases: true, weights: tensor.BF16}

// intPolicy evicts 60 % of a cache of a type.
func intPolicy(metric, cacheType string) *lukv.Policy {
	return &lukv.Policy{Metric: lukv.MetricConfig{Name: metric}, Ratio: 0.6, CacheType: cacheType}
}

// TestIntegerCaches compresses a context in caches of integers: instruction sets keep the same
// entries and compute the same logits, before and after forks, truncation and files, and the
// cache holds the bytes that were foretold.
func TestIntegerCaches(t *testing.T) {
	prompt, steps := randomTokens(300, 97, 1), randomTokens(5, 97, 2)
	for _, name := range []string{"int8", "k8v4", "int4"} {
		for _, metric := range []string{"snapkv", "keydiff"} {
			t.Run(name+"/"+metric, func(t *testing.T) {
				var kept *Trace
				var want []float32
				for _, cpu := range kernels.Variants() {
					m := intShape.open(t, WithThreads(2), WithCPU(cpu))
					o := SessionOptions{Compression: intPolicy(metric, name), ChunkTokens: 70, Trace: func(tr *Trace) {
						if kept == nil {
							kept = tr
						}
						assert.Equal(t, kept.Positions, tr.Positions, "%v", cpu)
					}}
					s := newTestSession(t, m, o)
					require.NoError(t, s.Prefill(t.Context(), prompt))
					need, err := m.CacheEstimate(o, Lengths{Context: len(prompt)})
					require.NoError(t, err)
					st := s.Stats()
					assert.Equal(t, need.Held, st.CacheBytes)
					assert.Equal(t, need.Peak, st.PeakBytes)
					fork, err := s.Fork()
					require.NoError(t, err)
					defer fork.Close()
					file := filepath.Join(t.TempDir(), "session")
					require.NoError(t, s.Save(t.Context(), file))
					loaded, err := m.LoadSession(t.Context(), file, SessionOptions{})
					require.NoError(t, err)
					defer loaded.Close()
					for _, s := range []*Session{s, fork, loaded} {
						got := logitsAfter(t, s, steps)
						if want == nil {
							want = got
						}
						testnum.SameBits(t, cpu.String(), want, got)
					}
				}
			})
		}
	}
}

// logitsAfter returns the logits after each of some tokens.
func logitsAfter(t *testing.T, s *Session, tokens []int32) (all []float32) {
	for _, id := range tokens {
		require.NoError(t, s.Append(t.Context(), id))
		all = append(all, s.Logits()...)
	}
	return all
}

// A cache of integers takes the promised part of a bf16 cache, positions and scales included.
func TestIntegerCachesAreSmall(t *testing.T) {
	for name, most := range map[string]map[int]float64{"int8": {64: 0.54, 128: 0.52}, "int4": {64: 0.30, 128: 0.30}} {
		for dim, most := range most {
			keys, values, err := kvcache.ParseType(name)
			require.NoError(t, err)
			wide := kernels.PageLayout{Type: tensor.BF16, HeadDim: dim, PageEntries: 64}
			l := kernels.PageLayout{Type: keys, Values: values, HeadDim: dim, PageEntries: 64}
			assert.LessOrEqual(t, float64(l.Bytes())/float64(wide.Bytes()), most, "%s, heads of %d", name, dim)
		}
	}
}

// TestLargeKeyBiases adds a large bias, as Qwen2 has, to two elements of the keys of a layer. With
// bf16 keys there, int8 stays close to a cache of float32; without, it does not.
func TestLargeKeyBiases(t *testing.T) {
	cfg := intShape.config()
	w := randomWeights(t, cfg, tensor.F32, 7)
	bias := w.Layers[1].Tensors[arch.RoleKBias].Float32s(nil)
	bias[14], bias[14+cfg.HeadDim] = 600, -600
	w.Layers[1].Tensors[arch.RoleKBias] = tensor.FromF32s(tensor.F32, bias, len(bias))
	m, err := New(cfg, w, WithPrecision(PrecisionF32))
	require.NoError(t, err)
	defer m.Close()
	require.Equal(t, []bool{false, true, false}, m.net.Wide)

	prompt, steps := randomTokens(200, 97, 1), randomTokens(8, 97, 2)
	run := func(o SessionOptions) []float32 {
		s := newTestSession(t, m, o)
		require.NoError(t, s.Prefill(t.Context(), prompt))
		need, err := m.CacheEstimate(o, Lengths{Context: len(prompt)})
		require.NoError(t, err)
		require.Equal(t, need.Held, s.Stats().CacheBytes)
		return logitsAfter(t, s, steps)
	}
	want := run(SessionOptions{})
	wide := rootMeanSquare(want, run(SessionOptions{CacheType: tensor.I8}))
	m.net.Wide = nil
	narrow := rootMeanSquare(want, run(SessionOptions{CacheType: tensor.I8}))
	t.Logf("error of logits: %.2g with bf16 keys, %.2g without", wide, narrow)
	assert.Less(t, 4*wide, narrow)
}

// TestIntegerCachesOnDevices runs a model whose first layer has a large bias of keys, and so keys
// of bf16, with a cache of 8 bits on a device with the host's arithmetic, all of it or the first
// layers: the same entries are kept, logits have the same bits, also of forks and of sessions
// that were saved elsewhere, and the bytes are the same.
func TestIntegerCachesOnDevices(t *testing.T) {
	cfg := intShape.config()
	w := randomWeights(t, cfg, tensor.F32, 7)
	bias := w.Layers[0].Tensors[arch.RoleKBias].Float32s(nil)
	bias[3] = 300
	w.Layers[0].Tensors[arch.RoleKBias] = tensor.FromF32s(tensor.F32, bias, len(bias))
	models := []*Model{nil, nil, nil}
	for i := range models {
		opts := []Option{WithPrecision(PrecisionF32), WithThreads(2)}
		if i > 0 {
			d := newFakeDevice()
			t.Cleanup(func() { d.WantEmpty(t) })
			opts = append(opts, WithOpenDevice(d), WithDeviceLayers([]int{0, 3, 2}[i]))
		}
		own := *cfg
		m, err := New(&own, w, opts...)
		require.NoError(t, err)
		t.Cleanup(func() { m.Close() })
		models[i] = m
	}
	prompt, steps := randomTokens(300, 97, 1), randomTokens(5, 97, 2)
	for _, metric := range []string{"snapkv", "keydiff", "expected_attention"} {
		var kept *Trace
		var want []float32
		for _, m := range models {
			o := SessionOptions{Compression: intPolicy(metric, "int8"), ChunkTokens: 70, Trace: func(tr *Trace) {
				if kept == nil {
					kept = tr
				}
				assert.Equal(t, kept.Positions, tr.Positions, metric)
			}}
			s := newTestSession(t, m, o)
			require.NoError(t, s.Prefill(t.Context(), prompt))
			st := s.Stats()
			need, err := m.CacheEstimate(o, Lengths{Context: len(prompt)})
			require.NoError(t, err)
			assert.Equal(t, need.Held, st.CacheBytes)
			assert.Equal(t, m.DeviceLayers() == cfg.Layers, st.DeviceBytes == st.CacheBytes)
			fork, err := s.Fork()
			require.NoError(t, err)
			defer fork.Close()
			file := filepath.Join(t.TempDir(), "session")
			require.NoError(t, s.Save(t.Context(), file))
			sessions := []*Session{s, fork}
			for _, other := range models {
				loaded, err := other.LoadSession(t.Context(), file, SessionOptions{})
				require.NoError(t, err)
				defer loaded.Close()
				sessions = append(sessions, loaded)
			}
			for i, s := range sessions {
				got := logitsAfter(t, s, steps)
				if want == nil {
					want = got
				}
				testnum.SameBits(t, fmt.Sprint(metric, ", session ", i), want, got)
				require.NoError(t, s.Truncate(len(prompt)))
				testnum.SameBits(t, fmt.Sprint(metric, ", session ", i, " again"), want, logitsAfter(t, s, steps))
			}
		}
	}
}

func rootMeanSquare(a, b []float32) float64 {
	sum := 0.0
	for i := range a {
		d := float64(a[i] - b[i])
		sum += d * d
	}
	return math.Sqrt(sum / float64(len(a)))
}

func TestCacheTypesRefused(t *testing.T) {
	m := testShapes[0].open(t) // heads of 16
	_, err := m.NewSession(SessionOptions{CacheType: tensor.Q4_0})
	require.ErrorContains(t, err, "cache type int4 with a head dimension of 16, expected a multiple of 32")
	_, err = m.NewSession(SessionOptions{CacheType: tensor.I8, CacheValues: tensor.F16})
	require.ErrorContains(t, err, "expected values of integers")
	_, err = m.NewSession(SessionOptions{Compression: &lukv.Policy{CacheType: "int9"}})
	require.ErrorContains(t, err, `cache type "int9", expected f32, f16, bf16, int8, k8v4 or int4`)

	s := newTestSession(t, m, SessionOptions{})
	err = s.PrefillCompressed(t.Context(), randomTokens(100, 97, 1), intPolicy("snapkv", "int8"))
	require.ErrorContains(t, err, "cache type int8, but the session's cache is bf16")

	on, _ := intShape.onDevice(t, 1)
	for _, name := range []string{"int4", "k8v4"} {
		_, err = on.NewSession(SessionOptions{Compression: intPolicy("snapkv", name)})
		require.ErrorContains(t, err, "cache type "+name+" with layers on a device, which holds f32, f16, bf16 or int8")
	}
}
